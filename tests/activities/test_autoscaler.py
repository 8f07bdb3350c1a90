"""The autoscaler's loop itself: what it notes, and when. What it does is in `test_control.py`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from activities.attempts import AttemptActivities
from activities.autoscaler import Autoscaler
from activities.departures import Departures
from activities.engine import Engine
from activities.farewell import Farewell
from activities.queue_explainer import QueueExplainer
from controlplane.calls.outcomes import CallRules
from controlplane.ledger.worker_accounts import FundingRules
from controlplane.limits.switches import Switch, turn_off, turn_on
from controlplane.resources.answers import DeleteOptions
from tests.fixtures.control import ControlWorld, open_world
from tests.fixtures.eventually import WITHIN_SECONDS, eventually
from workers.engines.temporal import EmbeddedTemporal


@pytest.fixture
async def world(temporal: EmbeddedTemporal, database_url: str, tmp_path: Path) -> AsyncIterator[ControlWorld]:
    """A world in which no control process runs."""
    async with open_world(temporal, database_url, tmp_path) as opened:
        yield opened


async def autoscaler(world: ControlWorld) -> Autoscaler:
    core = world.core
    rules = CallRules.from_settings(core.settings)
    engine = Engine(await world.client(), WITHIN_SECONDS)
    departures = Departures(
        database=core.database, writer=core.writer, engine=engine, settings=core.settings, clock=core.clock,
        attempts=AttemptActivities(core.writer, rules, FundingRules.from_settings(core.settings), core.clock),
    )  # fmt: skip
    return Autoscaler(
        database=core.database, writer=core.writer, feed=core.feed, cache=core.cache, engine=engine,
        departures=departures, farewell=Farewell(core.writer, core.resources.deleter, rules),
        explainer=QueueExplainer(core.database, core.writer, core.settings, core.clock),
        redactor=core.secrets.redactor, switches=core.switches, placements=core.placements,
        settings=core.settings, clock=core.clock,
    )  # fmt: skip


async def test_a_process_that_is_not_elected_notes_nothing_and_looks_at_everything_once_it_is(
    world: ControlWorld,
) -> None:
    made = await autoscaler(world)
    changes = 0

    def count(seen: object) -> None:
        nonlocal changes
        changes += 1

    world.core.feed.add_listener(count)
    for number in range(5):
        await world.function(f"gone-{number}")
        await world.core.resources.deleter.delete(world.key("Function", f"gone-{number}"), DeleteOptions())
    await world.function(state="Stopped")
    await eventually(lambda: changes > 5)
    assert made._due == {}
    running = asyncio.create_task(made.run())
    told = await world.until_function(phase="Stopped")
    assert told["workers"]["ready"] == 0
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    assert made._due == {}


async def test_the_workers_of_a_suspended_organisation_leave_and_come_back_when_it_is_restored(
    world: ControlWorld,
) -> None:
    async def live() -> int:
        count: int = await world.core.database.fetchval("SELECT count(*) FROM attempts WHERE finished_at IS NULL")
        return count

    async def none_is_live() -> bool:
        return await live() == 0

    async with world.running():
        await world.function(scaling={"minWorkers": 1, "maxWorkers": 1})
        await eventually(live)
        await turn_on(world.core.database, Switch.SUSPEND, "default", "unpaid")
        await eventually(none_is_live)
        await turn_off(world.core.database, Switch.SUSPEND, "default")
        await eventually(live)
    await world.end_controllers()
