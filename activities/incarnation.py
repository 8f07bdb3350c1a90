"""Noticing that the engine lost its data, and starting over from SQL.

Workflows and task tokens of another database are worth nothing. Every call is taken for one without a workflow, so the
starter starts them anew; every worker that a workflow looked after is given up, because nobody will hear of its end:
its calls run again, within their limits. No call is lost, and none that ended runs twice.

Several processes notice it, and each starts over: every step is void once one of them has written down the new
incarnation, which it does last. Controllers, which start all workflows, are only begun after that, so nothing that was
started in the new incarnation is forgotten, and a crash at any point leaves the rest to the next look.
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
from controlplane.store.incarnation import known_incarnation, note_first_incarnation, replace_incarnation
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
        if known is None:
            await note_first_incarnation(self._database, present)
        elif known != present:
            log.warning("the engine lost its data; starting over from SQL", was=known, now=present)
            await self._start_over(known, present)
        if await known_incarnation(self._database) == present:
            for name in ControllerName:
                await self._engine.ensure_controller(name)

    async def _start_over(self, was: str, present: str) -> None:
        after: str | None = ""
        while after is not None:
            after = await self._writer.write(ForgetEngine(was, after))
        await self._give_up_workers(was)
        # Last, so that a crash before it repeats the rest.
        if await replace_incarnation(self._database, was, present):
            log.info("started over from SQL", now=present)

    async def _give_up_workers(self, was: str) -> None:
        end = WorkerEnd(outcome=NODE_LOST, message="the engine lost its data, and with it what looked after the worker")
        while rows := await self._workers.with_workflow(WORKERS_PER_READ):
            if await known_incarnation(self._database) != was:
                return  # Another process was quicker, and these may be workers of the new incarnation.
            for row in rows:
                await self._attempts.settle(row.key, row.epoch, end)
