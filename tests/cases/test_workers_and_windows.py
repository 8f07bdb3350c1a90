"""When workers start, stay and go, and what is charged around the calls they run."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from controlplane.calls.wants import Claimant
from controlplane.clock import parse_time
from controlplane.machinery.kind import Document
from tests.fixtures.control import ControlWorld, PlayedNode, fail, open_world, succeed
from tests.fixtures.eventually import eventually
from workers.engines.temporal import EmbeddedTemporal

WINDOW_SECONDS = 2


@pytest.mark.case("C38")
async def test_the_idle_window_counts_from_the_last_completion_and_ends_no_call(control_world: ControlWorld) -> None:
    world = control_world
    until = time.monotonic() + 3 * WINDOW_SECONDS

    async def behave(call: str) -> Document:
        await eventually(lambda: time.monotonic() > until)
        return await succeed(call)

    world.node.behaviour = behave
    await world.function(scaling={"scaledownWindow": f"{WINDOW_SECONDS}s"})
    status = await world.until_ended(await world.call())
    assert (status["phase"], status["recoveries"]) == ("Succeeded", 0)
    [row] = await eventually(lambda: _finished(world))
    assert row["drain_reason"] == "Idle"
    assert row["drained_at"] - row["last_busy_at"] >= timedelta(seconds=WINDOW_SECONDS)
    assert world.node.attempts == [row["uid"]]


async def _finished(world: ControlWorld) -> list[Document] | None:
    rows = await world.attempts()
    return rows if rows and all(row["state"] == "finished" for row in rows) else None


@pytest.mark.case("C39")
async def test_workers_that_start_for_calls_that_were_cancelled_go_again(control_world: ControlWorld) -> None:
    world = control_world
    started = asyncio.Event()
    world.node.start = started.wait  # type: ignore[assignment]
    await world.function(scaling={"maxWorkers": 3, "scaledownWindow": "1s"})
    names = [await world.call() for _ in range(15)]
    await world.until_function(workers__starting=3)
    for name in names:
        await world.change("FunctionCall", name, lambda call: call["spec"].update(state="Cancelled"))
    started.set()
    told = await world.until_function(
        workers__ready=0, workers__starting=0, workers__draining=0, queue__queued=0, queue__running=0
    )
    # The starts were asked for and took their time; that is all there is to pay, and there is no more of it.
    cost = told["cost"]
    segments = sum(Decimal(value) for name, value in cost["bySegment"].items() if name.endswith("USD"))
    assert (cost["rateUSDPerHour"], Decimal(cost["totalUSD"])) == ("0.00", segments)
    assert {(await world.status("FunctionCall", name))["costUSD"] for name in names} == {"0.00"}
    await eventually(lambda: _finished(world))


@pytest.mark.case("C48")
async def test_neither_a_slow_start_nor_the_queue_is_charged_to_the_call(control_world: ControlWorld) -> None:
    world = control_world
    start_seconds = 3

    async def enter() -> None:
        began = time.monotonic()
        await eventually(lambda: time.monotonic() > began + start_seconds)

    world.node.start = enter
    await world.function(scaling={"maxWorkers": 1})
    name = await world.call()
    status = await world.until_ended(name)
    call = await world.get("FunctionCall", name)
    assert call is not None
    queued_seconds = parse_time(status["startTime"]) - parse_time(call["metadata"]["creationTimestamp"])
    ran_seconds = parse_time(status["completionTime"]) - parse_time(status["startTime"])
    assert queued_seconds >= timedelta(seconds=start_seconds - 1)
    assert float(status["costUSD"]) <= 0.00001 * (ran_seconds.total_seconds() + 1)
    timings = (await world.status("Attempt", world.node.attempts[0]))["timings"]
    boot = parse_time(timings["registeredTime"]) - parse_time(timings["acquiredTime"])
    assert boot >= timedelta(seconds=start_seconds - 1)


class DistantNode(PlayedNode):
    """A node on the other side of a slow network."""

    round_trip_seconds = 0.2

    async def _claim(self, claimant: Claimant, completed: list[Document]) -> list[Document]:
        await asyncio.sleep(self.round_trip_seconds / 2)
        given = await super()._claim(claimant, completed)
        await asyncio.sleep(self.round_trip_seconds / 2)
        return given


@pytest.mark.case("C7")
async def test_a_worker_far_away_goes_on_after_retries(
    temporal: EmbeddedTemporal, database_url: str, tmp_path: Path
) -> None:
    raises = 2

    async def behave(call: str) -> Document:
        nonlocal raises
        if raises:
            raises -= 1
            return await fail(call)
        return await succeed(call)

    async with open_world(temporal, database_url, tmp_path) as world:
        world.node = DistantNode(world.core, behave)
        async with world.running():
            await world.function(retries={"maxRetries": 2, "initialDelay": "0.1s"}, scaling={"maxWorkers": 1})
            status = await world.until_ended(await world.call())
            assert (status["phase"], status["retries"], status["recoveries"]) == ("Succeeded", 2, 0)
            names = [await world.call() for _ in range(20)]
            for name in names:
                assert (await world.until_ended(name))["phase"] == "Succeeded"
            assert len(world.node.attempts) == 1
            assert (await world.until_function(workers__idle=1))["workers"]["draining"] == 0
