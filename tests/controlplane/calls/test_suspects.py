"""A call that may have brought a worker down runs alone, and only what it does alone is held against it."""

from __future__ import annotations

import asyncio

import pytest

from controlplane.calls.engine import AttachWorkflow
from controlplane.calls.recovery import LoseAttempt
from controlplane.calls.seats import Seats
from controlplane.calls.transitions import TERMINAL
from controlplane.calls.wants import Claimant, Want
from controlplane.capacity.endings import WorkerEnd
from tests.fixtures.calls import Calls, ScriptedWorker, raised, said, succeeded
from tests.fixtures.eventually import eventually

CRASH = WorkerEnd(outcome="Exited", exit_code=1)


async def die(calls: Calls, worker: ScriptedWorker, end: WorkerEnd = CRASH) -> None:
    """The worker's process ends as its node tells it."""
    calls.clock.advance(1)
    claimant = worker.claimant
    await calls.writer.write(LoseAttempt(claimant.attempt, claimant.epoch, calls.clock.now(), calls.rules, end))


async def offer_again(calls: Calls, *names: str) -> None:
    """What the workflows of lost calls do."""
    for name in names:
        row = await calls.row(name)
        assert row is not None
        await calls.writer.write(AttachWorkflow(await calls.ref(name), b"t", row["dispatches"]))


async def suspects(calls: Calls, *sessions: str) -> list[str]:
    """Calls that shared a worker which crashed, queued again."""
    names = await calls.create(*sessions)
    worker = await calls.worker(concurrency=len(names))
    assert sorted(await worker.take(len(names))) == names
    await die(calls, worker)
    await offer_again(calls, *names)
    return names


@pytest.mark.parametrize(
    ("end", "told"),
    [
        (CRASH, "its worker exited with code 1"),
        (WorkerEnd(outcome="Exited", signal=11), "its worker was ended by signal 11 (SIGSEGV)"),
        (WorkerEnd(outcome="OutOfMemory", signal=9), "its worker needed more memory than `spec.resources.memory`"),
    ],
)
async def test_poison_fails_within_its_limit_and_the_innocents_beside_it_succeed_on_theirs(
    calls: Calls, end: WorkerEnd, told: str
) -> None:
    await calls.function(recovery={"maxAttempts": 1})
    poison, *innocents = names = await calls.create("p", "a", "b", "c")
    deaths = 0
    worker = await calls.worker(concurrency=4)
    assert sorted(await worker.take(4)) == sorted(names)
    await die(calls, worker, end)
    deaths += 1
    for name in names:
        status = await calls.status(name)
        assert (status["phase"], status["recoveries"]) == ("Recovering", 1)
        assert status["message"].startswith(told)
        assert "while 3 other calls ran on it; this recovery does not count" in status["message"]
    await offer_again(calls, *names)
    while not all([await calls.phase(name) in TERMINAL for name in names]):
        worker = await calls.worker(concurrency=4)
        for _ in names:
            taken = await worker.take(4)
            assert len(taken) <= 1
            if poison in worker.running:
                await die(calls, worker, end)
                deaths += 1
                if await calls.phase(poison) == "Recovering":
                    await offer_again(calls, poison)
                break
            await worker.claim(*[succeeded(name) for name in taken], take=0)
    assert deaths == 3
    status = await calls.status(poison)
    assert (status["phase"], status["reason"], status["recoveries"]) == ("Failed", "RecoveryLimitExceeded", 2)
    assert status["message"].startswith(told)
    assert "2 recoveries before, one of which is not counted, and `recovery.maxAttempts`" in status["message"]
    for name in innocents:
        status = await calls.status(name)
        assert (status["phase"], status["recoveries"]) == ("Succeeded", 1)


async def test_a_suspect_is_the_only_call_of_its_worker_while_it_runs(calls: Calls) -> None:
    await calls.function()
    names = await suspects(calls, "s", "s")
    others = await calls.create(*["other"] * 4)
    worker = await calls.worker(concurrency=4)
    assert await worker.take(4) == names[:1]
    for _ in range(3):
        assert await worker.take(3) == []
    # The next turn is the other session's, the one after it the second suspect's, for which the worker must be idle.
    given, _ = await worker.claim(succeeded(names[0]), take=4)
    assert [call["id"] for call in given] == others[:1]
    assert await worker.take(3) == []
    given, _ = await worker.claim(succeeded(others[0]), take=4)
    assert [call["id"] for call in given] == names[1:]
    given, _ = await worker.claim(succeeded(names[1]), take=4)
    assert [call["id"] for call in given] == others[1:]


async def test_a_stream_of_other_calls_does_not_put_a_suspect_off(calls: Calls) -> None:
    await calls.function()
    worker = await calls.worker(concurrency=2)
    others = await calls.create(*["busy"] * 2)
    assert await worker.take(2) == others
    [suspect, other] = await suspects(calls, "s", "s")
    await calls.cancel(other)
    more = await calls.create(*["busy"] * 10)
    # The worker could take one more each time a call ends; it is kept free until it runs nothing.
    assert await worker.claim(succeeded(others[0]), take=1) == ([], [])
    given, _ = await worker.claim(succeeded(others[1]), take=2)
    assert [call["id"] for call in given] == [suspect]
    given, _ = await worker.claim(succeeded(suspect), take=2)
    assert [call["id"] for call in given] == more[:2]


async def test_an_idle_worker_that_waits_takes_a_suspect_and_no_more(calls: Calls) -> None:
    await calls.function()
    names = await calls.create("s", "s")
    doomed = await calls.worker(concurrency=2)
    await doomed.take(2)
    waiting = await calls.worker(concurrency=4)
    held = asyncio.create_task(waiting.claim(wait=30, take=4))
    await eventually(lambda: calls.waiting.held(waiting.claimant.function_uid))
    await die(calls, doomed)
    await offer_again(calls, *names)
    given, _ = await held
    assert [call["id"] for call in given] == names[:1]
    assert await calls.phase(names[1]) == "Recovering"


async def test_every_death_of_a_call_that_ran_alone_counts_from_the_first(calls: Calls) -> None:
    await calls.function(recovery={"maxAttempts": 1})
    [name] = await calls.create()
    worker = await calls.worker(concurrency=4)
    await worker.take(4)
    await die(calls, worker)
    status = await calls.status(name)
    assert "recovery 1 of 1 is being scheduled; the call runs alone from now on" in status["message"]
    await offer_again(calls, name)
    assert (await calls.status(name))["message"] == "waiting for a worker of its own (recovery 1)"
    [other] = await calls.create()
    worker = await calls.worker(concurrency=4)
    assert await worker.take(4) == [name]
    await die(calls, worker)
    assert (await calls.status(name))["reason"] == "RecoveryLimitExceeded"
    assert await calls.phase(other) == "Queued"


@pytest.mark.parametrize(
    "end",
    [
        None,
        WorkerEnd(outcome="NodeLost"),
        WorkerEnd(outcome="NodeRestarted"),
        WorkerEnd(outcome="PlatformAway", exit_code=1),
        WorkerEnd(outcome="Killed", signal=9),
    ],
)
async def test_a_worker_that_the_platform_lost_makes_nobody_a_suspect(calls: Calls, end: WorkerEnd | None) -> None:
    await calls.function()
    names = await calls.create("s", "s")
    worker = await calls.worker(concurrency=2)
    await worker.take(2)
    await die(calls, worker, end or WorkerEnd(outcome=""))
    for name in names:
        assert "recovery 1 of 3" in (await calls.status(name))["message"]
    await offer_again(calls, *names)
    assert await (await calls.worker(concurrency=2)).take(2) == names


async def test_a_function_that_fails_on_a_loss_fails_on_a_shared_one_too(calls: Calls) -> None:
    await calls.function(recovery={"onInterruption": "Fail"})
    names = await calls.create("s", "s")
    worker = await calls.worker(concurrency=2)
    await worker.take(2)
    await die(calls, worker)
    for name in names:
        status = await calls.status(name)
        assert (status["phase"], status["reason"], status["recoveries"]) == ("Failed", "RecoveryLimitExceeded", 0)
        assert "its worker exited with code 1, and `recovery.onInterruption`" in status["message"]


async def test_a_suspect_stays_one_through_its_retries_and_its_lost_replies(calls: Calls) -> None:
    await calls.function(retries={"maxRetries": 1})
    [name, other] = await suspects(calls, "s", "s")
    worker = await calls.worker(concurrency=2)
    assert await worker.take(2) == [name]
    # The reply was lost: the call goes back, and comes alone again.
    given, _ = await worker.claim(take=2, running=[])
    assert [call["id"] for call in given] == [name]
    await worker.claim(raised(name), take=0)
    await offer_again(calls, name)
    status = await calls.status(name)
    assert (status["retries"], status["recoveries"]) == (1, 1)
    assert await worker.take(2) == [name]
    assert await worker.take(1) == []
    await worker.claim(succeeded(name), take=0)
    assert await worker.take(2) == [other]


async def test_a_cancelled_suspect_gives_its_worker_back_to_nobody(calls: Calls) -> None:
    await calls.function()
    [name, other] = await suspects(calls, "s", "s")
    worker = await calls.worker(concurrency=2)
    assert await worker.take(2) == [name]
    await calls.cancel(name)
    assert await worker.claim(take=1) == ([], [name])
    assert await worker.claim(said(name, "Cancelled"), take=2) == ([], [])
    await calls.cancel(other)
    assert await calls.phase(other) == "Cancelled"


async def test_the_load_tells_how_many_calls_need_a_worker_each(calls: Calls) -> None:
    function = await calls.function()
    uid = function["metadata"]["uid"]
    names = await suspects(calls, "a", "b", "c")
    await calls.create("d", "e")
    worker = await calls.worker(concurrency=4)
    assert len(await worker.take(4)) == 1
    load = (await calls.queries.loads([uid]))[uid]
    assert (load.queued, load.running, load.alone) == (4, 1, 3)
    for name in names:
        await calls.cancel(name)
    load = (await calls.queries.loads([uid]))[uid]
    assert (load.queued, load.running, load.alone) == (2, 1, 1)


def want(running: int, calls_max: int) -> Want:
    claimant = Claimant(org="o", project="p", function="f", function_uid="u", attempt=f"a{running}", epoch=1)
    return Want(claimant, calls_max, frozenset(str(number) for number in range(running)))


async def test_seats_go_to_the_least_loaded_and_a_suspect_takes_an_idle_worker_whole() -> None:
    busy, idle = want(1, 3), want(0, 2)
    seats = Seats([busy, idle])
    assert seats.take_alone() is idle
    assert idle.room == 0
    idle.offered.append({})
    for _ in range(3):
        assert seats.take() is busy
        busy.offered.append({})
    assert seats.take() is None
    assert seats.take_alone() is None


async def test_a_suspect_without_an_idle_worker_keeps_the_least_loaded_one_free() -> None:
    light, heavy = want(1, 3), want(2, 1)
    seats = Seats([heavy, light])
    assert seats.take_alone() is None
    assert light.full
    assert seats.take() is heavy
    heavy.offered.append({})
    assert seats.take() is None
