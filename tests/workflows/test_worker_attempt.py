from __future__ import annotations

import pytest
from temporalio.client import Client
from temporalio.exceptions import ActivityError, CancelledError, RetryState, TimeoutError, TimeoutType

from activities.run_worker_contract import DRAINED, EXITED, KILLED, NODE_LOST, PLATFORM_AWAY, DrainRequest, WorkerExit
from tests.fixtures.scripted import CRASHED, ScriptedWorker
from tests.workflows.stories import control, node, start_attempt
from workflows.decisions import exit_of_silent_worker
from workflows.worker_attempt import WorkerAttemptWorkflow


async def test_a_dead_process_is_settled_at_once(temporal_client: Client, task_queue: str) -> None:
    worker = ScriptedWorker()
    async with control(temporal_client, task_queue, [worker.settle_attempt]), node(temporal_client, task_queue, worker):
        handle = await start_attempt(temporal_client, task_queue)
        await worker.started.wait()
        worker.end(CRASHED)
        assert await handle.result() == EXITED
    # By what its node told: its silence would be noticed later, as another end.
    assert [settlement.exit for settlement in worker.settled] == [CRASHED]


async def test_a_drain_reaches_the_node_and_its_exit_is_kept(temporal_client: Client, task_queue: str) -> None:
    worker = ScriptedWorker()
    async with control(temporal_client, task_queue, [worker.settle_attempt]), node(temporal_client, task_queue, worker):
        handle = await start_attempt(temporal_client, task_queue)
        await worker.started.wait()
        await handle.signal(WorkerAttemptWorkflow.drain, DrainRequest(reason="Idle"))
        await handle.signal(WorkerAttemptWorkflow.drain, DrainRequest(reason="Stopped"))
        assert await handle.result() == DRAINED
    assert worker.settled[0].exit == WorkerExit(outcome=DRAINED, exit_code=0)


async def test_a_worker_that_ignores_its_drain_can_be_killed(temporal_client: Client, task_queue: str) -> None:
    worker = ScriptedWorker(obeys_drain=False)
    async with control(temporal_client, task_queue, [worker.settle_attempt]), node(temporal_client, task_queue, worker):
        handle = await start_attempt(temporal_client, task_queue)
        await worker.started.wait()
        await handle.signal(WorkerAttemptWorkflow.drain, DrainRequest(reason="Idle"))
        await worker.drained.wait()
        assert await handle.query("state") == "draining: Idle"
        await handle.signal(WorkerAttemptWorkflow.drain, DrainRequest(reason="DeadlineExceeded", kill=True))
        assert await handle.result() == KILLED


async def test_a_kill_needs_no_drain_before_it(temporal_client: Client, task_queue: str) -> None:
    worker = ScriptedWorker(obeys_drain=False)
    async with control(temporal_client, task_queue, [worker.settle_attempt]), node(temporal_client, task_queue, worker):
        handle = await start_attempt(temporal_client, task_queue)
        await worker.started.wait()
        await handle.signal(WorkerAttemptWorkflow.drain, DrainRequest(reason="LeaseExpired", kill=True))
        assert await handle.result() == KILLED


async def test_a_worker_no_node_has_taken_yet_is_drained_without_one(temporal_client: Client, task_queue: str) -> None:
    worker = ScriptedWorker()
    async with control(temporal_client, task_queue, [worker.settle_attempt]):
        handle = await start_attempt(temporal_client, task_queue)
        await handle.signal(WorkerAttemptWorkflow.drain, DrainRequest(reason="Idle"))
        assert await handle.result() == PLATFORM_AWAY
    assert len(worker.settled) == 1


@pytest.mark.parametrize(
    ("cause", "outcome"),
    [
        (CancelledError(), PLATFORM_AWAY),
        (TimeoutError("late", type=TimeoutType.SCHEDULE_TO_START, last_heartbeat_details=[]), PLATFORM_AWAY),
        (TimeoutError("late", type=TimeoutType.HEARTBEAT, last_heartbeat_details=[]), NODE_LOST),
        (TimeoutError("late", type=TimeoutType.START_TO_CLOSE, last_heartbeat_details=[]), NODE_LOST),
        (ValueError("broken"), NODE_LOST),
    ],
)
def test_a_silent_worker_is_taken_for_what_its_silence_means(cause: BaseException, outcome: str) -> None:
    error = ActivityError(
        "failed",
        scheduled_event_id=5,
        started_event_id=6,
        identity="",
        activity_type="run_worker",
        activity_id="1",
        retry_state=RetryState.MAXIMUM_ATTEMPTS_REACHED,
    )
    error.__cause__ = cause
    exit = exit_of_silent_worker(error)
    assert exit.outcome == outcome
    assert exit.message
