"""A pool as large as a host runs them: it starts, serves, drains, and nothing of it is left."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from controlplane.settings import Settings
from runtime.host import instance_name
from runtime.uids import LEASE_FOLDER
from tests.fixtures.eventually import eventually
from tests.fixtures.system import System, installation

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

FULL_WORKERS = 50
CI_WORKERS = 12
CALLS_PER_WORKER = 4
IDLE_SOCKETS_MAX = 256
"""Of a node: connections to the API that may be used again, and those of the workers it has."""

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


def traces(system: System) -> dict[str, Any]:
    """Everything on this host that the workers of the system's node hold, those that wait for an attempt included."""
    node = system.child("node")
    data_dir = str(system.data_dir)
    found = {
        "processes": sorted(process.name() for process in node.children(recursive=True)),
        "descriptors": descriptors(node.pid),
        "groups": sorted(str(group) for group in groups(node.pid, instance_name(system.data_dir / "node"))),
        "mounts": [line for line in Path(f"/proc/{node.pid}/mountinfo").read_text().splitlines() if "nodus" in line],
        "sockets": [line for line in Path("/proc/net/unix").read_text().splitlines() if f"{data_dir}/node" in line],
        "files": sorted(str(path) for path in (system.data_dir / "node").rglob("*") if path.name != "node.lock"),
        "uids": leased_uids(node.pid),
    }
    # Which of them wait changes; that so many do, does not.
    return {name: re.sub(r"warm-\d+", "warm", str(held)) for name, held in found.items()} | {
        "uids": len(found["uids"]),
    }


def groups(pid: int, instance: str) -> list[Path]:
    """The control groups of a node's workers, in every tree that it sees."""
    found: list[Path] = []
    for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        if after.startswith("cgroup"):
            found += Path(before.split()[4]).glob(f"**/nodus-{instance}/*/")
    return found


def targets(pid: int) -> list[str]:
    """What the descriptors of a process lead to."""
    found = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(descriptor))
    return found


def descriptors(pid: int) -> dict[str, int]:
    """How many of each kind a process holds; without uids, and without sockets, of which a pool keeps some open for
    the next worker."""
    kinds = Counter(target.partition(":")[0] for target in targets(pid) if Path(target).parent != LEASE_FOLDER)
    assert kinds.pop("socket", 0) < IDLE_SOCKETS_MAX
    return dict(kinds)


def leased_uids(pid: int) -> list[str]:
    """The uids that a process holds."""
    return sorted(Path(target).name for target in targets(pid) if Path(target).parent == LEASE_FOLDER)


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
    before = await settled(roomy, None)

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
    assert await settled(roomy, before) == before

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


async def settled(system: System, wanted: dict[str, Any] | None) -> dict[str, Any]:
    """The node's traces, as soon as its pool of waiting workers is full, or as they are after a minute of waiting for
    what is `wanted`."""
    looks: list[dict[str, Any]] = []

    def again() -> bool:
        looks.append(traces(system))
        full = looks[-1]["uids"] == Settings().warm_workers_max
        return full and looks[-2:-1] == looks[-1:] and wanted in (None, looks[-1])

    with contextlib.suppress(AssertionError):
        await eventually(again, within=60, every=0.2)
    return looks[-1]


def seen_by(node_directory: Path) -> list[int]:
    """Processes in a sandbox that was made by the node of this folder."""
    found = []
    for mounts in Path("/proc").glob("[0-9]*/mountinfo"):
        with contextlib.suppress(OSError):
            if str(node_directory) in mounts.read_text():
                found.append(int(mounts.parent.name))
    return found
