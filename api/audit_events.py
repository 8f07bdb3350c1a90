"""`…/auditevents`: a kind that is read from the audit log; no object is stored for it, so it is not watched.

The generic routes hand over what they have authorised (`Deps.derived`), as they do for what is read from the ledger.
"""

from __future__ import annotations

from collections.abc import Mapping

import orjson
from starlette.requests import Request

from api.deps import Derived
from api.derived import page_of
from api.rendering import Renderer
from controlplane.audit.reading import AuditLog
from controlplane.clock import Clock
from controlplane.errors import ApiError, Reason, not_found
from controlplane.identity.principal import Principal
from controlplane.kinds.audit_event import AUDIT_EVENT
from controlplane.ledger.periods import parse_range
from controlplane.machinery.kind import Kind
from controlplane.resources.continuation import ContinueTokens
from controlplane.resources.listing import parse_count
from controlplane.settings import Settings
from controlplane.store.contract import Key, Selection
from controlplane.store.numbered import NEWEST, allowed
from controlplane.store.selection import named

EVENTS_MAX = 1_000
"""Of a page; each is made for it. kubectl asks for 500 and follows `continue`."""


class AuditEventRoutes:
    """The handlers."""

    def __init__(self, log: AuditLog, settings: Settings, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._events_max = min(EVENTS_MAX, settings.list_items_max)
        self._tokens = ContinueTokens(settings.secret_key)

    def derived(self) -> Mapping[str, Derived]:
        """What the generic routes do not find among the objects."""
        return {AUDIT_EVENT.plural: Derived(list=self.page, get=self.get, write=_refuse)}

    async def page(self, request: Request, selection: Selection, renderer: Renderer) -> bytes:
        """A page, the newest first; `?since=` and `?until=` bound the time."""
        if selection.labels:
            raise ApiError(
                Reason.BAD_REQUEST,
                "`labelSelector` does not select events of the audit log, which have no labels",
                fix="Use `fieldSelector`, for instance `principal.name=…` or `object.kind=…`.",
            )
        query, projects = request.query_params, allowed(selection.projects)
        within = parse_range(query.get("since", ""), query.get("until", ""), self._clock.now())
        name = named(selection)
        if name is not None:
            found = await self._log.event(selection.org, projects, name)
            return renderer.page(page_of([] if found is None else [found], ""))
        limit = parse_count("limit", query.get("limit", "")) or self._events_max
        before, token = NEWEST, query.get("continue", "")
        if token:
            before = int(self._tokens.decode(token, selection)[0].name)
        events, following = await self._log.page(
            selection.org, projects, within, selection.fields, min(limit, self._events_max), before
        )
        last = Key(selection.kind, selection.org, "", str(following))
        return renderer.page(page_of(events, "" if following is None else self._tokens.encode(selection, None, last)))

    async def get(self, caller: Principal, kind: Kind, name: str) -> bytes:
        """One event; NotFound when there is none."""
        found = await self._log.event(caller.org, allowed(caller.project_limit), name)
        if found is None:
            raise not_found(kind.plural, name)
        return orjson.dumps(found)


async def _refuse() -> bytes:
    """No verb of the kind writes, so no request comes here."""
    raise ApiError(Reason.METHOD_NOT_ALLOWED, "the audit log is written by the server alone", allowed=("GET",))
