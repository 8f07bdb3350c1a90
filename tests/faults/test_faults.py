"""Whatever dies, freezes or is cut off: every call ends once, as it must, and nothing is left."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import time

import pytest

from tests.faults.cluster import MEMBERS, Cluster
from tests.faults.faults import FAULTS, in_turn, inflict_for, kill, kill_worker
from tests.faults.history import FAULT, History
from tests.faults.run import COSTLY, MIX, fault_run

pytestmark = [pytest.mark.faults]

BOUND_SECONDS = 150
TIMEOUT_SECONDS = 1_200
SEED = int(os.environ.get("SEED") or time.time())
SECONDS = float(os.environ.get("SECONDS_OF_FAULTS") or 15)


@pytest.mark.timeout(TIMEOUT_SECONDS)
@pytest.mark.case("any-process-killed")
async def test_each_process_is_killed_while_calls_of_every_kind_run(cluster: Cluster) -> None:
    faults = History(cluster.history, by="faults")
    async with fault_run(cluster, seed=SEED) as run:
        maps = asyncio.create_task(run.make_maps(BOUND_SECONDS, [*MIX, *COSTLY]))
        try:
            for member in run.rng.sample(MEMBERS, len(MEMBERS)):
                faults.add(FAULT, what=f"kill {member}")
                await kill(cluster, run.rng, member)
                await kill_worker(cluster, run.rng, "")
                if maps.done():
                    await maps
                    maps = asyncio.create_task(run.make_maps(BOUND_SECONDS))
            await maps
        finally:
            maps.cancel()
        assert await run.verdict() == []


@pytest.mark.timeout(TIMEOUT_SECONDS + SECONDS)
async def test_a_seeded_run_of_every_fault(cluster: Cluster) -> None:
    faults, enough = History(cluster.history, by="faults"), asyncio.Event()
    async with fault_run(cluster, seed=SEED, clients=6) as run:
        until = time.monotonic() + SECONDS
        inflicting = asyncio.create_task(inflict_for(cluster, random.Random(SEED), SECONDS, faults, enough))
        try:
            while time.monotonic() < until and not inflicting.done():
                await run.make_maps(BOUND_SECONDS + 30, besides=COSTLY)
        finally:
            # Also when a map failed: what comes next must find the cluster whole.
            enough.set()
            await asyncio.wait({inflicting})
        assert inflicting.result() > 0
        assert await run.verdict() == []


def test_faults_come_in_turn() -> None:
    names = list(itertools.islice(in_turn(random.Random(SEED)), 3 * len(FAULTS)))
    for first in range(0, len(names), len(FAULTS)):
        assert set(names[first : first + len(FAULTS)]) == set(FAULTS)
