"""Calls taken from workers that died, went silent or would not stop, and from Functions that are deleted."""

from __future__ import annotations

import asyncio

import pytest

from controlplane.calls.recovery import EndOverdue, FailCallsOfFunction, ForgetFunction, LoseAttempt
from controlplane.capacity.attempts import CloseAttempt, DrainWorkers
from controlplane.capacity.endings import WorkerEnd
from controlplane.errors import ApiError
from controlplane.store.contract import Key
from tests.fixtures.calls import ORG, PROJECT, Calls, ScriptedWorker, said, succeeded

CRASH = WorkerEnd(outcome="Exited", signal=9)
"""An end that the calls of the worker may have brought about, so that its time is theirs to pay."""


async def lose(calls: Calls, worker: ScriptedWorker, *, seen: bool = False, end: WorkerEnd | None = None) -> int | None:
    claimant, ended_at = worker.claimant, calls.clock.now() if seen else None
    return await calls.writer.write(LoseAttempt(claimant.attempt, claimant.epoch, ended_at, calls.rules, end))


async def test_a_lost_worker_gives_its_calls_back_for_recovery_and_is_fenced(calls: Calls) -> None:
    await calls.function()
    first, second, third = await calls.create("s", "s", "s")
    worker = await calls.worker(concurrency=2)
    assert await worker.take(2) == [first, second]
    calls.clock.advance(10)
    assert await lose(calls, worker, seen=True) == 2
    for name in (first, second):
        status = await calls.status(name)
        assert (status["phase"], status["recoveries"], status["retries"]) == ("Recovering", 1, 0)
        assert status["costUSD"] == "0.00"
    assert await calls.phase(third) == "Queued"
    with pytest.raises(ApiError):
        await worker.claim(succeeded(first))
    assert await calls.phase(first) == "Recovering"
    assert await lose(calls, worker) is None


async def test_a_worker_that_ended_unseen_is_charged_up_to_its_last_sign_of_life(calls: Calls) -> None:
    await calls.function()
    [name] = await calls.create()
    worker = await calls.worker()
    await worker.take()
    calls.clock.advance(10)
    await worker.claim(take=0)
    calls.clock.advance(80)
    await lose(calls, worker, end=CRASH)
    assert (await calls.status(name))["costUSD"] == "0.0001"


async def test_what_ran_on_a_worker_that_the_platform_lost_costs_nothing(calls: Calls) -> None:
    await calls.function()
    [name] = await calls.create()
    worker = await calls.worker()
    await worker.take()
    calls.clock.advance(10)
    await worker.claim(take=0)
    await lose(calls, worker, end=WorkerEnd(outcome="NodeLost"))
    assert (await calls.status(name))["costUSD"] == "0.00"


async def test_a_call_whose_worker_gave_no_sign_of_it_costs_nothing(calls: Calls) -> None:
    await calls.function()
    [name] = await calls.create()
    worker = await calls.worker()
    await worker.take()
    calls.clock.advance(80)
    await lose(calls, worker)
    assert (await calls.status(name))["costUSD"] == "0.00"


async def test_recoveries_have_a_limit_and_the_function_sets_it(calls: Calls) -> None:
    await calls.function(recovery={"maxAttempts": 0})
    [name] = await calls.create()
    worker = await calls.worker()
    await worker.take()
    await lose(calls, worker, seen=True)
    status = await calls.status(name)
    assert (status["phase"], status["reason"]) == ("Failed", "RecoveryLimitExceeded")


async def test_a_function_may_ask_to_fail_on_the_first_loss(calls: Calls) -> None:
    await calls.function(recovery={"maxAttempts": 5, "onInterruption": "Fail"})
    [name] = await calls.create()
    worker = await calls.worker()
    await worker.take()
    await lose(calls, worker, seen=True)
    assert (await calls.status(name))["reason"] == "RecoveryLimitExceeded"


async def test_a_call_that_was_being_cancelled_when_its_worker_died_ends_cancelled(calls: Calls) -> None:
    await calls.function()
    [name] = await calls.create()
    worker = await calls.worker()
    await worker.take()
    await calls.cancel(name)
    calls.clock.advance(1)
    await lose(calls, worker, seen=True)
    status = await calls.status(name)
    assert (status["phase"], status["costUSD"]) == ("Cancelled", "0.00001")


async def test_a_cancel_while_recovering_ends_the_call_at_once(calls: Calls) -> None:
    await calls.function()
    [name] = await calls.create()
    worker = await calls.worker()
    await worker.take()
    calls.clock.advance(1)
    await lose(calls, worker, seen=True)
    await calls.cancel(name)
    status = await calls.status(name)
    assert (status["phase"], status["costUSD"]) == ("Cancelled", "0.00")


async def test_an_old_epoch_cannot_be_lost_again(calls: Calls) -> None:
    await calls.function()
    [name] = await calls.create()
    worker = await calls.worker(epoch=3)
    await worker.take()
    stale = LoseAttempt(worker.claimant.attempt, 2, None, calls.rules)
    assert await calls.writer.write(stale) is None
    assert await calls.phase(name) == "Running"


async def test_silence_past_the_deadline_and_its_grace_ends_the_call_and_the_worker(calls: Calls) -> None:
    await calls.function()
    [name] = await calls.create(timeout="5s")
    worker = await calls.worker()
    await worker.take()
    calls.clock.advance(64)
    await worker.claim(take=0)
    assert await overdue(calls) == []
    calls.clock.advance(1.5)
    assert await overdue(calls) == [worker.claimant.attempt]
    assert await calls.writer.write(EndOverdue(worker.claimant.attempt, calls.rules)) == 1
    status = await calls.status(name)
    assert (status["phase"], status["reason"], status["costUSD"]) == ("Failed", "DeadlineExceeded", "0.00065")
    assert (await calls.attempt(worker))["draining"]
    [to_kill] = await calls.queries.attempts_to_kill(calls.clock.now().replace(microsecond=999_999))
    assert (to_kill.uid, to_kill.reason) == (worker.claimant.attempt, "DeadlineExceeded")
    assert await calls.writer.write(EndOverdue(worker.claimant.attempt, calls.rules)) == 0
    await worker.claim(said(name, "DeadlineExceeded"), take=0)
    assert (await calls.status(name)) == status


async def test_a_call_whose_worker_was_last_seen_before_its_deadline_is_lost_not_late(calls: Calls) -> None:
    """As after an outage of the server that outlived the deadline and its grace."""
    await calls.function()
    [name] = await calls.create(timeout="5s")
    worker = await calls.worker()
    await worker.take()
    calls.clock.advance(4)
    await worker.claim(take=0)
    calls.clock.advance(3_600)
    assert await overdue(calls) == []
    assert await calls.writer.write(EndOverdue(worker.claimant.attempt, calls.rules)) == 0
    await lose(calls, worker)
    status = await calls.status(name)
    assert (status["phase"], status["recoveries"], status["costUSD"]) == ("Recovering", 1, "0.00")


KILLED = WorkerEnd(outcome="Killed", signal=9)


@pytest.mark.parametrize(
    ("end", "reason", "silent_seconds", "phase"),
    [
        (KILLED, "DeadlineExceeded", 66, "Failed"),
        (KILLED, "Rolled", 66, "Failed"),
        (KILLED, "LeaseExpired", 76, "Failed"),
        (KILLED, "LeaseExpired", 9, "Failed"),  # a lease that is shorter than the grace
        (KILLED, "LeaseExpired", 4, "Recovering"),
        (KILLED, "Rolled", 64, "Recovering"),
        (WorkerEnd(outcome="NodeLost"), "DeadlineExceeded", 66, "Recovering"),
        (WorkerEnd(outcome="Exited", exit_code=1), "LeaseExpired", 76, "Recovering"),
    ],
)
async def test_a_worker_that_lived_past_the_deadline_in_silence_ends_its_call_and_another_loses_it(
    calls: Calls, end: WorkerEnd, reason: str, silent_seconds: int, phase: str
) -> None:
    await calls.function()
    [name] = await calls.create(timeout="5s")
    worker = await calls.worker()
    await worker.take()
    calls.clock.advance(silent_seconds)
    await calls.writer.write(DrainWorkers([worker.claimant.attempt], reason, calls.clock.now()))
    # However late it is told.
    calls.clock.advance(600)
    await lose(calls, worker, seen=True, end=end)
    status = await calls.status(name)
    assert (status["phase"], status["retries"]) == (phase, 0)
    if phase == "Failed":
        assert (status["reason"], status["recoveries"], status["costUSD"]) == ("DeadlineExceeded", 0, "0.00065")


async def test_a_call_whose_worker_was_last_seen_before_its_cancel_ends_cancelled_with_it(calls: Calls) -> None:
    await calls.function()
    [name] = await calls.create()
    worker = await calls.worker()
    await worker.take()
    calls.clock.advance(2)
    await worker.claim(take=0)
    calls.clock.advance(1)
    await calls.cancel(name)
    calls.clock.advance(3_600)
    assert await overdue(calls) == []
    assert await calls.writer.write(EndOverdue(worker.claimant.attempt, calls.rules)) == 0
    await lose(calls, worker)
    status = await calls.status(name)
    assert (status["phase"], status["costUSD"]) == ("Cancelled", "0.00002")


async def test_an_end_that_is_noticed_late_costs_no_more_than_the_call_might_have_run(calls: Calls) -> None:
    await calls.function()
    overdue_one, lost_one = await calls.create("a", "b", timeout="5s")
    workers = [await calls.worker(), await calls.worker()]
    for name, worker in zip((overdue_one, lost_one), workers, strict=True):
        assert await worker.take() == [name]
    calls.clock.advance(6)
    for worker in workers:
        await worker.claim(take=0)
    calls.clock.advance(3_600)
    await calls.writer.write(EndOverdue(workers[0].claimant.attempt, calls.rules))
    await lose(calls, workers[1], seen=True, end=CRASH)
    assert [(await calls.status(name))["costUSD"] for name in (overdue_one, lost_one)] == ["0.00065"] * 2


async def test_calls_of_a_worker_that_was_closed_without_its_loss_are_found_and_recovered(calls: Calls) -> None:
    await calls.function()
    [name] = await calls.create()
    worker = await calls.worker()
    await worker.take()
    assert await calls.queries.orphaned_attempts(10) == []
    await calls.writer.write(
        CloseAttempt(Key("Attempt", ORG, PROJECT, worker.claimant.attempt), WorkerEnd(outcome="Exited", exit_code=1))
    )
    [orphaned] = await calls.queries.orphaned_attempts(10)
    assert (orphaned.uid, orphaned.epoch) == (worker.claimant.attempt, worker.claimant.epoch)
    assert await lose(calls, worker) == 1
    assert await calls.phase(name) == "Recovering"
    assert await calls.queries.orphaned_attempts(10) == []
    assert await lose(calls, worker) is None


async def test_a_body_that_goes_on_after_a_cancel_is_ended_after_the_grace(calls: Calls) -> None:
    await calls.function()
    [name] = await calls.create()
    worker = await calls.worker()
    await worker.take()
    await calls.cancel(name)
    calls.clock.advance(29)
    assert await calls.writer.write(EndOverdue(worker.claimant.attempt, calls.rules)) == 0
    calls.clock.advance(1)
    assert await calls.writer.write(EndOverdue(worker.claimant.attempt, calls.rules)) == 1
    assert await calls.phase(name) == "Cancelled"
    assert await worker.claim(take=0) == ([], [name])


async def overdue(calls: Calls) -> list[str]:
    now, rules = calls.clock.now(), calls.rules
    return await calls.queries.attempts_with_overdue_calls(
        now, rules.deadline_grace_seconds, rules.cancel_grace_seconds, 100
    )


async def test_a_ready_worker_without_a_claim_for_a_lease_is_found(calls: Calls) -> None:
    await calls.function()
    worker, _not_ready = await calls.worker(), await calls.worker()
    await worker.claim(take=0)
    calls.clock.advance(75)
    assert await calls.queries.lapsed_attempts(calls.clock.now(), 75, 10) == []
    calls.clock.advance(0.5)
    [lapsed] = await calls.queries.lapsed_attempts(calls.clock.now(), 75, 10)
    assert (lapsed.uid, lapsed.epoch, lapsed.reason) == (worker.claimant.attempt, 1, "LeaseExpired")
    await lose(calls, worker)
    assert await calls.queries.lapsed_attempts(calls.clock.now(), 75, 10) == []


async def test_deleting_a_function_fails_its_open_calls_in_bounded_steps(calls: Calls) -> None:
    function = await calls.function(maxCostUSD="5.00")
    queued = await calls.create(*["s"] * 5)
    worker = await calls.worker()
    await worker.take()
    calls.clock.advance(2)
    uid = function["metadata"]["uid"]
    steps = [await calls.writer.write(FailCallsOfFunction(uid, 3, calls.rules)) for _ in range(3)]
    assert steps == [3, 2, 0]
    for name in queued:
        status = await calls.status(name)
        assert (status["phase"], status["reason"]) == ("Failed", "FunctionDeleted")
    assert sorted([(await calls.status(name))["costUSD"] for name in queued]) == ["0.00"] * 4 + ["0.00002"]
    assert await worker.claim(take=1) == ([], [queued[0]])
    limits = "SELECT count(*) FROM spending_limits WHERE id = $1"
    assert await calls.database.fetchval(limits, uid) == 1
    await calls.writer.write(ForgetFunction(uid))
    assert await calls.queries.loads([uid]) == {}
    assert await calls.database.fetchval(limits, uid) == 0


async def test_the_bill_of_a_function_is_the_sum_of_its_calls(calls: Calls) -> None:
    function = await calls.function()
    names = await calls.create(*["s"] * 4)
    worker = await calls.worker(concurrency=4)
    await worker.take(4)
    calls.clock.advance(3)
    await worker.claim(succeeded(names[0]), said(names[1], "Cancelled"), take=0)
    calls.clock.advance(4)
    await calls.cancel(names[2])
    await lose(calls, worker, seen=True)
    costs = [(await calls.status(name)).get("costUSD", "0") for name in names]
    assert costs == ["0.000008", "0.000008", "0.000018", "0.00"]
    load = (await calls.queries.loads([function["metadata"]["uid"]]))[function["metadata"]["uid"]]
    assert load.charge_micro_usd == 8 + 8 + 18
    assert (load.queued, load.running, load.pending) == (0, 0, 1)
    assert load.last_end_at == calls.clock.now()


async def test_a_report_in_the_same_commit_as_the_loss_wins_when_it_came_first(calls: Calls) -> None:
    await calls.function()
    first, second = await calls.create("s", "s")
    worker = await calls.worker(concurrency=2)
    await worker.take(2)
    batches = calls.writer.stats.batches
    (_, cancel), lost = await asyncio.gather(worker.claim(succeeded(first), take=0), lose(calls, worker, seen=True))
    assert calls.writer.stats.batches == batches + 1
    assert (cancel, lost) == ([], 1)
    assert await calls.phase(first) == "Succeeded"
    assert (await calls.status(second))["recoveries"] == 1


async def test_a_loss_twice_in_one_commit_counts_once(calls: Calls) -> None:
    await calls.function()
    [name] = await calls.create()
    worker = await calls.worker()
    await worker.take()
    losses = await asyncio.gather(lose(calls, worker, seen=True), lose(calls, worker, seen=True))
    assert list(losses) == [1, None]
    assert (await calls.status(name))["recoveries"] == 1


async def test_failing_and_losing_calls_in_one_commit_ends_each_once(calls: Calls) -> None:
    function = await calls.function()
    [name] = await calls.create()
    worker = await calls.worker()
    await worker.take()
    fail = FailCallsOfFunction(function["metadata"]["uid"], 10, calls.rules)
    steps = await asyncio.gather(lose(calls, worker, seen=True), calls.writer.write(fail), calls.writer.write(fail))
    assert list(steps) == [1, 1, 1]
    assert (await calls.status(name))["phase"] in ("Failed", "Recovering")
    while await calls.writer.write(fail):
        pass
    assert [phase for changed, phase in calls.changes if changed == name].count("Failed") == 1


async def test_nothing_is_overdue_on_a_worker_nobody_knows(calls: Calls) -> None:
    assert await calls.writer.write(EndOverdue("att_0", calls.rules)) == 0
    assert await calls.writer.write(LoseAttempt("att_0", 1, None, calls.rules)) is None
