"""The node process on its own: before the engine is there, and on a host that cannot confine."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.eventually import eventually
from tests.workers.node_process import Node


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that nobody listens on, and nobody else gets."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


async def test_a_node_waits_for_the_engine_says_so_once_and_still_stops_at_once(
    tmp_path: Path, closed_port: int
) -> None:
    node = Node({"temporal_address": f"127.0.0.1:{closed_port}", "data_dir": str(tmp_path)}, tmp_path / "node.log")
    node.start()
    # Its environment is built meanwhile, so the first call will not wait for that.
    await eventually(lambda: list(tmp_path.glob("environments/py*/nodus-environment.json")))
    await eventually(lambda: "waiting for Temporal" in node.log.read_text())
    node.signal(signal.SIGTERM)
    assert await node.ended() == 0
    assert node.log.read_text().count("waiting for Temporal") == 1


async def test_a_second_node_on_the_same_folder_is_refused(tmp_path: Path, closed_port: int) -> None:
    settings = {"temporal_address": f"127.0.0.1:{closed_port}", "data_dir": str(tmp_path)}
    first, second = Node(settings, tmp_path / "first.log"), Node(settings, tmp_path / "second.log")
    first.start()
    await eventually(lambda: "waiting for Temporal" in first.log.read_text())
    second.start()
    assert await second.ended() == 1
    assert "another node process is using" in second.log.read_text()
    first.signal(signal.SIGKILL)
    await first.ended()
    second.start()
    await eventually(lambda: "waiting for Temporal" in second.log.read_text())
    second.signal(signal.SIGTERM)
    assert await second.ended() == 0
