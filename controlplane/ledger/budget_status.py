"""The status of a Budget: a copy of its row for people, with an Event for each threshold it reaches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from controlplane.clock import format_time
from controlplane.kinds.budget import EXCEEDED, LIMIT_REACHED, THRESHOLDS
from controlplane.ledger.limits import Limit
from controlplane.ledger.reservations import LIMIT_ROWS
from controlplane.machinery.conditions import Condition, with_condition
from controlplane.machinery.documents import value_at
from controlplane.machinery.kind import Document
from controlplane.machinery.quantities import format_money
from controlplane.store.contract import Key, Reads, Tx
from controlplane.store.events import NORMAL, WARNING, Happening, record_repeated

THRESHOLD_REACHED = "BudgetThresholdReached"
BUDGET_EXCEEDED = "BudgetExceeded"


class TellBudget:
    """Brings the status of a Budget to what its row says; a Budget that says so already is not written.

    Status and Events are one write, so a threshold is told once a period whatever dies.
    """

    def __init__(self, key: Key, limit: Limit) -> None:
        self._key = key
        self._limit = limit

    def reads(self) -> Reads:
        events = [self._event_key(reason) for reason in (THRESHOLD_REACHED, BUDGET_EXCEEDED)]
        return Reads(keys=(self._key, *events), loads=((LIMIT_ROWS, self._limit.id),))

    def _event_key(self, reason: str) -> Key:
        """One Event for each reason, with a count."""
        return Key("Event", self._key.org, "", f"{self._key.name[:40]}-{reason.lower()}")

    def apply(self, tx: Tx) -> Document | None:
        stored = tx.get(self._key)
        if stored is None or stored["metadata"]["uid"] != self._limit.id:
            return None
        status = budget_status(stored, self._limit, tx.rows(LIMIT_ROWS, self._limit.id), tx.now)
        before = stored.get("status", {})
        reached = [each for each in status["notifiedThresholds"] if each not in _notified(before, status)]
        if reached or (_exceeded(status) and not _exceeded(before)):
            happening = self._happening(stored, status, reached)
            record_repeated(tx, self._event_key(happening.reason), happening)
        return tx.put(self._key, {**stored, "status": status})

    def _happening(self, document: Document, status: Document, reached: Sequence[int]) -> Happening:
        full = _exceeded(status)
        spent, limit = status["spentUSD"], format_money(self._limit.limit_micro_usd)
        if full:
            what = "nothing more is started" if self._limit.blocks else "it only notifies, so work goes on"
            message = f"{spent} USD of {limit} USD are spent and {status['heldUSD']} USD held: {what}"
        else:
            message = f"{spent} USD of {limit} USD are spent, which is past {max(reached)} %"
        return Happening(
            key=self._key,
            uid=document["metadata"]["uid"],
            type=WARNING if full else NORMAL,
            reason=BUDGET_EXCEEDED if full else THRESHOLD_REACHED,
            message=message,
        )


def budget_status(document: Document, limit: Limit, rows: Sequence[Mapping[str, Any]], now: datetime) -> Document:
    """What a row of `LIMIT_ROWS` means, in the words of the kind."""
    start, end = limit.period(now)
    row = rows[0] if rows else None
    over = row is not None and row["period_end"] is not None and row["period_end"] <= now
    spent = 0 if row is None or over else row["spent_micro_usd"]
    held = 0 if row is None else row["held_micro_usd"]
    remaining = max(0, limit.limit_micro_usd - spent - held)
    percent = spent * 100 // limit.limit_micro_usd
    period = {"startTime": format_time(start)} | ({"endTime": format_time(end)} if end is not None else {})
    before = document.get("status", {})
    told = set(_notified(before, {"currentPeriod": period}))
    told |= {each for each in document["spec"].get("thresholds") or THRESHOLDS if percent >= each}
    refused = None if row is None else row["refused_micro_usd"]
    is_full = remaining < (refused or 1)
    condition = (
        Condition(EXCEEDED, "True", LIMIT_REACHED, "nothing is left of it for new work")
        if is_full
        else Condition(EXCEEDED, "False", "WithinLimit", "there is room for new work")
    )
    return {
        "spentUSD": format_money(spent),
        "heldUSD": format_money(held),
        "remainingUSD": format_money(remaining),
        "percentUsed": percent,
        "currentPeriod": period,
        "notifiedThresholds": sorted(told),
        "conditions": with_condition(before.get("conditions") or [], condition, now),
    }


def _notified(before: Document, present: Document) -> list[int]:
    """The thresholds that were told already, in this period."""
    if value_at(before, "currentPeriod.startTime") != value_at(present, "currentPeriod.startTime"):
        return []
    found: list[int] = before.get("notifiedThresholds") or []
    return found


def _exceeded(status: Document) -> bool:
    return any(each["type"] == EXCEEDED and each["status"] == "True" for each in status.get("conditions") or ())
