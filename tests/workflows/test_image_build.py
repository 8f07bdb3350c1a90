from __future__ import annotations

from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from activities.build_image_contract import BUILDER_LOST, BuildImageInput, ImageBuilt
from activities.run_worker_contract import node_task_queue
from tests.fixtures.scripted import ScriptedBuild
from tests.workflows.stories import BUILT, control, start_build


async def play(client: Client, queue: str, build: ScriptedBuild) -> str:
    builder = Worker(client, task_queue=node_task_queue(queue), activities=[build.build_image], build_id="test")
    async with control(client, queue, [build.settle_image]), builder:
        outcome: str = await (await start_build(client, queue)).result()
        return outcome


async def test_what_the_node_built_is_settled(temporal_client: Client, task_queue: str) -> None:
    build = ScriptedBuild(BUILT)
    assert await play(temporal_client, task_queue, build) == "Ready"
    assert build.inputs == [BuildImageInput(image_uid="img_1", generation=1)]
    assert [(settlement.name, settlement.generation, settlement.built) for settlement in build.settled] == [
        ("img", 1, BUILT)
    ]


async def test_a_fault_of_the_image_is_final(temporal_client: Client, task_queue: str) -> None:
    failed = ImageBuilt(outcome="StepFailed", message="step 1 (run) ended with exit code 1")
    build = ScriptedBuild(failed, BUILT)
    assert await play(temporal_client, task_queue, build) == "StepFailed"
    assert [settlement.built for settlement in build.settled] == [failed]


async def test_a_fault_of_the_host_is_tried_again(temporal_client: Client, task_queue: str) -> None:
    build = ScriptedBuild(ApplicationError("the disk is full"), BUILT)
    assert await play(temporal_client, task_queue, build) == "Ready"
    assert len(build.inputs) == 2
    assert [settlement.built for settlement in build.settled] == [BUILT]


async def test_a_build_that_no_try_finishes_is_told_as_such(temporal_client: Client, task_queue: str) -> None:
    build = ScriptedBuild(ApplicationError("no more", non_retryable=True))
    assert await play(temporal_client, task_queue, build) == BUILDER_LOST
    assert [settlement.built.outcome for settlement in build.settled] == [BUILDER_LOST]
