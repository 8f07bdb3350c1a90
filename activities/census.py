"""Counts what there is to do and who does it, for the metrics of a control process.

Every control process counts for itself, elected or not: two of them tell the same, and none tells what it once knew.
"""

from __future__ import annotations

from controlplane import metrics
from controlplane.calls.queries import CallQueries
from controlplane.capacity.rows import AttemptState, WorkerQueries
from controlplane.store.database import Database

CENSUS_SECONDS = 15.0
"""As often as Prometheus asks by default."""


class Census:
    """The counts."""

    def __init__(self, database: Database) -> None:
        self._calls = CallQueries(database)
        self._workers = WorkerQueries(database)

    async def take(self) -> None:
        """Count open calls and live workers by state, in two queries."""
        loads = await self._calls.busy_loads()
        for state in ("queued", "running", "pending"):
            metrics.put("nodus_calls", sum(getattr(load, state) for load in loads), state=state)
        workers = await self._workers.count_by_state()
        for state in AttemptState:
            if state is not AttemptState.FINISHED:
                metrics.put("nodus_workers", workers.get(state, 0), state=state)
