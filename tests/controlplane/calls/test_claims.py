"""A worker's claims, rule by rule, as scripted workers speak them."""

from __future__ import annotations

import asyncio

import pytest

from controlplane.errors import ApiError, Reason
from controlplane.store.contract import Key
from tests.fixtures.calls import Calls, PutObject, raised, said, succeeded
from tests.fixtures.eventually import eventually


@pytest.fixture(autouse=True)
async def function(calls: Calls) -> None:
    await calls.function()


async def test_a_claim_takes_a_queued_call_and_the_next_one_reports_its_result(calls: Calls) -> None:
    [name] = await calls.create()
    worker = await calls.worker()
    [given], cancel = await worker.claim()
    assert given == {
        "id": name,
        "input": {"encoding": "Pickle", "inline": "Yy0wMDAwMDI="},
        "deadline": "2026-11-29T12:05:00.000000Z",
    }
    assert cancel == []
    running = await calls.status(name)
    assert (running["phase"], running["worker"]) == ("Running", {"attempt": worker.claimant.attempt, "epoch": 1})
    calls.clock.advance(2.5)
    assert await worker.claim(succeeded(name)) == ([], [])
    status = await calls.status(name)
    assert status["phase"] == "Succeeded"
    assert status["result"]["inline"] == "dmFsdWU="
    assert (status["startTime"], status["completionTime"]) == ("2026-11-29T12:00:00Z", "2026-11-29T12:00:02Z")
    assert status["costUSD"] == "0.00003"
    assert status["worker"] == {"attempt": worker.claimant.attempt, "epoch": 1}


@pytest.mark.case("C44")
async def test_a_call_reaches_a_waiting_worker_in_the_transaction_that_creates_it(calls: Calls) -> None:
    worker = await calls.worker()
    waiting = asyncio.create_task(worker.claim(wait=30))
    await eventually(lambda: calls.waiting.held(worker.claimant.function_uid))
    batches = calls.writer.stats.batches
    [name] = await calls.create()
    given, _ = await waiting
    assert [call["id"] for call in given] == [name]
    assert calls.writer.stats.batches == batches + 1
    assert calls.changes[-2:] == [(name, "Queued"), (name, "Running")]


@pytest.mark.case("C44")
async def test_completions_come_first_so_the_freed_worker_takes_the_next_call_in_one_commit(calls: Calls) -> None:
    first, second = await calls.create("s", "s")
    worker = await calls.worker()
    assert await worker.take() == [first]
    batches = calls.writer.stats.batches
    given, _ = await worker.claim(succeeded(first))
    assert [call["id"] for call in given] == [second]
    assert calls.writer.stats.batches == batches + 1


async def test_the_first_claim_makes_the_worker_ready(calls: Calls) -> None:
    worker = await calls.worker()
    assert (await calls.attempt(worker))["ready_at"] is None
    await worker.claim(take=0)
    attempt = await calls.attempt(worker)
    assert (attempt["state"], attempt["ready_at"]) == ("ready", calls.clock.now())
    status = (await calls.get("Attempt", worker.claimant.attempt))["status"]
    assert (status["phase"], status["progress"]["stage"]) == ("Running", "Running")
    revision = (await calls.get("Attempt", worker.claimant.attempt))["metadata"]["resourceVersion"]
    await worker.claim(take=0)
    assert (await calls.get("Attempt", worker.claimant.attempt))["metadata"]["resourceVersion"] == revision


async def test_reports_of_a_call_that_is_not_held_change_nothing(calls: Calls) -> None:
    [name] = await calls.create()
    holder, stranger = await calls.worker(), await calls.worker()
    await holder.take()
    before = await calls.get("FunctionCall", name)
    for record in (succeeded(name), raised(name), said(name, "Cancelled"), said(name, "DeadlineExceeded")):
        await stranger.claim(record, take=0)
    await stranger.claim(succeeded("never-was"), take=0)
    assert await calls.get("FunctionCall", name) == before


async def test_a_call_that_ended_is_not_changed_by_any_later_word(calls: Calls) -> None:
    [name] = await calls.create()
    worker = await calls.worker()
    await worker.take()
    await worker.claim(succeeded(name), take=0)
    before = await calls.get("FunctionCall", name)
    calls.clock.advance(10)
    for record in (succeeded(name, b"other"), raised(name), said(name, "Cancelled"), said(name, "DeadlineExceeded")):
        await worker.claim(record, take=0)
    assert await calls.get("FunctionCall", name) == before


async def test_a_repeated_claim_applies_its_report_once(calls: Calls) -> None:
    first, second = await calls.create("s", "s")
    worker = await calls.worker()
    await worker.take()
    record = succeeded(first)
    lost, _ = await worker.claim(record)
    assert [call["id"] for call in lost] == [second]
    worker.running.clear()  # the reply never arrived
    again, _ = await worker.claim(record)
    assert [call["id"] for call in again] == [second]
    status = await calls.status(second)
    assert (status["retries"], status["recoveries"]) == (0, 0)
    assert [change for change in calls.changes if change[0] == first] == [
        (first, "Queued"), (first, "Running"), (first, "Succeeded"),
    ]  # fmt: skip


async def test_a_lost_reply_returns_the_call_at_once_uncounted_and_uncharged(calls: Calls) -> None:
    [name] = await calls.create()
    worker = await calls.worker()
    await worker.claim()
    calls.clock.advance(20)
    given, _ = await worker.claim(running=[])
    assert [call["id"] for call in given] == [name]
    calls.clock.advance(1)
    await worker.claim(succeeded(name), take=0)
    status = await calls.status(name)
    assert (status["retries"], status["recoveries"], status["costUSD"]) == (0, 0, "0.00001")
    assert status["startTime"] == "2026-11-29T12:00:20Z"
    assert [phase for _, phase in calls.changes] == ["Queued", "Running", "Queued", "Running", "Succeeded"]


async def test_a_returned_call_goes_before_newer_ones_of_its_session(calls: Calls) -> None:
    first, _, _ = await calls.create("s", "s", "s")
    worker, other = await calls.worker(), await calls.worker()
    await worker.claim()
    await worker.claim(running=[], take=0)
    assert await other.take() == [first]


async def test_what_a_worker_runs_without_holding_it_is_to_be_stopped_until_it_lets_go(calls: Calls) -> None:
    [name] = await calls.create()
    worker = await calls.worker()
    await worker.take()
    for _ in range(2):
        assert await worker.claim(take=0, running=[name, "gone"]) == ([], ["gone"])
    assert await worker.claim(take=0, running=[name]) == ([], [])


async def test_a_cancel_of_a_queued_call_ends_it_at_once_for_nothing(calls: Calls) -> None:
    [name] = await calls.create()
    await calls.cancel(name)
    status = await calls.status(name)
    assert (status["phase"], status["reason"], status["costUSD"]) == ("Cancelled", "Cancelled", "0.00")
    assert await (await calls.worker()).take() == []


async def test_a_cancel_of_a_running_call_reaches_its_worker_and_ends_with_the_worker(calls: Calls) -> None:
    [name] = await calls.create()
    worker = await calls.worker()
    await worker.take()
    await calls.cancel(name)
    assert await calls.phase(name) == "Cancelling"
    for _ in range(2):
        assert await worker.claim(take=0) == ([], [name])
    calls.clock.advance(3)
    for _ in range(2):
        # A thread cannot be stopped: the worker says so whether the body goes on or not.
        assert await worker.claim(said(name, "Cancelled"), take=0) == ([], [])
    status = await calls.status(name)
    assert status["phase"] == "Cancelling"
    assert "its worker let go of the call" in status["message"]
    calls.clock.advance(2)
    assert await worker.claim(take=1) == ([], [])
    assert await worker.claim(take=0, draining=True) == ([], [])
    assert await calls.phase(name) == "Cancelling"
    await worker.exits()
    status = await calls.status(name)
    assert (status["phase"], status["costUSD"], status["recoveries"]) == ("Cancelled", "0.00005", 0)


@pytest.mark.parametrize("record", [succeeded, raised])
async def test_any_report_after_a_cancel_ends_the_call_cancelled(calls: Calls, record: object) -> None:
    [name] = await calls.create()
    worker = await calls.worker()
    await worker.take()
    await calls.cancel(name)
    assert callable(record)
    await worker.claim(record(name), take=0)
    status = await calls.status(name)
    assert status["phase"] == "Cancelled"
    assert "result" not in status
    assert "error" not in status


async def test_a_cancelled_call_that_never_arrived_ends_cancelled_for_nothing(calls: Calls) -> None:
    [name] = await calls.create()
    worker = await calls.worker()
    await worker.claim()
    await calls.cancel(name)
    assert await worker.claim(running=[]) == ([], [])
    status = await calls.status(name)
    assert (status["phase"], status["costUSD"]) == ("Cancelled", "0.00")


async def test_after_a_deadline_the_worker_takes_no_more_calls_and_is_to_be_killed(calls: Calls) -> None:
    first, _ = await calls.create("s", "s")
    worker = await calls.worker()
    await worker.take()
    calls.clock.advance(300)
    assert await worker.claim(said(first, "DeadlineExceeded")) == ([], [])
    assert (await calls.attempt(worker))["drain_reason"] == "DeadlineExceeded"
    [draining] = await calls.queries.draining_attempts([worker.claimant.function_uid])
    assert draining.uid == worker.claimant.attempt
    calls.clock.advance(29)
    assert await calls.queries.attempts_to_kill(calls.clock.now()) == []
    calls.clock.advance(2)
    [to_kill] = await calls.queries.attempts_to_kill(calls.clock.now())
    assert to_kill.uid == worker.claimant.attempt


async def test_a_deadline_at_its_time_fails_the_call_and_is_never_retried(calls: Calls) -> None:
    await calls.function("g", retries={"maxRetries": 3})
    [name] = await calls.create(function="g", timeout="5s")
    worker = await calls.worker("g")
    [given], _ = await worker.claim()
    assert given["deadline"] == "2026-11-29T12:00:05.000000Z"
    calls.clock.advance(4.9)
    await worker.claim(said(name, "DeadlineExceeded"), take=0)
    status = await calls.status(name)
    assert (status["phase"], status["reason"], status["costUSD"]) == ("Failed", "DeadlineExceeded", "0.00005")


async def test_a_deadline_reported_with_time_left_is_a_timeout_the_function_raised(calls: Calls) -> None:
    [name] = await calls.create()
    worker = await calls.worker()
    await worker.take()
    await worker.claim(said(name, "DeadlineExceeded"), take=0)
    status = await calls.status(name)
    assert (status["reason"], status["error"]["type"]) == ("RemoteError", "TimeoutError")
    assert status["error"]["traceback"]
    assert (await calls.attempt(worker))["draining"]


async def test_a_cancel_nobody_asked_for_is_an_error_the_function_raised(calls: Calls) -> None:
    await calls.function("g", retries={"maxRetries": 1})
    [name] = await calls.create(function="g")
    worker = await calls.worker("g")
    await worker.take()
    await worker.claim(said(name, "Cancelled"), take=0)
    status = await calls.status(name)
    assert (status["phase"], status["retries"]) == ("Queued", 1)
    assert "asyncio.exceptions.CancelledError" in status["message"]


@pytest.mark.case("C18")
async def test_an_exception_without_retries_fails_the_call_with_type_message_and_traceback(calls: Calls) -> None:
    [name] = await calls.create()
    worker = await calls.worker()
    await worker.take()
    await worker.claim(raised(name, "app.Broken", "no luck"), take=0)
    status = await calls.status(name)
    assert (status["phase"], status["reason"], status["message"]) == ("Failed", "RemoteError", "app.Broken: no luck")
    assert status["error"]["traceback"] == "Traceback …\napp.Broken: no luck"


async def test_a_bad_record_fails_its_own_call_and_the_rest_of_the_claim_counts(calls: Calls) -> None:
    first, second, third = await calls.create("s", "s", "s")
    worker = await calls.worker(concurrency=2)
    assert await worker.take(2) == [first, second]
    huge = succeeded(first, bytes(65_537))
    given, _ = await worker.claim(huge, succeeded(second))
    assert [call["id"] for call in given] == [third]
    status = await calls.status(first)
    assert (status["phase"], status["reason"]) == ("Failed", "ResultTooLarge")
    assert await calls.phase(second) == "Succeeded"


async def test_no_more_than_max_calls_are_given(calls: Calls) -> None:
    names = await calls.create(*["s"] * 5)
    worker = await calls.worker(concurrency=8)
    assert await worker.take(0) == []
    assert await worker.take(3) == names[:3]
    assert await worker.take(5) == names[3:]


async def test_an_idle_claim_is_held_for_its_whole_wait_and_a_claim_without_wait_is_not(calls: Calls) -> None:
    worker = await calls.worker()
    loop = asyncio.get_running_loop()
    # Held, it would be so for as long as a claim may be.
    async with asyncio.timeout(calls.limits.wait_seconds_max - 1):
        assert await worker.claim(wait=0) == ([], [])
    began = loop.time()
    assert await worker.claim(wait=0.5) == ([], [])
    assert loop.time() - began >= 0.5


async def test_the_last_claim_of_a_worker_returns_what_it_still_held(calls: Calls) -> None:
    first, second = await calls.create("s", "s")
    worker = await calls.worker(concurrency=2)
    await worker.take(2)
    await worker.claim(succeeded(first), take=0, running=[], draining=True)
    assert await calls.phase(first) == "Succeeded"
    status = await calls.status(second)
    assert (status["phase"], status["recoveries"]) == ("Queued", 0)
    attempt = await calls.attempt(worker)
    assert attempt["draining"]
    assert attempt["drained_at"] == calls.clock.now()
    assert await worker.claim(take=0, running=[], draining=True) == ([], [])
    assert await worker.claim(running=[]) == ([], [])


@pytest.mark.parametrize("change", ["finished", "epoch", "absent"])
async def test_a_fenced_worker_gets_404(calls: Calls, change: str) -> None:
    worker = await calls.worker()
    uid = worker.claimant.attempt
    statement = {
        "finished": "UPDATE attempts SET finished_at = now() WHERE uid = $1",
        "epoch": "UPDATE attempts SET epoch = epoch + 1 WHERE uid = $1",
        "absent": "DELETE FROM attempts WHERE uid = $1",
    }[change]
    await calls.database.execute(statement, uid)
    with pytest.raises(ApiError) as refusal:
        await worker.claim()
    assert refusal.value.reason is Reason.NOT_FOUND


async def test_a_worker_of_another_function_is_not_allowed(calls: Calls) -> None:
    await calls.function("g")
    worker, other = await calls.worker("f"), await calls.worker("g")
    object.__setattr__(worker.claimant, "function_uid", other.claimant.function_uid)
    with pytest.raises(ApiError) as refusal:
        await worker.claim()
    assert refusal.value.reason is Reason.WORKER_NOT_ALLOWED


async def test_a_stopped_function_hands_out_nothing_until_it_is_started(calls: Calls) -> None:
    function = await calls.get("Function", "f")
    key = Key("Function", "acme", "default", "f")
    stopped = {**function, "spec": {**function["spec"], "state": "Stopped"}}
    await calls.writer.write(PutObject(key, stopped))
    [name] = await calls.create()
    worker = await calls.worker()
    assert await worker.take() == []
    waiting = asyncio.create_task(worker.claim(wait=30))
    await eventually(lambda: calls.waiting.held(worker.claimant.function_uid))
    await calls.writer.write(PutObject(key, function))
    given, _ = await waiting
    assert [call["id"] for call in given] == [name]


async def test_an_exception_with_retries_left_waits_for_its_workflow(calls: Calls) -> None:
    await calls.function("g", retries={"maxRetries": 2, "initialDelay": "1s"})
    [name] = await calls.create(function="g")
    worker = await calls.worker("g")
    await worker.take()
    calls.clock.advance(1)
    assert await worker.claim(raised(name)) == ([], [])
    status = await calls.status(name)
    assert (status["phase"], status["retries"], status["costUSD"]) == ("Queued", 1, "0.00001")
    assert status["message"].startswith("retry 1 of 2 follows in ")
    assert status["message"].endswith("ValueError: boom")
    assert "error" not in status
    row = await calls.row(name)
    assert row is not None
    assert row["state"] == "deciding"
    assert [found.ref.name for found in await calls.queries.to_decide(10)] == [name]


async def test_two_claims_of_one_worker_in_one_batch_give_the_call_to_the_later(calls: Calls) -> None:
    [name] = await calls.create()
    worker = await calls.worker()
    await worker.take()
    batches = calls.writer.stats.batches
    earlier, later = await asyncio.gather(worker.claim(running=[], wait=5), worker.claim(running=[], wait=5))
    assert calls.writer.stats.batches == batches + 1
    assert earlier == ([], [])
    assert [call["id"] for call in later[0]] == [name]
    assert (await calls.row(name) or {})["dispatches"] == 2
