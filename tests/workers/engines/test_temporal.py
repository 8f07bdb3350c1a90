from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import yaml
from temporalio.client import Client

from tests.fixtures.eventually import eventually
from workers.engines import temporal as engine
from workers.engines.temporal import EmbeddedTemporal, EngineStartError


async def test_a_killed_server_starts_again_on_its_port_and_still_knows_its_workflows(tmp_path: Path) -> None:
    server = EmbeddedTemporal(tmp_path / "data", log=tmp_path / "log")
    await server.start()
    try:
        address = server.address
        client = await Client.connect(address)
        await client.start_workflow("Anything", id="kept", task_queue="nobody")
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait()
        await server.start()
        assert server.address == address
        described = await eventually(lambda: client.get_workflow_handle("kept").describe())
        assert described.id == "kept"
    finally:
        server.stop()


async def test_two_servers_never_open_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "LOCK_SECONDS_MAX", 0.2)
    first = EmbeddedTemporal(tmp_path / "data", log=tmp_path / "log")
    await first.start()
    try:
        with pytest.raises(EngineStartError, match="another Temporal server"):
            await EmbeddedTemporal(tmp_path / "data", log=tmp_path / "log").start()
    finally:
        first.stop()


async def test_a_server_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "STARTS_MAX", 1)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "temporal.sqlite").write_bytes(b"this is no database" * 100)
    with pytest.raises(EngineStartError, match="not a database"):
        await EmbeddedTemporal(tmp_path / "data", log=tmp_path / "log").start()


def test_a_server_of_its_own_is_configured_like_the_embedded_one() -> None:
    file = Path(__file__).resolve().parents[3] / "deploy" / "temporal-dynamic-config.yaml"
    told = {name: [entry["value"] for entry in entries] for name, entries in yaml.safe_load(file.read_text()).items()}
    assert told == {name: [json.loads(value)] for name, value in engine.DYNAMIC_CONFIG.items()}
