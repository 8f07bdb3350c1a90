from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.client import Client, WorkflowHandle

from activities.controller_contract import RUN_CONTROLLER, ControllerInput, ControllerName
from tests.fixtures.eventually import eventually
from tests.fixtures.scripted import ScriptedController
from tests.workflows.stories import control, start_controller
from workflows.journal import SHOWN_MAX


async def test_a_controller_begins_again_with_an_empty_history(temporal_client: Client, task_queue: str) -> None:
    controller = ScriptedController(rounds=2)
    async with control(temporal_client, task_queue, [controller.run_controller]):
        handle = await start_controller(temporal_client, task_queue)
        await eventually(lambda: len(controller.inputs) == 3)
        latest = temporal_client.get_workflow_handle(handle.id)
        assert len((await latest.fetch_history()).events) < 11
        await latest.terminate()
    assert {told.name for told in controller.inputs} == {ControllerName.SWEEPER}


async def test_a_loop_that_dies_is_run_again_within_a_second(temporal_client: Client, task_queue: str) -> None:
    begun = 0

    @activity.defn(name=RUN_CONTROLLER)
    async def crash_at_first(_: ControllerInput) -> None:
        nonlocal begun
        begun += 1
        if begun == 1:
            raise RuntimeError("the loop crashed")
        while True:
            activity.heartbeat()
            await asyncio.sleep(0.2)

    async with control(temporal_client, task_queue, [crash_at_first]):
        handle = await start_controller(temporal_client, task_queue)
        await eventually(lambda: begun == 2)
        events = (await handle.fetch_history()).events
        await handle.terminate()
    # It is the same activity, which the engine repeats after no longer than this however often it fails.
    [scheduled] = [
        event.activity_task_scheduled_event_attributes
        for event in events
        if event.HasField("activity_task_scheduled_event_attributes")
    ]
    assert scheduled.retry_policy.maximum_attempts == 0
    assert scheduled.retry_policy.maximum_interval.ToTimedelta() <= timedelta(seconds=1)


async def test_a_controller_tells_of_its_rounds_and_of_no_more_than_the_last(
    temporal_client: Client, task_queue: str
) -> None:
    controller = ScriptedController(rounds=SHOWN_MAX + 2)
    async with control(temporal_client, task_queue, [controller.run_controller]):
        handle = await start_controller(temporal_client, task_queue)
        # The engine begins a workflow anew once a second.
        await eventually(lambda: len(controller.inputs) == SHOWN_MAX + 3, within=200)
        latest = temporal_client.get_workflow_handle(handle.id)
        state = "a control process runs the sweeper, or is about to"
        await eventually(lambda: told(latest, "state", state))
        timeline, decisions = [await latest.query(name, result_type=list[str]) for name in ("timeline", "decisions")]
        await latest.terminate()
    assert [entry.partition(" ")[2] for entry in timeline] == [state] * (SHOWN_MAX + 1)
    assert [entry.partition(" ")[2] for entry in decisions] == ["the round is over: begin another"] * SHOWN_MAX
    # What was told before goes to no activity.
    assert {given.journal for given in controller.inputs} == {None}


async def told(handle: WorkflowHandle[Any, Any], query: str, expected: str) -> bool:
    return bool(await handle.query(query) == expected)
