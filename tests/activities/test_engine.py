"""What is asked of the engine about a call never makes a second workflow of one, whatever answer is lost."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator

import pytest
from temporalio.client import Client
from temporalio.worker import Worker

from activities.engine import Engine, EngineUnavailableError, call_workflow_id
from activities.run_call_contract import CONTROL_TASK_QUEUE, CallReference
from tests.faults.proxy import Proxy
from tests.fixtures.eventually import eventually
from tests.fixtures.scripted import HANG, ScriptedCall, ended
from workflows.function_call import FunctionCallWorkflow

SECONDS_MAX = 60.0


@pytest.fixture
def call() -> CallReference:
    return CallReference(uid=f"fnc_{uuid.uuid4().hex[:26]}", org="default", project="p", name="hello-x")


@pytest.fixture
async def script(temporal_client: Client, call: CallReference) -> AsyncIterator[ScriptedCall]:
    """A call that runs until its workflow asks again, and has ended then."""
    played = ScriptedCall(HANG, ended(), ended(), only=call.uid)
    async with Worker(
        temporal_client,
        task_queue=CONTROL_TASK_QUEUE,
        workflows=[FunctionCallWorkflow],
        activities=played.activities,
    ):
        yield played


async def runs_of(client: Client, call: CallReference) -> int:
    """How many workflows the call has had, once the engine's list of them is up to date."""
    query = f"WorkflowId = '{call_workflow_id(call.uid)}'"

    async def closed() -> list[bool]:
        return [run.close_time is not None async for run in client.list_workflows(query)]

    async def all_closed() -> bool:
        found = await closed()
        return bool(found) and all(found)

    await eventually(all_closed, within=SECONDS_MAX)
    return len(await closed())


async def is_closed(client: Client, call: CallReference) -> bool:
    return not await Engine(client, SECONDS_MAX).call_is_open(call.uid)


@pytest.mark.case("a-lost-answer-starts-no-second-workflow")
async def test_a_workflow_that_ends_while_the_answer_is_lost_is_not_started_again(
    temporal_client: Client, script: ScriptedCall, call: CallReference
) -> None:
    await Engine(temporal_client, SECONDS_MAX).start_call(call, urgent=True)
    await eventually(lambda: script.tokens, within=SECONDS_MAX)
    host, _, port = temporal_client.service_client.config.target_host.partition(":")
    proxy = Proxy((host, int(port)))
    await proxy.open()
    try:
        engine = Engine(await Client.connect(f"127.0.0.1:{proxy.port}"), SECONDS_MAX)
        proxy.go_mute()
        asking = asyncio.create_task(engine.ask_again(call.uid))
        await eventually(lambda: is_closed(temporal_client, call), within=SECONDS_MAX)
        assert proxy.cut()
        proxy.heal()
        with contextlib.suppress(EngineUnavailableError):  # The client may or may not repeat the request by itself.
            await asking
        await engine.ask_again(call.uid)
    finally:
        await proxy.close()
    assert await runs_of(temporal_client, call) == 1
    assert len(script.inputs) == 2


async def test_only_who_says_so_starts_a_call_over(
    temporal_client: Client, script: ScriptedCall, call: CallReference
) -> None:
    engine = Engine(temporal_client, SECONDS_MAX)
    assert not await engine.ask_again(call.uid)
    await engine.start_call(call, urgent=True)
    await eventually(lambda: script.tokens, within=SECONDS_MAX)
    assert await engine.ask_again(call.uid)
    assert await runs_of(temporal_client, call) == 1
    assert not await engine.ask_again(call.uid)
    assert not await engine.start_call(call, urgent=True)
    await engine.tell_end(call, {"phase": "Succeeded", "reason": ""})
    assert await runs_of(temporal_client, call) == 1
    await engine.start_call_over(call)
    await eventually(lambda: len(script.inputs) == 3, within=SECONDS_MAX)
