from __future__ import annotations

import sysconfig
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError
from temporalio.testing import WorkflowEnvironment

from activities.run_call_contract import CallOutcome
from controlplane.calls.decide import Cause
from tests.fixtures.eventually import eventually
from tests.fixtures.scripted import HANG, ScriptedCall, ended, undecided
from tests.workflows.stories import control, start_call
from workflows.function_call import FunctionCallWorkflow


@pytest.fixture
async def skipping() -> AsyncIterator[WorkflowEnvironment]:
    """A server whose clock jumps to the next timer; one for each test, because they share its clock."""
    server = Path(sysconfig.get_path("scripts")) / "temporal-test-server"
    async with await WorkflowEnvironment.start_time_skipping(test_server_existing_path=str(server)) as environment:
        yield environment


async def test_a_call_that_ends_takes_one_activity_and_eleven_events(temporal_client: Client, task_queue: str) -> None:
    call = ScriptedCall(HANG)
    async with control(temporal_client, task_queue, call.activities):
        handle = await start_call(temporal_client, task_queue)
        await eventually(lambda: call.tokens)
        assert await handle.query("state") == "waiting for an outcome"
        await temporal_client.get_async_activity_handle(task_token=call.tokens[0]).complete(ended())
        assert await handle.result() == "Succeeded"
        assert len((await handle.fetch_history()).events) == 11
        assert await handle.query("state") == "ended: Succeeded"


async def test_an_outcome_that_was_there_before_the_workflow_takes_eleven_events_too(
    temporal_client: Client, task_queue: str
) -> None:
    call = ScriptedCall(ended())
    async with control(temporal_client, task_queue, call.activities):
        handle = await start_call(temporal_client, task_queue)
        await handle.result()
        assert len((await handle.fetch_history()).events) == 11


async def test_a_call_that_was_over_before_takes_no_activity_and_five_events(
    temporal_client: Client, task_queue: str
) -> None:
    async with control(temporal_client, task_queue):
        handle = await start_call(temporal_client, task_queue, ended("Failed", "RemoteError").ended)
        assert await handle.result() == "Failed"
        assert len((await handle.fetch_history()).events) == 5
        assert await handle.query("state") == "ended: Failed"


@pytest.mark.case("C19")
async def test_retries_back_off_and_offer_the_call_after_the_dispatch_that_raised(
    skipping: WorkflowEnvironment, task_queue: str
) -> None:
    policy = {"retries_max": 4, "initial_delay_seconds": 1.0, "max_delay_seconds": 3.0}
    raised = [undecided(Cause.RAISED, n + 1, retries=n, **policy) for n in range(4)]
    call = ScriptedCall(*raised, ended("Failed", "RemoteError"))
    async with control(skipping.client, task_queue, call.activities):
        handle = await start_call(skipping.client, task_queue)
        assert await handle.result() == "Failed"
        timers = [
            event.timer_started_event_attributes.start_to_fire_timeout.ToTimedelta().total_seconds()
            for event in (await handle.fetch_history()).events
            if event.HasField("timer_started_event_attributes")
        ]
    assert timers == [1.0, 2.0, 3.0, 3.0]
    assert [wait.offer_after for wait in call.inputs] == [None, 1, 2, 3, 4]
    assert not call.finished


async def test_a_long_backoff_survives_days(skipping: WorkflowEnvironment, task_queue: str) -> None:
    late = undecided(Cause.RAISED, 1, retries_max=1, initial_delay_seconds=6 * 86_400.0, max_delay_seconds=1e9)
    call = ScriptedCall(late, ended())
    async with control(skipping.client, task_queue, call.activities):
        handle = await start_call(skipping.client, task_queue)
        assert await handle.result() == "Succeeded"
        described = await handle.describe()
    assert described.close_time is not None
    assert described.start_time is not None
    assert (described.close_time - described.start_time).days >= 6


async def test_a_lost_worker_is_answered_at_once_and_its_limit_ends_the_call(
    skipping: WorkflowEnvironment, task_queue: str
) -> None:
    lost = [undecided(Cause.LOST, n + 1, recoveries=n) for n in range(4)]
    call = ScriptedCall(*lost)
    async with control(skipping.client, task_queue, call.activities):
        handle = await start_call(skipping.client, task_queue)
        assert await handle.result() == "Failed"
        events = (await handle.fetch_history()).events
        decisions = await handle.query("decisions")
    assert not [event for event in events if event.HasField("timer_started_event_attributes")]
    assert [(end.dispatch, end.reason) for end in call.finished] == [(4, "RecoveryLimitExceeded")]
    assert len(decisions) == 4


@pytest.mark.parametrize(
    ("outcome", "phase", "reason"),
    [
        (undecided(Cause.DEADLINE, 1), "Failed", "DeadlineExceeded"),
        (undecided(Cause.LOST, 1, cancel_requested=True), "Cancelled", "Cancelled"),
        (undecided(Cause.LOST, 1, fail_on_loss=True), "Failed", "RecoveryLimitExceeded"),
        (undecided(Cause.RAISED, 1), "Failed", "RemoteError"),
        (undecided(Cause.FUNCTION_DELETED, 1), "Failed", "FunctionDeleted"),
    ],
)
async def test_an_end_that_nobody_applied_is_written_by_the_workflow(
    temporal_client: Client, task_queue: str, outcome: CallOutcome, phase: str, reason: str
) -> None:
    call = ScriptedCall(outcome)
    async with control(temporal_client, task_queue, call.activities):
        handle = await start_call(temporal_client, task_queue)
        assert await handle.result() == phase
    assert [(end.phase, end.reason) for end in call.finished] == [(phase, reason)]


async def test_an_activity_that_fails_is_scheduled_again_with_growing_pauses(
    skipping: WorkflowEnvironment, task_queue: str
) -> None:
    failures = [ApplicationError("the database is away") for _ in range(9)]
    call = ScriptedCall(*failures, ended())
    async with control(skipping.client, task_queue, call.activities):
        handle = await start_call(skipping.client, task_queue)
        assert await handle.result() == "Succeeded"
        timers = [
            event.timer_started_event_attributes.start_to_fire_timeout.ToTimedelta().total_seconds()
            for event in (await handle.fetch_history()).events
            if event.HasField("timer_started_event_attributes")
        ]
    assert timers == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]


async def test_an_activity_nobody_will_complete_is_replaced_and_its_token_is_worth_nothing(
    temporal_client: Client, task_queue: str
) -> None:
    call = ScriptedCall(HANG, HANG)
    async with control(temporal_client, task_queue, call.activities):
        handle = await start_call(temporal_client, task_queue)
        await eventually(lambda: call.tokens)
        await handle.signal(FunctionCallWorkflow.reissue)
        await eventually(lambda: len(call.tokens) == 2)
        stale = temporal_client.get_async_activity_handle(task_token=call.tokens[0])
        with suppress(RPCError):
            await stale.complete(ended("Failed"))
        assert (await handle.describe()).status is WorkflowExecutionStatus.RUNNING
        await temporal_client.get_async_activity_handle(task_token=call.tokens[1]).complete(ended())
        assert await handle.result() == "Succeeded"
