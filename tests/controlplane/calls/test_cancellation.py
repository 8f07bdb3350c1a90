"""A cancel meets everything else that can happen to a call, in every order; the call ends once and nothing leaks."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import permutations

import pytest

from controlplane.calls.cancels import EndStopped
from controlplane.calls.recovery import EndOverdue, LoseAttempt
from controlplane.calls.transitions import TERMINAL
from controlplane.capacity.attempts import DrainWorkers
from controlplane.capacity.endings import WorkerEnd
from controlplane.capacity.pool import DrainReason
from controlplane.resources.mutations import RaceLostError
from tests.fixtures.calls import Calls, ScriptedWorker, raised, said, succeeded
from tests.fixtures.eventually import eventually


class Race:
    """One running call, its worker, and what may happen to them."""

    def __init__(self, calls: Calls, name: str, worker: ScriptedWorker) -> None:
        self.calls = calls
        self.name = name
        self.worker = worker

    async def cancel(self) -> None:
        await _until_it_wins(self.calls.cancel, self.name)

    async def delete(self) -> None:
        await _until_it_wins(self.calls.delete, self.name)

    async def success(self) -> None:
        await self.report(succeeded)

    async def exception(self) -> None:
        await self.report(raised)

    async def cancelled(self) -> None:
        await self.report(lambda name: said(name, "Cancelled"))

    async def deadline(self) -> None:
        await self.report(lambda name: said(name, "DeadlineExceeded"))

    async def report(self, record: Callable[[str], dict[str, object]]) -> None:
        if not (await self.calls.attempt(self.worker))["finished_at"]:
            await self.worker.claim(record(self.name), take=0)

    async def stopped(self) -> None:
        if not (await self.calls.attempt(self.worker))["finished_at"]:
            await self.calls.writer.write(EndStopped(self.worker.claimant, [self.name], self.calls.rules))

    async def lost_reply(self) -> None:
        if not (await self.calls.attempt(self.worker))["finished_at"]:
            await self.worker.claim(take=0, running=[])

    async def crash(self) -> None:
        claimant, now = self.worker.claimant, self.calls.clock.now()
        end = WorkerEnd(outcome="Exited", exit_code=1)
        await self.calls.writer.write(LoseAttempt(claimant.attempt, claimant.epoch, now, self.calls.rules, end))


async def _until_it_wins(verb: Callable[[str], Awaitable[object]], name: str) -> None:
    """As the edge does it: again, when the call changed meanwhile."""
    while True:
        try:
            await verb(name)
        except RaceLostError:
            continue
        return


async def race(calls: Calls) -> Race:
    await calls.function(retries={"maxRetries": 1})
    [name] = await calls.create()
    worker = await calls.worker()
    assert await worker.take() == [name]
    return Race(calls, name, worker)


ENDS = ("success", "exception", "cancelled", "deadline", "lost_reply", "crash")
ENDS_BY_ITSELF = {"success": "Succeeded"}
"""What ends the call when it comes before the cancel; the others leave it open (a retry, a recovery, the queue)."""


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("order", list(permutations(("cancel", "end", "crash"))), ids="-".join)
async def test_whatever_the_order_of_a_cancel_and_an_end_the_call_ends_once(
    calls: Calls, end: str, order: tuple[str, ...]
) -> None:
    met = await race(calls)
    steps: dict[str, Callable[[], Awaitable[None]]] = {
        "cancel": met.cancel,
        "end": getattr(met, end),
        "crash": met.crash,
    }
    for step in order:
        await steps[step]()
        calls.clock.advance(1)
    first = order.index("end") < order.index("cancel") and order.index("end") < order.index("crash")
    expected = ENDS_BY_ITSELF.get(end, "Cancelled") if first else "Cancelled"
    status = await calls.status(met.name)
    assert status["phase"] == expected
    assert ("result" in status) == (expected == "Succeeded")
    assert [phase in TERMINAL for name, phase in calls.changes if name == met.name].count(True) == 1


@pytest.mark.parametrize("verb", ["cancel", "delete"])
@pytest.mark.parametrize("end", ENDS)
async def test_a_cancel_and_an_end_in_one_commit_end_the_call_once(calls: Calls, end: str, verb: str) -> None:
    met = await race(calls)
    await asyncio.gather(getattr(met, verb)(), getattr(met, end)())
    await met.crash()
    left = await calls.database.fetch("SELECT fields ->> 'status.phase' AS phase FROM objects WHERE uid LIKE 'fnc_%'")
    assert [record["phase"] in TERMINAL for record in left] == ([True] if verb == "cancel" else [])
    ends = [phase for name, phase in calls.changes if name == met.name and phase in TERMINAL]
    assert set(ends) <= {"Succeeded", "Cancelled"}
    # A call that waited is gone with its delete.
    assert len(set(ends)) <= 1


async def test_a_call_that_was_let_go_does_not_keep_its_worker_from_being_killed_but_its_neighbours_do(
    calls: Calls,
) -> None:
    await calls.function("g")
    first, second = await calls.create("s", "s", function="g")
    worker = await calls.worker("g", concurrency=2)
    await worker.take(2)
    await calls.cancel(first)
    await worker.claim(said(first, "Cancelled"), take=0)
    calls.clock.advance(1)
    assert await calls.queries.attempts_running_on(calls.clock.now(), 10) == [worker.claimant.attempt]
    kill_at = calls.clock.now()
    await calls.writer.write(DrainWorkers([worker.claimant.attempt], DrainReason.CANCELLED, kill_at))
    assert await calls.queries.attempts_running_on(calls.clock.now(), 10) == []
    calls.clock.advance(1)
    assert await calls.queries.attempts_to_kill(calls.clock.now()) == []
    await worker.claim(succeeded(second), take=0)
    assert [ref.uid for ref in await calls.queries.attempts_to_kill(calls.clock.now())] == [worker.claimant.attempt]
    assert await calls.phase(first) == "Cancelling"


async def test_a_call_that_was_let_go_ends_after_two_graces_however_long_its_neighbours_run(calls: Calls) -> None:
    await calls.function("g", timeout="3600s")
    first, second = await calls.create("s", "s", function="g", timeout="3600s")
    worker = await calls.worker("g", concurrency=2)
    await worker.take(2)
    await calls.cancel(first)
    await worker.claim(said(first, "Cancelled"), take=0)
    for seconds, phase in ((59, "Cancelling"), (1.5, "Cancelled")):
        calls.clock.advance(seconds)
        now, rules = calls.clock.now(), calls.rules
        overdue = await calls.queries.attempts_with_overdue_calls(
            now, rules.deadline_grace_seconds, rules.cancel_grace_seconds, 10
        )
        for attempt in overdue:
            await calls.writer.write(EndOverdue(attempt, rules))
        assert await calls.phase(first) == phase
    assert await calls.phase(second) == "Running"
    assert (await calls.attempt(worker))["draining"]


@pytest.mark.parametrize("order", list(permutations(("cancel", "cancelled", "stopped"))), ids="-".join)
async def test_the_word_that_nothing_runs_any_more_ends_a_cancelled_call_and_no_other(
    calls: Calls, order: tuple[str, ...]
) -> None:
    met = await race(calls)
    for step in order:
        calls.clock.advance(1)
        await getattr(met, step)()
    # The word counts only after the cancel; a report before the cancel says that the function raised, which is retried.
    word_was_early = order == ("stopped", "cancel", "cancelled")
    assert await calls.phase(met.name) == ("Cancelling" if word_was_early else "Cancelled")
    await met.crash()
    assert await calls.phase(met.name) == "Cancelled"
    assert [phase in TERMINAL for name, phase in calls.changes if name == met.name].count(True) == 1


async def test_a_cancelled_call_is_charged_until_nothing_of_it_runs(calls: Calls) -> None:
    met = await race(calls)
    await met.cancel()
    calls.clock.advance(2)
    await met.cancelled()
    assert await calls.phase(met.name) == "Cancelling"
    calls.clock.advance(3)
    await met.stopped()
    status = await calls.status(met.name)
    assert (status["phase"], status["costUSD"]) == ("Cancelled", "0.00005")
    await met.stopped()
    assert await calls.status(met.name) == status
    assert not (await calls.attempt(met.worker))["draining"]


async def test_the_place_of_a_call_whose_thread_goes_on_is_not_given_away_before_it_ended(calls: Calls) -> None:
    await calls.function("g")
    first, second, third, fourth = await calls.create(*"ssss", function="g")
    worker = await calls.worker("g", concurrency=2)
    assert await worker.take(2) == [first, second]
    await calls.cancel(first)
    given, _ = await worker.claim(said(first, "Cancelled"), take=1)
    assert given == []
    given, _ = await worker.claim(succeeded(second), take=2)
    assert [each["id"] for each in given] == [third]
    await worker.claim(succeeded(third), take=0)
    await calls.writer.write(EndStopped(worker.claimant, [first], calls.rules))
    assert await worker.take(2) == [fourth]


async def test_a_held_claim_is_answered_when_the_place_it_could_not_have_is_free(calls: Calls) -> None:
    met = await race(calls)
    await met.cancel()
    await met.cancelled()
    [waiting] = await calls.create()
    held = asyncio.create_task(met.worker.claim(wait=30))
    await eventually(lambda: calls.waiting.held(met.worker.claimant.function_uid))
    await met.stopped()
    assert await held == ([], [])
    assert await met.worker.take() == [waiting]


@pytest.mark.case("C28")
async def test_cancels_around_completion_leak_no_place(calls: Calls) -> None:
    function = await calls.function()
    uid = function["metadata"]["uid"]
    doomed = await calls.create(*["s"] * 500)
    for number in range(0, 500, 10):
        worker = await calls.worker(concurrency=10)
        taken = await worker.take(10)
        met = [Race(calls, name, worker) for name in taken]
        # Half of the cancels come before the report and half after it, all in as few commits as there can be.
        late, early = met[: len(met) // 2], met[len(met) // 2 :]
        await asyncio.gather(
            worker.claim(*[succeeded(one.name) for one in late], take=0), *(one.cancel() for one in (*early, *late))
        )
        ends = [succeeded(one.name) if number % 20 else said(one.name, "Cancelled") for one in early]
        await worker.claim(*ends, take=0)
        await worker.exits()
    phases = Counter([await calls.phase(name) for name in doomed])
    assert phases == {"Succeeded": 250, "Cancelled": 250}
    load = (await calls.queries.loads([uid]))[uid]
    assert (load.queued, load.running, load.pending) == (0, 0, 0)
    normal = await calls.create(*["s"] * 200)
    worker = await calls.worker(concurrency=10)
    done: list[str] = []
    while len(done) < len(normal):
        given, cancel = await worker.claim(*[succeeded(name) for name in worker.running], take=10)
        assert (len(given), cancel) == (10, [])
        done += [call["id"] for call in given]
    await worker.claim(*[succeeded(name) for name in worker.running], take=0)
    assert done == normal
    load = (await calls.queries.loads([uid]))[uid]
    assert (load.queued, load.running, load.pending) == (0, 0, 0)
