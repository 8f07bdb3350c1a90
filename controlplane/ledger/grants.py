"""Grants of credit: what is left of each, and the end of those whose time is over.

The ledger keeps what was granted and what was charged, not which of the one paid for the other; that follows from one
rule, `allotted`: the grant that expires first pays first, of those that never do the oldest. What expires unspent goes
back where it came from by a transfer of its own (kind `lapse`), which is why the rule has no memory: a grant that has
lapsed is worth what it paid. What work holds lapses when it is let go of. Credit that a refund gave back belongs to no
grant and never expires.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from controlplane.clock import Clock, format_time
from controlplane.kinds.credit_grant import CREDIT_GRANT, EXPIRED
from controlplane.ledger.accounts import BALANCE, TransferKind, balance_of, balance_of_org
from controlplane.ledger.transfers import Subject, Transfer, pending, record
from controlplane.machinery.conditions import Condition, with_condition
from controlplane.machinery.kind import API_VERSION, Document
from controlplane.machinery.quantities import format_money
from controlplane.store.contract import Loader, Reads, Tx
from controlplane.store.database import Database
from controlplane.store.numbered import metadata, name_of

GRANTS_MAX = 10_000
"""Of an organisation: one a day for a quarter of a century. Later ones are in the balance and not among the grants."""

_GRANTS = f"""
SELECT g.org AS key, g.id, g.seq, g.amount_micro_usd, g.reason, g.created_at, g.expires_at,
    COALESCE(l.micro_usd, 0)::bigint AS lapsed_micro_usd, COALESCE(l.times, 0) AS lapses
FROM unnest($1::text[]) AS o(org) CROSS JOIN LATERAL (
    SELECT * FROM ledger_transfers WHERE org = o.org AND kind = 'grant' ORDER BY seq LIMIT {GRANTS_MAX}
) AS g LEFT JOIN (
    SELECT subject_uid, sum(amount_micro_usd) AS micro_usd, count(*) AS times FROM ledger_transfers
    WHERE kind = 'lapse' AND org = ANY($1::text[]) GROUP BY 1
) AS l ON l.subject_uid = g.id
"""  # noqa: S608 - a constant

GRANTS = Loader("grants of an organisation", _GRANTS)
"""The grants of an organisation, oldest first, for mutations."""

_WITH_EXPIRED = "SELECT DISTINCT org FROM ledger_transfers WHERE kind = 'grant' AND expires_at <= $1 ORDER BY 1"


@dataclass(frozen=True, kw_only=True)
class Grant:
    """A row of `GRANTS`."""

    id: str
    org: str
    seq: int
    amount_micro_usd: int
    reason: str
    created_at: datetime
    expires_at: datetime | None
    lapsed_micro_usd: int
    lapses: int

    @property
    def name(self) -> str:
        """What its operator called it."""
        return self.id.removeprefix(f"grant/{self.org}/")

    @property
    def order(self) -> tuple[bool, float, int]:
        """Its place among those that pay."""
        never = self.expires_at is None
        return never, 0.0 if self.expires_at is None else self.expires_at.timestamp(), self.seq

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Grant:
        """The grant in a row."""
        return cls(org=record["key"], **{name: record[name] for name in cls.__dataclass_fields__ if name != "org"})


@dataclass(frozen=True, kw_only=True)
class Allotted:
    """What was taken of a grant, and what is left."""

    grant: Grant
    spent_micro_usd: int
    held_micro_usd: int

    @property
    def remaining_micro_usd(self) -> int:
        """Neither spent nor lapsed."""
        return self.grant.amount_micro_usd - self.grant.lapsed_micro_usd - self.spent_micro_usd

    def due_micro_usd(self, now: datetime) -> int:
        """What of it lapses now."""
        is_over = self.grant.expires_at is not None and self.grant.expires_at <= now
        return self.remaining_micro_usd - self.held_micro_usd if is_over else 0


def allotted(grants: Iterable[Grant], spent_micro_usd: int, held_micro_usd: int) -> list[Allotted]:
    """Who pays for what was ever charged and what is held now: those that expire sooner first."""
    found = []
    for grant in sorted(grants, key=lambda grant: grant.order):
        worth = grant.amount_micro_usd - grant.lapsed_micro_usd
        spent = min(worth, spent_micro_usd)
        held = min(worth - spent, held_micro_usd)
        spent_micro_usd -= spent
        held_micro_usd -= held
        found.append(Allotted(grant=grant, spent_micro_usd=spent, held_micro_usd=held))
    return found


class LapseGrants:
    """Takes back what is left of the organisation's grants whose time is over; the result is how much that is, in
    micro-USD. A repetition finds nothing left."""

    def __init__(self, org: str) -> None:
        self._org = org

    def reads(self) -> Reads:
        return Reads(loads=((GRANTS, self._org), (BALANCE, self._org)))

    def apply(self, tx: Tx) -> int:
        balance = balance_of(tx.rows(BALANCE, self._org)[0])
        # What others of this batch spend or hold is not among the rows: it is left to them.
        held_micro_usd = balance.held_micro_usd + max(0, -pending(tx).get(self._org, 0))
        grants = map(Grant.from_record, tx.rows(GRANTS, self._org))
        shares = allotted(grants, balance.spent_micro_usd, held_micro_usd)
        due = {share.grant: share.due_micro_usd(tx.now) for share in shares}
        for grant, micro_usd in due.items():
            subject = Subject(kind=CREDIT_GRANT.kind, project="", name=grant.name, uid=grant.id)
            record(
                tx,
                Transfer(
                    id=f"lapse/{grant.org}/{grant.name}/{grant.lapses + 1}",
                    org=grant.org,
                    kind=TransferKind.LAPSE,
                    amount_micro_usd=micro_usd,
                    reason="not spent before it expired",
                    subject=subject,
                ),
            )
        return sum(due.values())


class Grants:
    """Reads them for people, and for whoever ends them."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def all(self, org: str) -> list[Allotted]:
        """The grants of the organisation, those that pay first first."""
        async with self._database.snapshot() as connection:
            balance = await balance_of_org(connection, org)
            records = await connection.fetch(_GRANTS, [org])
        grants = [Grant.from_record(dict(record)) for record in records]
        return allotted(grants, balance.spent_micro_usd, balance.held_micro_usd)

    async def documents(self, org: str) -> list[Document]:
        """The CreditGrants of the organisation, the newest first."""
        shares = sorted(await self.all(org), key=lambda share: -share.grant.seq)
        return [grant_document(share, self._clock.now()) for share in shares]

    async def document(self, org: str, name: str) -> Document | None:
        """The CreditGrant with this name, None when there is none."""
        found = (share for share in await self.all(org) if share.grant.name == name)
        share = next(found, None)
        return None if share is None else grant_document(share, self._clock.now())

    async def next_expiry(self, org: str) -> Document | None:
        """When some of the organisation's credit expires next, and how much, as its BillingAccount tells it."""
        now = self._clock.now()
        for share in await self.all(org):
            expires_at = share.grant.expires_at
            if share.remaining_micro_usd and expires_at is not None and expires_at > now:
                return {
                    "expirationTime": format_time(expires_at),
                    "remainingUSD": format_money(share.remaining_micro_usd),
                }
        return None

    async def overdue(self) -> list[str]:
        """The organisations of which something lapses now."""
        now = self._clock.now()
        orgs: Sequence[str] = [record["org"] for record in await self._database.fetch(_WITH_EXPIRED, now)]
        return [org for org in orgs if any(share.due_micro_usd(now) for share in await self.all(org))]


def grant_document(share: Allotted, now: datetime) -> Document:
    """A CreditGrant."""
    grant = share.grant
    is_over = grant.expires_at is not None and grant.expires_at <= now and not share.remaining_micro_usd
    told = ("True", "TimeOver", "its time is over and nothing is left") if is_over else ("False", "Valid", "it pays")
    spec: Document = {"amountUSD": format_money(grant.amount_micro_usd), "source": "Operator"}
    spec |= {"reason": grant.reason} if grant.reason else {}
    spec |= {"expirationTime": format_time(grant.expires_at)} if grant.expires_at is not None else {}
    row = {"created_at": grant.created_at, "seq": grant.seq}
    uid = name_of(CREDIT_GRANT.uid_prefix, row)
    return {
        "apiVersion": API_VERSION,
        "kind": CREDIT_GRANT.kind,
        "metadata": {**metadata(grant.name, row), "uid": uid},
        "spec": spec,
        "status": {
            "grantedTime": format_time(grant.created_at),
            "remainingUSD": format_money(share.remaining_micro_usd),
            "heldUSD": format_money(share.held_micro_usd),
            "spentUSD": format_money(share.spent_micro_usd),
            "expiredUSD": format_money(grant.lapsed_micro_usd),
            "conditions": with_condition([], Condition(EXPIRED, *told, 1), now),
        },
    }
