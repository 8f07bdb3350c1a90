"""The time of the database: the one clock of all processes.

A lease that one process renews is judged by another, a URL that one signs is checked by the next, and money is counted
between a begin and an end that two of them wrote. Hosts disagree about the time, and step it. So no process asks its
host: each asks the database now and then how late it is, and counts on from there by the monotonic clock, which nobody
sets. Only a step of the database's own clock moves the time, for everybody at once.
"""

from __future__ import annotations

import asyncio
import time
from datetime import datetime, timedelta

import structlog

from controlplane.errors import ApiError
from controlplane.store.database import Database

log = structlog.get_logger(__name__)

ASK_SECONDS = 15.0
"""Two monotonic clocks drift by less than 2 ms in this time."""
SAMPLES = 3
"""The quickest of a few answers is the truest: the time was read somewhere between question and answer."""
ANSWER_SECONDS_MAX = 0.5
"""An answer that took longer is not believed; the clock counts on. Only the first is taken however long it took."""


class DatabaseClock:
    """A `Clock` that goes as the database's does. `start` it before the first use."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._told: datetime | None = None
        self._told_at = 0.0
        self._task: asyncio.Task[None] | None = None

    def now(self) -> datetime:
        """The database's time, as of its last answer and what has passed since."""
        assert self._told is not None, "the clock was not started"
        return self._told + timedelta(seconds=time.monotonic() - self._told_at)

    async def start(self) -> None:
        """Learn the time and keep to it; raises ApiError Unavailable when the database is away."""
        await self.ask()
        self._task = asyncio.create_task(self._keep_asking(), name="clock")

    async def stop(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def ask(self) -> None:
        """Set the clock by the quickest of a few answers."""
        took, told, told_at = min([await self._answer() for _ in range(SAMPLES)])
        if self._told is None or took <= ANSWER_SECONDS_MAX:
            self._told, self._told_at = told, told_at

    async def _answer(self) -> tuple[float, datetime, float]:
        """How long the answer took, the time it told, and when that was by the monotonic clock."""
        asked_at = time.monotonic()
        told: datetime = await self._database.fetchval("SELECT clock_timestamp()")
        took = time.monotonic() - asked_at
        return took, told, asked_at + took / 2

    async def _keep_asking(self) -> None:
        while True:
            await asyncio.sleep(ASK_SECONDS)
            try:
                await self.ask()
            except ApiError as error:
                log.warning("the time cannot be learnt, counting on", told=error.message)
