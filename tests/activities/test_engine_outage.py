"""What happens to calls while Temporal is away, and when it comes back without its data."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from activities.attempts import AttemptActivities
from activities.engine import Engine
from activities.incarnation import EngineKeeper
from controlplane.calls.outcomes import CallRules
from controlplane.calls.queries import CallQueries
from controlplane.calls.rows import CallRef
from controlplane.ledger.worker_accounts import FundingRules
from controlplane.machinery.kind import Document
from controlplane.store.incarnation import known_incarnation, note_first_incarnation
from tests.fixtures.calls import MarkStarted
from tests.fixtures.control import TOLD_AT_THE_START, WAITED_ONCE, ControlWorld, fail, open_world, succeed
from tests.fixtures.eventually import WITHIN_SECONDS, eventually
from workers.control import connected
from workers.engines.temporal import EmbeddedTemporal

COMPLETE = (TOLD_AT_THE_START, WAITED_ONCE)
"""What workflows that ended went through. It depends on who was quicker."""


@pytest.fixture
async def world(database_url: str, tmp_path: Path) -> AsyncIterator[ControlWorld]:
    """A world with an engine of its own; its control process is started by the test."""
    engine = EmbeddedTemporal(tmp_path / "temporal", log=tmp_path / "temporal.log")
    await engine.start()
    try:
        async with open_world(engine, database_url, tmp_path) as opened:
            yield opened
    finally:
        engine.stop()


async def _without_rows(world: ControlWorld) -> bool:
    return await world.open_rows() == 0


async def test_calls_run_and_end_without_the_engine_and_their_workflows_follow(world: ControlWorld) -> None:
    await world.function(scaling={"minWorkers": 1})
    async with world.running():
        await world.until_function(workers__idle=1)
        await world.until_elected()
        world.temporal.stop()
        name = await world.call()
        assert (await world.until_ended(name))["phase"] == "Succeeded"
        assert await world.open_rows() == 1
        await world.temporal.start()
        await eventually(lambda: _without_rows(world))
        assert await world.workflow_events(name) in COMPLETE


async def test_a_retry_that_waits_for_an_absent_engine_says_so_until_it_is_back(world: ControlWorld) -> None:
    async def raise_once(call: str) -> Document:
        return await (succeed if world.node.ran.count(call) > 1 else fail)(call)

    async def says(text: str) -> bool:
        return text in (await world.status("FunctionCall", name))["message"]

    world.node.behaviour = raise_once
    await world.function(scaling={"minWorkers": 1}, retries={"maxRetries": 1, "initialDelay": "1s"})
    async with world.running():
        await world.until_function(workers__idle=1)
        await world.until_elected()
        world.temporal.stop()
        name = await world.call()
        await eventually(lambda: world.has_said(name, "retry 1 of 1 follows in "))
        await eventually(lambda: says("retry 1 waits for the engine, which has not answered since "))
        await world.temporal.start()
        status = await world.until_ended(name, within=90)
        assert (status["phase"], status["retries"]) == ("Succeeded", 1)
        assert not status.get("message")


async def test_a_wiped_engine_loses_no_call_and_runs_none_twice_that_had_ended(world: ControlWorld) -> None:
    held = asyncio.Event()

    async def hold_the_last(call: str) -> Document:
        if call == last:
            await held.wait()
        return await succeed(call)

    world.node.behaviour = hold_the_last
    last = "c-4"
    await world.function(scaling={"maxWorkers": 1, "minWorkers": 1})
    async with world.running():
        done = [await world.call() for _ in range(3)]
        for name in done:
            await world.until_ended(name)
        running, queued = await world.call(), await world.call()
        await eventually(lambda: last in world.node.ran)
        before = await known_incarnation(world.core.database)
    held.set()
    world.temporal.stop()
    shutil.rmtree(world.temporal.folder)
    await world.temporal.start()
    async with world.running():
        for name in (running, queued):
            assert (await world.until_ended(name))["phase"] == "Succeeded"
        await eventually(lambda: _without_rows(world))
        assert await known_incarnation(world.core.database) not in (None, before)
        assert [name for name in world.node.ran if name in done] == done
        assert await world.workflow_events(queued) in COMPLETE


async def test_two_processes_that_notice_it_start_over_once(world: ControlWorld) -> None:
    core = world.core
    await world.function(state="Stopped")
    refs = []
    for _ in range(3):
        document = await world.get("FunctionCall", await world.call())
        assert document is not None
        metadata = document["metadata"]
        refs.append(CallRef(uid=metadata["uid"], org="default", project="default", name=metadata["name"]))
    await core.writer.write(MarkStarted(refs))
    await note_first_incarnation(core.database, "another database")
    engine = Engine(await world.client(), WITHIN_SECONDS)
    attempts = AttemptActivities(
        core.writer, CallRules.from_settings(core.settings), FundingRules.from_settings(core.settings), core.clock
    )
    keepers = [
        EngineKeeper(database=core.database, writer=core.writer, engine=engine, attempts=attempts) for _ in range(2)
    ]
    await asyncio.gather(*(keeper.keep() for keeper in keepers))
    assert await known_incarnation(core.database) == await engine.identity()
    assert await CallQueries(core.database).without_workflow([ref.uid for ref in refs]) == {ref.uid for ref in refs}
    await core.writer.write(MarkStarted(refs))
    await keepers[0].keep()
    assert await CallQueries(core.database).without_workflow([ref.uid for ref in refs]) == set()


async def test_a_control_process_waits_for_an_engine_that_is_not_there_yet(world: ControlWorld) -> None:
    world.temporal.stop()
    stop = asyncio.Event()
    connecting = asyncio.create_task(connected(world.core.settings, stop))
    await asyncio.wait([connecting], timeout=0.5)
    assert not connecting.done()
    await world.temporal.start()
    assert await asyncio.wait_for(connecting, 60) is not None
    world.temporal.stop()
    stop.set()
    assert await connected(world.core.settings, stop) is None
