"""Whatever dies, freezes or is cut off: every call ends once, as it must, and nothing is left."""

from __future__ import annotations

import asyncio
import os
import random
import time

import pytest

from tests.faults.cluster import MEMBERS, Cluster
from tests.faults.faults import inflict_for, kill, kill_worker
from tests.faults.history import FAULT, History
from tests.faults.run import MIX, fault_run

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1_200)]

BOUND_SECONDS = 150
SEED = int(os.environ.get("SEED") or time.time())
SECONDS = float(os.environ.get("SECONDS_OF_FAULTS") or 15)


@pytest.mark.case("any-process-killed")
async def test_each_process_is_killed_while_calls_of_every_kind_run(cluster: Cluster) -> None:
    faults = History(cluster.history, by="faults")
    async with fault_run(cluster, seed=SEED) as run:
        maps = asyncio.create_task(run.make_maps(BOUND_SECONDS, [*MIX, "deadline"]))
        for member in run.rng.sample(MEMBERS, len(MEMBERS)):
            faults.add(FAULT, what=f"kill {member}")
            await kill(cluster, run.rng, member)
            await kill_worker(cluster, run.rng, "")
            if maps.done():
                await maps
                maps = asyncio.create_task(run.make_maps(BOUND_SECONDS))
        await maps
        assert await run.verdict() == []


async def test_a_seeded_run_of_every_fault(cluster: Cluster) -> None:
    faults = History(cluster.history, by="faults")
    async with fault_run(cluster, seed=SEED, clients=6) as run:
        until = time.monotonic() + SECONDS
        inflicting = asyncio.create_task(inflict_for(cluster, random.Random(SEED), SECONDS, faults))
        while time.monotonic() < until and not inflicting.done():
            await run.make_maps(BOUND_SECONDS + 30)
        assert await inflicting > 0
        assert await run.verdict() == []
