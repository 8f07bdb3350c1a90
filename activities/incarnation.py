"""Noticing that the engine lost its data, and starting over from SQL.

Workflows and task tokens of another database are worth nothing. Every call is taken for one without a workflow, so the
starter starts them anew; every worker that a workflow looked after is given up, because nobody will hear of its end:
its calls run again, within their limits. No call is lost, and none that ended runs twice.
"""

from __future__ import annotations

import structlog

from activities.attempts import AttemptActivities
from activities.controller_contract import ControllerName
from activities.engine import Engine
from activities.run_worker_contract import NODE_LOST
from controlplane.calls.engine import ForgetEngine
from controlplane.capacity.endings import WorkerEnd
from controlplane.capacity.rows import WorkerQueries
from controlplane.store.database import Database
from controlplane.store.incarnation import known_incarnation, remember_incarnation
from controlplane.store.writer import Writer

log = structlog.get_logger(__name__)

WORKERS_PER_READ = 500


class EngineKeeper:
    """Keeps SQL and engine in step, and the controllers started."""

    def __init__(self, *, database: Database, writer: Writer, engine: Engine, attempts: AttemptActivities) -> None:
        self._database = database
        self._writer = writer
        self._engine = engine
        self._attempts = attempts
        self._workers = WorkerQueries(database)

    async def keep(self) -> None:
        """Start over if the engine's data is not what it was, then see that every controller runs.

        Raises EngineUnavailableError or ApiError; whoever repeats it may do so at any time.
        """
        present = await self._engine.identity()
        known = await known_incarnation(self._database)
        if known is not None and known != present:
            log.warning("the engine lost its data; starting over from SQL", was=known, now=present)
            await self._writer.write(ForgetEngine())
            await self._give_up_workers()
        if known != present:
            # Last, so that a crash before it repeats the rest.
            await remember_incarnation(self._database, present)
        for name in ControllerName:
            await self._engine.ensure_controller(name)

    async def _give_up_workers(self) -> None:
        end = WorkerEnd(outcome=NODE_LOST, message="the engine lost its data, and with it what looked after the worker")
        while rows := [row for row in await self._workers.all_live(WORKERS_PER_READ) if row.has_workflow]:
            for row in rows:
                await self._attempts.settle(row.key, row.epoch, end)
