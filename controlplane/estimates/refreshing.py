"""Which Functions' estimates are out of date, and the mutation that replaces one.

A Function keeps the estimate of its creation. It is told again when calls have ended since, which is what it is made
of, and when a worker would cost another price. `activities/estimates_keeper.py` does so; creates of calls copy a part.
"""

from __future__ import annotations

from controlplane.machinery.kind import Document
from controlplane.machinery.quantities import format_money
from controlplane.placement.capacity import Capacity
from controlplane.store.contract import Key, Reads, Tx

ENDED_SINCE = """
SELECT org, project, function, last_end_at FROM function_load WHERE last_end_at > $1 ORDER BY last_end_at LIMIT $2
"""
"""Functions whose calls ended since a moment, the longest ago first; the table has a row for each Function."""


def is_priced_otherwise(function: Document, capacity: Capacity) -> bool:
    """Whether the Function's estimate tells another price than a worker would be started at now."""
    told = function["status"].get("estimate") or {}
    now = capacity.bound_as(function)
    rate = format_money(now.rate_micro_usd_per_hour) if now.chosen is not None else None
    return (told.get("rateUSDPerHour"), told.get("pricebookVersion")) != (rate, now.pricebook or None)


class RefreshEstimate:
    """Stores an estimate that was made for this version of a Function; the result tells whether it says something new.

    What starts have taken is known to the autoscaler, which writes it, and stays.
    """

    def __init__(self, key: Key, function: Document, estimate: Document) -> None:
        self._key = key
        self._of = _version(function)
        self._estimate = estimate

    def reads(self) -> Reads:
        return Reads(keys=(self._key,))

    def apply(self, tx: Tx) -> bool:
        function = tx.get(self._key)
        if function is None or _version(function) != self._of or "deletionTimestamp" in function["metadata"]:
            return False
        stored = function["status"].get("estimate") or {}
        startup = {**self._estimate.get("startup", {}), **stored.get("startup", {})}
        estimate = {**self._estimate, "startup": startup} if startup else self._estimate
        if _lasting(estimate) == _lasting(stored):
            return False
        tx.put(self._key, {**function, "status": {**function["status"], "estimate": estimate}})
        return True


def _version(function: Document) -> tuple[str, int]:
    metadata = function["metadata"]
    return metadata["uid"], metadata.get("generation", 1)


def _lasting(estimate: Document) -> Document:
    """The estimate without the end of its validity: that alone is no news."""
    return {name: part for name, part in estimate.items() if name != "validUntil"}
