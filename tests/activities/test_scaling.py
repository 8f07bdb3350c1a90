"""`spec.scaling` changed under workers that hold calls: what it means for them, and that no call is ended for it."""

from __future__ import annotations

import asyncio

import pytest

from controlplane.machinery.kind import Document
from tests.fixtures.control import ControlWorld, succeed
from tests.fixtures.eventually import eventually


class Held:
    """Calls that run until they are released, on workers that end them before they go."""

    def __init__(self, world: ControlWorld) -> None:
        self._world = world
        self.release = asyncio.Event()
        world.node.behaviour = self.behave

    async def behave(self, call: str) -> Document:
        await self.release.wait()
        return await succeed(call)

    async def until_taken(self, count: int) -> None:
        """Wait until so many calls were taken."""
        await eventually(lambda: len(self._world.node.ran) >= count)

    async def all_succeed(self, names: list[str]) -> set[str]:
        """Let them end; the workers they ran on."""
        self.release.set()
        told = [await self._world.until_ended(name) for name in names]
        assert {(status["phase"], status["recoveries"]) for status in told} == {("Succeeded", 0)}
        return {status["worker"]["attempt"] for status in told}


async def scale(world: ControlWorld, **scaling: int) -> None:
    await world.change("Function", "f", lambda f: f["spec"]["scaling"].update(scaling))


async def row_of(world: ControlWorld, uid: str) -> Document:
    [row] = [row for row in await world.attempts() if row["uid"] == uid]
    return row


@pytest.mark.parametrize(("before", "after"), [(1, 10), (10, 1)])
async def test_workers_of_another_concurrency_are_replaced_and_end_their_calls(
    control_world: ControlWorld, before: int, after: int
) -> None:
    world, held = control_world, Held(control_world)
    # One worker is all that the load ever asks for, so none would be started but for the change.
    await world.function(scaling={"maxWorkers": 1, "targetConcurrency": before, "scaledownWindow": "20m"})
    names = [await world.call()]
    await held.until_taken(1)
    names += [await world.call() for _ in range(3)]
    await scale(world, targetConcurrency=after)
    await held.until_taken(2)
    old, new = world.node.attempts
    assert [(await row_of(world, uid))["concurrency"] for uid in (old, new)] == [before, after]

    async def leaves() -> bool:
        return bool((await row_of(world, old))["drain_reason"] == "Rolled")

    await eventually(leaves)
    assert await held.all_succeed(names) == {old, new}
    # It is no new version: only a worker that is charged and asked otherwise.
    assert (await row_of(world, old))["pool"] == (await row_of(world, new))["pool"]
    assert len(world.node.attempts) == 2


async def test_fewer_most_workers_are_there_soon_although_all_are_busy_and_no_call_is_ended(
    control_world: ControlWorld,
) -> None:
    world, held = control_world, Held(control_world)
    await world.function(scaling={"maxWorkers": 3, "scaledownWindow": "20m"})
    names = [await world.call() for _ in range(3)]
    await held.until_taken(3)
    names += [await world.call() for _ in range(3)]
    await scale(world, maxWorkers=1)
    await world.until_function(workers__ready=1, workers__draining=2, queue__running=3)
    await held.all_succeed(names)
    await world.until_function(workers__ready=1, workers__draining=0)
    reasons = [row["drain_reason"] for row in await world.attempts()]
    assert sorted(filter(None, reasons)) == ["ScaledDown", "ScaledDown"]
