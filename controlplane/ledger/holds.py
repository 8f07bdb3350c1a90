"""Holds: money that is reserved before it is spent, in two phases.

A hold that does not fit is refused with 402 before anything is written; the database would refuse it too. What ends it
is one transfer, whose id is the hold's own, so a post that is repeated is the same post, and a void that comes after a
post is told what happened. A hold that nobody ended by its time expires in the sweeper; until then it may be posted,
because work that was done under it was paid for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from controlplane.errors import ApiError, Reason
from controlplane.ledger.accounts import BALANCE, TransferKind, balance_of
from controlplane.ledger.transfers import Subject, Transfer, pending, record, resolution, subject_of
from controlplane.machinery.quantities import format_money
from controlplane.store.contract import Loader, Reads, Tx
from controlplane.store.database import Database

_HOLD = Loader(
    "ledger-hold",
    """
SELECT h.id AS key, h.org, h.kind, h.amount_micro_usd, h.expires_at, h.project, h.subject_kind, h.subject_name,
    h.subject_uid, h.function_uid, h.function_name, h.labels, e.kind AS ended, e.amount_micro_usd AS posted_micro_usd
FROM ledger_transfers h LEFT JOIN ledger_transfers e ON e.id = 'end/' || h.id
WHERE h.id = ANY($1::text[])
""",
)

_OVERDUE = "SELECT id FROM ledger_open_holds WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2"


@dataclass(frozen=True, kw_only=True)
class HoldOrder:
    """A hold that is wanted; `id` names it for good, `expires_at` ends it when nothing else does."""

    id: str
    org: str
    amount_micro_usd: int
    expires_at: datetime
    subject: Subject | None = None


class PlaceHold:
    """Reserves an amount. The same order again changes nothing.

    Raises INSUFFICIENT_CREDITS, with the amounts in its details, when the organisation is limited and has less, and
    ValueError for an amount that is not positive.
    """

    def __init__(self, order: HoldOrder) -> None:
        if order.amount_micro_usd <= 0:
            raise ValueError(f"a hold must be of a positive amount, not {order.amount_micro_usd} micro-USD")
        self._order = order

    def reads(self) -> Reads:
        return Reads(loads=((BALANCE, self._order.org), (_HOLD, self._order.id)))

    def apply(self, tx: Tx) -> None:
        order = self._order
        if order.id in tx.scratch("ledger holds") or tx.rows(_HOLD, order.id):
            return
        left = holdable(tx, order.org)
        if left is not None and order.amount_micro_usd > left:
            raise _insufficient(order.amount_micro_usd, max(0, left))
        place(tx, order)


def holdable(tx: Tx, org: str) -> int | None:
    """The largest hold (micro-USD) that fits at this point of the batch, below zero when too much is held already, None
    when any does; reads `BALANCE`."""
    [row] = tx.rows(BALANCE, org)
    balance = balance_of(row)
    if balance.floor_micro_usd is None:
        return None
    return balance.available_micro_usd + pending(tx).get(org, 0) - balance.floor_micro_usd


def place(tx: Tx, order: HoldOrder) -> None:
    """Write a hold that is new and fits; the database refuses one that does not."""
    record(
        tx,
        Transfer(
            id=order.id,
            org=order.org,
            kind=TransferKind.HOLD,
            amount_micro_usd=order.amount_micro_usd,
            expires_at=order.expires_at,
            subject=order.subject,
        ),
    )
    tx.scratch("ledger holds")[order.id] = None


def release(tx: Tx, hold_id: str, subject: Subject, org: str, amount_micro_usd: int) -> None:
    """Void a hold that is open, unless this batch has ended it; what it reserved is available from here on."""
    ended = tx.scratch("ledger ended holds")
    if hold_id in ended:
        return
    record(tx, resolution(hold_id, org, TransferKind.VOID, 0, subject))
    ended[hold_id] = HoldEnd(TransferKind.VOID, 0)
    available = pending(tx)
    available[org] = available.get(org, 0) + amount_micro_usd


@dataclass(frozen=True)
class HoldEnd:
    """How a hold ended: by what, and how much of it was charged."""

    kind: TransferKind
    posted_micro_usd: int


class EndHold:
    """Posts `posted_micro_usd` of a hold and releases the rest, or voids it when that is zero; the result is how it
    ended. Ending it again in the same way changes nothing.

    Raises NOT_FOUND for no hold, CONFLICT when it has ended in another way, and INVALID for more than it holds.
    """

    def __init__(self, hold_id: str, posted_micro_usd: int) -> None:
        if posted_micro_usd < 0:
            raise ValueError(f"a hold cannot be posted with {posted_micro_usd} micro-USD")
        self._id = hold_id
        self._end = HoldEnd(TransferKind.POST if posted_micro_usd else TransferKind.VOID, posted_micro_usd)

    def reads(self) -> Reads:
        return Reads(loads=((_HOLD, self._id),))

    def apply(self, tx: Tx) -> HoldEnd:
        hold = _hold(tx, self._id)
        ended = _ended(tx, hold)
        if ended is None and self._end.posted_micro_usd > hold["amount_micro_usd"]:
            held, wanted = format_money(hold["amount_micro_usd"]), format_money(self._end.posted_micro_usd)
            raise ApiError(
                Reason.INVALID, f"the hold {self._id} is of {held} USD, so {wanted} USD cannot be posted of it"
            )
        if ended is None:
            _end(tx, hold, self._end)
        elif ended != self._end:
            how = f"{ended.kind} with {format_money(ended.posted_micro_usd)} USD"
            raise ApiError(
                Reason.CONFLICT, f"the hold {self._id} has ended already: {how}", fix="Read the transactions of it."
            )
        return self._end


class ExpireHolds:
    """Ends these holds if their time has come and nothing else has ended them; the result is how many it were."""

    def __init__(self, hold_ids: Sequence[str]) -> None:
        self._ids = tuple(hold_ids)

    def reads(self) -> Reads:
        return Reads(loads=tuple((_HOLD, hold_id) for hold_id in self._ids))

    def apply(self, tx: Tx) -> int:
        holds = [hold for hold_id in self._ids for hold in tx.rows(_HOLD, hold_id)]
        due = [hold for hold in holds if hold["expires_at"] <= tx.now and _ended(tx, hold) is None]
        for hold in due:
            _end(tx, hold, HoldEnd(TransferKind.EXPIRE, 0))
        return len(due)


async def overdue_holds(database: Database, now: datetime, limit: int) -> list[str]:
    """Ids of open holds whose time has come, the oldest first."""
    return [row["id"] for row in await database.fetch(_OVERDUE, now, limit)]


def _hold(tx: Tx, hold_id: str) -> Mapping[str, Any]:
    rows = tx.rows(_HOLD, hold_id)
    if not rows or rows[0]["kind"] != TransferKind.HOLD:
        raise ApiError(Reason.NOT_FOUND, f'there is no hold "{hold_id}"')
    return rows[0]


def _ended(tx: Tx, hold: Mapping[str, Any]) -> HoldEnd | None:
    """How the hold ended, in this batch or before."""
    if hold["ended"] is not None:
        return HoldEnd(TransferKind(hold["ended"]), hold["posted_micro_usd"])
    ended: HoldEnd | None = tx.scratch("ledger ended holds").get(hold["key"])
    return ended


def _end(tx: Tx, hold: Mapping[str, Any], end: HoldEnd) -> None:
    record(tx, resolution(hold["key"], hold["org"], end.kind, end.posted_micro_usd, subject_of(hold)))
    tx.scratch("ledger ended holds")[hold["key"]] = end


def _insufficient(needed_micro_usd: int, available_micro_usd: int) -> ApiError:
    needed, available = format_money(needed_micro_usd), format_money(available_micro_usd)
    return ApiError(
        Reason.INSUFFICIENT_CREDITS,
        f"this needs a hold of {needed} USD and {available} USD are available",
        details={"neededUSD": needed, "availableUSD": available},
    )
