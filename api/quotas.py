"""`…/quotas`: what an operator allows the organisation and its projects, with what is used at the moment.

No object is stored for them, so they are not watched; the generic routes hand over what they have authorised
(`Deps.derived`). What they say is `controlplane/limits/quota_view.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

import orjson
from starlette.requests import Request

from api.deps import Derived
from api.derived import page_of
from api.rendering import Renderer
from controlplane.errors import ApiError, Reason, not_found
from controlplane.identity.principal import Principal
from controlplane.kinds.quota import QUOTA
from controlplane.limits.quota_view import QuotaView
from controlplane.machinery.kind import Document, Kind
from controlplane.machinery.meta import select_fields
from controlplane.resources.continuation import ContinueTokens
from controlplane.resources.listing import parse_count
from controlplane.settings import Settings
from controlplane.store.contract import Key, Selection
from controlplane.store.numbered import allowed
from controlplane.store.selection import matches, named

ITEMS_MAX = 100
"""Of a page: each counts what a project has."""


class QuotaRoutes:
    """The handlers."""

    def __init__(self, view: QuotaView, settings: Settings) -> None:
        self._view = view
        self._tokens = ContinueTokens(settings.secret_key)

    def derived(self) -> Mapping[str, Derived]:
        """What the generic routes do not find among the objects, by plural."""
        return {QUOTA.plural: Derived(list=self.page, get=self.get, write=self.refuse)}

    async def page(self, request: Request, selection: Selection, renderer: Renderer) -> bytes:
        """A page of those that the selectors match."""
        projects = allowed(selection.projects)
        name = named(selection)
        following: str | None = None
        if name is not None:
            one = await self._view.one(selection.org, projects, name)
            found = [] if one is None else [one]
        else:
            query = request.query_params
            token = query.get("continue", "")
            after = self._tokens.decode(token, selection)[0].name if token else None
            limit = min(parse_count("limit", query.get("limit", "")) or ITEMS_MAX, ITEMS_MAX)
            found, following = await self._view.page(selection.org, projects, limit, after)
        shown = [document for document in found if _is_selected(selection, document)]
        token = "" if following is None else self._tokens.encode(selection, None, _key(selection.org, following))
        return renderer.page(page_of(shown, token))

    async def get(self, caller: Principal, kind: Kind, name: str) -> bytes:
        """One of them; NotFound when there is none, or none that the caller may see."""
        found = await self._view.one(caller.org, allowed(caller.project_limit), name)
        if found is None:
            raise not_found(kind.plural, name)
        return orjson.dumps(found)

    async def refuse(self) -> bytes:
        """No verb of the kind writes."""
        raise ApiError(Reason.METHOD_NOT_ALLOWED, "quotas are set by the operator of this server")


def _is_selected(selection: Selection, document: Document) -> bool:
    key = _key(selection.org, document["metadata"]["name"])
    return matches(selection, key, {}, select_fields(QUOTA, document))


def _key(org: str, name: str) -> Key:
    return Key(QUOTA.kind, org, "", name)
