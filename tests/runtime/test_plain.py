"""Workers without a sandbox, isolation level none: real ones, by a node of root, on a host that needs no bubblewrap."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from runtime import plain as plain_workers
from runtime import strays
from runtime.canary import Guarantees
from runtime.cells import Cell
from runtime.cgroups import Cgroups, Limits
from runtime.host import Host, open_host
from runtime.image_builder import BuildLimits, ImageBuilder, ImageFailedError
from runtime.plans import EgressPlan, SidecarPlan, StartPlan
from runtime.process import limited
from runtime.sandbox import SandboxUnavailableError
from runtime.supervisor import WorkerReport
from runtime.templates import worker_template
from runtime.uids import FIRST_UID, UIDS_MAX, take_uid
from tests.fixtures.eventually import eventually
from tests.runtime.conftest import LIMITS, OWN_MINOR, TEST_UID, Log, kept_full
from tests.runtime.scripted_api import ScriptedApi
from tests.runtime.test_supervisor import APP, Running, Start, plan, starting

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

OPEN = EgressPlan(policy="Open")


@pytest.fixture(scope="session")
def open_folder() -> Iterator[Path]:
    """One that every user may pass, as pytest's own are not; environments and interpreters are made in it once."""
    folder = Path(tempfile.mkdtemp(prefix="nodus-plain-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


async def opened(tmp_path: Path, open_folder: Path, api_url: str, **changes: Any) -> Host:
    return await open_host(
        directory=tmp_path / "node",
        environments=tmp_path / "environments",
        api_url=api_url,
        environ=os.environ,
        limits=dataclasses.replace(LIMITS, isolation_min="none", **changes),
        unsandboxed=open_folder,
    )


@pytest.fixture
async def plain(tmp_path: Path, open_folder: Path, api: ScriptedApi) -> AsyncIterator[Host]:
    host = await opened(tmp_path, open_folder, api.url, warm_workers_max=1)
    yield host
    await host.close()


@pytest.fixture
async def start(plain: Host, log: Log) -> AsyncIterator[Start]:
    """Start a worker that may reach everything, unless it is told otherwise."""
    async with starting(plain, log) as begin:
        yield lambda **changes: begin(**{"egress": OPEN, **changes})


async def ended(running: Running, within: float = 60) -> WorkerReport:
    return await running.report(within)


def users() -> set[int]:
    """The uids of workers that some process of the host has now."""
    return {process.uid for process in strays._processes()} & set(range(FIRST_UID, FIRST_UID + UIDS_MAX))


async def test_a_host_says_that_nothing_is_confined_and_is_refused_where_that_is_too_little(
    plain: Host, tmp_path: Path, open_folder: Path, api: ScriptedApi
) -> None:
    found: Guarantees = plain.guarantees
    assert (found.level, found.uid, found.filter_sha256, plain.confines) == ("none", "per_attempt", None, False)
    assert "code inside can" in found.missing[0]
    for possible in ("read files of the host", "reach the host's ports"):
        assert possible in found.missing[0]
    assert "become root" not in found.missing[0]
    told = found.to_json(proxied=True, disk_bytes=1)
    assert (told["network"], told["diskBytes"], told["filterSha256"]) == ("host", None, None)
    with pytest.raises(SandboxUnavailableError, match="at level none, and `isolation_min` asks for basic"):
        await open_host(
            directory=tmp_path / "other",
            environments=tmp_path / "environments",
            api_url=api.url,
            environ=os.environ,
            limits=LIMITS,
            unsandboxed=open_folder,
        )


async def test_a_call_runs_as_a_user_of_its_own_in_folders_of_its_own(
    api: ScriptedApi, start: Start, log: Log, plain: Host
) -> None:
    source = """
@app.function()
def target(x):
    import os, tempfile
    status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines() if ":" in line)
    print(os.getuid(), status["CapEff"].strip(), status["NoNewPrivs"].strip(), os.getcwd(), tempfile.gettempdir())
    open("here", "w").close()
    return x * x
"""
    api.set_code({"app.py": APP + source})
    api.call("one", 3)
    start()
    await eventually(lambda: "one" in api.outcomes, within=90)
    assert api.outcomes["one"]["outcome"] == "Succeeded", api.outcomes["one"]
    await eventually(lambda: log.text("stdout"))
    [uid, capabilities, no_new_privileges, directory, temporary] = log.text("stdout")[0].split()
    assert int(uid) in range(FIRST_UID, FIRST_UID + UIDS_MAX)
    assert (capabilities, no_new_privileges) == ("0" * 16, "1")
    home = plain.attempt_directory("att_test") / "home"
    assert (Path(directory), Path(temporary)) == (home / "workspace", home / "tmp")
    assert (home / "workspace" / "here").stat().st_uid == int(uid)


async def test_an_exception_a_deadline_and_a_cancel_are_reported(api: ScriptedApi, start: Start) -> None:
    source = """
import asyncio
@app.function()
async def target(how):
    if how == "raise":
        raise LookupError("no such thing")
    await asyncio.sleep(600)
"""
    api.set_code({"app.py": APP + source})
    api.call("raises", "raise")
    api.call("late", "sleep")
    api.queue[-1]["may_run_seconds"] = 2
    api.call("unwanted", "sleep")
    identity = dataclasses.replace(plan().identity, concurrency=3)
    start(identity=identity)
    await eventually(lambda: "raises" in api.outcomes and not api.queue, within=90)
    assert api.outcomes["raises"]["error"]["type"] == "LookupError"
    api.cancels.add("unwanted")
    await eventually(lambda: {"late", "unwanted"} <= api.outcomes.keys())
    assert api.outcomes["late"]["outcome"] == "DeadlineExceeded"
    assert api.outcomes["unwanted"]["outcome"] == "Cancelled"


async def test_a_large_result_goes_straight_to_the_api(api: ScriptedApi, start: Start) -> None:
    api.set_code({"app.py": APP + "@app.function()\ndef target():\n    return b'x' * 1_000_000\n"})
    api.call("one")
    start()
    await eventually(lambda: "one" in api.outcomes, within=90)
    reference = api.outcomes["one"]["result"]["blob"]
    assert len(api.blobs[reference.removeprefix("sha256:")]) > 1_000_000


DETACHED = """
@app.function()
def target():
    import os, subprocess, sys
    hide = "import os, time\\nif os.fork() == 0:\\n    os.setsid()\\n    if os.fork() == 0:\\n        time.sleep(3600)"
    subprocess.run([sys.executable, "-c", hide], check=True)
    open("left", "w").close()
    print(os.getuid(), flush=True)
"""


async def test_a_worker_that_waited_serves_as_a_cold_one_does(
    api: ScriptedApi, start: Start, log: Log, plain: Host
) -> None:
    source = "@app.function()\ndef target():\n    import os\n    print(os.getpid(), os.getcwd(), os.environ['GIVEN'])\n"
    api.set_code({"app.py": APP + source})
    api.call("one")
    environment = await plain.environment(OWN_MINOR, print)
    async with kept_full(plain, worker_template(environment, plain.limits.scratch_bytes_max)):
        [waiting] = plain.warm._waiting
        running = start(variables=[("GIVEN", "yes")])
        await eventually(lambda: log.text("stdout"), within=90)
        pid, directory, given = log.text("stdout")[0].split()
        assert strays.members(waiting.process.pid, None) == [int(pid)]
        assert (Path(directory), given) == (waiting.places.workspace, "yes")
        running.supervisor.drain(None)
        await ended(running)
        assert not waiting.directory.exists()


async def test_what_a_dead_node_left_is_ended_by_the_next_one_and_nothing_of_others(tmp_path: Path) -> None:
    """Its init is gone as well, so that only the user tells whose process it is."""
    with contextlib.ExitStack() as stack:
        # In a folder of leases of its own, but with users that no worker of another server on this host has: whatever
        # has the first one is ended.
        left, kept = (take_uid(TEST_UID + number, tmp_path / "leases") for number in range(2))
        assert left is not None
        assert kept is not None
        stack.callback(kept.release)
        processes = [
            subprocess.Popen(["/bin/sleep", "3600"], user=lease.uid, group=lease.uid, start_new_session=True)
            for lease in (left, kept)
        ]
        for process, lease in zip(processes, (left, kept), strict=True):
            stack.callback(process.wait)
            stack.callback(process.kill)
            folder = tmp_path / "attempts" / f"att_{lease.uid}"
            (folder / "home" / "workspace").mkdir(parents=True)
            (folder / "process").write_text(f"999999999 1 {lease.uid}")
        (tmp_path / "attempts" / "att_unwritten").mkdir()
        (tmp_path / "attempts" / "att_unwritten" / "process").write_text("")
        left.release()
        await plain_workers.reap(sorted((tmp_path / "attempts").iterdir()), tmp_path / "leases")
        assert processes[0].wait(60) == -9
        assert processes[1].poll() is None
        assert not (tmp_path / "attempts" / f"att_{left.uid}" / "home").exists()


async def test_images_are_refused_by_name(plain: Host, log: Log) -> None:
    limits = BuildLimits(
        builds_max=1,
        seconds_max=60,
        disk_bytes_max=1 << 30,
        images_disk_bytes_max=1 << 30,
        memory_bytes_max=1 << 30,
    )

    async def fetch(reference: str, path: Path) -> None:
        raise AssertionError(f"{reference} was asked for")

    builder = ImageBuilder(plain, limits, os.environ)
    with pytest.raises(ImageFailedError, match="the steps of an Image run in sandboxes: give the node one") as refused:
        await builder.build(OWN_MINOR, [], fetch, log, lambda stage: None)
    assert refused.value.reason == "ImageBuildUnavailable"
    assert any("isolation level none" in line for line in log.text())


async def test_a_worker_that_shares_the_nodes_user_leaves_nothing_either(tmp_path: Path, plain: Host) -> None:
    """As where the node is not root: nothing but descent tells what is its own."""
    environment = await plain.environment(OWN_MINOR, print)
    template = worker_template(environment, 1 << 20)
    limits = Limits(pids_max=16)
    cell = Cell.open(tmp_path, name="shared", cgroups=Cgroups([]), own_uid=False, limits=limits)
    launcher = plain_workers.PlainLauncher()
    hidden = f"3600.{os.getpid()}"
    command = dataclasses.replace(
        limited(template.command, limits, frozenset()),
        arguments=["sh", "-c", f"setsid sleep {hidden} & sleep 1; exit 3"],
        directory=launcher.places(template, cell).folder(None),
    )
    process = await launcher.start(template, command, cell)
    ending = await process.wait()
    process.close_output()
    cell.close()
    assert (ending.exit_code, ending.signal) == (3, None)
    assert not [one for one in psutil.process_iter(["cmdline"]) if hidden in (one.info["cmdline"] or [])]
    assert not (tmp_path / "home").exists()


async def test_a_drained_worker_leaves_no_process_folder_or_user(
    api: ScriptedApi, start: Start, log: Log, plain: Host
) -> None:
    api.set_code({"app.py": APP + DETACHED})
    api.call("one")
    running = start()
    await eventually(lambda: "one" in api.outcomes and log.text("stdout"), within=90)
    uid = int(log.text("stdout")[0])
    assert uid in users()
    running.supervisor.drain(None)
    report = await ended(running)
    assert report.ending is not None
    assert (report.ending.exit_code, report.problem) == (0, None)
    assert uid not in users()
    assert not (plain.attempt_directory("att_test") / "home").exists()
    assert strays.members(None, uid) == []


async def test_a_kill_ends_what_hides_and_what_ignores_signals(api: ScriptedApi, start: Start, log: Log) -> None:
    hides = DETACHED.replace("import os, time", "import os, signal, time\\nsignal.signal(15, signal.SIG_IGN)")
    api.set_code({"app.py": APP + hides + "    import time\n    time.sleep(3600)\n"})
    api.call("one")
    running = start()
    await eventually(lambda: log.text("stdout"), within=90)
    running.supervisor.drain(0.5)
    report = await ended(running)
    assert report.ending is not None
    assert report.ending.signal == 9
    assert strays.members(None, int(log.text("stdout")[0])) == []


async def test_a_worker_that_kills_its_own_init_takes_nothing_with_it_and_leaves_nothing(
    api: ScriptedApi, start: Start, log: Log
) -> None:
    source = DETACHED + "    os.kill(os.getppid(), 9)\n    import time\n    time.sleep(3600)\n"
    api.set_code({"app.py": APP + source})
    api.call("one")
    report = await ended(start(), within=120)
    assert report.ending is not None
    assert report.ending.signal == 9
    await eventually(lambda: log.text("stdout"))
    assert strays.members(None, int(log.text("stdout")[0])) == []


async def test_a_command_its_preparation_and_its_folder_work(start: Start, log: Log) -> None:
    prepared = StartPlan(
        command=["sh", "-c", "cat made; pwd; echo $NODUS_FUNCTION; exit 3"],
        init_command=["sh", "-c", "echo prepared > made"],
        init_seconds_max=60,
    )
    report = await ended(start(start=prepared, directory="/workspace/deep"))
    assert report.ending is not None
    assert report.ending.exit_code == 3
    prepared_line, folder, function = log.text("stdout")
    assert (prepared_line, Path(folder).name, function) == ("prepared", "deep", "fn")


async def test_a_preparation_that_fails_and_a_program_that_is_missing_are_told(start: Start, plain: Host) -> None:
    report = await ended(start(start=StartPlan(init_command=["sh", "-c", "exit 4"], init_seconds_max=60)))
    assert report.ending is not None
    assert report.ending.unprepared == "exited with code 4"
    plain.remove_directory("att_test")
    report = await ended(start(start=StartPlan(command=["no-such-program"])))
    assert report.problem is not None
    assert "no-such-program cannot be started: No such file or directory" in report.problem


async def test_sidecars_run_beside_the_worker_as_users_of_their_own(start: Start, log: Log) -> None:
    sidecar = SidecarPlan(name="beside", command=["sh", "-c", "id -u; exec sleep 600"])
    running = start(sidecars=[sidecar], start=StartPlan(command=["sh", "-c", "id -u; exec sleep 600"]))
    await eventually(lambda: len(log.text("stdout")) == 2, within=90)
    uids = {int(line.removeprefix("[beside] ")) for line in log.text("stdout")}
    assert len(uids) == 2
    assert uids <= users()
    running.supervisor.drain(None)
    await ended(running)
    assert not uids & users()


@pytest.mark.parametrize(
    ("changes", "names", "lacks"),
    [
        ({"egress": EgressPlan()}, "spec.network.egress", "network namespace"),
        (
            {"egress": EgressPlan(policy="AllowList", hosts=["files.example.org"])},
            "spec.network.egress",
            "network namespace",
        ),
        ({"image": "image-0123456789abcdef0123"}, "Image", "mount namespace"),
        ({"directory": "/opt/app"}, "spec.workingDir", "mount namespace"),
        ({"disk_bytes_least": 1 << 60}, "spec.resources.disk", "make room"),
    ],
)
async def test_what_needs_walls_is_refused_by_name(
    changes: dict[str, Any], names: str, lacks: str, start: Start, log: Log
) -> None:
    report = await ended(start(**changes))
    assert report.ending is None
    assert report.problem is not None
    assert names in report.problem
    assert lacks in report.problem
    assert report.problem in "\n".join(log.text("stderr"))
