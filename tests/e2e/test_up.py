"""What `up` tells its operator and its clients, from a start to a stop."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.fixtures.eventually import eventually
from tests.fixtures.system import APPS, System, installation
from workers.engines.child import free_port

pytestmark = pytest.mark.e2e


@pytest.fixture
def named(tmp_path: Path) -> Iterator[System]:
    """A system with an address of its operator's choice, and a setting that it cannot follow."""
    port = free_port()
    settings = {"public_url": f"http://localhost:{port}/", "http_host": "0.0.0.0"}
    with installation(tmp_path / "data", settings) as system:
        system.start("--port", str(port), "--example", str(APPS / "slow" / "once.py"))
        yield system


async def test_a_start_runs_its_example_names_the_public_url_and_a_stop_takes_its_word_back(named: System) -> None:
    port = named.ports["http"]
    assert "NODUS_SERVER_HTTP_HOST given, but `up` decides that itself" in named.output
    assert named.variables["NODUS_API_URL"] == f"http://127.0.0.1:{port}"
    wanted = {"sha256": hashlib.sha256(b"x").hexdigest(), "size": 1}
    with named.http() as client:
        answer = client.post("/blobs/v1/namespaces/default/uploads", json=wanted)
        assert answer.json()["url"].startswith(f"http://localhost:{port}/"), answer.text
        refused = client.get("/apis/nodus.dev/v1/namespaces/default/functions/none")
    assert refused.status_code == httpx.codes.NOT_FOUND
    assert refused.json()["docs"].startswith(f"http://localhost:{port}/docs/errors")

    await eventually(lambda: "Serving. Ctrl-C stops everything" in named.output, within=180)
    assert "a half: 2.5" in named.output
    costs = named.output[named.output.index("What it cost") :]
    [(calls, cost)] = re.findall(r"once-\w+-half\W+(\d+)\W+([\d.]+)", costs)
    assert (calls, float(cost) > 0) == ("1", True)

    assert named.stop() == 0
    assert not (named.data_dir / "client.env").exists()
