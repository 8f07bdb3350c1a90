from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.client import Client
from temporalio.worker import Worker

from activities.run_call_contract import CONTROL_TASK_QUEUE
from tests.fixtures.eventually import eventually
from workers.engines.temporal import EmbeddedTemporal
from workers.sandbox import fenced_runner
from workers.watchdog import WedgedError, canary_workflow_id, send_canary, watch
from workflows.canary import CanaryWorkflow


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[EmbeddedTemporal]:
    server = EmbeddedTemporal(tmp_path / "temporal", log=tmp_path / "log")
    await server.start()
    yield server
    server.stop()


async def test_a_process_that_runs_workflows_is_left_alone(engine: EmbeddedTemporal) -> None:
    client = await Client.connect(engine.address)
    async with Worker(
        client,
        task_queue=CONTROL_TASK_QUEUE,
        workflows=[CanaryWorkflow],
        workflow_runner=fenced_runner(),
        build_id="test",
    ):
        await send_canary(client, 60.0)
        await send_canary(client, 60.0)


async def test_a_process_that_runs_no_workflows_is_found_out(engine: EmbeddedTemporal) -> None:
    client = await Client.connect(engine.address)
    with pytest.raises(WedgedError):
        await watch(client, 0.3)


async def test_an_engine_that_is_away_proves_nothing(engine: EmbeddedTemporal, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await Client.connect(engine.address)
    engine.stop()
    with monkeypatch.context() as patch:
        patch.setattr("workers.watchdog.START_SECONDS_MAX", 0.3)
        await send_canary(client, 0.3)
    await engine.start()
    # Long enough for the engine to be gone before its time is over: one that is there and runs nothing is wedged.
    sending = asyncio.create_task(send_canary(client, 5.0))
    await eventually(lambda: _is_started(client))
    engine.stop()
    monkeypatch.setattr("workers.watchdog.START_SECONDS_MAX", 0.3)
    await sending


async def _is_started(client: Client) -> bool:
    with contextlib.suppress(Exception):
        return (await client.get_workflow_handle(canary_workflow_id(client)).describe()).close_time is None
    return False


async def test_a_canary_left_by_an_earlier_turn_makes_way(engine: EmbeddedTemporal) -> None:
    client = await Client.connect(engine.address)
    first = asyncio.create_task(send_canary(client, 60.0))
    await eventually(lambda: _is_started(client))
    with pytest.raises(WedgedError):
        await send_canary(client, 0.3)
    await first
