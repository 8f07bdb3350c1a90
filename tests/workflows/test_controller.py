from __future__ import annotations

import asyncio
import uuid

from temporalio import activity
from temporalio.client import Client

from activities.controller_contract import RUN_CONTROLLER, ControllerInput, ControllerName
from tests.fixtures.eventually import eventually
from tests.fixtures.scripted import ScriptedController
from tests.workflows.stories import control
from workflows.controller import ControllerWorkflow


async def test_a_controller_begins_again_with_an_empty_history(temporal_client: Client, task_queue: str) -> None:
    controller = ScriptedController(rounds=2)
    async with control(temporal_client, task_queue, [controller.run_controller]):
        handle = await temporal_client.start_workflow(
            ControllerWorkflow.run,
            ControllerInput(name=ControllerName.STARTER),
            id=f"controller/{uuid.uuid4().hex}",
            task_queue=task_queue,
        )
        await eventually(lambda: len(controller.inputs) == 3)
        latest = temporal_client.get_workflow_handle(handle.id)
        assert len((await latest.fetch_history()).events) < 11
        await latest.terminate()
    assert {told.name for told in controller.inputs} == {ControllerName.STARTER}


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
        handle = await temporal_client.start_workflow(
            ControllerWorkflow.run,
            ControllerInput(name=ControllerName.SWEEPER),
            id=f"controller/{uuid.uuid4().hex}",
            task_queue=task_queue,
        )
        await eventually(lambda: len(begun) == 2)
        await handle.terminate()
    assert begun[1] - begun[0] < 2.0
