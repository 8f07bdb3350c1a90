"""What waiting calls say about themselves: at their creation, and when the reason changes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from activities.queue_explainer import QueueExplainer
from controlplane.calls.engine import AttachWorkflow
from controlplane.calls.recovery import LoseAttempt
from controlplane.capacity.function_status import NO_ROOM_MESSAGE, Observation
from controlplane.capacity.rows import WorkerQueries
from controlplane.settings import Settings
from controlplane.store.contract import Document, Key
from tests.fixtures.calls import ORG, PROJECT, Calls, PutObject, raised, succeeded
from tests.fixtures.control import ControlWorld, succeed
from tests.fixtures.eventually import eventually
from tests.fixtures.inspecting import bring_down


class Explaining:
    """An explainer that is asked whenever the test says so."""

    def __init__(self, calls: Calls, **settings: Any) -> None:
        self.calls = calls
        at_once = {"wait_message_settle_seconds": 0.0, "wait_message_seconds": 0.0, **settings}
        self.settings: Settings = calls.settings.model_copy(update=at_once)
        self.explainer = QueueExplainer(calls.database, calls.writer, self.settings, calls.clock)

    async def look(self, **seen: Any) -> float | None:
        """As the autoscaler does after it looked at the Function."""
        function = await self.calls.get("Function", "f")
        uid = function["metadata"]["uid"]
        workers = (await WorkerQueries(self.calls.database).live([uid]))[uid]
        load = (await self.calls.queries.loads([uid]))[uid]
        observed = Observation(queued=load.queued, running=load.running, **seen)
        return await self.explainer.explain(function, observed, workers)

    async def told(self, name: str) -> tuple[str, str]:
        """The reason and the sentence that a call carries."""
        status = await self.calls.status(name)
        [scheduled] = [each for each in status["conditions"] if each["type"] == "Scheduled"]
        return scheduled["reason"], status["message"]

    async def version(self) -> int:
        """The newest revision: nothing was written while it stays."""
        version: int = await self.calls.database.fetchval("SELECT rv FROM meta")
        return version


@pytest.fixture
async def explaining(calls: Calls) -> Explaining:
    await calls.function(retries={"maxRetries": 1, "initialDelay": "30s", "maxDelay": "30s"})
    return Explaining(calls)


WAITS = "waiting for a worker"
WORKERS = {"ready": 0, "busy": 0, "idle": 0, "starting": 0, "draining": 0}


@pytest.mark.parametrize(
    ("spec", "status", "reason", "message"),
    [
        ({}, {}, "NoWorker", "no worker yet: one is about to be started"),
        ({}, {"workers": {**WORKERS, "starting": 2}}, "WorkersStarting", "no worker yet: one is being started"),
        (
            {},
            {"workers": {**WORKERS, "ready": 2, "busy": 2}, "queue": {"queued": 9, "running": 2}},
            "WorkersBusy",
            "every worker is busy; they take calls in turn, session by session",
        ),
        ({}, {"workers": {**WORKERS, "ready": 2, "busy": 1, "idle": 1}}, "Queued", WAITS),
        (
            {"scaling": {"targetConcurrency": 4}},
            {"workers": {**WORKERS, "ready": 1, "busy": 1}, "queue": {"queued": 0, "running": 3}},
            "Queued",
            WAITS,
        ),
        ({}, {"message": NO_ROOM_MESSAGE}, "NoRoom", "no worker yet: the hosts have no room for another one"),
        (
            {},
            {"conditions": [{"type": "Ready", "reason": "StartupFailed", "message": "exited with code 1\nTraceback"}]},
            "StartupFailed",
            "no worker yet: the last start failed (exited with code 1)",
        ),
        (
            {},
            {"conditions": [{"type": "Ready", "reason": "NoOffering", "message": "no host will do: ask for less"}]},
            "NoOffering",
            "no worker yet: no host will do: ask for less",
        ),
        (
            {"state": "Stopped"},
            {"workers": {**WORKERS, "ready": 1, "idle": 1}},
            "FunctionStopped",
            "its Function is stopped; the call runs once `spec.state` of that is Running again",
        ),
    ],
    ids=["none", "starting", "busy", "idle", "places", "room", "failed", "no offering", "stopped"],
)
async def test_a_new_call_says_what_its_function_says(
    calls: Calls, spec: Document, status: Document, reason: str, message: str
) -> None:
    function = await calls.function(**spec)
    stored = {**function, "status": {"phase": "Running", **status}}
    await calls.writer.write(PutObject(Key("Function", ORG, PROJECT, "f"), stored))
    [name] = await calls.create()
    assert await Explaining(calls).told(name) == (reason, message)


async def test_the_calls_that_are_next_are_told_when_the_reason_changes(explaining: Explaining) -> None:
    calls = explaining.calls
    names = await calls.create(*["a"] * 6, "b")
    worker = await calls.worker()
    await explaining.look(starting=1)
    starting = ("WorkersStarting", "no worker yet: one is being started")
    before = ("NoWorker", "no worker yet: one is about to be started")
    assert [await explaining.told(name) for name in names] == [*[starting] * 4, before, before, starting]
    [taken] = await worker.take()
    await explaining.look()
    assert [(await explaining.told(name))[0] for name in names if name != taken] == [
        *["WorkersBusy"] * 4,
        "NoWorker",
        "WorkersBusy",
    ]
    # Those behind are told when they come forward.
    [other], _ = await worker.claim(succeeded(taken))
    await worker.claim(succeeded(other["id"]))
    await explaining.look()
    assert (await explaining.told(names[5]))[0] == "WorkersBusy"


async def test_a_call_that_says_so_already_is_not_written(explaining: Explaining) -> None:
    calls = explaining.calls
    await calls.create("a", "b")
    await calls.worker()
    await explaining.look(starting=1)
    version = await explaining.version()
    await explaining.look(starting=1)
    await explaining.look(starting=3)
    assert await explaining.version() == version


async def test_a_reason_must_last_and_looks_keep_their_distance(calls: Calls) -> None:
    await calls.function()
    patient = Explaining(calls, wait_message_settle_seconds=3_600.0)
    [name] = await calls.create()
    await calls.worker()
    due = await patient.look(starting=1)
    assert due is not None
    assert (await patient.told(name))[0] == "NoWorker"
    rare = Explaining(calls, wait_message_seconds=3_600.0)
    await rare.look(starting=1)
    assert (await rare.told(name))[0] == "WorkersStarting"
    await rare.look(lacks_room=True, start_failures=1)
    assert (await rare.told(name))[0] == "WorkersStarting"


async def test_a_queue_without_calls_is_not_looked_at(explaining: Explaining) -> None:
    calls = explaining.calls
    [name] = await calls.create()
    await calls.cancel(name)
    assert await explaining.look() is None


async def test_a_worker_that_the_engine_does_not_start_is_told(explaining: Explaining) -> None:
    calls = explaining.calls
    [name] = await calls.create()
    await calls.worker()
    calls.clock.advance(explaining.settings.engine_answer_seconds_max + 1)
    await explaining.look(starting=1)
    assert await explaining.told(name) == (
        "EngineUnavailable",
        "no worker yet: the engine that starts them does not answer",
    )
    await calls.database.execute("UPDATE attempts SET has_workflow = true")
    await explaining.look(starting=1)
    assert (await explaining.told(name))[0] == "WorkersStarting"


async def test_a_call_that_runs_alone_is_told_what_it_waits_for(explaining: Explaining) -> None:
    calls = explaining.calls
    [name] = await calls.create("b")
    await bring_down(calls, name)
    [other] = await calls.create("a")
    await calls.database.execute("UPDATE call_sessions SET last_turn = 0 WHERE session = 'a'")
    worker = await calls.worker(concurrency=4)
    assert await worker.take() == [other]
    await explaining.look()
    told = "it may have brought a worker down and runs alone; every worker holds other calls (recovery 1)"
    assert await explaining.told(name) == ("RunsAlone", told)
    await worker.claim(succeeded(other), take=0)
    await explaining.look()
    assert await explaining.told(name) == ("Queued", "waiting for a worker of its own (recovery 1)")


async def test_beyond_the_lag_budget_calls_without_a_workflow_are_told(explaining: Explaining) -> None:
    calls = explaining.calls
    ran, unknown, known = await calls.create("z", "a", "b")
    assert await (await calls.worker()).take() == [ran]
    await calls.writer.write(AttachWorkflow(await calls.ref(known), b"t"))
    calls.clock.advance(explaining.settings.engine_lag_seconds_max + 1)
    await explaining.look()
    assert (await explaining.told(unknown))[0] == "EngineLagging"
    assert (await explaining.told(known))[0] == "WorkersBusy"


async def test_a_decision_that_the_engine_does_not_take_is_told_until_it_does(explaining: Explaining) -> None:
    calls = explaining.calls
    [retried, lost] = await calls.create("a", "b")
    worker = await calls.worker(concurrency=2)
    await worker.take(2)
    await worker.claim(raised(retried), take=0)
    await calls.writer.write(LoseAttempt(worker.claimant.attempt, 1, calls.clock.now(), calls.rules))
    assert (await calls.status(retried))["message"].startswith("retry 1 of 1 follows in ")
    await explaining.explainer.explain_late_decisions()
    assert (await explaining.told(retried))[0] == "RetryScheduled"
    calls.clock.advance(explaining.settings.engine_answer_seconds_max + 1)
    await explaining.explainer.explain_late_decisions()
    since = "waits for the engine, which has not answered since 2026-11-29T12:00:00Z"
    assert await explaining.told(retried) == ("EngineUnavailable", f"retry 1 {since}")
    assert await explaining.told(lost) == ("EngineUnavailable", f"recovery 1 {since}")
    version = await explaining.version()
    await explaining.explainer.explain_late_decisions()
    assert await explaining.version() == version
    for name in (retried, lost):
        await calls.writer.write(AttachWorkflow(await calls.ref(name), b"t"))
    assert await explaining.told(retried) == ("RetryScheduled", "retry 1 is being scheduled")
    assert await explaining.told(lost) == ("Recovering", "recovery 1 is being scheduled")
    await calls.writer.write(AttachWorkflow(await calls.ref(lost), b"t", offer_after=1))
    await explaining.look()
    assert await explaining.told(lost) == ("NoWorker", "no worker yet: one is about to be started (recovery 1)")


async def test_the_autoscaler_tells_calls_as_workers_come_and_are_busy(control_world: ControlWorld) -> None:
    """Through the real controllers, in the process that runs them."""
    node, started, done = control_world.node, asyncio.Event(), asyncio.Event()

    async def start() -> None:
        await started.wait()

    async def hold(call: str) -> Document:
        await done.wait()
        return await succeed(call)

    node.start, node.behaviour = start, hold
    await control_world.function(state="Stopped", scaling={"maxWorkers": 1})
    first = await control_world.call()

    async def says(name: str, text: str) -> None:
        async def told() -> bool:
            return text in (await control_world.status("FunctionCall", name))["message"]

        await eventually(told)

    await says(first, "its Function is stopped; the call runs once `spec.state` of that is Running again")
    await control_world.change("Function", "f", lambda function: function["spec"].update(state="Running"))
    await says(first, "no worker yet: one is being started")
    started.set()
    await says(first, "running on a worker")
    second = await control_world.call()
    await says(second, "every worker is busy; they take calls in turn, session by session")
    done.set()
    for name in (first, second):
        assert (await control_world.until_ended(name))["phase"] == "Succeeded"
