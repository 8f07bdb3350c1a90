"""`/timeline` and `/wait` over a real queue: what they say is what happens next, and what happened before."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from controlplane.calls.decide import Cause, Finish
from controlplane.calls.engine import AttachWorkflow, FinishCall
from controlplane.calls.history import UNDELIVERED
from controlplane.calls.inspection import CallInspector
from controlplane.calls.recovery import LoseAttempt
from controlplane.calls.timeline import OUTCOMES
from controlplane.capacity.endings import WorkerEnd
from controlplane.capacity.revision import pool_revision
from controlplane.errors import ApiError, Reason
from controlplane.kinds.call_views import FunctionCallTimelineStatus, FunctionCallWaitStatus
from controlplane.machinery.quantities import parse_money
from controlplane.settings import Settings
from controlplane.store.cache import ObjectCache
from controlplane.store.contract import Document, Key
from tests.controlplane.calls.test_every_call_ends import Chaos
from tests.fixtures.calls import ORG, PROJECT, Calls, PutObject, ScriptedWorker, raised, said, succeeded
from tests.fixtures.eventually import eventually

SCALING = {"maxWorkers": 3, "targetConcurrency": 1}


class Inspecting:
    """Asks as the routes do, and holds the answers against their models."""

    def __init__(self, calls: Calls, cache: ObjectCache, settings: Settings) -> None:
        self.calls = calls
        self._cache = cache
        self._inspector = CallInspector(calls.database, cache, settings, calls.clock)

    async def wait(self, name: str) -> dict[str, Any]:
        shown = await self._inspector.wait(Key("FunctionCall", ORG, PROJECT, name))
        return FunctionCallWaitStatus.model_validate(shown["status"]).to_wire()

    async def timeline(self, name: str) -> dict[str, Any]:
        shown = await self._inspector.timeline(Key("FunctionCall", ORG, PROJECT, name))
        return FunctionCallTimelineStatus.model_validate(shown["status"]).to_wire()

    async def intervals(self, name: str) -> list[tuple[str, str]]:
        return [(piece["type"], piece["duration"]) for piece in (await self.timeline(name))["intervals"]]

    async def change_function(self, status: Document | None = None, **spec: Any) -> None:
        """Change its spec, or its status as the autoscaler does; known to whoever asks from then on."""
        document = await self.calls.get("Function", "f")
        changed = {**document, "spec": {**document["spec"], **spec}, "status": {**document["status"], **(status or {})}}
        key = Key("Function", ORG, PROJECT, "f")
        stored = await self.calls.writer.write(PutObject(key, changed))
        await eventually(lambda: self._cache.get(key) == stored)


@pytest.fixture
async def inspecting(calls: Calls) -> Inspecting:
    retries = {"maxRetries": 2, "initialDelay": "8s", "maxDelay": "8s"}
    await calls.function(retries=retries, recovery={"maxAttempts": 3}, scaling=SCALING)
    cache = ObjectCache(calls.database, calls.feed, frozenset({"Function"}))
    await cache.start()
    settings = calls.settings.model_copy(update={"wait_calls_counted_max": 20, "wait_sessions_counted_max": 10})
    return Inspecting(calls, cache, settings)


async def attach(calls: Calls, name: str, offer_after: int | None = None) -> None:
    await calls.writer.write(AttachWorkflow(await calls.ref(name), b"t", offer_after))


async def lose(calls: Calls, worker: ScriptedWorker) -> None:
    await calls.writer.write(LoseAttempt(worker.claimant.attempt, 1, calls.clock.now(), calls.rules))


async def bring_down(calls: Calls, name: str) -> None:
    """The call ends its worker and is offered again; it takes no worker from others from then on."""
    worker = await calls.worker()
    assert await worker.take() == [name]
    end = WorkerEnd(outcome="Exited", signal=11)
    await calls.writer.write(LoseAttempt(worker.claimant.attempt, 1, calls.clock.now(), calls.rules, end))
    await attach(calls, name)
    await attach(calls, name, offer_after=1)


# The timeline.


def test_every_way_a_dispatch_can_end_has_a_word() -> None:
    assert {*OUTCOMES} == {*Cause, UNDELIVERED}


async def test_a_plain_call_waited_ran_and_ended(inspecting: Inspecting) -> None:
    calls = inspecting.calls
    [name] = await calls.create()
    worker = await calls.worker()
    calls.clock.advance(2.5)
    await worker.take()
    calls.clock.advance(0.25)
    running = await inspecting.timeline(name)
    assert [each["outcome"] for each in running["dispatches"]] == ["Running"]
    assert [(piece["type"], "endTime" in piece) for piece in running["intervals"]] == [
        ("Queued", True),
        ("Running", False),
    ]
    calls.clock.advance(1)
    await worker.claim(succeeded(name), take=0)
    told = await inspecting.timeline(name)
    assert told == {
        "phase": "Succeeded",
        "costUSD": "0.00002",
        "dispatches": [
            {
                "number": 1,
                "worker": {"attempt": worker.claimant.attempt, "epoch": 1},
                "startTime": "2026-11-29T12:00:02Z",
                "endTime": "2026-11-29T12:00:03Z",
                "duration": "1.25s",
                "outcome": "Succeeded",
                "costUSD": "0.00002",
                "decision": {"action": "Finish", "appliedTime": "2026-11-29T12:00:03Z"},
            }
        ],
        "intervals": [
            {
                "type": "Queued",
                "startTime": "2026-11-29T12:00:00Z",
                "endTime": "2026-11-29T12:00:02Z",
                "duration": "2.5s",
                "dispatch": 1,
            },
            {
                "type": "Running",
                "startTime": "2026-11-29T12:00:02Z",
                "endTime": "2026-11-29T12:00:03Z",
                "duration": "1.25s",
                "dispatch": 1,
            },
        ],
    }


async def test_retries_and_recoveries_are_told_with_their_workers_their_money_and_the_waits_between(
    inspecting: Inspecting,
) -> None:
    calls = inspecting.calls
    [name] = await calls.create()
    first = await calls.worker()
    await first.take()
    calls.clock.advance(1)
    await first.claim(raised(name, message="no luck"), take=0)
    assert await inspecting.intervals(name) == [("Running", "1s"), ("BackingOff", "0s")]
    calls.clock.advance(8)
    await attach(calls, name)
    await attach(calls, name, offer_after=1)
    calls.clock.advance(3)
    await first.take()
    calls.clock.advance(4)
    await lose(calls, first)
    calls.clock.advance(2)
    await attach(calls, name)
    await attach(calls, name, offer_after=2)
    second = await calls.worker()
    await second.take()
    calls.clock.advance(5)
    await second.claim(succeeded(name), take=0)
    told = await inspecting.timeline(name)
    assert [
        (each["outcome"], each.get("message"), each["costUSD"], each["decision"]["action"])
        for each in told["dispatches"]
    ] == [
        ("Raised", "ValueError: no luck", "0.00001", "Retry"),
        ("WorkerLost", "its worker was lost", "0.00004", "Recover"),
        ("Succeeded", None, "0.00005", "Finish"),
    ]
    assert told["costUSD"] == "0.0001"
    assert [each["worker"]["attempt"] for each in told["dispatches"]] == [
        first.claimant.attempt,
        first.claimant.attempt,
        second.claimant.attempt,
    ]
    delay = told["dispatches"][0]["decision"]["delay"]
    assert 7.2 <= float(delay.removesuffix("s")) <= 8
    assert told["dispatches"][1]["decision"]["appliedTime"] == "2026-11-29T12:00:18Z"
    assert await inspecting.intervals(name) == [
        ("Running", "1s"),
        ("BackingOff", "8s"),
        ("Queued", "3s"),
        ("Running", "4s"),
        ("Recovering", "2s"),
        ("Running", "5s"),
    ]


async def test_how_a_worker_ended_stands_beside_the_dispatch_that_it_lost(inspecting: Inspecting) -> None:
    calls = inspecting.calls
    [name] = await calls.create()
    worker = await calls.worker()
    await worker.take()
    await lose(calls, worker)
    await calls.database.execute(
        "UPDATE attempts SET reason = 'NodeLost', message = 'the node stopped sending heartbeats' WHERE uid = $1",
        worker.claimant.attempt,
    )
    [dispatch] = (await inspecting.timeline(name))["dispatches"]
    assert (dispatch["worker"]["reason"], dispatch["worker"]["message"]) == (
        "NodeLost",
        "the node stopped sending heartbeats",
    )
    assert "appliedTime" not in dispatch["decision"]


async def test_a_cancel_is_told_as_the_time_the_worker_took_for_it(inspecting: Inspecting) -> None:
    calls = inspecting.calls
    [name] = await calls.create()
    worker = await calls.worker()
    await worker.take()
    calls.clock.advance(2)
    await calls.cancel(name)
    calls.clock.advance(1)
    assert await inspecting.intervals(name) == [("Queued", "0s"), ("Running", "2s"), ("Cancelling", "1s")]
    await worker.claim(said(name, "Cancelled"), take=0)
    told = await inspecting.timeline(name)
    assert [each["outcome"] for each in told["dispatches"]] == ["Cancelled"]
    assert await inspecting.intervals(name) == [("Running", "2s"), ("Cancelling", "1s")]


async def test_a_call_that_was_cancelled_in_the_queue_only_waited(inspecting: Inspecting) -> None:
    calls = inspecting.calls
    [name] = await calls.create()
    calls.clock.advance(7)
    await calls.cancel(name)
    calls.clock.advance(7)
    told = await inspecting.timeline(name)
    assert (told["phase"], told["dispatches"]) == ("Cancelled", [])
    assert await inspecting.intervals(name) == [("Queued", "7s")]


async def test_a_backoff_that_a_cancel_ended_has_no_applied_decision(inspecting: Inspecting) -> None:
    calls = inspecting.calls
    [name] = await calls.create()
    worker = await calls.worker()
    await worker.take()
    await worker.claim(raised(name), take=0)
    calls.clock.advance(3)
    await calls.cancel(name)
    calls.clock.advance(60)
    [dispatch] = (await inspecting.timeline(name))["dispatches"]
    assert "appliedTime" not in dispatch["decision"]
    assert await inspecting.intervals(name) == [("Running", "0s"), ("BackingOff", "3s")]


async def test_an_end_that_its_workflow_decided_is_told_as_such(inspecting: Inspecting) -> None:
    calls = inspecting.calls
    [name] = await calls.create()
    worker = await calls.worker()
    await worker.take()
    await worker.claim(raised(name), take=0)
    await attach(calls, name)
    calls.clock.advance(1)
    finish = Finish(phase="Failed", reason="DeadlineExceeded", message="m")
    await calls.writer.write(FinishCall(await calls.ref(name), 1, finish))
    [dispatch] = (await inspecting.timeline(name))["dispatches"]
    assert (dispatch["decision"]["action"], dispatch["decision"]["appliedTime"]) == ("Finish", "2026-11-29T12:00:01Z")


async def test_a_dispatch_that_never_reached_its_worker_is_told_and_costs_nothing(inspecting: Inspecting) -> None:
    calls = inspecting.calls
    [name] = await calls.create()
    worker = await calls.worker()
    await worker.take()
    calls.clock.advance(1)
    await worker.claim(running=[], take=0)
    told = await inspecting.timeline(name)
    [dispatch] = told["dispatches"]
    assert (dispatch["outcome"], dispatch["costUSD"], dispatch["decision"]["action"]) == (
        "Undelivered",
        "0.00",
        "Requeue",
    )
    assert await inspecting.intervals(name) == [("Running", "1s"), ("Queued", "0s")]


async def test_only_the_newest_dispatches_are_kept_and_the_others_are_counted(inspecting: Inspecting) -> None:
    calls = inspecting.calls
    kept_max = calls.settings.call_dispatches_kept_max
    [name] = await calls.create()
    worker = await calls.worker()
    await worker.take()
    await calls.database.execute("UPDATE calls SET dispatches = $1 WHERE name = $2", kept_max - 1, name)
    for _ in range(3):
        # A worker that says it runs nothing never had it: handed out again and again by a hostile one.
        await worker.claim(running=[])
    await calls.database.execute("UPDATE calls SET dispatches = 2 * $1 - 1 WHERE name = $2", kept_max, name)
    await worker.claim(running=[])
    numbers = [each["number"] for each in (await inspecting.timeline(name))["dispatches"]]
    assert numbers[:2] == [kept_max, kept_max + 1]
    rows = await calls.database.fetch("SELECT number FROM call_dispatches ORDER BY number")
    assert kept_max - 1 not in {row["number"] for row in rows}
    assert (await inspecting.timeline(name))["dispatchesOmitted"] == kept_max - 1


@pytest.mark.parametrize("ended_first", [True, False])
async def test_the_history_of_a_call_goes_with_its_object(inspecting: Inspecting, ended_first: bool) -> None:
    calls = inspecting.calls
    [name] = await calls.create()
    worker = await calls.worker()
    await worker.take()
    if ended_first:
        await worker.claim(succeeded(name), take=0)
        assert await calls.database.fetchval("SELECT count(*) FROM call_dispatches") == 1
        await calls.delete(name)
    else:
        # The delete waits for the worker, so the end and the removal are one commit.
        await calls.delete(name)
        await worker.claim(said(name, "Cancelled"), take=0)
    assert await calls.database.fetchval("SELECT count(*) FROM call_dispatches") == 0
    with pytest.raises(ApiError) as refused:
        await inspecting.timeline(name)
    assert refused.value.reason is Reason.NOT_FOUND


# The wait.


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
    before = 0
    while (await worker.take()) != [target]:
        before += 1
    assert told["queue"]["callsAhead"] == before


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
        pool_revision(await calls.get("Function", "f")),
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
    assert 5.2 <= left <= 6
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
    [name] = await calls.create()
    await calls.worker()
    calls.clock.advance(calls.settings.engine_lag_seconds_max + 1)
    told = await inspecting.wait(name)
    assert (told["reason"], told["engine"]) == (
        "EngineLagging",
        {"hasWorkflow": False, "lagExceeded": True, "lagCalls": 1},
    )
    await attach(calls, name)
    assert (await inspecting.wait(name))["reason"] != "EngineLagging"


async def test_an_ended_call_waits_for_nothing(inspecting: Inspecting) -> None:
    calls = inspecting.calls
    [name] = await calls.create()
    worker = await calls.worker()
    await worker.take()
    await calls.cancel(name)
    cancelling = await inspecting.wait(name)
    assert cancelling["message"] == f"{worker.claimant.attempt} was told to stop it and has not done so yet"
    await worker.claim(said(name, "Cancelled"), take=0)
    told = await inspecting.wait(name)
    assert (told["waiting"], told["reason"]) == (False, "Cancelled")
    assert told["message"] == "it has ended at 2026-11-29T12:00:00Z: the call was cancelled"


# What it costs, and that it adds up.


@pytest.mark.parametrize("seed", range(4))
async def test_the_stories_of_random_lives_add_up(inspecting: Inspecting, seed: int) -> None:
    """Whatever happens to calls, their dispatches are counted without gaps and cost what the calls cost."""
    calls = inspecting.calls
    await inspecting.change_function(retries={"maxRetries": 2, "initialDelay": "1s"}, recovery={"maxAttempts": 2})
    chaos = Chaos(calls, random.Random(seed))
    for _ in range(60):
        await chaos.act()
    await chaos.settle()
    for name in chaos.names:
        told, status = await inspecting.timeline(name), await calls.status(name)
        dispatches = told["dispatches"]
        assert [each["number"] for each in dispatches] == [*range(1, len(dispatches) + 1)]
        assert sum(parse_money(each["costUSD"]) for each in dispatches) == parse_money(status["costUSD"])
        actions = Counter(each["decision"]["action"] for each in dispatches)
        assert (actions["Retry"], actions["Recover"]) == (status["retries"], status["recoveries"])
        assert actions["Finish"] <= 1
        assert all("endTime" in piece for piece in told["intervals"])
        ran = [piece["type"] for piece in told["intervals"]].count("Running")
        assert ran == len(dispatches)
        await calls.delete(name)
    assert await calls.database.fetchval("SELECT count(*) FROM call_dispatches") == 0


async def test_neither_history_nor_messages_cost_a_round_trip(inspecting: Inspecting) -> None:
    """Begin, load, write and commit: what a batch took before there were either."""
    calls = inspecting.calls
    first, _ = await calls.create("a", "b")
    worker = await calls.worker()
    await worker.take()
    statements: list[str] = []
    connection = calls.writer._committer._connection
    assert connection is not None
    connection.add_query_logger(lambda query: statements.append(query.query))
    await worker.claim(succeeded(first), take=0)
    assert len(statements) == 4
    assert sum("INSERT INTO call_dispatches" in statement for statement in statements) == 1
    statements.clear()
    await calls.create("c")
    assert len(statements) == 4
    statements.clear()
    await calls.delete(first)
    assert len(statements) == 4
