from __future__ import annotations

import asyncio
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
    begun: list[float] = []

    @activity.defn(name=RUN_CONTROLLER)
    async def crash_at_first(_: ControllerInput) -> None:
        begun.append(asyncio.get_running_loop().time())
        if len(begun) == 1:
            raise RuntimeError("the loop crashed")
        while True:
            activity.heartbeat()
            await asyncio.sleep(0.2)

    async with control(temporal_client, task_queue, [crash_at_first]):
        handle = await start_controller(temporal_client, task_queue)
        await eventually(lambda: len(begun) == 2)
        await handle.terminate()
    assert begun[1] - begun[0] < 2.0


async def test_a_controller_tells_of_its_rounds_and_of_no_more_than_the_last(
    temporal_client: Client, task_queue: str
) -> None:
    controller = ScriptedController(rounds=SHOWN_MAX + 2)
    async with control(temporal_client, task_queue, [controller.run_controller]):
        handle = await start_controller(temporal_client, task_queue)
        await eventually(lambda: len(controller.inputs) == SHOWN_MAX + 3, within=60)
        latest = temporal_client.get_workflow_handle(handle.id)
        state = "a control process runs the sweeper, or is about to"
        await eventually(lambda: told(latest, "state", state), within=60)
        timeline, decisions = [await latest.query(name, result_type=list[str]) for name in ("timeline", "decisions")]
        await latest.terminate()
    assert [entry.partition(" ")[2] for entry in timeline] == [state] * (SHOWN_MAX + 1)
    assert [entry.partition(" ")[2] for entry in decisions] == ["the round is over: begin another"] * SHOWN_MAX
    # What was told before goes to no activity.
    assert {given.journal for given in controller.inputs} == {None}


async def told(handle: WorkflowHandle[Any, Any], query: str, expected: str) -> bool:
    return bool(await handle.query(query) == expected)
