"""Workers that are to go: mark them in SQL, tell their workflows, and repeat it until they are gone.

The mark comes first and takes the worker out of the queue's sight; the signal makes its node end the process. A signal
that is lost is sent again at the next look, one that finds no workflow means that nobody looks after the worker any
more: it is settled here then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

import structlog

from activities.attempts import AttemptActivities
from activities.engine import Engine, EngineUnavailableError
from activities.run_worker_contract import NODE_LOST, DrainRequest, WorkerAttemptInput
from controlplane import failpoints
from controlplane.capacity.attempts import DrainWorkers
from controlplane.capacity.endings import WorkerEnd
from controlplane.capacity.pool import DrainReason
from controlplane.capacity.rows import LiveWorker, WorkerQueries, WorkerRow
from controlplane.clock import Clock
from controlplane.settings import Settings
from controlplane.store.database import Database
from controlplane.store.writer import Writer

log = structlog.get_logger(__name__)

REPEAT_SECONDS = 30.0


class Departures:
    """Lets workers go; shared by the autoscaler and the sweeper of a process."""

    def __init__(
        self,
        *,
        database: Database,
        writer: Writer,
        engine: Engine,
        attempts: AttemptActivities,
        settings: Settings,
        clock: Clock,
    ) -> None:
        self._writer = writer
        self._engine = engine
        self._attempts = attempts
        self._settings = settings
        self._clock = clock
        self._workers = WorkerQueries(database)
        self._told: dict[tuple[str, bool], float] = {}

    async def drain(
        self, workers: Sequence[LiveWorker], leaving: Iterable[tuple[str, DrainReason]], *, hurry: bool
    ) -> None:
        """Mark `leaving` and tell every draining worker among `workers`; in a `hurry` the busy ones are killed after
        the drain grace."""
        by_reason: dict[DrainReason, list[str]] = {}
        for uid, reason in leaving:
            by_reason.setdefault(reason, []).append(uid)
        kill_at = self._clock.now() + timedelta(seconds=self._settings.drain_seconds) if hurry else None
        for reason, uids in by_reason.items():
            await self._writer.write(DrainWorkers(uids, reason, kill_at))
            failpoints.reach("worker-marked")
        reasons: dict[str, str] = {uid: reason for reason, uids in by_reason.items() for uid in uids}
        going = [worker.row for worker in workers if worker.row.draining or worker.row.uid in reasons]
        await asyncio.gather(*(self.tell(row, reasons.get(row.uid) or row.drain_reason or "") for row in going))

    async def kill(self, row: WorkerRow, reason: str) -> None:
        """End the worker's process without waiting for what runs on it."""
        await self._writer.write(DrainWorkers([row.uid], reason, self._clock.now()))
        await self.tell(row, reason, kill=True)

    async def release(self, uids: Sequence[str], reason: DrainReason, kill_at: datetime) -> None:
        """Let these workers go, and have them killed at a time if nothing else runs on them then."""
        await self._writer.write(DrainWorkers(uids, reason, kill_at))
        failpoints.reach("worker-marked")
        await asyncio.gather(*(self.tell(row, reason) for row in await self._workers.rows(uids)))

    async def abandon(self, function_uids: Iterable[str]) -> None:
        """Let all workers of Functions go that do not exist any more."""
        uids = list(function_uids)
        if not uids:
            return
        for workers in (await self._workers.live(uids)).values():
            leaving = [(worker.row.uid, DrainReason.DELETED) for worker in workers if not worker.row.draining]
            await self.drain(workers, leaving, hurry=True)

    async def tell(self, row: WorkerRow, reason: str, *, kill: bool = False) -> None:
        """Signal the worker's workflow, unless that was done a moment ago."""
        at = asyncio.get_running_loop().time()
        self._forget_old(at)
        if (row.uid, kill) in self._told:
            return
        try:
            if not row.has_workflow:
                await self._engine.start_attempt(attempt_input(row))
                await self._workers.mark_started(row.uid)
            if await self._engine.drain_attempt(row.uid, DrainRequest(reason=reason, kill=kill)):
                self._told[row.uid, kill] = at
                return
        except EngineUnavailableError as error:
            log.warning("a worker cannot be told to go, trying again", attempt=row.uid, told=str(error))
            return
        log.warning("nobody looks after a worker; it is given up", attempt=row.uid)
        end = WorkerEnd(outcome=NODE_LOST, message="the workflow that looked after it is gone")
        await self._attempts.settle(row.key, row.epoch, end)

    def _forget_old(self, at: float) -> None:
        for told in [told for told, since in self._told.items() if since < at - REPEAT_SECONDS]:
            del self._told[told]


def attempt_input(row: WorkerRow) -> WorkerAttemptInput:
    """What the worker's workflow is started with."""
    assert row.node is not None, f"{row.uid} was created without a node"
    return WorkerAttemptInput(attempt_uid=row.uid, org=row.org, project=row.project, epoch=row.epoch, node=row.node)
