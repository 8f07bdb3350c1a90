"""The time of the database: the one clock of all processes.

A lease that one process renews is judged by another, a URL that one signs is checked by the next, and money is counted
between a begin and an end that two of them wrote. Hosts disagree about the time, and step it. So no process asks its
host: each asks the database now and then how late it is, and counts on from there by the monotonic clock, which nobody
sets. Only a step of the database's own clock moves the time, for everybody at once.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from controlplane.errors import ApiError
from controlplane.store.database import Database

log = structlog.get_logger(__name__)

ASK_SECONDS = 15.0
"""Two monotonic clocks come apart by 1.5 ms in this time."""
DOUBT_SECONDS_MAX = 0.005
"""A clock that may be off by more asks sooner: the lines of a log are given to calls by their times."""
ASK_AGAIN_SECONDS = 1.0
"""So soon: a process starts when its machine is busiest, and that is over then."""
DRIFT = 0.0001
"""How far that is, per second."""
SAMPLES = 3
"""The quickest of a few answers is the truest: the time was read somewhere between question and answer."""
ANSWER_SECONDS_MAX = 0.5
"""An answer that took longer is not believed; the clock counts on. Only the first is taken however long it took."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What an answer told, when that was by the monotonic clock, and how far it may be off to either side."""

    told: datetime
    at: float
    doubt_seconds: float

    def time(self, at: float) -> datetime:
        """The database's time at a moment of the monotonic clock."""
        return self.told + timedelta(seconds=at - self.at)

    def doubt(self, at: float) -> float:
        """How far that may be off."""
        return self.doubt_seconds + DRIFT * abs(at - self.at)

    def better(self, new: Reading) -> Reading:
        """Which of both to go by. On a busy machine a new answer is often worse than what is known; only a clock that
        was set makes both incompatible, and then the new one is right."""
        known = self.doubt(new.at)
        apart = abs((new.told - self.time(new.at)).total_seconds())
        return new if new.doubt_seconds <= known or apart > new.doubt_seconds + known else self


class DatabaseClock:
    """A `Clock` that goes as the database's does. `start` it before the first use."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._reading: Reading | None = None
        self._task: asyncio.Task[None] | None = None

    def now(self) -> datetime:
        """The database's time, as of its last answer and what has passed since."""
        assert self._reading is not None, "the clock was not started"
        return self._reading.time(time.monotonic())

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
        """Set the clock by the quickest of a few answers, unless it knows better."""
        new = min([await self._answer() for _ in range(SAMPLES)], key=lambda reading: reading.doubt_seconds)
        if self._reading is None:
            self._reading = new
        elif 2 * new.doubt_seconds <= ANSWER_SECONDS_MAX:
            self._reading = self._reading.better(new)

    async def _answer(self) -> Reading:
        asked_at = time.monotonic()
        told: datetime = await self._database.fetchval("SELECT clock_timestamp()")
        doubt_seconds = (time.monotonic() - asked_at) / 2
        return Reading(told=told, at=asked_at + doubt_seconds, doubt_seconds=doubt_seconds)

    def _is_sure(self) -> bool:
        return self._reading is not None and self._reading.doubt(time.monotonic()) <= DOUBT_SECONDS_MAX

    async def _keep_asking(self) -> None:
        while True:
            await asyncio.sleep(ASK_SECONDS if self._is_sure() else ASK_AGAIN_SECONDS)
            try:
                await self.ask()
            except ApiError as error:
                log.warning("the time cannot be learnt, counting on", told=error.message)
