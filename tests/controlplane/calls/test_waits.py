"""`/wait`: what it says of a call is what happens next."""

from __future__ import annotations

import random

import pytest

from controlplane.capacity.revision import pool_revision
from controlplane.images.use import CATALOG
from controlplane.machinery.quantities import format_money
from controlplane.store.contract import Document
from tests.controlplane.calls.test_budgets import budget
from tests.fixtures.calls import raised, said, succeeded
from tests.fixtures.eventually import eventually
from tests.fixtures.inspecting import Inspecting, attach, bring_down, lose


async def test_a_call_knows_its_place_among_sessions(inspecting: Inspecting) -> None:
    calls = inspecting.calls
    names = await calls.create("a", "a", "b", "c", "c", "c")
    told = await inspecting.wait(names[5])
    assert told["queue"] == {"position": 3, "sessionsAhead": 2, "callsAhead": 5, "queued": 6}
    assert told["message"] == "3rd in its session, 2 sessions before it; no worker yet: one is about to be started"
    assert (told["phase"], told["reason"], told["waiting"]) == ("Queued", "NoWorker", True)
    assert told["workers"] == {"ready": 0, "busy": 0, "starting": 0, "draining": 0, "max": 3, "freeSlots": 0}
    assert told["funded"]["status"] == "True"


@pytest.mark.parametrize("seed", range(6))
async def test_the_calls_said_to_come_before_are_those_that_do(inspecting: Inspecting, seed: int) -> None:
    calls, chance = inspecting.calls, random.Random(seed)
    worker = await calls.worker(concurrency=40)
    await calls.create(*(chance.choice("abcd") for _ in range(8)))
    await worker.take(chance.randint(0, 5))  # turns have moved
    names = await calls.create(*(chance.choice("abcde") for _ in range(10)))
    queued = await calls.database.fetch("SELECT name FROM calls WHERE state = 'queued'")
    target = chance.choice(sorted({record["name"] for record in queued} & set(names)))
    for cancelled in chance.sample(sorted(record["name"] for record in queued if record["name"] != target), 3):
        await calls.cancel(cancelled)
    told = await inspecting.wait(target)
    taken = [(await worker.take())[0] for _ in range(told["queue"]["callsAhead"] + 1)]
    assert taken.index(target) == told["queue"]["callsAhead"]


async def test_counting_stops_at_a_limit_that_is_told(inspecting: Inspecting) -> None:
    calls = inspecting.calls
    long = await calls.create(*["a"] * 30)
    told = await inspecting.wait(long[-1])
    assert told["queue"] == {
        "position": 21 + 1,
        "sessionsAhead": 0,
        "callsAhead": 20,
        "queued": 30,
        "countsAreMinimums": True,
    }
    assert told["message"].startswith("behind more than 20 calls of its session, no sessions before it; ")
    many = await calls.create(*(f"s{number}" for number in range(15)))
    told = await inspecting.wait(many[-1])
    assert told["message"].startswith("1st in its session, at least 10 sessions before it; ")


async def test_a_starting_worker_is_told_with_its_age_and_what_it_does(inspecting: Inspecting) -> None:
    calls = inspecting.calls
    [name] = await calls.create()
    worker = await calls.worker()
    await calls.database.execute("UPDATE attempts SET has_workflow = true")
    calls.clock.advance(14)
    told = await inspecting.wait(name)
    assert told["reason"] == "WorkersStarting"
    assert told["message"] == "1st in its session, no sessions before it; no free worker: 1 is starting since 14 s"
    assert (told["workers"]["starting"], told["workers"]["startingSinceTime"]) == (1, "2026-11-29T12:00:00Z")
    assert told["waited"] == "14s"
    await calls.database.execute("UPDATE attempts SET has_workflow = false")
    assert (await inspecting.wait(name))["reason"] == "EngineUnavailable"
    await worker.take()
    ran = await inspecting.wait(name)
    assert (ran["phase"], ran["waiting"], ran["reason"]) == ("Running", False, "Running")
    assert ran["message"] == f"it runs on {worker.claimant.attempt} since 0 s"


async def test_busy_workers_a_stop_and_failed_starts_are_told_apart(inspecting: Inspecting) -> None:
    calls = inspecting.calls
    held, name = await calls.create("a", "a")
    worker = await calls.worker()
    assert await worker.take() == [held]
    busy = await inspecting.wait(name)
    assert busy["reason"] == "WorkersBusy"
    assert busy["message"].endswith("; no free worker: 1 is busy")
    assert (busy["workers"]["busy"], busy["workers"]["freeSlots"]) == (1, 0)
    await worker.claim(succeeded(held), take=0)
    free = await inspecting.wait(name)
    assert (free["reason"], free["workers"]["freeSlots"]) == ("Queued", 1)
    await inspecting.change_function(state="Stopped")
    stopped = await inspecting.wait(name)
    assert (stopped["reason"], stopped["function"]["state"]) == ("FunctionStopped", "Stopped")
    await inspecting.change_function(state="Running")
    await lose(calls, worker)
    await calls.database.execute(
        "UPDATE attempts SET ready_at = NULL, pool = $1, reason = 'CustomerExit', message = $2",
        pool_revision(await calls.get("Function", "f"), CATALOG),
        "the worker exited with code 1 before its first claim\nTraceback of the user",
    )
    failing = await inspecting.wait(name)
    assert failing["reason"] == "StartupFailed"
    assert failing["message"].endswith("the last because the worker exited with code 1 before its first claim")
    assert failing["workers"]["startFailures"] == 1


async def test_a_backoff_is_told_with_what_is_left_of_it_and_an_absent_engine_when_it_is_over(
    inspecting: Inspecting,
) -> None:
    calls = inspecting.calls
    [name] = await calls.create()
    worker = await calls.worker()
    await worker.take()
    await worker.claim(raised(name), take=0)
    calls.clock.advance(2)
    told = await inspecting.wait(name)
    assert (told["phase"], told["reason"]) == ("Queued", "RetryScheduled")
    left = float(told["backoffLeft"].removesuffix("s"))
    assert 6 <= left <= 6.8
    assert told["message"] == f"retry 1 of 2 follows in {left:.1f} s, at {told['notBeforeTime']}"
    assert "queue" not in told
    calls.clock.advance(8)
    assert (await inspecting.wait(name))["message"] == "retry 1 of 2 is being scheduled"
    calls.clock.advance(20)
    late = await inspecting.wait(name)
    assert (late["reason"], late["engine"]["hasWorkflow"]) == ("EngineUnavailable", False)
    assert late["message"].endswith("ago; the engine that offers the call again does not answer")


async def test_a_call_that_runs_alone_waits_for_an_idle_worker(inspecting: Inspecting) -> None:
    calls = inspecting.calls
    [name] = await calls.create("b")
    await bring_down(calls, name)
    worker = await calls.worker(concurrency=4)
    [other] = await calls.create("a")
    await calls.database.execute("UPDATE call_sessions SET last_turn = 0 WHERE session = 'a'")
    assert await worker.take() == [other]
    told = await inspecting.wait(name)
    assert (told["reason"], told["workers"]["freeSlots"]) == ("RunsAlone", 3)
    assert "runs alone; every worker holds other calls" in told["message"]
    await worker.claim(succeeded(other), take=0)
    assert (await inspecting.wait(name))["reason"] == "Queued"


async def test_what_is_left_of_the_queue_timeout_is_told(inspecting: Inspecting) -> None:
    calls = inspecting.calls
    ready = {"type": "Ready", "status": "True", "reason": "ScaledToZero", "lastTransitionTime": "2026-11-29T11:00:00Z"}
    await inspecting.change_function(placement={"queueTimeout": "60s"}, status={"conditions": [ready]})
    [name] = await calls.create()
    calls.clock.advance(12.5)
    assert (await inspecting.wait(name))["queueTimeoutLeft"] == "47.5s"
    await inspecting.change_function(placement={"queueTimeout": "0s"})
    assert "queueTimeoutLeft" not in await inspecting.wait(name)


async def test_beyond_the_lag_budget_a_call_waits_for_its_workflow(inspecting: Inspecting) -> None:
    calls = inspecting.calls
    worker = await calls.worker()
    [ran, name] = await calls.create("s", "s")
    assert await worker.take() == [ran]
    calls.clock.advance(calls.settings.engine_lag_seconds_max + 1)
    told = await inspecting.wait(name)
    assert (told["reason"], told["engine"]) == (
        "EngineLagging",
        {"hasWorkflow": False, "lagExceeded": True, "lagCalls": 1},
    )
    await attach(calls, name)
    assert (await inspecting.wait(name))["reason"] != "EngineLagging"


async def test_a_call_that_no_limit_has_room_for_waits_for_money(
    inspecting: Inspecting,
) -> None:
    calls = inspecting.calls
    most = (20 + calls.settings.deadline_grace_seconds) * 10
    await budget(calls, most)
    first, second = await calls.create("s", "s", timeout="20s")
    worker, idle = await calls.worker(), await calls.worker()
    assert await worker.take() == [first]
    assert await idle.take() == []

    async def told() -> Document | None:
        found = await inspecting.wait(second)
        return found if found["reason"] == "Unfunded" else None

    found = await eventually(told)
    assert found["message"].startswith(
        f"waits for money: a run may cost {format_money(most)} USD and budget/b has 0.00 USD left of its "
        f"{format_money(most)} USD, with {format_money(most)} USD of it held for what runs. Raise `spec.limitUSD`"
    )
    assert found["funded"]["status"] == "False"
    await inspecting.change_function(state="Stopped")
    assert (await inspecting.wait(second))["reason"] == "FunctionStopped"


async def test_an_ended_call_waits_for_nothing(inspecting: Inspecting) -> None:
    calls = inspecting.calls
    [name] = await calls.create()
    worker = await calls.worker()
    await worker.take()
    await calls.cancel(name)
    cancelling = await inspecting.wait(name)
    assert cancelling["message"] == f"{worker.claimant.attempt} had it: waiting for the worker to stop the call"
    await worker.claim(said(name, "Cancelled"), take=0)
    assert "its worker let go of the call" in (await inspecting.wait(name))["message"]
    await lose(calls, worker)
    told = await inspecting.wait(name)
    assert (told["waiting"], told["reason"]) == (False, "Cancelled")
    assert told["message"] == "it has ended at 2026-11-29T12:00:00Z: the call was cancelled"
