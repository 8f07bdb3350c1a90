"""A pool that a quota keeps from growing: what its Function and its calls say, and that it goes on by itself."""

from __future__ import annotations

import asyncio

from controlplane.calls.inspection import CallInspector
from controlplane.limits.quotas import Counter, Quota, set_quota
from controlplane.machinery.kind import Document
from tests.fixtures.control import ControlWorld, succeed
from tests.fixtures.eventually import eventually


async def condition(world: ControlWorld, function: str = "f") -> Document | None:
    found = [each for each in (await world.status("Function", function))["conditions"] if each["type"] == "WithinQuota"]
    return found[0] if found else None


async def test_a_pool_says_which_quota_keeps_it_from_growing_and_grows_once_there_is_room(
    control_world: ControlWorld,
) -> None:
    world, core, release = control_world, control_world.core, asyncio.Event()

    async def wait(call: str) -> Document:
        await release.wait()
        return await succeed(call)

    async def limit(cpus_milli: int) -> None:
        await set_quota(core.database, Quota(org="default", project="", counter=Counter.CPUS, amount_max=cpus_milli))

    world.node.behaviour = wait
    await limit(2_500)
    await world.function("f", resources={"cpu": "1"}, scaling={"maxWorkers": 5, "scaledownWindow": "0s"})
    await world.function("g", resources={"cpu": "1"})
    running = [await world.call("f") for _ in range(4)]
    inspector = CallInspector(core.database, core.cache, core.placements, core.settings, core.clock)

    async def told(function: str) -> Document | None:
        found = await condition(world, function)
        return found if found is not None and found["status"] == "False" and " 2;" in found["message"] else None

    found = await eventually(lambda: told("f"))
    assert found["reason"] == "QuotaExceeded"
    assert found["message"].startswith(
        'the organisation "default" may have 2500m cpus and its workers take 2; one more takes 1.'
    )
    waiting = await world.call("g")

    async def waits() -> Document | None:
        status = (await inspector.wait(world.key("FunctionCall", waiting)))["status"]
        return status if status["reason"] == "QuotaExceeded" else None

    assert await eventually(lambda: told("g"))
    status = await eventually(waits)
    assert "may have 2500m cpus" in status["message"]
    assert "ask an operator" in status["message"]

    async def stored() -> bool:
        return "a quota allows no other one" in (await world.status("FunctionCall", waiting))["message"]

    await eventually(stored)
    assert len(await world.attempts()) == 2
    # Nothing but the quota changes; the next look finds it.
    await limit(3_500)

    async def grew() -> bool:
        return len(await world.attempts()) == 3

    await eventually(grew)
    release.set()
    for name in (*running, waiting):
        assert (await world.until_ended(name))["phase"] == "Succeeded"

    async def is_within() -> bool:
        each = [await condition(world, name) for name in ("f", "g")]
        return all(one is not None and one["status"] == "True" for one in each)

    await eventually(is_within)


async def test_a_worker_that_idles_gives_its_place_within_the_quota_to_a_call_that_waits(
    control_world: ControlWorld,
) -> None:
    world = control_world
    quota = Quota(org="default", project="default", counter=Counter.WORKERS, amount_max=1)
    await set_quota(world.core.database, quota)
    await world.function("f", scaling={"scaledownWindow": "20m"})
    await world.function("g")
    assert (await world.until_ended(await world.call("f")))["phase"] == "Succeeded"
    assert (await world.until_ended(await world.call("g")))["phase"] == "Succeeded"
    reasons = {row["function"]: row["drain_reason"] for row in await world.attempts()}
    assert reasons["f"] == "MakesRoom"
