"""The generic routes: every verb of every kind.

A request is parsed, authorised and handed to `controlplane/resources`; the answer is rendered in the form the client
accepts. Which kinds there are, and what they allow, is read from the table of kinds, so this file knows none of them by
name except FunctionCall, whose batches have a route of their own below their Function.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from api.bodies import read_body, too_large
from api.changes import VIEWS, WHOLE, Changes, View
from api.deps import Deps, Target, principal
from api.negotiation import Accepted, BodyType, body_type, negotiate
from api.options import create_options, decoded, delete_options, field_check, list_options
from api.rendering import Renderer, pretty, warning_header
from api.watch import is_watch, watch_response
from controlplane.errors import ApiError, Cause, Reason, not_found
from controlplane.identity.principal import Principal
from controlplane.identity.scopes import Access, needed, require_change, require_object, require_subresource
from controlplane.machinery.documents import value_at
from controlplane.machinery.field_validation import FieldCheck
from controlplane.machinery.kind import API_VERSION, READ_VERBS, Document, Kind, Scope, Subresource, Verb
from controlplane.machinery.managed_fields import STATUS
from controlplane.machinery.selectors import by_labels, parse_fields, parse_labels
from controlplane.machinery.shapes import shape_of
from controlplane.machinery.table import parse_include
from controlplane.resources import Answer
from controlplane.store.contract import Key, Selection

_ROOT = f"/apis/{API_VERSION}"
_VERBS_OF_OBJECT = {"GET": Verb.GET, "HEAD": Verb.GET, "PUT": Verb.UPDATE, "PATCH": Verb.PATCH, "DELETE": Verb.DELETE}
_VERBS_OF_SUBRESOURCE = {method: verb.value for method, verb in _VERBS_OF_OBJECT.items()} | {"POST": Verb.CREATE.value}
_VERBS_OF_COLLECTION = {
    "GET": Verb.LIST,
    "HEAD": Verb.LIST,
    "POST": Verb.CREATE,
    "DELETE": Verb.DELETE_COLLECTION,
}
_VERBS_OVER_PROJECTS = {"GET": Verb.LIST, "HEAD": Verb.LIST}
_CALLS_OF_FUNCTION = ("functions", "calls", "POST")
_CALLS_PLURAL = "functioncalls"
_CAUSES_MAX = 100
"""Problems told of one batch; an answer with one for each of 1,000 items would help nobody."""


class _AnyMethod(Route):
    """A route whose handler judges the method: whether a path is served at all depends on the kind it names."""

    def __init__(self, path: str, endpoint: Callable[[Request], Awaitable[Response]]) -> None:
        super().__init__(path, endpoint)
        self.methods = None


class ResourceRoutes:
    """The handlers, one for each shape of path."""

    def __init__(self, deps: Deps) -> None:
        self._deps = deps
        self._resources = deps.resources
        self._changes = Changes(deps, self._authorise)
        self._subresources = {_CALLS_OF_FUNCTION: self._create_calls, **deps.subresources}

    def routes(self) -> Sequence[BaseRoute]:
        """One route for each shape; the hot ones first, because they are tried in order."""
        below_project = _ROOT + "/namespaces/{project}/{plural}"
        below_org = _ROOT + "/{plural}"
        found: list[BaseRoute] = []
        for root in (below_project, below_org):
            found += [
                _AnyMethod(root, self.collection),
                _AnyMethod(root + "/{name}", self.object),
                _AnyMethod(root + "/{name}/{subresource}", self.subresource),
                _AnyMethod(root + "/{name}/{subresource}/{rest:path}", self.subresource),
            ]
        return found

    async def collection(self, request: Request) -> Response:
        """Lists, watches, creates, and deletes of whatever matches."""
        caller, target = principal(request), self._target(request)
        over_projects = target.kind.scope is Scope.PROJECT and not target.project
        verb = self._verb(request, target.kind, _VERBS_OVER_PROJECTS if over_projects else _VERBS_OF_COLLECTION)
        accepted = negotiate(request.headers.get("accept", ""))
        watching = verb is Verb.LIST and is_watch(request)
        if watching and Verb.WATCH not in target.kind.verbs:
            raise _not_allowed("a watch", target.kind.plural, ("GET",))
        await self._authorise(caller, target, Verb.WATCH if watching else verb)
        derived = self._deps.derived.get(target.kind.plural)
        if verb is Verb.CREATE:
            if derived is not None:
                return _answer(request, await derived.write())
            return await self._create(request, caller, target, accepted)
        selection = _selection(request, target, caller)
        if verb is Verb.DELETE_COLLECTION:
            return await self._delete_collection(request, selection)
        if watching:
            return watch_response(request, self._deps, target.kind, selection, accepted)
        if derived is not None:
            renderer = self._renderer(request, target.kind, accepted)
            return _answer(request, await derived.list(request, selection, renderer))
        page = await self._resources.reader.list(selection, list_options(request.query_params))
        return _answer(request, self._renderer(request, target.kind, accepted).page(page))

    async def object(self, request: Request) -> Response:
        """Reads, replaces, patches and deletes one object."""
        caller, target = principal(request), self._target(request)
        verb = self._verb(request, target.kind, _VERBS_OF_OBJECT)
        renderer = self._renderer(request, target.kind, negotiate(request.headers.get("accept", "")))
        await self._authorise(caller, target, verb)
        key = _key(target, caller)
        derived = self._deps.derived.get(target.kind.plural)
        if derived is not None:
            made = await (derived.get(caller, target.kind, target.name) if verb is Verb.GET else derived.write())
            return _answer(request, renderer.one(made))
        match verb:
            case Verb.GET:
                return await self._get(request, renderer, caller, target)
            case Verb.DELETE:
                options = delete_options(request, await self._raw_body(request))
                return _written(request, renderer, await self._resources.deleter.delete(key, options))
            case _:
                changed = await self._changes.change(request, caller, target, WHOLE)
                return _written(request, renderer, changed.answer, changed.warnings)

    async def subresource(self, request: Request) -> Response:
        """What is served below an object by those who registered it, or as a view of the object itself."""
        caller, target = principal(request), self._target(request)
        method = "GET" if request.method == "HEAD" else request.method
        handler = self._subresources.get((target.kind.plural, target.subresource, method))
        served = next((found for found in target.kind.served_subresources if found.name == target.subresource), None)
        if handler is not None and served is not None:
            await self._authorise_subresource(caller, target, served, _VERBS_OF_SUBRESOURCE[method])
            return await handler(request, caller, target)
        view, verb = VIEWS.get(target.subresource), _VERBS_OF_OBJECT.get(method)
        if view is not None and served is not None and not target.rest and verb and verb.value in served.verbs:
            await self._authorise(caller, target, verb)
            return await self._view(request, caller, target, view, verb)
        allowed = self._methods_of(target)
        if allowed:
            raise _not_allowed(method, f"{target.kind.plural}/{target.subresource}", allowed)
        raise ApiError(
            Reason.NOT_FOUND,
            f"the server could not find the requested resource: {target.kind.plural} have no subresource "
            f'"{target.subresource}"',
        )

    def _methods_of(self, target: Target) -> set[str]:
        """What is served on the path of a subresource, nothing when there is no such path."""
        plural, name = target.kind.plural, target.subresource
        allowed = {method for kind, below, method in self._subresources if (kind, below) == (plural, name)}
        if name in VIEWS and not target.rest:
            served = next((found for found in target.kind.served_subresources if found.name == name), None)
            verbs = served.verbs if served is not None else ()
            allowed |= {method for method, verb in _VERBS_OF_OBJECT.items() if verb.value in verbs}
        return allowed | ({"HEAD"} if "GET" in allowed else set())

    async def _view(self, request: Request, caller: Principal, target: Target, view: View, verb: Verb) -> Response:
        """Reads or changes what a view shows of an object; a Scale has no other form than JSON."""
        renderer = self._renderer(request, target.kind, negotiate(request.headers.get("accept", "")))
        if verb is not Verb.GET:
            changed = await self._changes.change(request, caller, target, view)
            if target.subresource == STATUS:
                return _written(request, renderer, changed.answer, changed.warnings)
            return _answer(request, changed.answer.body, warnings=changed.warnings)
        if target.subresource == STATUS:
            return await self._get(request, renderer, caller, target)
        content = await self._resources.reader.get(
            _key(target, caller), request.query_params.get("resourceVersion", "")
        )
        document = orjson.loads(content)
        return _answer(request, orjson.dumps(view.read(target.kind, document)))

    async def _get(self, request: Request, renderer: Renderer, caller: Principal, target: Target) -> Response:
        content = await self._resources.reader.get(
            _key(target, caller), request.query_params.get("resourceVersion", "")
        )
        document = orjson.loads(content)
        field = target.kind.project_field
        if field and not caller.sees_project(value_at(document, field)):
            raise not_found(target.kind.plural, target.name)
        return _answer(request, renderer.one(content), etag=f'"{document["metadata"]["resourceVersion"]}"')

    async def _create(self, request: Request, caller: Principal, target: Target, accepted: Accepted) -> Response:
        may_be_batch = target.kind.plural == _CALLS_PLURAL
        content = await (self._batch_body(request) if may_be_batch else self._raw_body(request))
        check = field_check(request.query_params)
        body = decoded(request, content, check)
        is_list = body.get("kind") == target.kind.list_kind
        if not is_list and len(content) > self._deps.settings.body_bytes_max:
            raise too_large(Reason.REQUEST_ENTITY_TOO_LARGE, self._deps.settings.body_bytes_max)
        options = create_options(request, caller, content)
        if is_list:
            if target.kind.plural != _CALLS_PLURAL:
                raise ApiError(Reason.BAD_REQUEST, f"a {target.kind.list_kind} cannot be created; send its items")
            items = _items(body, target.kind, check)
            answer = await self._resources.creator.create_many(target.kind, target.project, items, caller, options)
            return _answer(request, answer.body, status=answer.status, warnings=check.warnings)
        if target.kind.shorthand is not None:
            body = target.kind.shorthand(body)
        body = check.admit(partial(shape_of, target.kind), body)
        answer = await self._resources.creator.create(target.kind, target.project, body, caller, options)
        return _written(request, self._renderer(request, target.kind, accepted), answer, check.warnings)

    async def _create_calls(self, request: Request, caller: Principal, target: Target) -> Response:
        """`POST …/functions/{name}/calls`: many calls of one Function, all or none."""
        calls = self._deps.kinds[_CALLS_PLURAL]
        content = await self._batch_body(request)
        check = field_check(request.query_params)
        body = decoded(request, content, check)
        if body.get("kind") not in (None, calls.list_kind) or body.get("apiVersion") not in (None, API_VERSION):
            raise ApiError(Reason.BAD_REQUEST, f"the body must be a {calls.list_kind} of {API_VERSION}")
        items = _items(body, calls, check)

        async def require() -> None:
            await self._require_function(caller, target)
            _check_callee(items, target.name)

        options = create_options(request, caller, content)
        answer = await self._resources.creator.create_many(calls, target.project, items, caller, options, require)
        return _answer(request, answer.body, status=answer.status, warnings=check.warnings)

    async def _require_function(self, caller: Principal, target: Target) -> None:
        """404 FunctionNotFound before anything is said about the items: it makes all of them pointless."""
        found = await self._resources.admission.lookup(caller.org, target.project).get(target.kind.kind, target.name)
        if found is None or "deletionTimestamp" in found["metadata"]:
            raise ApiError(
                Reason.FUNCTION_NOT_FOUND,
                f'functions.nodus.dev "{target.name}" not found',
                subject=("functions", target.name),
            )

    async def _delete_collection(self, request: Request, selection: Selection) -> Response:
        options = delete_options(request, await self._raw_body(request))
        listed = list_options(request.query_params)
        answer = await self._resources.collections.delete(selection, listed, options)
        return _answer(request, answer.body)

    async def _authorise(self, caller: Principal, target: Target, verb: Verb) -> None:
        """403 unless the caller may; 404 when the project does not exist, or an object is of one it may not see."""
        require_object(caller, target.kind, verb, target.project, target.name)
        if target.project:
            await self._resources.admission.require_project(caller.org, target.project)
        if target.kind.scope_to_change is not None and target.name and verb not in READ_VERBS:
            lookup = self._resources.admission.lookup(caller.org, target.project)
            found = await lookup.get(target.kind.kind, target.name)
            require_change(caller, target.kind, target.name, found)

    async def _authorise_subresource(self, caller: Principal, target: Target, served: Subresource, verb: str) -> None:
        """The same for what is served below an object; who may claim is judged by the route of claims, which alone
        answers a worker whose attempt has ended."""
        if needed(target.kind, served, verb)[1] is Access.CLAIM:
            return
        require_subresource(caller, target.kind, served, verb, target.project)
        if target.project:
            await self._resources.admission.require_project(caller.org, target.project)

    def _target(self, request: Request) -> Target:
        """What the path addresses; 404 for a kind that is not served, or not at this level."""
        parameters = request.path_params
        kind = self._deps.kinds.get(parameters["plural"])
        project, name = parameters.get("project", ""), parameters.get("name", "")
        at_home = kind is not None and (
            (kind.scope is Scope.PROJECT and (bool(project) or not name)) or (kind.scope is Scope.ORG and not project)
        )
        if kind is None or not at_home:
            raise ApiError(
                Reason.NOT_FOUND,
                f"the server could not find the requested resource: {request.url.path}",
                fix=f"GET {_ROOT} lists the kinds, and whether they belong to a project.",
            )
        return Target(kind, project, name, parameters.get("subresource", ""), parameters.get("rest", ""))

    @staticmethod
    def _verb(request: Request, kind: Kind, verbs: Mapping[str, Verb]) -> Verb:
        verb = verbs.get(request.method)
        if verb is None or verb not in kind.verbs:
            allowed = (method for method, verb in verbs.items() if verb in kind.verbs)
            over_projects = verbs is _VERBS_OVER_PROJECTS
            told = f"all projects' {kind.plural}; name a project" if over_projects else kind.plural
            raise _not_allowed(request.method, told, allowed)
        return verb

    async def _raw_body(self, request: Request) -> bytes:
        return await read_body(request, self._deps.settings.body_bytes_max)

    async def _batch_body(self, request: Request) -> bytes:
        """A body that may hold many calls; YAML, which takes far longer to read than JSON, gets no more room."""
        settings = self._deps.settings
        if body_type(request.headers.get("content-type", "")) is BodyType.YAML:
            return await read_body(request, settings.body_bytes_max, Reason.FUNCTION_CALL_BATCH_TOO_LARGE)
        return await read_body(request, settings.batch_body_bytes_max, Reason.FUNCTION_CALL_BATCH_TOO_LARGE)

    def _renderer(self, request: Request, kind: Kind, accepted: Accepted) -> Renderer:
        include = parse_include(request.query_params.get("includeObject", ""))
        return Renderer(kind, accepted, self._deps.clock, include)


def _key(target: Target, caller: Principal) -> Key:
    return Key(target.kind.kind, caller.org, target.project, target.name)


def _selection(request: Request, target: Target, caller: Principal) -> Selection:
    """What a list covers: the path, the selectors, and no more projects than the caller may see."""
    query = request.query_params
    over_projects = target.kind.scope is Scope.PROJECT and not target.project
    labels, fields = by_labels(
        target.kind,
        parse_labels(query.get("labelSelector", "")),
        parse_fields(query.get("fieldSelector", ""), target.kind),
    )
    return Selection(
        kind=target.kind.kind,
        org=caller.org,
        project=None if over_projects else target.project,
        labels=labels,
        fields=fields,
        projects=caller.project_limit if target.kind.project_field else None,
        project_field=target.kind.project_field,
    )


def _items(body: Document, kind: Kind, check: FieldCheck) -> list[Document]:
    """The objects of a list; 422 for what is none."""
    items: Any = body.get("items")
    if not isinstance(items, list) or not items:
        problem = "must be a list of at least one object"
        raise ApiError(Reason.INVALID, f"`items` {problem}", causes=(Cause("items", problem),))
    wrong = [position for position, item in enumerate(items) if not isinstance(item, dict)]
    if wrong:
        causes = tuple(Cause(f"items[{position}]", "must be an object") for position in wrong[:_CAUSES_MAX])
        raise ApiError(Reason.INVALID, f"{len(wrong)} items are not objects", causes=causes)
    shape = partial(shape_of, kind)
    return [check.admit(shape, item, f"items[{position}]") for position, item in enumerate(items)]


def _check_callee(items: Sequence[Document], function: str) -> None:
    """422 unless every call of a batch is to the Function of the path."""
    problem = f'must be "{function}", the Function in the path'
    causes = tuple(
        Cause(f"items[{position}].spec.function", problem)
        for position, item in enumerate(items)
        if isinstance(item.get("spec"), dict) and item["spec"].get("function", function) != function
    )
    if causes:
        told = f"{len(causes)} items call another Function than the path"
        raise ApiError(Reason.INVALID, told, causes=causes[:_CAUSES_MAX])


def _not_allowed(method: str, what: str, allowed: Iterable[str]) -> ApiError:
    return ApiError(Reason.METHOD_NOT_ALLOWED, f"{method} is not allowed on {what}", allowed=allowed)


def _written(request: Request, renderer: Renderer, answer: Answer, warnings: Sequence[str] = ()) -> Response:
    """What a writing verb answers: the object in the form asked for, or the Status of a delete."""
    body = answer.body if answer.body.startswith(b'{"kind":"Status"') else renderer.one(answer.body)
    return _answer(request, body, status=answer.status, etag=answer.etag, warnings=warnings)


def _answer(
    request: Request, body: bytes, *, status: int = 200, etag: str | None = None, warnings: Sequence[str] = ()
) -> Response:
    query = request.query_params
    if query and query.get("pretty", "").lower() in ("true", "1"):
        body = pretty(body)
    response = Response(
        body, status_code=status, media_type="application/json", headers={"ETag": etag} if etag is not None else None
    )
    for warning in warnings:
        response.headers.append("Warning", warning_header(warning))
    return response
