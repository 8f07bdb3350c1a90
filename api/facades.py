"""Routes of other APIs that clients insist on, answered from our own objects.

Namespaces and events of core/v1 are what `controlplane/kinds/core.py` makes of our Projects and Events, with everything
that our own kinds have: pages, selectors, tables, watches. The public command line sends Prometheus queries for `top`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from api.deps import Deps, principal
from api.negotiation import Accepted, negotiate
from api.options import list_options
from api.rendering import Renderer
from api.watch import is_watch, watch_response
from controlplane.errors import ApiError, Reason
from controlplane.identity.scopes import require
from controlplane.kinds.core import EVENTS, NAMESPACES, Facade
from controlplane.machinery.kind import Verb
from controlplane.machinery.selectors import FieldTerm, parse_labels
from controlplane.machinery.table import parse_include
from controlplane.store.contract import Key, Selection

_FUNCTIONS = "functions"


class FacadeRoutes:
    """The handlers."""

    def __init__(self, deps: Deps) -> None:
        self._deps = deps
        self._resources = deps.resources

    def routes(self) -> Sequence[BaseRoute]:
        """Namespaces, events and metrics queries."""
        namespaces, events = partial(self.collection, NAMESPACES), partial(self.collection, EVENTS)
        return (
            Route("/api/v1/namespaces", namespaces, methods=["GET"]),
            Route("/api/v1/namespaces/{project}", self.namespace, methods=["GET"]),
            Route("/api/v1/events", events, methods=["GET"]),
            Route("/api/v1/namespaces/{project}/events", events, methods=["GET"]),
            Route("/metrics/v1/namespaces/{project}/api/v1/query", self.metrics, methods=["GET", "POST"]),
        )

    async def collection(self, facade: Facade, request: Request) -> Response:
        """Lists and watches, of one project or of all that the caller may see."""
        caller, query = principal(request), request.query_params
        project = request.path_params.get("project")
        watching = is_watch(request)
        require(caller, facade.kind.scope_resource, Verb.WATCH if watching else Verb.LIST, project)
        accepted = negotiate(request.headers.get("accept", ""))
        fields = facade.terms(query.get("fieldSelector", ""))
        if project is not None:
            fields = (*fields, FieldTerm(facade.behind.project_field, True, project))
        selection = Selection(
            kind=facade.behind.kind,
            org=caller.org,
            project="",
            labels=parse_labels(query.get("labelSelector", "")),
            fields=fields,
            projects=caller.project_limit,
            project_field=facade.behind.project_field,
        )
        reword = partial(_reworded, facade)
        if watching:
            return watch_response(request, self._deps, facade.kind, selection, accepted, reword)
        page = await self._resources.reader.list(selection, list_options(query))
        shown = replace(page, documents=[reword(document) for document in page.documents])
        return _json(self._renderer(request, facade, accepted).page(shown))

    async def namespace(self, request: Request) -> Response:
        """One project as a core/v1 Namespace."""
        caller, name = principal(request), request.path_params["project"]
        require(caller, NAMESPACES.kind.scope_resource, Verb.GET, name)
        accepted = negotiate(request.headers.get("accept", ""))
        try:
            document = await self._resources.reader.get(Key(NAMESPACES.behind.kind, caller.org, "", name))
        except ApiError as error:
            if error.reason is not Reason.NOT_FOUND:
                raise
            raise ApiError(
                Reason.NOT_FOUND, f'namespaces "{name}" not found', details={"name": name, "kind": "namespaces"}
            ) from None
        return _json(self._renderer(request, NAMESPACES, accepted).one(_reworded(NAMESPACES, document)))

    async def metrics(self, request: Request) -> Response:
        """An empty vector: workers are not metered by the second, so `top` shows what an object's status tells."""
        caller, project = principal(request), request.path_params["project"]
        require(caller, self._deps.kinds[_FUNCTIONS].scope_resource, Verb.GET, project)
        await self._resources.admission.require_project(caller.org, project)
        empty = {"status": "success", "data": {"resultType": "vector", "result": []}}
        return _json(orjson.dumps(empty))

    def _renderer(self, request: Request, facade: Facade, accepted: Accepted) -> Renderer:
        include = parse_include(request.query_params.get("includeObject", ""))
        return Renderer(facade.kind, accepted, self._deps.clock, include)


def _reworded(facade: Facade, document: bytes) -> bytes:
    return orjson.dumps(facade.reword(orjson.loads(document)))


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")
