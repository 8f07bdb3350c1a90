"""The stories whose histories are recorded: one for each way through a workflow.

`tools/record_histories.py` plays them against a real server and keeps their histories; `test_replay.py` replays those
with today's code. Each story starts one workflow on the given queue and returns when it has closed.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from temporalio.client import Client, WorkflowHandle
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from activities.build_image_contract import ImageBuildInput, ImageBuilt
from activities.controller_contract import ControllerInput, ControllerName
from activities.run_call_contract import CallReference, FunctionCallInput
from activities.run_worker_contract import EXITED, DrainRequest, WorkerAttemptInput, WorkerExit, node_task_queue
from controlplane.calls.decide import Cause
from tests.fixtures.eventually import eventually
from tests.fixtures.scripted import (
    CRASHED,
    HANG,
    ScriptedBuild,
    ScriptedCall,
    ScriptedController,
    ScriptedWorker,
    SilentWorker,
    ended,
    undecided,
)
from workers.sandbox import fenced_runner
from workflows.canary import CanaryWorkflow
from workflows.controller import ControllerWorkflow
from workflows.function_call import FunctionCallWorkflow
from workflows.image_build import ImageBuildWorkflow
from workflows.registry import WORKFLOWS
from workflows.worker_attempt import WorkerAttemptWorkflow

Handle = WorkflowHandle[Any, Any]
CALL = CallReference(uid="fnc_1", org="default", project="default", name="hello-square-bcdfg")

BUILT = ImageBuilt(outcome="Ready", key="image-0", digest="sha256:0", size_bytes=1, log="img_1.0")


@dataclass(frozen=True)
class Story:
    """One way through a workflow."""

    workflow: type
    name: str
    play: Callable[[Client, str], Awaitable[Handle]]


@asynccontextmanager
async def control(client: Client, queue: str, activities: Sequence[Callable[..., Any]] = ()) -> AsyncIterator[Worker]:
    """A worker that runs all workflows in the sandbox, and these activities."""
    worker = Worker(
        client,
        task_queue=queue,
        workflows=WORKFLOWS,
        activities=activities,
        workflow_runner=fenced_runner(),
        build_id="test",
    )
    async with worker:
        yield worker


async def start_call(client: Client, queue: str, ended: dict[str, Any] | None = None) -> Handle:
    start = FunctionCallInput(call=CALL, ended=ended)
    return await client.start_workflow(FunctionCallWorkflow.run, start, id=f"call/{uuid.uuid4().hex}", task_queue=queue)


async def start_attempt(client: Client, queue: str) -> Handle:
    start = WorkerAttemptInput(attempt_uid="att-1", org="default", project="default", epoch=1, node=queue)
    return await client.start_workflow(
        WorkerAttemptWorkflow.run, start, id=f"attempt/{uuid.uuid4().hex}", task_queue=queue
    )


async def start_controller(client: Client, queue: str) -> Handle:
    start = ControllerInput(name=ControllerName.SWEEPER)
    return await client.start_workflow(
        ControllerWorkflow.run, start, id=f"controller/{uuid.uuid4().hex}", task_queue=queue
    )


def node(client: Client, queue: str, worker: ScriptedWorker) -> Worker:
    """A node process named after the queue."""
    return Worker(client, task_queue=node_task_queue(queue), activities=worker.node_activities, build_id="test")


async def _scripted_call(client: Client, queue: str, call: ScriptedCall) -> Handle:
    async with control(client, queue, call.activities):
        handle = await start_call(client, queue)
        await handle.result()
        return handle


async def _happy(client: Client, queue: str) -> Handle:
    call = ScriptedCall(HANG)
    async with control(client, queue, call.activities):
        handle = await start_call(client, queue)
        await eventually(lambda: call.tokens)
        await client.get_async_activity_handle(task_token=call.tokens[0]).complete(ended())
        await handle.result()
        return handle


async def _ended_before_its_workflow_began(client: Client, queue: str) -> Handle:
    return await _scripted_call(client, queue, ScriptedCall(ended()))


async def _told_its_end_at_the_start(client: Client, queue: str) -> Handle:
    async with control(client, queue):
        handle = await start_call(client, queue, ended().ended)
        await handle.result()
        return handle


async def _retried(client: Client, queue: str) -> Handle:
    first = undecided(Cause.RAISED, 1, retries=0, retries_max=2, initial_delay_seconds=0.1)
    second = undecided(Cause.RAISED, 2, retries=1, retries_max=2, initial_delay_seconds=0.1)
    return await _scripted_call(client, queue, ScriptedCall(first, second, ended()))


async def _lost_its_worker(client: Client, queue: str) -> Handle:
    return await _scripted_call(client, queue, ScriptedCall(undecided(Cause.LOST, 1), ended()))


async def _lost_too_many_workers(client: Client, queue: str) -> Handle:
    return await _scripted_call(client, queue, ScriptedCall(undecided(Cause.LOST, 4, recoveries=3)))


async def _cancelled(client: Client, queue: str) -> Handle:
    return await _scripted_call(client, queue, ScriptedCall(ended("Cancelled", "Cancelled")))


async def _cancelled_while_lost(client: Client, queue: str) -> Handle:
    return await _scripted_call(client, queue, ScriptedCall(undecided(Cause.LOST, 1, cancel_requested=True)))


async def _cancelled_while_backing_off(client: Client, queue: str) -> Handle:
    raised = undecided(Cause.RAISED, 1, retries_max=1, initial_delay_seconds=0.1)
    return await _scripted_call(client, queue, ScriptedCall(raised, ended("Cancelled", "Cancelled")))


async def _deleted_while_recovering(client: Client, queue: str) -> Handle:
    """The object is gone with its last phase."""
    return await _scripted_call(client, queue, ScriptedCall(undecided(Cause.LOST, 1), ended("")))


async def _function_deleted(client: Client, queue: str) -> Handle:
    return await _scripted_call(client, queue, ScriptedCall(undecided(Cause.FUNCTION_DELETED, 1)))


async def _suspected(client: Client, queue: str) -> Handle:
    """A loss that does not count, as many that do, and the end."""
    shared = undecided(Cause.LOST, 1, unproven=True, recoveries_max=1)
    alone = [undecided(Cause.LOST, n, recoveries=n - 1, excused=True, recoveries_max=1) for n in (2, 3)]
    return await _scripted_call(client, queue, ScriptedCall(shared, *alone))


async def _overtaken(client: Client, queue: str) -> Handle:
    """The end that it wrote came too late: the call had gone on, and ended otherwise."""
    return await _scripted_call(client, queue, ScriptedCall(undecided(Cause.DEADLINE, 1), ended(), overtaken=True))


async def _taken_over(client: Client, queue: str) -> Handle:
    """The control process dies while the call waits for its retry; another one goes on from the history."""
    raised = undecided(Cause.RAISED, 1, retries_max=1, initial_delay_seconds=2.0)
    call = ScriptedCall(raised, ended())
    async with control(client, queue, call.activities):
        handle = await start_call(client, queue)
        await eventually(lambda: _backs_off(handle))
    async with control(client, queue, call.activities):
        await handle.result()
        return handle


async def _backs_off(handle: Handle) -> bool:
    history = await handle.fetch_history()
    return any(event.HasField("timer_started_event_attributes") for event in history.events)


async def _deadline(client: Client, queue: str) -> Handle:
    return await _scripted_call(client, queue, ScriptedCall(undecided(Cause.DEADLINE, 1)))


async def _activity_failed(client: Client, queue: str) -> Handle:
    return await _scripted_call(client, queue, ScriptedCall(ApplicationError("no database"), ended()))


async def _activity_lost(client: Client, queue: str) -> Handle:
    call = ScriptedCall(HANG, ended())
    async with control(client, queue, call.activities):
        handle = await start_call(client, queue)
        await eventually(lambda: call.tokens)
        await handle.signal(FunctionCallWorkflow.reissue)
        await handle.result()
        return handle


async def _worker_exited(client: Client, queue: str) -> Handle:
    return await _worker_ended(client, queue, WorkerExit(outcome=EXITED, exit_code=0, ran_seconds=60.0))


async def _worker_crashed(client: Client, queue: str) -> Handle:
    return await _worker_ended(client, queue, CRASHED)


async def _worker_ended(client: Client, queue: str, end: WorkerExit) -> Handle:
    worker = ScriptedWorker()
    async with control(client, queue, [worker.settle_attempt]), node(client, queue, worker):
        handle = await start_attempt(client, queue)
        await worker.started.wait()
        worker.end(end)
        await handle.result()
        return handle


async def _drained(client: Client, queue: str) -> Handle:
    worker = ScriptedWorker()
    async with control(client, queue, [worker.settle_attempt]), node(client, queue, worker):
        handle = await start_attempt(client, queue)
        await worker.started.wait()
        await handle.signal(WorkerAttemptWorkflow.drain, DrainRequest(reason="Idle"))
        await handle.result()
        return handle


async def _killed(client: Client, queue: str) -> Handle:
    worker = ScriptedWorker(obeys_drain=False)
    async with control(client, queue, [worker.settle_attempt]), node(client, queue, worker):
        handle = await start_attempt(client, queue)
        await worker.started.wait()
        await handle.signal(WorkerAttemptWorkflow.drain, DrainRequest(reason="Idle"))
        await worker.drained.wait()
        await handle.signal(WorkerAttemptWorkflow.drain, DrainRequest(reason="DeadlineExceeded", kill=True))
        await handle.result()
        return handle


async def _killed_at_once(client: Client, queue: str) -> Handle:
    worker = ScriptedWorker(obeys_drain=False)
    async with control(client, queue, [worker.settle_attempt]), node(client, queue, worker):
        handle = await start_attempt(client, queue)
        await worker.started.wait()
        await handle.signal(WorkerAttemptWorkflow.drain, DrainRequest(reason="LeaseExpired", kill=True))
        await handle.result()
        return handle


async def _drained_before_a_node_took_it(client: Client, queue: str) -> Handle:
    worker = ScriptedWorker()
    async with control(client, queue, [worker.settle_attempt]):
        handle = await start_attempt(client, queue)
        await handle.signal(WorkerAttemptWorkflow.drain, DrainRequest(reason="Idle"))
        await handle.result()
        return handle


async def _no_node(client: Client, queue: str) -> Handle:
    worker = ScriptedWorker()
    async with control(client, queue, [worker.settle_attempt]):
        handle = await start_attempt(client, queue)
        await handle.result()
        return handle


async def _silent_node(client: Client, queue: str) -> Handle:
    worker = SilentWorker()
    async with control(client, queue, [worker.settle_attempt]), node(client, queue, worker):
        handle = await start_attempt(client, queue)
        await handle.result()
        return handle


async def start_build(client: Client, queue: str) -> Handle:
    start = ImageBuildInput(
        image_uid="img_1", org="default", project="default", name="img", generation=1, node=queue, seconds_max=60.0
    )
    return await client.start_workflow(ImageBuildWorkflow.run, start, id=f"image/{uuid.uuid4().hex}", task_queue=queue)


async def _scripted_build(client: Client, queue: str, build: ScriptedBuild) -> Handle:
    builder = Worker(client, task_queue=node_task_queue(queue), activities=[build.build_image], build_id="test")
    async with control(client, queue, [build.settle_image]), builder:
        handle = await start_build(client, queue)
        await handle.result()
        return handle


async def _built(client: Client, queue: str) -> Handle:
    return await _scripted_build(client, queue, ScriptedBuild(BUILT))


async def _failed_step(client: Client, queue: str) -> Handle:
    return await _scripted_build(client, queue, ScriptedBuild(ImageBuilt(outcome="StepFailed", message="step 1")))


async def _built_by_the_second_try(client: Client, queue: str) -> Handle:
    return await _scripted_build(client, queue, ScriptedBuild(ApplicationError("the disk is full"), BUILT))


async def _never_built(client: Client, queue: str) -> Handle:
    lost = ApplicationError("gone", non_retryable=True)
    return await _scripted_build(client, queue, ScriptedBuild(lost))


async def _continued(client: Client, queue: str) -> Handle:
    controller = ScriptedController(rounds=1)
    async with control(client, queue, [controller.run_controller]):
        handle = await start_controller(client, queue)
        await eventually(lambda: len(controller.inputs) == 2)
        await client.get_workflow_handle(handle.id).terminate()
        return client.get_workflow_handle(handle.id, run_id=handle.first_execution_run_id)


async def _answered(client: Client, queue: str) -> Handle:
    async with control(client, queue):
        handle = await client.start_workflow(CanaryWorkflow.run, id=f"canary/{uuid.uuid4().hex}", task_queue=queue)
        await handle.result()
        return handle


STORIES = (
    Story(FunctionCallWorkflow, "happy", _happy),
    Story(FunctionCallWorkflow, "ended_before_its_workflow_began", _ended_before_its_workflow_began),
    Story(FunctionCallWorkflow, "told_its_end_at_the_start", _told_its_end_at_the_start),
    Story(FunctionCallWorkflow, "retried", _retried),
    Story(FunctionCallWorkflow, "lost_its_worker", _lost_its_worker),
    Story(FunctionCallWorkflow, "lost_too_many_workers", _lost_too_many_workers),
    Story(FunctionCallWorkflow, "cancelled", _cancelled),
    Story(FunctionCallWorkflow, "cancelled_while_lost", _cancelled_while_lost),
    Story(FunctionCallWorkflow, "cancelled_while_backing_off", _cancelled_while_backing_off),
    Story(FunctionCallWorkflow, "deleted_while_recovering", _deleted_while_recovering),
    Story(FunctionCallWorkflow, "function_deleted", _function_deleted),
    Story(FunctionCallWorkflow, "suspected", _suspected),
    Story(FunctionCallWorkflow, "overtaken", _overtaken),
    Story(FunctionCallWorkflow, "taken_over", _taken_over),
    Story(FunctionCallWorkflow, "deadline", _deadline),
    Story(FunctionCallWorkflow, "activity_failed", _activity_failed),
    Story(FunctionCallWorkflow, "activity_lost", _activity_lost),
    Story(WorkerAttemptWorkflow, "exited", _worker_exited),
    Story(WorkerAttemptWorkflow, "crashed", _worker_crashed),
    Story(WorkerAttemptWorkflow, "drained", _drained),
    Story(WorkerAttemptWorkflow, "killed", _killed),
    Story(WorkerAttemptWorkflow, "killed_at_once", _killed_at_once),
    Story(WorkerAttemptWorkflow, "drained_before_a_node_took_it", _drained_before_a_node_took_it),
    Story(WorkerAttemptWorkflow, "no_node", _no_node),
    Story(WorkerAttemptWorkflow, "silent_node", _silent_node),
    Story(ImageBuildWorkflow, "built", _built),
    Story(ImageBuildWorkflow, "failed_step", _failed_step),
    Story(ImageBuildWorkflow, "built_by_the_second_try", _built_by_the_second_try),
    Story(ImageBuildWorkflow, "never_built", _never_built),
    Story(ControllerWorkflow, "continued", _continued),
    Story(CanaryWorkflow, "answered", _answered),
)
