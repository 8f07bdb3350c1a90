"""A pool as large as a host runs them: it starts, serves, drains, and nothing of it is left."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from controlplane.settings import Settings
from runtime.host import instance_name
from tests.fixtures.eventually import eventually
from tests.fixtures.system import System, installation
from tests.fixtures.traces import groups, leased_uids, seen_by, settled

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

FULL_WORKERS = 50
CI_WORKERS = 12
CALLS_PER_WORKER = 4
WAITING = Settings().warm_workers_max

APP = """
import os, time
import nodus

app = nodus.App("crowd")


@app.function(timeout="120s", min_workers={workers}, max_workers={workers}, scaledown_window="20m")
def serve(number):
    with open("/workspace/file", "a") as file:
        file.write("x" * 100_000)
    time.sleep(0.2)
    return os.environ["NODUS_ATTEMPT"]
"""
MAP = """
import json, nodus
print(json.dumps(list(nodus.Function.from_name("crowd", "serve").map(range({calls})))))
"""


@pytest.fixture
def roomy(tmp_path: Path) -> Iterator[System]:
    """A system whose host takes the whole pool."""
    with installation(tmp_path / "data", {"workers_max": str(FULL_WORKERS + 4)}) as made:
        made.start()
        yield made


def status(system: System) -> dict[str, Any]:
    [found] = system.objects("functions")
    told: dict[str, Any] = found["status"]
    return told


async def test_fifty_workers_start_serve_and_leave_nothing(roomy: System, tmp_path: Path, full: bool) -> None:
    workers = FULL_WORKERS if full else CI_WORKERS
    app = tmp_path / "crowd.py"
    # The first worker of a node opens what the process keeps.
    await deploy(roomy, app, 1)
    await stop(roomy)
    before = await settled(roomy, None, WAITING)
    assert before["mounts"] != "[]", "the workers that wait have sandboxes"

    roomy.nodus("start", "function/crowd-serve")
    await deploy(roomy, app, workers)
    crowd = roomy.child("node").pid
    uids = leased_uids(crowd)
    folders = groups(crowd, instance_name(roomy.data_dir / "node"))
    assert len(uids) >= workers
    assert len(folders) >= workers

    served = json.loads(roomy.python(MAP.format(calls=CALLS_PER_WORKER * workers), timeout=200))
    assert len(served) == CALLS_PER_WORKER * workers
    assert len(set(served)) > workers // 2
    told = roomy.calls("crowd-serve")
    assert {(one["status"]["phase"], one["status"]["recoveries"]) for one in told} == {("Succeeded", 0)}

    await stop(roomy)
    assert await settled(roomy, before, WAITING) == before

    last = [*folders, *groups(crowd, instance_name(roomy.data_dir / "node"))]
    assert roomy.stop() == 0
    assert not psutil.pid_exists(crowd)
    # Other systems of this host may have taken the uids meanwhile: what counts is who sees the folder of this one.
    assert seen_by(roomy.data_dir / "node") == []
    assert [folder for folder in last if folder.exists()] == []
    for name in ("attempts", "warm"):
        assert list((roomy.data_dir / "node" / name).iterdir()) == []


async def deploy(system: System, app: Path, workers: int) -> None:
    """Publish the App with this many workers and wait for all of them."""
    app.write_text(APP.format(workers=workers))
    system.nodus("deploy", str(app), cwd=app.parent)
    await eventually(lambda: status(system)["workers"]["ready"] == workers, within=300)


async def stop(system: System) -> None:
    """Stop the Function and wait until its last worker has gone."""
    system.nodus("stop", "function/crowd-serve")
    await eventually(lambda: status(system)["phase"] == "Stopped", within=120)
