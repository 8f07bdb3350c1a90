"""A process dies between two writes, at each of the places where that may happen, and all goes on."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import asyncpg
import pytest

from controlplane.failpoints import FAILPOINTS, taken_file
from tests.faults.cluster import Cluster
from tests.faults.history import FAULT, History
from tests.faults.run import Run, create_function, fault_run
from tests.faults.test_money import MONEY_POINTS
from tests.fixtures.eventually import eventually

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1_200)]

ROOT = Path(__file__).resolve().parents[2]
BOUND_SECONDS = 150
FORGET_BLOB = """
import asyncio, datetime
from workers.configuration import read_settings
from workers.wiring import open_core

async def main():
    async with open_core(read_settings()) as core:
        now = core.clock.now() + datetime.timedelta(hours=1)
        for address in await core.blobs.idle(now, 1000):
            await core.blobs.remove_idle(address, now)

asyncio.run(main())
"""
SWEEP_BLOBS = """
import asyncio, datetime
from workers.configuration import read_settings
from workers.wiring import open_core

async def main():
    async with open_core(read_settings()) as core:
        now = core.clock.now() + datetime.timedelta(hours=1)
        while await core.blobs.sweep_orphans(now, 100):
            pass

asyncio.run(main())
"""


def test_every_point_of_the_table_is_reached_somewhere_and_the_document_tells_of_it() -> None:
    parts = ("activities", "controlplane", "runtime")
    text = "".join(path.read_text() for part in parts for path in (ROOT / part).rglob("*.py"))
    assert set(re.findall(r'[._]reach\("([^"]+)"\)', text)) == set(FAILPOINTS)
    rows = re.findall(r"^\| `([a-z-]+)` \| (.*) \|$", (ROOT / "docs" / "faults.md").read_text(), flags=re.MULTILINE)
    assert dict(rows) == dict(FAILPOINTS)
    others = {point for point in FAILPOINTS if not point.startswith(("warm-", "cold-"))}
    assert others == set(SCENES) | set(MONEY_POINTS) | {"blob-forgotten", "audit-released"}


def test_a_point_ends_the_first_process_that_reaches_it_and_no_other(tmp_path: Path) -> None:
    program = (
        "import pathlib, sys; from controlplane import failpoints as f; f.reach('commit-ready')\n"
        "f.watch_folder(pathlib.Path(sys.argv[1])); f.reach('commit-written'); print('waited', flush=True)\n"
        "f.reach('commit-ready'); print('lives', flush=True)"
    )

    def run() -> tuple[int, str]:
        command = [sys.executable, "-c", program, str(tmp_path)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
        return done.returncode, done.stdout

    (tmp_path / "commit-ready").write_text("die")
    (tmp_path / "commit-written").write_text("wait 0.01")
    assert run() == (-signal.SIGKILL, "waited\n")
    assert run() == (0, "waited\nlives\n")


async def nothing(run: Run) -> None:
    """The calls alone reach the point."""


async def lose_workers(run: Run) -> None:
    """New workers are needed, and the lost ones are settled."""
    await eventually(run.cluster.workers, within=120)
    run.cluster.signal_workers(signal.SIGKILL)


async def stop_and_start(run: Run) -> None:
    """Workers are asked to go, and to come back."""
    await eventually(run.cluster.workers, within=120)
    for state in ("Stopped", "Running"):
        await run.patch_function(run.functions[0], {"spec": {"state": state}})
        if state == "Stopped":
            await eventually(lambda: taken_file(run.cluster.failpoints, "worker-marked").exists(), within=120)


async def delete_a_function(run: Run) -> None:
    """A second Function comes and goes, with a call that nobody runs."""
    await create_function(run.clients[0], "brief", {})
    await run.clients[0].request("DELETE", "/apis/nodus.dev/v1/namespaces/default/functions/brief")


Scene = tuple[tuple[str, ...], Callable[[Run], Awaitable[None]]]
SCENES: Mapping[str, Scene] = {
    "commit-ready": (("succeed", "slow"), nothing),
    "commit-written": (("succeed", "cancel"), nothing),
    "commit-answered": (("succeed", "slow"), nothing),
    "blob-published": (("blob", "blob"), nothing),
    "call-starting": (("slow", "retry"), nothing),
    "call-started": (("slow", "retry"), nothing),
    "call-attached": (("slow", "retry"), nothing),
    "outcome-reporting": (("slow", "retry"), nothing),
    "outcome-reported": (("slow", "retry"), nothing),
    "worker-created": (("slow", "slow"), lose_workers),
    "worker-started": (("slow", "slow"), lose_workers),
    "worker-leased": (("slow", "slow"), lose_workers),
    "worker-settled": (("slow", "slow"), lose_workers),
    "worker-marked": (("slow", "slow"), stop_and_start),
    "funds-renewed": (("slow", "slow"), nothing),
    "load-observed": (("slow", "succeed"), nothing),
    "function-forgotten": (("succeed",), delete_a_function),
}
"""By failpoint: the kinds of calls that each client makes, and what else it takes to get there."""


@pytest.mark.case("dies-between-two-writes")
async def test_a_process_that_dies_between_two_writes_costs_nothing(cluster: Cluster) -> None:
    faults = History(cluster.history, by="faults")
    async with fault_run(cluster, seed=1, clients=2) as run:
        maps = []
        for point, (kinds, do) in SCENES.items():
            faults.add(FAULT, what=f"failpoint {point}")
            (cluster.failpoints / point).write_text("die")
            maps.append(asyncio.create_task(run.make_maps(BOUND_SECONDS, kinds)))
            await do(run)
            taken = taken_file(cluster.failpoints, point)
            await eventually(taken.exists, within=120)
            await eventually(cluster.revive)
        await asyncio.gather(*maps)
        assert await run.verdict() == []
    connection = await cluster.connect()
    left = "SELECT 1 FROM function_load WHERE function = 'brief' UNION SELECT 1 FROM objects WHERE name = 'brief'"
    await eventually(lambda: _finds_nothing(connection, left), within=120)
    await connection.close()


async def _finds_nothing(connection: asyncpg.Connection[asyncpg.Record], query: str) -> bool:
    return not await connection.fetch(query)


async def test_bytes_whose_row_is_gone_are_swept(cluster: Cluster) -> None:
    async with fault_run(cluster, seed=1, clients=1) as run:
        await run.make_maps(BOUND_SECONDS, ("blob",))
    stored = cluster.folder / "data" / "blobs" / "stored"

    def run_program(program: str) -> int:
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, env=cluster.environment("control-1"), check=False, timeout=120
        )
        return done.returncode

    def files() -> int:
        return sum(path.is_file() for path in stored.rglob("*"))

    (cluster.failpoints / "blob-forgotten").write_text("die")
    assert await asyncio.to_thread(run_program, FORGET_BLOB) == -signal.SIGKILL
    assert files() > 0
    assert await asyncio.to_thread(run_program, FORGET_BLOB) == 0
    # One whose row went before the death, and whatever `blob-published` left when it was reached in this cluster.
    assert files() > 0
    assert await asyncio.to_thread(run_program, SWEEP_BLOBS) == 0
    assert files() == 0
