"""`…/transactions`, `…/usagerecords`, `…/billingaccounts`, `…/creditgrants` and `…/topups`: kinds that are read from
the ledger.

No object is stored for them, so they are not watched and have no history; the generic routes hand over what they have
authorised (`Deps.derived`). Whatever needs a card answers PaymentsNotConfigured, after the caller's right to it was
looked at.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

import orjson
from starlette.requests import Request
from starlette.responses import Response

from api.deps import Derived, SubresourceHandler, Target
from api.derived import page_of
from api.rendering import Renderer
from controlplane.clock import Clock
from controlplane.errors import ApiError, Reason, not_found
from controlplane.identity.principal import Principal
from controlplane.kinds.billing_account import ACCOUNT_NAME, BILLING_ACCOUNT, TOP_UP
from controlplane.kinds.credit_grant import CREDIT_GRANT
from controlplane.kinds.transaction import TRANSACTION
from controlplane.kinds.usage_record import USAGE_RECORD
from controlplane.ledger.grants import Grants
from controlplane.ledger.periods import Range, parse_range
from controlplane.ledger.statements import Cursor, Statements
from controlplane.ledger.usage import Usage, group_keys
from controlplane.machinery.documents import value_at
from controlplane.machinery.kind import Document, Kind
from controlplane.resources import Page
from controlplane.resources.continuation import ContinueTokens
from controlplane.resources.listing import parse_count
from controlplane.settings import Settings
from controlplane.store.contract import Key, Selection
from controlplane.store.numbered import NEWEST, allowed
from controlplane.store.selection import named

ITEMS_MAX = 1_000
"""Of a page; each is made for it. The public clients follow `continue`."""

_Read = Callable[[Selection, Range, int, str], Awaitable[tuple[list[Document], str]]]
"""A page and where the next one begins, in a word of the kind's own."""


class BillingRoutes:
    """The handlers."""

    def __init__(self, statements: Statements, grants: Grants, usage: Usage, settings: Settings, clock: Clock) -> None:
        self._statements = statements
        self._grants = grants
        self._usage = usage
        self._clock = clock
        self._items_max = min(ITEMS_MAX, settings.list_items_max)
        self._tokens = ContinueTokens(settings.secret_key)
        self._lists: Mapping[str, _Read] = {
            TRANSACTION.plural: self._transactions,
            USAGE_RECORD.plural: self._records,
            BILLING_ACCOUNT.plural: self._accounts,
            CREDIT_GRANT.plural: self._credit_grants,
            TOP_UP.plural: self._no_top_ups,
        }

    def derived(self) -> Mapping[str, Derived]:
        """What the generic routes do not find among the objects, by plural."""
        return dict.fromkeys(self._lists, Derived(list=self.page, get=self.get, write=self.refuse))

    def subresources(self) -> Mapping[tuple[str, str, str], SubresourceHandler]:
        """What joins the generic routes: pages of payments that nobody serves here."""
        methods = {"create": "POST", "get": "GET"}
        return {
            (BILLING_ACCOUNT.plural, subresource.name, methods[verb]): self._refuse_below
            for subresource in BILLING_ACCOUNT.subresources
            for verb in subresource.verbs
        }

    async def page(self, request: Request, selection: Selection, renderer: Renderer) -> bytes:
        """A page, or with `?groupBy=` a UsageSummary."""
        if selection.labels:
            raise ApiError(
                Reason.BAD_REQUEST,
                "`labelSelector` does not select what is made of the ledger",
                fix="Use `fieldSelector`, or `groupBy=label:<key>` of usagerecords.",
            )
        query = request.query_params
        within = parse_range(query.get("since", ""), query.get("until", ""), self._clock.now())
        keys = group_keys(query.get("groupBy", "")) if selection.kind == USAGE_RECORD.kind else []
        if keys:
            projects = allowed(selection.projects)
            return orjson.dumps(await self._usage.summary(selection.org, projects, within, selection.fields, keys))
        name = named(selection)
        if name is not None:
            return renderer.page(Page(await self._named(selection, name), 0))
        limit = parse_count("limit", query.get("limit", "")) or self._items_max
        token, after = query.get("continue", ""), ""
        if token:
            key, _ = self._tokens.decode(token, selection)
            after = key.name
        items, following = await self._lists[request.path_params["plural"]](
            selection, within, min(limit, self._items_max), after
        )
        last = Key(selection.kind, selection.org, "", following)
        return renderer.page(page_of(items, self._tokens.encode(selection, None, last) if following else ""))

    async def _named(self, selection: Selection, name: str) -> list[bytes]:
        """The list of the one object of this name, or of none."""
        found = await self._made(selection.kind, selection.org, allowed(selection.projects), name)
        return [] if found is None else [orjson.dumps(found)]

    async def get(self, caller: Principal, kind: Kind, name: str) -> bytes:
        """One of them; NotFound when there is none."""
        found = await self._made(kind.kind, caller.org, allowed(caller.project_limit), name)
        if found is None:
            raise not_found(kind.plural, name)
        return orjson.dumps(found)

    async def _made(self, kind: str, org: str, projects: Sequence[str] | None, name: str) -> Document | None:
        if kind == TRANSACTION.kind:
            return await self._statements.transaction(org, projects, name)
        if kind == USAGE_RECORD.kind:
            return await self._usage.record(org, projects, name)
        if kind == BILLING_ACCOUNT.kind and name == ACCOUNT_NAME:
            _require_all(projects)
            return await self._account(org)
        if kind == CREDIT_GRANT.kind:
            return await self._grants.document(org, name)
        return None

    async def refuse(self) -> bytes:
        """What needs a card."""
        raise _no_payments()

    async def _refuse_below(self, request: Request, caller: Principal, target: Target) -> Response:
        raise _no_payments()

    async def _transactions(
        self, selection: Selection, within: Range, limit: int, after: str
    ) -> tuple[list[Document], str]:
        cursor = Cursor(*map(int, after.split(":"))) if after else None
        found, following = await self._statements.transactions(
            selection.org, allowed(selection.projects), within, selection.fields, limit, cursor
        )
        return found, f"{following.seq}:{following.balance_micro_usd}" if following is not None else ""

    async def _records(self, selection: Selection, within: Range, limit: int, after: str) -> tuple[list[Document], str]:
        found, following = await self._usage.records(
            selection.org, allowed(selection.projects), within, selection.fields, limit, int(after) if after else NEWEST
        )
        return found, str(following) if following is not None else ""

    async def _accounts(
        self, selection: Selection, within: Range, limit: int, after: str
    ) -> tuple[list[Document], str]:
        return [await self._account(selection.org)], ""

    async def _account(self, org: str) -> Document:
        return await self._statements.account(org, await self._grants.next_expiry(org))

    async def _credit_grants(
        self, selection: Selection, within: Range, limit: int, after: str
    ) -> tuple[list[Document], str]:
        made = [
            grant
            for grant in await self._grants.documents(selection.org)
            if all((str(value_at(grant, term.path) or "") == term.value) is term.equal for term in selection.fields)
        ]
        start = int(after or 0)
        return made[start : start + limit], str(start + limit) if len(made) > start + limit else ""

    async def _no_top_ups(
        self, selection: Selection, within: Range, limit: int, after: str
    ) -> tuple[list[Document], str]:
        return [], ""


def _require_all(projects: Sequence[str] | None) -> None:
    if projects is not None:
        raise ApiError(
            Reason.FORBIDDEN,
            "what an organisation has is told to keys for all projects only",
            fix="Use a key for all projects.",
        )


def _no_payments() -> ApiError:
    return ApiError(Reason.PAYMENTS_NOT_CONFIGURED, "this server takes no payments, so nothing can be bought here")
