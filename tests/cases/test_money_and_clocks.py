"""What a call costs when workers die, reports come twice and the server's clock is set."""

from __future__ import annotations

import pytest

from controlplane.calls.engine import AttachWorkflow
from controlplane.calls.function_charges import FunctionAuditor
from controlplane.calls.recovery import LoseAttempt
from controlplane.capacity.endings import WorkerEnd
from controlplane.machinery.quantities import parse_money
from controlplane.store.contract import Key
from tests.fixtures.calls import ORG, PROJECT, Calls, ScriptedWorker, said, succeeded
from tests.fixtures.paid_workers import PaidWorkers

MICRO_USD_A_SECOND = 10
"""Of `tests/fixtures/prices.py`."""


async def lose(calls: Calls, worker: ScriptedWorker, name: str, end: WorkerEnd) -> None:
    """The worker ends now, somebody sees it, and the call is offered again."""
    claimant = worker.claimant
    await calls.writer.write(LoseAttempt(claimant.attempt, claimant.epoch, calls.clock.now(), calls.rules, end))
    await offer_again(calls, name)


async def offer_again(calls: Calls, name: str) -> None:
    """What its workflow does with a call that lost its worker."""
    ref = await calls.ref(name)
    dispatch = (await calls.status(name))["recoveries"]
    await calls.writer.write(AttachWorkflow(ref, b"t"))
    await calls.writer.write(AttachWorkflow(ref, b"t", offer_after=dispatch))


@pytest.mark.case("C47")
@pytest.mark.parametrize(
    ("end", "lost_seconds"),
    [(WorkerEnd(outcome="Exited", signal=9), 10 + 7), (WorkerEnd(outcome="NodeLost"), 0)],
    ids=["the call's worker crashed", "the platform lost its worker"],
)
async def test_each_second_is_charged_once_whoever_dies_and_however_often_an_end_is_reported(
    calls: Calls, end: WorkerEnd, lost_seconds: int
) -> None:
    function = await calls.function()
    [name] = await calls.create()
    for ran_seconds in (10, 7):
        worker = await calls.worker()
        await worker.take()
        calls.clock.advance(ran_seconds)
        await lose(calls, worker, name, end)
        calls.clock.advance(100)
    worker = await calls.worker()
    await worker.take()
    calls.clock.advance(20)
    for _ in range(5):
        await worker.claim(succeeded(name), take=0)
        calls.clock.advance(1)
    status = await calls.status(name)
    assert (status["phase"], status["recoveries"]) == ("Succeeded", 2)
    assert parse_money(status["costUSD"]) == (lost_seconds + 20) * MICRO_USD_A_SECOND
    [other] = await calls.create()
    await worker.take()
    calls.clock.advance(0.2)
    await worker.claim(succeeded(other), take=0)
    uid = function["metadata"]["uid"]
    total = (await calls.queries.loads([uid]))[uid].charge_micro_usd
    assert total == (lost_seconds + 20 + 1) * MICRO_USD_A_SECOND


@pytest.mark.case("C47")
@pytest.mark.parametrize(
    ("end", "seconds"),
    [
        (WorkerEnd(outcome="Exited", signal=9), {"Calls": 10 + 20, "Boot": 2 + 3, "Warm": 5}),
        (WorkerEnd(outcome="NodeLost"), {"Calls": 20, "Restore": 3, "Warm": 5}),
    ],
    ids=["the call's worker crashed", "the platform lost its worker"],
)
async def test_a_worker_that_dies_in_a_call_is_charged_once_with_all_that_it_did(
    calls: Calls, paid: PaidWorkers, end: WorkerEnd, seconds: dict[str, int]
) -> None:
    scaling = {"minWorkers": 0, "maxWorkers": 10, "targetConcurrency": 1}
    await calls.function("g", scaling=scaling, recovery={"maxAttempts": 3})
    [name] = await calls.create(function="g")
    worker = await paid.ready(boot_seconds=2, function="g")
    await worker.take()
    calls.clock.advance(10)
    await worker.claim(take=0)
    for _ in range(3):
        await paid.end(worker, end)
        calls.clock.advance(1)
    await offer_again(calls, name)
    again = await paid.ready(boot_seconds=3, function="g")
    await again.take()
    calls.clock.advance(20)
    for _ in range(5):
        await again.claim(succeeded(name), take=0)
        calls.clock.advance(1)
    await paid.drain(again)
    for _ in range(5):
        await paid.end(again)
    told = (await FunctionAuditor(calls.database).charges(Key("Function", ORG, PROJECT, "g")))["status"]
    assert told["equal"] is True, told["differences"]
    assert {part["part"]: part["seconds"] for part in told["parts"]} == seconds
    assert parse_money(told["ledgerUSD"]) == sum(seconds.values()) * MICRO_USD_A_SECOND == await paid.total("g")
    status = await calls.status(name)
    assert parse_money(status["costUSD"]) == seconds["Calls"] * MICRO_USD_A_SECOND


@pytest.mark.case("C45")
@pytest.mark.parametrize("step_seconds", [-3_600, -600, 600])
async def test_a_server_whose_clock_is_set_runs_no_call_twice_and_takes_no_money_it_could_not_have_earned(
    calls: Calls, step_seconds: int
) -> None:
    await calls.function()
    [name] = await calls.create(timeout="300s")
    worker = await calls.worker()
    await worker.take()
    calls.clock.advance(2)
    calls.clock.advance(step_seconds)
    assert await worker.claim() == ([], [])
    now = calls.clock.now()
    # A worker that has just claimed is neither late nor lapsed, whatever time it is.
    assert await calls.queries.attempts_with_overdue_calls(now, calls.settings.deadline_grace_seconds, 30, 10) == (
        [worker.claimant.attempt] if step_seconds > 300 else []
    )
    assert await calls.queries.lapsed_attempts(now, calls.settings.lease_seconds, 10) == []
    await worker.claim(succeeded(name), take=0)
    status = await calls.status(name)
    assert (status["phase"], status["retries"], status["recoveries"]) == ("Succeeded", 0, 0)
    assert status["completionTime"] >= status["startTime"]
    may_run_seconds = 300 + calls.settings.deadline_grace_seconds
    assert MICRO_USD_A_SECOND <= parse_money(status["costUSD"]) <= may_run_seconds * MICRO_USD_A_SECOND


@pytest.mark.case("C45")
async def test_a_worker_whose_clock_is_fast_is_not_believed_that_a_call_is_late(calls: Calls) -> None:
    await calls.function(retries={"maxRetries": 1})
    [name] = await calls.create(timeout="300s")
    worker = await calls.worker()
    await worker.take()
    await worker.claim(said(name, "DeadlineExceeded"), take=0)
    status = await calls.status(name)
    assert (status["phase"], status["retries"]) == ("Queued", 1)
