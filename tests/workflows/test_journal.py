"""What workflows tell of themselves: by query, in the UI's details, again after a replay, and as new."""

from __future__ import annotations

import uuid
from datetime import datetime

from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from activities.engine import Engine, call_workflow_id
from activities.run_call_contract import CallReference, FunctionCallInput
from activities.run_worker_contract import DRAINED, KILLED, DrainRequest
from controlplane.calls.decide import Cause
from tests.fixtures.scripted import HANG, ScriptedCall, ScriptedWorker, ended, undecided
from tests.workflows.stories import CALL, Handle, control, node, start_attempt, start_call
from tests.workflows.test_function_call import skipping as skipping
from workflows.function_call import FunctionCallWorkflow
from workflows.journal import ENTRIES_MAX
from workflows.worker_attempt import WorkerAttemptWorkflow


def untimed(entries: list[str]) -> list[str]:
    """The entries without their times, which must not run backwards."""
    times = [datetime.fromisoformat(entry.partition(" ")[0]) for entry in entries]
    assert times == sorted(times)
    return [entry.partition(" ")[2] for entry in entries]


async def details(handle: Handle) -> str:
    """What the UI shows of a workflow beside its history."""
    told = await handle.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
    shown: str = told.current_details
    return shown


async def test_a_call_that_was_retried_lost_and_ended_tells_all_of_it(
    skipping: WorkflowEnvironment, task_queue: str
) -> None:
    retried = undecided(Cause.RAISED, 1, retries_max=1, initial_delay_seconds=3.0)
    lost = undecided(Cause.LOST, 2, retries=1, retries_max=1)
    over = undecided(Cause.RAISED, 3, retries=1, retries_max=1, recoveries=1)
    call = ScriptedCall(retried, lost, over)
    timeline = [
        "waiting for an outcome",
        "backing off for 3.0 s before retry 1 of 1",
        "waiting for an outcome",
        "waiting for an outcome",
        "writing the end",
        "ended: Failed",
    ]
    decisions = [
        "dispatch 1 raised (retries 0/1, recoveries 0/3): retry in 3.0 s",
        "dispatch 2 lost (retries 1/1, recoveries 0/3): offer it again at once",
        "dispatch 3 raised (retries 1/1, recoveries 1/3): end it as Failed (RemoteError)",
    ]
    async with control(skipping.client, task_queue, call.activities):
        handle = await start_call(skipping.client, task_queue)
        assert await handle.result() == "Failed"
        assert await handle.query("state") == "ended: Failed"
        first = await handle.query("timeline"), await handle.query("decisions")
    assert (untimed(first[0]), untimed(first[1])) == (timeline, decisions)
    # Another process knows nothing but the history, and says the same.
    async with control(skipping.client, task_queue, call.activities):
        again = await handle.query("timeline"), await handle.query("decisions")
        shown = await details(handle)
    assert again == first
    assert shown.startswith("**ended: Failed**")
    assert decisions[2] in shown


async def test_what_was_told_before_a_workflow_continued_as_new_is_not_lost(
    temporal_client: Client, task_queue: str
) -> None:
    told = {"timeline": ["2026-11-29T12:00:00.000+00:00 earlier"], "decisions": ["2026-11-29T12:00:00.000+00:00 so"]}
    call = ScriptedCall(HANG)
    start = FunctionCallInput(call=CALL, offer_after=7, journal=told)
    async with control(temporal_client, task_queue, call.activities):
        handle = await temporal_client.start_workflow(
            FunctionCallWorkflow.run, start, id=f"call/{uuid.uuid4().hex}", task_queue=task_queue
        )
        assert untimed(await handle.query("timeline")) == ["earlier", "waiting for an outcome"]
        assert untimed(await handle.query("decisions")) == ["so"]
        await handle.terminate()


async def test_an_engine_that_fails_for_long_fills_no_memory(skipping: WorkflowEnvironment, task_queue: str) -> None:
    told = {"timeline": [f"2026-11-29T12:00:00.000+00:00 {number}" for number in range(ENTRIES_MAX)], "decisions": []}
    call = ScriptedCall(ended())
    start = FunctionCallInput(call=CALL, journal=told)
    async with control(skipping.client, task_queue, call.activities):
        handle = await skipping.client.start_workflow(
            FunctionCallWorkflow.run, start, id=f"call/{uuid.uuid4().hex}", task_queue=task_queue
        )
        await handle.result()
        entries = await handle.query("timeline")
    assert len(entries) == ENTRIES_MAX
    assert entries[-1].endswith(" ended: Succeeded")


async def test_a_worker_that_was_let_go_and_killed_tells_why(temporal_client: Client, task_queue: str) -> None:
    worker = ScriptedWorker(obeys_drain=False)
    async with control(temporal_client, task_queue, [worker.settle_attempt]), node(temporal_client, task_queue, worker):
        handle = await start_attempt(temporal_client, task_queue)
        await worker.started.wait()
        await handle.signal(WorkerAttemptWorkflow.drain, DrainRequest(reason="Idle"))
        await worker.drained.wait()
        await handle.signal(WorkerAttemptWorkflow.drain, DrainRequest(reason="DeadlineExceeded", kill=True))
        assert await handle.result() == KILLED
        timeline = untimed(await handle.query("timeline"))
        assert timeline == [
            f"running on {task_queue}",
            "draining: Idle",
            "killing: DeadlineExceeded",
            f"settling: {KILLED}",
            f"ended: {KILLED}",
        ]
        assert untimed(await handle.query("decisions")) == [
            "let it go: Idle",
            "kill it: DeadlineExceeded",
        ]
        assert (await details(handle)).startswith(f"**ended: {KILLED}**")


async def test_a_worker_that_left_when_asked_was_only_let_go(temporal_client: Client, task_queue: str) -> None:
    worker = ScriptedWorker()
    async with control(temporal_client, task_queue, [worker.settle_attempt]), node(temporal_client, task_queue, worker):
        handle = await start_attempt(temporal_client, task_queue)
        await worker.started.wait()
        await handle.signal(WorkerAttemptWorkflow.drain, DrainRequest(reason="Idle"))
        assert await handle.result() == DRAINED
        assert untimed(await handle.query("decisions")) == ["let it go: Idle"]


async def test_the_engine_lists_workflows_by_the_names_of_what_they_are_about(temporal_client: Client) -> None:
    uid = f"fnc_{uuid.uuid4().hex}"
    engine = Engine(temporal_client, 30.0)
    await engine.start_call(CallReference(uid=uid, org="default", project="p", name="hello-x"), urgent=False)
    handle = temporal_client.get_workflow_handle(call_workflow_id(uid))
    assert await (await handle.describe()).static_summary() == "p/hello-x"
    await handle.terminate()
