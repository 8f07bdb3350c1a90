"""What a call costs when workers die, reports come twice and the server's clock is set."""

from __future__ import annotations

import pytest

from controlplane.calls.engine import AttachWorkflow
from controlplane.calls.recovery import LoseAttempt
from controlplane.capacity.endings import WorkerEnd
from controlplane.machinery.quantities import parse_money
from tests.fixtures.calls import Calls, ScriptedWorker, said, succeeded

MICRO_USD_A_SECOND = 10
"""Of `tests/fixtures/prices.py`."""


async def lose(calls: Calls, worker: ScriptedWorker, name: str, end: WorkerEnd) -> None:
    """The worker ends now, somebody sees it, and the call is offered again."""
    claimant = worker.claimant
    await calls.writer.write(LoseAttempt(claimant.attempt, claimant.epoch, calls.clock.now(), calls.rules, end))
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
