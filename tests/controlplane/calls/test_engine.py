"""What workflows say to calls: attach, offer, finish, report; each repeated, late or lost."""

from __future__ import annotations

import asyncio

import pytest

from controlplane.calls.decide import Cause, Finish
from controlplane.calls.engine import (
    AttachWorkflow,
    CallOutcome,
    DetachWorkflow,
    Ended,
    FinishCall,
    ForgetEngine,
    MarkReported,
)
from controlplane.calls.queries import SILENT_FROM_THE_START
from controlplane.calls.recovery import LoseAttempt
from controlplane.calls.rows import CALLS_PER_WALK
from controlplane.store.incarnation import note_first_incarnation, replace_incarnation
from tests.fixtures.calls import Calls, MarkStarted, ScriptedWorker, raised, succeeded
from tests.fixtures.eventually import eventually

FINISH = Finish(phase="Failed", reason="DeadlineExceeded", message="m")


async def attach(calls: Calls, name: str, token: bytes = b"t", offer_after: int | None = None) -> CallOutcome | None:
    return await calls.writer.write(AttachWorkflow(await calls.ref(name), token, offer_after))


@pytest.fixture
async def worker(calls: Calls) -> ScriptedWorker:
    await calls.function(retries={"maxRetries": 2, "initialDelay": "1s", "maxDelay": "2s"})
    return await calls.worker()


async def test_a_workflow_that_attaches_first_is_told_by_its_token(calls: Calls, worker: ScriptedWorker) -> None:
    [name] = await calls.create()
    assert await attach(calls, name, b"\x00\xfftoken") is None
    await worker.take()
    assert await calls.queries.unreported(10) == []
    await worker.claim(succeeded(name), take=0)
    [unreported] = await calls.queries.unreported(10)
    assert unreported.token == b"\x00\xfftoken"
    assert unreported.outcome == CallOutcome(ended=Ended(phase="Succeeded"))
    await calls.writer.write(MarkReported(unreported.ref, unreported.token))
    assert await calls.row(name) is None
    assert await calls.queries.unreported(10) == []


async def test_a_workflow_that_attaches_late_is_answered_at_once_and_again(
    calls: Calls, worker: ScriptedWorker
) -> None:
    [name] = await calls.create()
    await worker.take()
    await worker.claim(succeeded(name), take=0)
    assert await attach(calls, name) == CallOutcome(ended=Ended(phase="Succeeded"))
    assert await calls.row(name) is None
    assert await attach(calls, name) == CallOutcome(ended=Ended(phase="Succeeded"))


async def test_an_exception_goes_through_its_workflow_and_back_into_the_queue(
    calls: Calls, worker: ScriptedWorker
) -> None:
    [name] = await calls.create()
    await attach(calls, name, b"one")
    await worker.take()
    calls.clock.advance(1)
    await worker.claim(raised(name), take=0)
    [unreported] = await calls.queries.unreported(10)
    facts = unreported.outcome.facts
    assert facts is not None
    assert (facts.cause, facts.dispatch, facts.retries, facts.retries_max) == (Cause.RAISED, 1, 0, 2)
    assert (facts.initial_delay_seconds, facts.max_delay_seconds) == (1.0, 2.0)
    await calls.writer.write(MarkReported(unreported.ref, unreported.token))
    assert await worker.take() == []
    assert await attach(calls, name, b"two", offer_after=1) is None
    assert (await calls.status(name))["message"] == "waiting for a worker (retry 1)"
    assert await worker.take() == [name]
    await worker.claim(succeeded(name), take=0)
    status = await calls.status(name)
    assert (status["phase"], status["retries"], status["costUSD"]) == ("Succeeded", 1, "0.00002")


async def test_an_offer_wakes_a_waiting_worker_in_its_own_commit(calls: Calls, worker: ScriptedWorker) -> None:
    [name] = await calls.create()
    await worker.take()
    await worker.claim(raised(name), take=0)
    assert await attach(calls, name) is not None
    other = await calls.worker()
    waiting = asyncio.create_task(other.claim(wait=30))
    await eventually(lambda: calls.waiting.held(other.claimant.function_uid))
    await attach(calls, name, offer_after=1)
    given, _ = await waiting
    assert [call["id"] for call in given] == [name]


async def test_an_old_answer_never_meets_a_newer_outcome(calls: Calls, worker: ScriptedWorker) -> None:
    [name] = await calls.create()
    for dispatch in (1, 2):
        await worker.take()
        await worker.claim(raised(name), take=0)
        outcome = await attach(calls, name)
        assert outcome is not None
        assert outcome.facts is not None
        assert outcome.facts.dispatch == dispatch
        if dispatch == 1:
            assert await attach(calls, name, offer_after=1) is None
            assert await attach(calls, name, offer_after=1) is None  # the activity ran again
    again = await attach(calls, name, offer_after=1)
    assert again is not None
    assert again.facts is not None
    assert again.facts.dispatch == 2
    assert await calls.writer.write(FinishCall(await calls.ref(name), 1, FINISH)) is None
    assert await calls.phase(name) == "Queued"
    assert await calls.writer.write(FinishCall(await calls.ref(name), 2, FINISH)) == Ended(
        phase="Failed", reason="DeadlineExceeded"
    )
    assert await calls.phase(name) == "Failed"


async def test_a_recovered_call_goes_before_others_of_its_session(calls: Calls, worker: ScriptedWorker) -> None:
    first, *_ = await calls.create("s", "s")
    await worker.take()
    await calls.writer.write(LoseAttempt(worker.claimant.attempt, 1, calls.clock.now(), calls.rules))
    outcome = await attach(calls, first)
    assert outcome is not None
    assert outcome.facts is not None
    assert outcome.facts.cause is Cause.LOST
    await attach(calls, first, offer_after=1)
    status = await calls.status(first)
    assert (status["phase"], status["message"]) == ("Recovering", "waiting for a worker (recovery 1)")
    other = await calls.worker()
    assert await other.take() == [first]
    assert await calls.phase(first) == "Running"


async def test_finishing_twice_or_after_the_end_tells_how_it_ended(calls: Calls, worker: ScriptedWorker) -> None:
    [name] = await calls.create()
    await worker.take()
    await worker.claim(raised(name), take=0)
    ref = await calls.ref(name)
    for _ in range(2):
        ended = await calls.writer.write(FinishCall(ref, 1, FINISH))
        assert ended == Ended(phase="Failed", reason="DeadlineExceeded")
    await calls.delete(name)
    assert await calls.writer.write(FinishCall(ref, 1, FINISH)) == Ended(phase="")


async def test_a_cancel_during_a_backoff_is_what_the_workflow_finds(calls: Calls, worker: ScriptedWorker) -> None:
    [name] = await calls.create()
    await worker.take()
    await worker.claim(raised(name), take=0)
    assert await attach(calls, name) is not None
    await calls.cancel(name)
    assert await calls.phase(name) == "Cancelled"
    assert await attach(calls, name, offer_after=1) == CallOutcome(ended=Ended(phase="Cancelled", reason="Cancelled"))
    assert await worker.take() == []


async def test_after_the_engine_was_wiped_every_call_is_started_again(calls: Calls, worker: ScriptedWorker) -> None:
    running, deciding, done, queued = await calls.create("a", "b", "c", "d")
    for name in (queued, running, deciding, done):
        await attach(calls, name)
    other = await calls.worker(concurrency=3)
    assert await other.take(3) == [running, deciding, done]
    await other.claim(raised(deciding), succeeded(done), take=0)
    assert await unstarted(calls) == {}
    assert await calls.queries.open_workflows(10) == 4
    await remember(calls, "old")
    assert await calls.writer.write(ForgetEngine("old")) is None
    assert {found.ref.name for found in await calls.queries.behind(10)} == {running, deciding, done}
    assert [found.ref.name for found in await calls.queries.queued(10)] == [queued]
    assert await calls.queries.open_workflows(10) == 0
    assert [found.ref.name for found in await calls.queries.to_decide(10)] == [deciding]
    assert await calls.queries.unreported(10) == []


async def unstarted(calls: Calls) -> dict[str, Ended | None]:
    """Calls without a workflow, and how they ended."""
    looks = [await calls.queries.behind(10), await calls.queries.queued(10)]
    return {found.ref.name: found.ended for look in looks for found in look}


async def remember(calls: Calls, incarnation: str) -> None:
    await calls.database.execute("DELETE FROM engine")
    await note_first_incarnation(calls.database, incarnation)


async def test_starting_over_goes_in_pieces_and_may_be_repeated(calls: Calls, worker: ScriptedWorker) -> None:
    names = await calls.create(*["s"] * (CALLS_PER_WALK + 1))
    await calls.writer.write(MarkStarted([await calls.ref(name) for name in names]))
    await remember(calls, "old")
    after = await calls.writer.write(ForgetEngine("old"))
    assert after is not None
    assert await known(calls) == 1
    # As after a crash: from the beginning again.
    assert await calls.writer.write(ForgetEngine("old")) == after
    assert await calls.writer.write(ForgetEngine("old", after)) is None
    assert await known(calls) == 0


async def known(calls: Calls) -> int:
    count: int = await calls.database.fetchval("SELECT count(*) FROM calls WHERE has_workflow")
    return count


async def test_a_process_that_starts_over_late_forgets_no_call_of_the_new_incarnation(
    calls: Calls, worker: ScriptedWorker
) -> None:
    [name] = await calls.create()
    await attach(calls, name)
    await remember(calls, "old")
    assert await replace_incarnation(calls.database, "old", "new")
    assert not await replace_incarnation(calls.database, "old", "newer")
    assert await calls.writer.write(ForgetEngine("old")) is None
    assert await known(calls) == 1


async def test_the_starter_sees_how_a_call_without_a_workflow_ended(calls: Calls, worker: ScriptedWorker) -> None:
    over, running, cancelled = await calls.create("a", "b", "c")
    assert await worker.take() == [over]
    await worker.claim(succeeded(over), take=0)
    assert await worker.take() == [running]
    await calls.cancel(cancelled)
    assert await unstarted(calls) == {
        over: Ended(phase="Succeeded"),
        running: None,
        cancelled: Ended(phase="Cancelled", reason="Cancelled"),
    }
    await calls.writer.write(MarkReported(await calls.ref(over), None))
    assert over not in await unstarted(calls)
    assert await calls.database.fetchval("SELECT count(*) FROM calls WHERE name = $1", over) == 0


async def test_a_stale_token_changes_nothing(calls: Calls, worker: ScriptedWorker) -> None:
    [name] = await calls.create()
    await attach(calls, name, b"old")
    await attach(calls, name, b"new")
    await worker.take()
    await worker.claim(succeeded(name), take=0)
    ref = await calls.ref(name)
    await calls.writer.write(MarkReported(ref, b"old"))
    await calls.writer.write(DetachWorkflow(ref, b"old"))
    [unreported] = await calls.queries.unreported(10)
    assert unreported.token == b"new"
    await calls.writer.write(DetachWorkflow(ref, b"new"))
    assert list(await unstarted(calls)) == [name]


async def test_the_starter_sees_one_call_of_each_session_in_turn(calls: Calls, worker: ScriptedWorker) -> None:
    big = await calls.create(*["big"] * 20)
    small = await calls.create("small")
    look = await calls.queries.queued(4)
    assert [found.ref.name for found in look] == [big[0], small[0], big[1]]
    assert [found.ref.name for found in await calls.queries.queued(2, look[0].place)] == [small[0], big[0]]
    await calls.writer.write(MarkStarted([found.ref for found in look]))
    assert [found.ref.name for found in await calls.queries.queued(3, look[-1].place)] == big[2:5]


async def test_the_starter_goes_round_more_sessions_than_one_look_holds(calls: Calls, worker: ScriptedWorker) -> None:
    names = await calls.create(*[f"s{n:02}" for n in range(10)])
    after, seen = ("", "", ""), []
    for _ in range(3):
        look = await calls.queries.queued(4, after)
        seen += [found.ref.name for found in look]
        after = look[-1].place
    assert seen == [*names, *names[:2]]


async def test_a_workflow_that_never_asks_is_found(calls: Calls, worker: ScriptedWorker) -> None:
    [name] = await calls.create()
    await calls.writer.write(MarkStarted([await calls.ref(name)]))
    await worker.take()
    await worker.claim(succeeded(name), take=0)
    assert (await calls.queries.silent_workflows(calls.clock.now(), 10)).calls == []
    calls.clock.advance(60)
    [silent] = (await calls.queries.silent_workflows(calls.clock.now(), 10)).calls
    assert silent.name == name
    await calls.writer.write(DetachWorkflow(silent, None))
    assert list(await unstarted(calls)) == [name]


async def test_looks_for_silent_workflows_reach_all_of_them_in_turn(calls: Calls, worker: ScriptedWorker) -> None:
    names = await calls.create(*["s"] * 5)
    await calls.writer.write(MarkStarted([await calls.ref(name) for name in names]))
    for name in await worker.take(5):
        await worker.claim(succeeded(name), take=0)
    calls.clock.advance(60)
    seen, after = [], SILENT_FROM_THE_START
    for count in (2, 2, 1):
        look = await calls.queries.silent_workflows(calls.clock.now(), 2, after)
        assert len(look.calls) == count
        seen += [ref.name for ref in look.calls]
        after = look.next_after
    assert sorted(seen) == sorted(names)
    assert after == SILENT_FROM_THE_START


async def test_ends_that_nobody_waits_for_hide_no_decision(calls: Calls, worker: ScriptedWorker) -> None:
    names = await calls.create(*["s"] * 4)
    for name in names:
        await attach(calls, name)
    for name in await worker.take(3):
        await worker.claim(succeeded(name), take=0)
    await worker.take()
    await worker.claim(raised(names[3]), take=0)
    assert [report.ref.name for report in await calls.queries.unreported(2)] == [names[3], names[0]]


async def test_what_travels_through_the_engine_comes_back_as_it_was(calls: Calls, worker: ScriptedWorker) -> None:
    [name] = await calls.create()
    await worker.take()
    await worker.claim(raised(name), take=0)
    facts = await attach(calls, name)
    assert facts is not None
    for outcome in (facts, CallOutcome(ended=Ended(phase="Failed", reason="RemoteError"))):
        assert CallOutcome.from_json(outcome.to_json()) == outcome


async def test_finishing_a_call_that_ended_by_itself_tells_its_end(calls: Calls, worker: ScriptedWorker) -> None:
    [name] = await calls.create()
    await attach(calls, name)
    await worker.take()
    await worker.claim(succeeded(name), take=0)
    assert await calls.writer.write(FinishCall(await calls.ref(name), 1, FINISH)) == Ended(phase="Succeeded")
    assert await calls.row(name) is None
    assert await calls.phase(name) == "Succeeded"


async def test_offering_a_call_whose_object_vanished_ends_it(calls: Calls, worker: ScriptedWorker) -> None:
    [name] = await calls.create()
    ref = await calls.ref(name)
    await worker.take()
    await worker.claim(raised(name), take=0)
    await calls.database.execute("DELETE FROM objects WHERE uid = $1", ref.uid)
    outcome = await calls.writer.write(AttachWorkflow(ref, b"t", offer_after=1))
    assert outcome == CallOutcome(ended=Ended(phase=""))
    assert await calls.row(name) is None
