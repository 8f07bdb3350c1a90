"""Workers that are silent, cut off or busy for long: whose word counts, and what each second costs. The clock is
moved, so a lease is as long as in production."""

from __future__ import annotations

from dataclasses import replace

import pytest

from activities.engine import attempt_workflow_id
from controlplane.calls.engine import AttachWorkflow
from controlplane.capacity.attempts import StartOrder, StartWorkers
from controlplane.errors import ApiError, Reason
from controlplane.store.contract import Key
from tests.fixtures.calls import ORG, PROJECT, PutObject, ScriptedWorker, succeeded
from tests.fixtures.placing import capacity_at
from tests.fixtures.sweeping import Sweeping

HEARTBEAT_SECONDS = 5
"""How often the public worker claims while calls run on it."""


async def sweep(sweeping: Sweeping) -> None:
    """Every chore that could take a call from its worker."""
    await sweeping.sweeper.end_lapsed_leases()
    await sweeping.sweeper.end_overdue_calls()
    await sweeping.sweeper.end_stuck_workers()
    await sweeping.sweeper.recover_orphaned_calls()


async def pass_seconds(sweeping: Sweeping, seconds: float) -> None:
    """Let the time pass, swept as often as a heartbeat is sent."""
    for _ in range(int(seconds / HEARTBEAT_SECONDS)):
        sweeping.calls.clock.advance(HEARTBEAT_SECONDS)
        await sweep(sweeping)


async def replacement(sweeping: Sweeping, worker: ScriptedWorker) -> ScriptedWorker:
    """The worker that the autoscaler starts in the place of one that is gone."""
    calls, lost = sweeping.calls, worker.claimant
    order = StartOrder(
        function_key=Key("Function", ORG, PROJECT, "f"), function_uid=lost.function_uid, revision="r1", count=1,
        node="elsewhere", node_workers_max=32, seen=frozenset(), capacity=capacity_at(calls.price),
        funding=calls.funding,
    )  # fmt: skip
    [row] = await calls.writer.write(StartWorkers(order))
    return ScriptedWorker(calls, replace(lost, attempt=row.uid, epoch=row.epoch))


@pytest.mark.case("C9")
async def test_a_worker_that_was_cut_off_keeps_its_call_for_a_lease_and_then_says_nothing_more(
    sweeping: Sweeping,
) -> None:
    calls, lease_seconds = sweeping.calls, sweeping.calls.settings.lease_seconds
    function = await calls.get("Function", "f")
    scaling = {"minWorkers": 0, "maxWorkers": 1, "targetConcurrency": 1}
    scaled = {**function, "spec": {**function["spec"], "scaling": scaling}}
    await calls.writer.write(PutObject(Key("Function", ORG, PROJECT, "f"), scaled))
    [name] = await calls.create()
    worker = await sweeping.worker()
    await calls.database.execute("UPDATE attempts SET slot = 'w1'")
    await worker.take()
    await pass_seconds(sweeping, lease_seconds * 0.5)
    assert await worker.claim(take=0) == ([], [])
    assert (await calls.status(name))["worker"]["attempt"] == worker.claimant.attempt

    await pass_seconds(sweeping, lease_seconds * 2)
    status = await calls.status(name)
    assert (status["phase"], status["recoveries"]) == ("Recovering", 1)
    ref = await calls.ref(name)
    await calls.writer.write(AttachWorkflow(ref, b"t"))
    await calls.writer.write(AttachWorkflow(ref, b"t", offer_after=1))
    other = await replacement(sweeping, worker)
    assert await other.take() == [name]
    assert (await calls.status(name))["worker"] == {"attempt": other.claimant.attempt, "epoch": 2}

    with pytest.raises(ApiError) as refusal:
        await worker.claim(succeeded(name, b"old"), take=0)
    assert refusal.value.reason is Reason.NOT_FOUND
    calls.clock.advance(10)
    await other.claim(succeeded(name, b"new"), take=0)
    status = await calls.status(name)
    assert (status["phase"], status["result"]["inline"]) == ("Succeeded", "bmV3")
    assert [phase for named, phase in calls.changes if (named, phase) == (name, "Succeeded")] == ["Succeeded"]
    assert status["costUSD"] == "0.0001"  # what ran on the worker that vanished is free
    await sweeping.client.get_workflow_handle(attempt_workflow_id(worker.claimant.attempt)).terminate()


@pytest.mark.case("C8")
async def test_a_call_of_ten_leases_runs_once_while_its_worker_claims(sweeping: Sweeping) -> None:
    calls, lease_seconds = sweeping.calls, sweeping.calls.settings.lease_seconds
    [name] = await calls.create(timeout="1h")
    worker = await sweeping.worker()
    await worker.take()
    for _ in range(10 * lease_seconds // HEARTBEAT_SECONDS):
        await pass_seconds(sweeping, HEARTBEAT_SECONDS)
        assert await worker.claim(take=0) == ([], [])
    await worker.claim(succeeded(name), take=0)
    status = await calls.status(name)
    assert (status["phase"], status["recoveries"], status["costUSD"]) == ("Succeeded", 0, "0.0075")
    assert [phase for named, phase in calls.changes if named == name] == ["Queued", "Running", "Succeeded"]
