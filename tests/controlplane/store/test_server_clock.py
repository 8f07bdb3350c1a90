"""The clock that all processes share."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from controlplane.store.database import Database
from controlplane.store.server_clock import DatabaseClock, Reading
from tests.fixtures.host_clock import moved_clock

ROOT = Path(__file__).resolve().parents[3]
TELL = """
import asyncio, sys
from datetime import UTC, datetime
from controlplane.store.database import Database
from controlplane.store.server_clock import DatabaseClock

async def main():
    database = Database(sys.argv[1], pool_size=1)
    await database.open()
    clock = DatabaseClock(database)
    await clock.start()
    print(datetime.now(UTC).isoformat(), clock.now().isoformat())
    await clock.stop()
    await database.close()

asyncio.run(main())
"""


async def test_it_tells_the_time_of_the_database(database: Database) -> None:
    clock = DatabaseClock(database)
    await clock.start()
    before: datetime = await database.fetchval("SELECT clock_timestamp()")
    told = clock.now()
    after: datetime = await database.fetchval("SELECT clock_timestamp()")
    await clock.stop()
    assert clock._reading is not None
    margin = timedelta(seconds=clock._reading.doubt(time.monotonic()))
    assert before - margin < told < after + margin
    assert told.utcoffset() == timedelta(0)


async def test_it_counts_on_while_the_database_is_away(database: Database) -> None:
    clock = DatabaseClock(database)
    await clock.ask()
    first = clock.now()
    await database.close()
    assert timedelta(0) < clock.now() - first < timedelta(seconds=30)


KNOWN = Reading(told=datetime(2026, 1, 1, tzinfo=UTC), at=100.0, doubt_seconds=0.001)


@pytest.mark.parametrize(
    ("after_seconds", "ahead_seconds", "doubt_seconds", "taken"),
    [
        (15, 0.0, 0.001, True),
        (15, 0.020, 0.050, False),  # a slow answer says nothing that was not known better
        (1_000, 0.020, 0.050, True),  # by then the two clocks may have come that far apart
        (15, 0.060, 0.050, True),  # more than both doubts: the database's clock was set
        (15, -600.0, 0.050, True),
    ],
)
def test_a_worse_answer_does_not_move_the_clock(
    after_seconds: float, ahead_seconds: float, doubt_seconds: float, taken: bool
) -> None:
    at = KNOWN.at + after_seconds
    told = KNOWN.time(at) + timedelta(seconds=ahead_seconds)
    new = Reading(told=told, at=at, doubt_seconds=doubt_seconds)
    assert KNOWN.better(new) is (new if taken else KNOWN)


async def test_a_host_whose_clock_is_wrong_tells_the_same_time(database_url: str) -> None:
    """The process of its own believes that it is ten minutes later."""
    done = subprocess.run(
        [sys.executable, "-c", TELL, database_url],
        cwd=ROOT,
        env={**os.environ, **moved_clock(600)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    host, told = (datetime.fromisoformat(text) for text in done.stdout.split())
    assert host - told > timedelta(seconds=500)
    assert abs(datetime.now(UTC) - told) < timedelta(seconds=60)
