"""Whether the calls of one batch can be paid for: what they may cost, and the limits that have room for it.

The `Dispatcher` asks before it hands a call out. A call for which there is no room stays in the queue, with the
condition Funded=False; its session is passed over, so that calls which other limits cover are not held up by it. What
the limits are is in `ledger/limits.py`, what they have left in `ledger/reservations.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from controlplane.calls.looks import Look
from controlplane.calls.outcomes import duration_seconds
from controlplane.calls.rows import CallRow
from controlplane.calls.wants import Want
from controlplane.kinds.quotes import within_quote
from controlplane.ledger.limits import Limit, labels_of_work
from controlplane.ledger.pricing import most_micro_usd
from controlplane.ledger.reservations import LIMIT_ROWS, Reservations, remaining
from controlplane.machinery.quantities import format_money
from controlplane.settings import Settings
from controlplane.store.contract import Document

if TYPE_CHECKING:
    from controlplane.store.contract import Connection


class Funding:
    """The limits of the Functions in demand."""

    def __init__(self, limits: Mapping[str, Sequence[Limit]], reservations: Reservations, settings: Settings) -> None:
        self._limits = limits
        self._reservations = reservations
        self._settings = settings
        self._passed: dict[str, set[str]] = {}

    def most(self, document: Document, wants: Sequence[Want]) -> int:
        """The most that a dispatch of the call to any of these workers may cost, in micro-USD."""
        terms = {(want.price.rate_micro_usd_per_hour, want.concurrency) for want in wants}
        return max((most_of_call(document, rate, shares, self._settings) for rate, shares in terms), default=0)

    def take(self, row: CallRow, document: Document) -> Limit | None:
        """Reserve what the next dispatch of the call may cost; the limit that has no room for it if there is one."""
        limits = self._limits.get(row.function_uid)
        if not limits:
            return None
        labels = labels_of_work(row.function_labels, document["metadata"].get("labels"))
        covering = [limit for limit in limits if limit.covers(labels)]
        return self._reservations.take(covering, row.reserved_micro_usd, row.uid, row.dispatches + 1)

    def give_back(self, row: CallRow) -> None:
        """No worker took the call after all."""
        if self._limits.get(row.function_uid):
            self._reservations.give_back(row.uid, row.dispatches + 1)

    def differs_by_call(self, function_uid: str) -> bool:
        """Whether some limit covers a part of the Function's calls only."""
        return any(limit.terms for limit in self._limits.get(function_uid, ()))

    def pass_over(self, function_uid: str, sessions: set[str]) -> None:
        """Leave out these sessions in what is looked at in this batch from now on."""
        self._passed.setdefault(function_uid, set()).update(sessions)

    def passed(self, function_uid: str) -> int:
        """How many sessions of the Function are passed over."""
        return len(self._passed.get(function_uid, ()))

    def open_to(self, function_uid: str, look: Look) -> Look:
        """The look without the sessions that are passed over."""
        passed = self._passed.get(function_uid)
        if not passed:
            return look
        return replace(look, heads=[head for head in look.heads if head.session not in passed])


def most_of_call(document: Document, rate_micro_usd_per_hour: int, shares: int, settings: Settings) -> int:
    """The most that one dispatch of a call may cost on a worker of this rate and so many places, in micro-USD: no more
    than what it was quoted allows."""
    timeout = document["spec"].get("timeout") or settings.call_timeout_default
    rate = within_quote(document, rate_micro_usd_per_hour)
    return most_micro_usd(duration_seconds(timeout), settings.deadline_grace_seconds, rate, shares)


def waits_for(limit: Limit) -> str:
    """What a call says that waits for room in this limit."""
    return f"waits for money: {limit.told} has no room for what a run may cost; it goes on when the limit is raised"


async def lacking_money(
    connection: Connection, limits: Sequence[Limit], needed_micro_usd: int, now: datetime
) -> str | None:
    """What a person is told of a call that one of these limits has no room for now, with the amounts; None when all
    have room."""
    blocking = [limit for limit in limits if limit.blocks and needed_micro_usd]
    if not blocking:
        return None
    fetched = await connection.fetch(LIMIT_ROWS.sql, [limit.id for limit in blocking])
    rows = {row["key"]: dict(row) for row in fetched}
    for limit in blocking:
        found = [rows[limit.id]] if limit.id in rows else []
        held = found[0]["held_micro_usd"] if found else 0
        left = remaining(limit, found, now) - held
        if left < needed_micro_usd:
            needed, whole = format_money(needed_micro_usd), format_money(limit.limit_micro_usd)
            runs = f", with {format_money(held)} USD of it held for what runs" if held else ""
            rest = format_money(max(0, left))
            return (
                f"waits for money: a run may cost {needed} USD and {limit.told} has {rest} USD left of its {whole} USD"
                f"{runs}. {limit.fix}"
            )
    return None
