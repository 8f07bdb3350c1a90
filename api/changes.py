"""PUT and PATCH: what a request makes of an object, or of a view of it (`/status`, `/scale`).

Here the body becomes a function from the stored object to the wanted one, whatever kind of patch it is; the verbs in
`controlplane/resources` read, judge and write. The routes that call this are in `resources.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import orjson
from starlette.requests import Request

from api.bodies import read_body
from api.deps import Deps, Target
from api.negotiation import BodyType, body_type, patch_type
from api.options import dry_run, field_check, force, manager
from controlplane.errors import ApiError, Reason
from controlplane.identity.principal import Principal
from controlplane.machinery.apply import Apply
from controlplane.machinery.field_validation import FieldCheck
from controlplane.machinery.kind import Document, Kind, Verb
from controlplane.machinery.managed_fields import STATUS, Manager, Operation
from controlplane.machinery.patch import json_patch, merge_patch
from controlplane.machinery.scale import scale_of, scaled
from controlplane.machinery.shapes import LEAF, Shape, shape_of
from controlplane.machinery.validation import decode_object
from controlplane.resources import Answer, CreateOptions
from controlplane.resources.changing import Produce
from controlplane.store.contract import Key

Authorise = Callable[[Principal, Target, Verb], Awaitable[None]]
"""Refuses a caller that may not do this to that."""


@dataclass(frozen=True, slots=True)
class View:
    """A form in which an object is read and written: as itself, or as what one of its subresources shows."""

    subresource: str
    shape: Callable[[Kind], Shape]
    read: Callable[[Kind, Document], Document]
    write: Callable[[Kind, Document, Document], Document]
    """From the stored object and the wanted form of it to the wanted object."""


def _itself(_kind: Kind, document: Document) -> Document:
    return document


def _replaced(_kind: Kind, _stored: Document, wanted: Document) -> Document:
    return wanted


WHOLE = View("", shape_of, _itself, _replaced)
VIEWS = {
    STATUS: View(STATUS, shape_of, _itself, _replaced),
    "scale": View("scale", lambda _kind: LEAF, scale_of, scaled),
}


@dataclass(frozen=True, slots=True)
class Changed:
    """The answer to a change, in the form of its view, and what the client is to be warned about."""

    answer: Answer
    warnings: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """One request, read."""

    caller: Principal
    target: Target
    key: Key
    view: View
    sort: BodyType
    content: bytes
    check: FieldCheck
    manager: Manager
    force: bool
    dry_run: bool
    if_match: str | None


class Changes:
    """Takes PUT and PATCH requests. `authorise` is asked again when an apply is about to create its object."""

    def __init__(self, deps: Deps, authorise: Authorise) -> None:
        self._deps = deps
        self._authorise = authorise
        self._resources = deps.resources

    async def change(self, request: Request, caller: Principal, target: Target, view: View) -> Changed:
        """Do what the request asks; the caller was authorised before."""
        content_type, query = request.headers.get("content-type", ""), request.query_params
        sort = body_type(content_type) if request.method == "PUT" else patch_type(content_type)
        operation = Operation.APPLY if sort is BodyType.APPLY else Operation.UPDATE
        asked = _Asked(
            caller=caller,
            target=target,
            key=Key(target.kind.kind, caller.org, target.project, target.name),
            view=view,
            sort=sort,
            content=await read_body(request, self._deps.settings.body_bytes_max),
            check=field_check(query),
            manager=manager(request, operation, view.subresource),
            force=force(query, operation),
            dry_run=dry_run(query),
            if_match=request.headers.get("if-match"),
        )
        answer = await (self._apply(asked) if sort is BodyType.APPLY else self._update(asked))
        if view.read is not _itself:
            shown = orjson.dumps(view.read(target.kind, orjson.loads(answer.body)))
            answer = Answer(answer.status, shown)
        return Changed(answer, asked.check.warnings)

    async def _apply(self, asked: _Asked) -> Answer:
        body = decode_object(asked.check.apply(asked.content))
        metadata = body.get("metadata")
        if isinstance(metadata, dict) and metadata.get("managedFields"):
            raise ApiError(
                Reason.BAD_REQUEST,
                "`metadata.managedFields` must not be in what is applied: the server keeps it",
                fix="Leave `metadata.managedFields` out.",
            )
        kind = asked.target.kind
        wanted = asked.check.admit(partial(asked.view.shape, kind), body)
        config = asked.view.write(kind, {"metadata": {"name": asked.key.name}}, wanted)
        apply = Apply(kind, config, asked.manager, force=asked.force)

        async def before_create() -> None:
            CreateOptions(if_match=asked.if_match).require_unbound()
            await self._authorise(asked.caller, asked.target, Verb.CREATE)

        return await self._resources.applier.apply(
            kind, asked.key, apply, asked.caller, before_create, dry_run=asked.dry_run
        )

    async def _update(self, asked: _Asked) -> Answer:
        is_yaml = asked.sort is BodyType.YAML
        body = asked.check.yaml(asked.content) if is_yaml else asked.check.json(asked.content)
        patched = _PATCHES[asked.sort](body)
        kind, shape = asked.target.kind, partial(asked.view.shape, asked.target.kind)

        def produce(stored: Document) -> Document:
            wanted = asked.check.admit(shape, patched(asked.view.read(kind, stored)))
            return asked.view.write(kind, stored, wanted)

        return await self._resources.changer.change(
            asked.key,
            produce,
            asked.caller,
            body=body if isinstance(body, dict) and asked.view is WHOLE else None,
            dry_run=asked.dry_run,
            manager=asked.manager,
        )


def _replacement(body: object) -> Produce:
    wanted = decode_object(body)
    return lambda _stored: wanted


_PATCHES: dict[BodyType, Callable[[object], Produce]] = {
    BodyType.JSON: _replacement,
    BodyType.YAML: _replacement,
    BodyType.JSON_PATCH: lambda patch: lambda stored: json_patch(stored, patch),
    BodyType.MERGE_PATCH: lambda patch: lambda stored: merge_patch(stored, patch),
}
