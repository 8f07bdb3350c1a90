"""What one chore of the sweeper meets, and what that means to the others; the loop itself runs here."""

from __future__ import annotations

import asyncio

import pytest

from activities.chores import Chore
from activities.engine import attempt_workflow_id
from controlplane.errors import ApiError, Reason
from tests.fixtures.eventually import eventually
from tests.fixtures.sweeping import Sweeping


@pytest.mark.parametrize(
    "fault", [OSError("a broken disk"), ApiError(Reason.UNAVAILABLE, "blobs cannot be reached now")]
)
async def test_a_chore_that_always_fails_keeps_no_other_from_its_work(sweeping: Sweeping, fault: Exception) -> None:
    calls, failures = sweeping.calls, 0

    async def fail() -> None:
        nonlocal failures
        failures += 1
        raise fault

    await calls.create()
    worker = await sweeping.worker()
    await worker.take()
    sweeping.sweeper.chores += (Chore("fail", 0.01, fail),)
    running = asyncio.create_task(sweeping.sweeper.run())
    try:
        await eventually(lambda: failures > 0)
        calls.clock.advance(76)

        async def killed() -> bool:
            row = await calls.attempt(worker)
            return row["drain_reason"] == "LeaseExpired" and bool(row["has_workflow"])

        await eventually(killed)
        assert not running.done()
    finally:
        running.cancel()
        await asyncio.wait({running})
    await sweeping.client.get_workflow_handle(attempt_workflow_id(worker.claimant.attempt)).terminate()


async def test_a_worker_has_a_whole_lease_to_claim_after_the_database_was_away(sweeping: Sweeping) -> None:
    calls = sweeping.calls
    await calls.create()
    worker = await sweeping.worker()
    await worker.take()
    calls.clock.advance(3_600)
    await calls.database.pool.close()
    with pytest.raises(ApiError):
        await sweeping.sweeper.note_absences()
    await calls.database.open()
    calls.clock.advance(74)
    await sweeping.sweeper.note_absences()
    await sweeping.sweeper.end_lapsed_leases()
    assert not (await calls.attempt(worker))["draining"]
    calls.clock.advance(2)
    await sweeping.sweeper.end_lapsed_leases()
    assert (await calls.attempt(worker))["drain_reason"] == "LeaseExpired"
    await sweeping.client.get_workflow_handle(attempt_workflow_id(worker.claimant.attempt)).terminate()
