"""Who gets which call: turns between sessions, held claims, lost connections, other processes, the lag budget."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from controlplane.calls.dispatcher import Dispatcher
from controlplane.calls.engine import AttachWorkflow
from controlplane.calls.recovery import LoseAttempt
from controlplane.calls.selection import Lag
from controlplane.calls.waiting import WaitingClaims
from controlplane.kinds.registry import KINDS
from controlplane.limits.switches import Switches
from controlplane.resources.mutations import RaceLostError
from controlplane.settings import Settings
from controlplane.store.cache import ObjectCache
from controlplane.store.changes import ChangeFeed
from controlplane.store.writer import Writer
from tests.fixtures.calls import Calls, MarkStarted, ScriptedWorker, succeeded
from tests.fixtures.eventually import eventually


async def held(
    calls: Calls, worker: ScriptedWorker, take: int = 1
) -> asyncio.Task[tuple[list[dict[str, object]], list[str]]]:
    """A claim that waits, once it does."""
    before = len(calls.waiting.held(worker.claimant.function_uid))
    task = asyncio.create_task(worker.claim(wait=30, take=take))
    await eventually(lambda: len(calls.waiting.held(worker.claimant.function_uid)) > before)
    return task


async def test_sessions_take_turns_however_long_their_queues_are(calls: Calls) -> None:
    await calls.function()
    big = await calls.create(*["big"] * 30)
    worker = await calls.worker(concurrency=100)
    assert await worker.take(2) == big[:2]
    [one] = await calls.create("small")
    [other] = await calls.create("")
    assert await worker.take(1) == [big[2]]
    assert await worker.take(3) == [one, other, big[3]]
    assert await worker.take(100) == big[4:]


async def test_a_caller_with_one_call_at_a_time_waits_one_turn_of_each_other_session(calls: Calls) -> None:
    await calls.function()
    await calls.create(*[f"map-{n}" for n in range(5) for _ in range(20)])
    worker = await calls.worker(concurrency=1_000)
    for _ in range(3):
        [single] = await calls.create("single")
        turns = await worker.take(6)
        assert single in turns


async def test_many_calls_are_taken_in_the_same_turns_at_once_or_one_by_one(calls: Calls) -> None:
    sessions = [f"s{n % 7}" if n % 3 else f"t{n}" for n in range(80)]
    order: list[list[int]] = []
    for function, step in (("one", 1), ("many", 80), ("some", 9)):
        await calls.function(function)
        names = await calls.create(*sessions, function=function)
        worker = await calls.worker(function, concurrency=1_000)
        taken: list[str] = []
        while len(taken) < len(names):
            taken += await worker.take(step)
        order.append([names.index(name) for name in taken])
    assert order[0] == order[1] == order[2]


async def test_a_session_without_calls_keeps_no_place(calls: Calls) -> None:
    await calls.function()
    names = await calls.create(*[f"s{n}" for n in range(300)])
    for name in names[:-1]:
        await calls.cancel(name)
    worker = await calls.worker()
    assert await worker.take() == names[-1:]
    await worker.claim(succeeded(names[-1]))
    await worker.claim()
    assert await calls.database.fetch("SELECT * FROM call_sessions") == []


async def test_idle_workers_are_served_before_busy_ones_and_in_the_order_they_came(calls: Calls) -> None:
    await calls.function()
    busy, first, second = [await calls.worker(concurrency=4) for _ in range(3)]
    await calls.create(*["s"] * 2)
    assert len(await busy.take(2)) == 2
    waits = [await held(calls, worker, take=4) for worker in (first, second)]
    extra, both = await asyncio.gather(busy.claim(take=2), calls.create(*["s"] * 2))
    given = [[call["id"] for call in (await wait)[0]] for wait in waits]
    assert given == [[both[0]], [both[1]]]
    assert extra == ([], [])


async def test_a_claim_whose_worker_claimed_again_is_given_nothing(calls: Calls) -> None:
    await calls.function()
    worker = await calls.worker()
    cut_off = await held(calls, worker)
    again = asyncio.create_task(worker.claim(wait=30))
    assert await cut_off == ([], [])
    [name] = await calls.create()
    given, _ = await again
    assert [call["id"] for call in given] == [name]


async def test_a_claim_whose_worker_was_lost_or_drains_is_given_nothing(calls: Calls) -> None:
    await calls.function()
    dead, draining, alive = [await calls.worker() for _ in range(3)]
    waits = [await held(calls, worker) for worker in (dead, draining, alive)]
    await calls.writer.write(LoseAttempt(dead.claimant.attempt, 1, None, calls.rules))
    await calls.database.execute("UPDATE attempts SET draining = true WHERE uid = $1", draining.claimant.attempt)
    [name] = await calls.create()
    given = [(await wait)[0] for wait in waits]
    assert [[call["id"] for call in calls_given] for calls_given in given] == [[], [], [name]]


async def test_a_call_given_to_a_connection_that_vanished_comes_back_with_the_next_claim(calls: Calls) -> None:
    await calls.function()
    worker = await calls.worker()
    task = await held(calls, worker)
    [want] = calls.waiting.held(worker.claimant.function_uid)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert calls.waiting.held(worker.claimant.function_uid) == []
    assert want.expired
    [name] = await calls.create()
    assert await calls.phase(name) == "Queued"
    assert await worker.take() == [name]


async def test_a_cancel_answers_a_held_claim_that_runs_the_call(calls: Calls) -> None:
    await calls.function()
    [name] = await calls.create()
    worker = await calls.worker(concurrency=2)
    await worker.take()
    waiting = await held(calls, worker)
    await calls.cancel(name)
    assert await waiting == ([], [name])


async def test_stopping_the_process_answers_held_claims(calls: Calls) -> None:
    await calls.function()
    worker = await calls.worker()
    waiting = await held(calls, worker)
    calls.waiting.close()
    assert await waiting == ([], [])


@pytest.fixture
async def other_process(calls: Calls) -> AsyncIterator[Writer]:
    """The writer of a process that holds no claims."""
    feed = ChangeFeed(calls.database, calls.settings)
    await feed.start()
    writer = Writer(database=calls.database, clock=calls.clock, kinds=KINDS, feed=feed, settings=calls.settings)
    cache = ObjectCache(calls.database, feed, frozenset({"Budget", "Function"}))
    writer.add_hook(Dispatcher(cache, Switches(calls.database, 1.0), WaitingClaims(), calls.settings))
    await writer.start()
    yield writer
    await writer.stop()
    await feed.stop()


async def test_a_call_created_by_another_process_wakes_a_held_claim(calls: Calls, other_process: Writer) -> None:
    await calls.function()
    worker = await calls.worker()
    waiting = await held(calls, worker)
    here, calls.writer = calls.writer, other_process
    [name] = await calls.create()
    given, _ = await waiting
    calls.writer = here
    assert [call["id"] for call in given] == [name]


async def test_a_call_offered_by_another_process_wakes_a_held_claim(calls: Calls, other_process: Writer) -> None:
    await calls.function()
    [name] = await calls.create()
    dead, worker = await calls.worker(), await calls.worker()
    await dead.take()
    await other_process.write(LoseAttempt(dead.claimant.attempt, 1, None, calls.rules))
    ref = await calls.ref(name)
    assert await other_process.write(AttachWorkflow(ref, b"t")) is not None
    waiting = await held(calls, worker)
    await other_process.write(AttachWorkflow(ref, b"t", offer_after=1))
    given, _ = await waiting
    assert [call["id"] for call in given] == [name]


@pytest.fixture
def tight_budget(calls: Calls) -> None:
    """An engine that may be four calls behind."""
    tight = Settings(engine_lag_calls_max=4)
    calls.dispatcher._settings = tight  # the fixture's dispatcher was built with the defaults


async def test_beyond_the_lag_budget_only_calls_with_a_workflow_are_handed_out(
    calls: Calls, tight_budget: None
) -> None:
    await calls.function()
    await run_ahead(calls, 5)
    names = await calls.create(*["a"] * 3, *["b"] * 3)
    await calls.writer.write(MarkStarted([await calls.ref(names[4])]))
    worker = await calls.worker(concurrency=10)
    assert await worker.take(10) == [names[4]]
    assert calls.dispatcher.gated
    waiting = await held(calls, worker, take=10)
    await calls.writer.write(MarkStarted([await calls.ref(names[0])]))
    given, _ = await waiting
    assert set(names[:1]) <= {call["id"] for call in given}


async def test_when_the_engine_catches_up_held_claims_are_served(calls: Calls, tight_budget: None) -> None:
    await calls.function()
    ran = await run_ahead(calls, 5)
    names = await calls.create(*["a"] * 6)
    worker = await calls.worker(concurrency=10)
    assert await worker.take(10) == []
    waiting = await held(calls, worker, take=10)
    # Another process starts the workflows; no object changes.
    await calls.database.execute("UPDATE calls SET has_workflow = true WHERE name = ANY($1)", ran[1:])
    given, _ = await waiting
    assert [call["id"] for call in given] == names


async def test_a_call_that_ran_a_minute_ago_and_has_no_workflow_closes_the_gate_too(calls: Calls) -> None:
    await calls.function()
    await run_ahead(calls, 1)
    [waiting] = await calls.create()
    calls.clock.advance(59)
    worker = await calls.worker()
    assert await worker.take() == [waiting]
    await calls.create()
    calls.clock.advance(2)
    calls.dispatcher._lag_read_at = float("-inf")  # it is read four times a second
    assert await (await calls.worker()).take() == []
    assert calls.dispatcher.gated


async def test_calls_that_only_wait_or_never_ran_are_no_lag(calls: Calls, tight_budget: None) -> None:
    """A queue of any length, a map that was cancelled in it, and a call that its worker gave back."""
    await calls.function()
    for name in await calls.create(*["cancelled"] * 10):
        await calls.cancel(name)
    [returned] = await calls.create("a")
    unlucky = await calls.worker()
    await unlucky.take()
    await unlucky.claim(take=0, running=[])
    await calls.create(*["a"] * 10)
    calls.clock.advance(600)
    assert await calls.queries.lag(10) == Lag(calls=0, oldest_at=None)
    assert await (await calls.worker()).take() == [returned]
    assert not calls.dispatcher.gated


async def run_ahead(calls: Calls, count: int) -> list[str]:
    """Calls that ran and have no workflow yet."""
    names = await calls.create(*["ahead"] * count)
    worker = await calls.worker(concurrency=count)
    assert await worker.take(count) == names
    await worker.claim(*map(succeeded, names), take=0)
    calls.dispatcher._lag_read_at = float("-inf")  # it is read four times a second
    return names


async def test_cancels_around_the_end_of_a_call_leave_nothing_behind(calls: Calls) -> None:
    await calls.function()
    names = await calls.create(*["s"] * 100)
    worker = await calls.worker(concurrency=100)

    async def report(name: str) -> None:
        await worker.claim(succeeded(name), take=0)

    await worker.take(100)
    await asyncio.gather(*[step for name in names for step in (report(name), settled_cancel(calls, name))])
    phases = {await calls.phase(name) for name in names}
    assert phases <= {"Succeeded", "Cancelled"}
    await worker.claim(take=0)
    assert (await calls.queries.loads([worker.claimant.function_uid]))[worker.claimant.function_uid].running == 0


async def settled_cancel(calls: Calls, name: str) -> None:
    """A cancel that is repeated when the call changed meanwhile, as the edge repeats it."""
    while True:
        try:
            await calls.cancel(name)
            return
        except RaceLostError:
            continue
