"""Clocks of hosts that are ten minutes off: no lease, deadline, URL or charge depends on them."""

from __future__ import annotations

import asyncio

import pytest

from tests.faults.cluster import CONTROLS, NODE, Cluster
from tests.faults.faults import TEN_MINUTES
from tests.faults.history import SEEN
from tests.faults.run import MIX, fault_run

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1_200)]

BOUND_SECONDS = 150


@pytest.mark.case("C45")
async def test_processes_whose_clocks_disagree_recover_nothing_and_charge_what_is_due(cluster: Cluster) -> None:
    async with fault_run(cluster, seed=21) as run:
        moved = {"api-1": -TEN_MINUTES, "api-2": TEN_MINUTES, CONTROLS[0]: TEN_MINUTES, CONTROLS[1]: -TEN_MINUTES}
        for name, seconds in moved.items():
            cluster.move_clock(name, seconds)
        try:
            await asyncio.gather(*(cluster.restart(name) for name in moved))
            # The members were restarted before the first call, so nothing excuses a recovery.
            await run.make_maps(BOUND_SECONDS, [*MIX, "slow", "slow", "deadline"])
            recoveries = [event for event in run.history() if event["event"] == SEEN and event["recoveries"]]
            assert recoveries == []
            assert await run.verdict() == []
        finally:
            for name in moved:
                cluster.move_clock(name, 0)
            await asyncio.gather(*(cluster.restart(name) for name in moved))


@pytest.mark.case("C45")
async def test_a_worker_whose_clock_is_late_does_not_outrun_a_deadline(cluster: Cluster) -> None:
    """It would stop a call ten minutes too late; the server ends it after the grace."""
    async with fault_run(cluster, seed=22, clients=2) as run:
        cluster.move_clock(NODE, -TEN_MINUTES)
        try:
            await run.make_maps(BOUND_SECONDS, ["succeed", "retry", "blob", "raise", "deadline", "cancel"])
        finally:
            cluster.move_clock(NODE, 0)
        assert await run.verdict() == []
