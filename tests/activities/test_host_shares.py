"""Two projects on one host that is full: the one with fewer workers gets places, and no running call is ended."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson

from controlplane.kinds.registry import KINDS
from controlplane.machinery.kind import Document
from controlplane.resources.answers import CreateOptions
from controlplane.store.contract import Key
from tests.fixtures.control import FUNCTION, TASK, ControlWorld, open_world, succeed
from tests.fixtures.eventually import eventually
from workers.engines.temporal import EmbeddedTemporal

WITHIN_SECONDS = 90
PLACES = 4


async def create(world: ControlWorld, kind: str, project: str, name: str, spec: Document) -> None:
    body = {"metadata": {"name": name}, "spec": spec}
    creator = world.core.resources.creator
    orjson.loads((await creator.create(KINDS[kind], project, body, world.admin, CreateOptions())).body)


async def live(world: ControlWorld) -> dict[str, int]:
    """Workers that stay, by project."""
    rows = await world.core.database.fetch(
        "SELECT project, count(*) AS live FROM attempts WHERE state <> 'finished' AND NOT draining GROUP BY project"
    )
    return {row["project"]: row["live"] for row in rows}


async def test_a_long_queue_of_one_project_does_not_starve_another_and_loses_no_call(
    temporal: EmbeddedTemporal, database_url: str, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"workers_max": PLACES, "fair_share_grace_seconds": 0.2}
    async with open_world(temporal, database_url, tmp_path, **settings) as world:
        turns = asyncio.Semaphore(0)

        async def take_turns(call: str) -> Document:
            await turns.acquire()
            return await succeed(call)

        world.node.behaviour = take_turns
        async with world.running():
            await world.function("greedy", scaling={"maxWorkers": 100})
            calls = [await world.call("greedy") for _ in range(30)]
            # It has the whole host, and a call on each worker.
            await eventually(lambda: _holds(world, {"default": PLACES}), within=WITHIN_SECONDS)
            await eventually(lambda: len(world.node.ran) == PLACES, within=WITHIN_SECONDS)
            await create(world, "Project", "", "small", {})
            await create(world, "Function", "small", "f", {**FUNCTION, "scaling": {"maxWorkers": 100}})
            for number in range(3):
                await create(world, "FunctionCall", "small", f"s{number}", {"function": "f", "input": TASK})
            # Half of the workers are asked to leave, and know it. All still run their calls, so no place is free yet.
            await eventually(lambda: _holds(world, {"default": PLACES // 2}), within=WITHIN_SECONDS)
            await eventually(lambda: len(world.node.leaving) == PLACES // 2, within=WITHIN_SECONDS)
            for _ in range(len(calls) + 3):
                turns.release()
            names = [("small", f"s{number}") for number in range(3)] + [("default", name) for name in calls]
            await eventually(lambda: _succeeded(world, names), within=WITHIN_SECONDS)
            assert sorted(world.node.ran) == sorted([*calls, "s0", "s1", "s2"])
            reasons = {row["drain_reason"] for row in await world.attempts() if row["project"] == "default"}
            assert "FairShare" in reasons
        await world.end_controllers()


async def _holds(world: ControlWorld, wanted: dict[str, int]) -> bool:
    held = await live(world)
    return {project: held.get(project) for project in wanted} == wanted


async def _succeeded(world: ControlWorld, names: list[tuple[str, str]]) -> bool:
    found = [await world.core.objects.get_document(Key("FunctionCall", "default", *name)) for name in names]
    told = [call["status"] for call in found if call is not None]
    assert not any(status["recoveries"] for status in told)
    return [status["phase"] for status in told] == ["Succeeded"] * len(names)
