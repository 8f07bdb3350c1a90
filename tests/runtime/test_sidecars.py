"""What runs beside a worker: on its network, in sandboxes of their own, before it and after it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from activities.run_worker import worker_exit
from runtime.host import Host
from runtime.plans import EgressPlan, SidecarPlan, StartPlan, WorkerPlan
from runtime.process import Ending
from runtime.sidecars import how
from runtime.supervisor import WorkerReport, WorkerSupervisor
from runtime.variables import WorkerIdentity
from tests.fixtures.eventually import eventually
from tests.runtime.conftest import OWN_MINOR, Log
from tests.runtime.scripted_api import ScriptedApi

APP = """
import nodus
app = nodus.App("test")
@app.function()
def target():
    import urllib.request
    return urllib.request.urlopen("http://127.0.0.1:8000/answer").read()
"""
SERVE = "echo served > answer; exec python -u -m http.server --bind 127.0.0.1 8000"
ASK = """
import time, urllib.request
for _ in range(600):
    try:
        print("asked and got", urllib.request.urlopen("http://127.0.0.1:8000/answer").read())
        break
    except OSError:
        time.sleep(0.1)
"""
LEAVE_LATE = "trap 'echo leaving; exit 0' TERM; echo up; while :; do sleep 0.1; done"

Supervise = Callable[..., WorkerSupervisor]
Run = Callable[..., Awaitable[WorkerReport]]
RunUntil = Callable[..., Awaitable[WorkerReport]]


def sidecar(name: str, script: str, **changes: Any) -> SidecarPlan:
    return SidecarPlan(name=name, command=["sh", "-c", script], **changes)


@pytest.fixture
def supervise(host: Host, log: Log) -> Supervise:
    """The supervisor of a worker with these sidecars; without a `command` it is the public one."""

    def make(*sidecars: SidecarPlan, command: list[str] | None = None, **changes: Any) -> WorkerSupervisor:
        identity = WorkerIdentity(attempt="att_test", project="default", function="fn", concurrency=1)
        start = StartPlan(command=command or [])
        plan = WorkerPlan(
            identity=identity, python=OWN_MINOR, token="nodusatt_test", sidecars=sidecars, start=start, **changes
        )
        return WorkerSupervisor(host, plan, log, lambda phase: None)

    return make


@pytest.fixture
def run(supervise: Supervise, host: Host) -> Run:
    """Run it to its end."""

    async def run_it(*sidecars: SidecarPlan, **plan: Any) -> WorkerReport:
        async with asyncio.timeout(120):
            return await supervise(*sidecars, **plan).run(host.attempt_directory("att_test"))

    return run_it


@pytest.fixture
def run_until(supervise: Supervise, host: Host) -> RunUntil:
    """Run it until something is true, and drain it then."""

    async def run_it(true: Callable[[], Any], *sidecars: SidecarPlan, **plan: Any) -> WorkerReport:
        supervisor = supervise(*sidecars, **{"command": ["sleep", "600"], **plan})
        running = asyncio.create_task(supervisor.run(host.attempt_directory("att_test")))
        await eventually(lambda: true() or running.done())
        supervisor.drain(None)
        return await asyncio.wait_for(running, 60)

    return run_it


def groups_left(host: Host) -> list[Path]:
    folders = [hierarchy.folder for hierarchy in host.cgroups._hierarchies]
    return [entry for folder in folders for entry in folder.iterdir() if entry.is_dir()]


async def test_a_worker_reaches_its_sidecar_on_loopback_and_both_mark_their_lines(run: Run, log: Log) -> None:
    report = await run(sidecar("web", SERVE), command=["python", "-c", ASK])
    assert report.ending is not None
    assert (report.ending.exit_code, report.problem) == (0, None)
    assert "asked and got b'served\\n'" in log.text("stdout")
    assert any(line.startswith("[web] ") and "GET /answer" in line for line in log.text("stderr"))


async def test_sidecars_share_one_network_and_nothing_else(run_until: RunUntil, host: Host, log: Log) -> None:
    look = "readlink /proc/self/ns/net /proc/self/ns/mnt /proc/self/ns/pid /proc/self/ns/ipc; id -u; ls /run/nodus"
    stay = f"echo kept > /workspace/file; {look}; exec sleep 600"
    alone = f"{look}; ls -A /workspace; exec sleep 600"
    await run_until(
        lambda: len(log.text("stdout")) == 16,
        sidecar("one", stay),
        sidecar("two", stay),
        command=["sh", "-c", alone],
    )
    lines = log.text("stdout")
    one, two = ([line.removeprefix(mark) for line in lines if line.startswith(mark)] for mark in ("[one] ", "[two] "))
    worker = [line for line in lines if not line.startswith("[")]
    assert worker[0] == one[0] == two[0]
    assert worker[5:] == ["api.sock"]
    assert (one[5:], two[5:]) == ([], [])
    for position in range(1, 4):
        assert len({told[position] for told in (worker, one, two)}) == 3, worker
    assert len({told[4] for told in (worker, one, two)}) == (3 if host.own_uids else 1)


async def test_sidecars_start_before_the_worker_and_stop_after_it_the_last_one_first(
    run_until: RunUntil, log: Log
) -> None:
    worker = LEAVE_LATE.replace("leaving", "worker leaving")
    await run_until(
        lambda: log.text("stdout").count("up") == 1 and len(log.text("stdout")) == 3,
        sidecar("first", LEAVE_LATE),
        sidecar("second", LEAVE_LATE),
        command=["sh", "-c", worker],
    )
    assert sorted(log.text("stdout")[:3]) == ["[first] up", "[second] up", "up"]
    assert log.text("stdout")[3:] == ["worker leaving", "[second] leaving", "[first] leaving"]


async def test_a_worker_does_not_begin_before_its_sidecars_have(run: Run, host: Host) -> None:
    """Each of them is a process of this host by the time that the worker looks for it."""
    reached: list[str] = []
    host.reach = reached.append
    report = await run(sidecar("first", LEAVE_LATE), sidecar("second", LEAVE_LATE), command=["true"])
    assert report.ending is not None
    assert reached == ["cold-opened", "cold-sidecar", "cold-sidecar"]


async def test_calls_run_beside_a_sidecar_and_a_drain_ends_all(
    supervise: Supervise, host: Host, api: ScriptedApi, log: Log
) -> None:
    api.set_code({"app.py": APP})
    supervisor = supervise(sidecar("web", SERVE))
    running = asyncio.create_task(supervisor.run(host.attempt_directory("att_test")))
    listens = "[web] Serving HTTP on"
    await eventually(lambda: any(line.startswith(listens) for line in log.text("stdout")) or running.done())
    api.call("one")
    await eventually(lambda: "one" in api.outcomes or running.done())
    supervisor.drain(None)
    report = await asyncio.wait_for(running, 60)
    assert worker_exit(report).outcome == "Drained"
    assert api.outcomes["one"]["outcome"] == "Succeeded"
    assert groups_left(host) == []


@pytest.mark.parametrize(
    ("script", "end"),
    [
        # Whether it has gone before its node looks, or goes later.
        ("exit 3", "exited with code 3"),
        ("sleep 0.5; exit 3", "exited with code 3"),
        ("sleep 0.5; kill -9 $$", "was ended by signal 9"),
    ],
)
async def test_a_sidecar_that_ends_before_the_first_claim_fails_the_start_by_name(
    run: Run, script: str, end: str
) -> None:
    report = await run(sidecar("db", script), command=["sleep", "600"])
    ended = worker_exit(report)
    assert (ended.outcome, ended.exit_code, ended.signal) == ("NotStarted", None, None)
    assert ended.message == f"the worker was ended because its sidecar 'db' {end}"


async def test_a_sidecar_that_ends_later_ends_its_worker_and_is_named(
    supervise: Supervise, host: Host, api: ScriptedApi, log: Log
) -> None:
    api.set_code({"app.py": APP})
    take_one = "s = socket.create_server(('127.0.0.1', 8000)); print('listens', flush=True); s.accept(); exit(7)"
    script = f'exec python -c "import socket; {take_one}"'
    running = asyncio.create_task(supervise(sidecar("db", script)).run(host.attempt_directory("att_test")))
    await eventually(lambda: (api.held == 1 and "[db] listens" in log.text("stdout")) or running.done())
    api.call("one")
    ended = worker_exit(await asyncio.wait_for(running, 60))
    assert (ended.outcome, ended.exit_code, ended.signal) == ("Exited", None, None)
    assert ended.message == "the worker was ended because its sidecar 'db' exited with code 7"


async def test_a_sidecar_that_cannot_be_started_is_a_failed_start(run: Run, host: Host, log: Log) -> None:
    missing = SidecarPlan(name="gone", command=["no-such-program"])
    report = await run(sidecar("web", SERVE), missing, command=["echo", "began"])
    ended = worker_exit(report)
    assert ended.outcome == "NotStarted"
    assert ended.message == (
        "its sidecar 'gone' could not be started: no-such-program cannot be started: No such file or directory"
    )
    assert "began" not in log.text()
    assert groups_left(host) == []


async def test_a_sidecar_that_takes_too_long_to_start_is_told_of(run: Run) -> None:
    report = await run(sidecar("slow", "exec sleep 600", start_seconds_max=0.001), command=["echo", "began"])
    assert worker_exit(report).message == "its sidecar 'slow' had not started within 0.001 s"


async def test_a_sidecar_that_ignores_its_end_is_killed(host: Host, run_until: RunUntil, log: Log) -> None:
    deaf = sidecar("deaf", "trap '' TERM; echo up; while :; do sleep 1; done")
    await run_until(lambda: "[deaf] up" in log.text(), deaf)
    assert any("its sidecars had not left within 5 s and were killed" in line for line in log.text())
    assert groups_left(host) == []


async def test_a_kill_takes_the_sidecars_along(supervise: Supervise, host: Host, log: Log) -> None:
    supervisor = supervise(sidecar("one", LEAVE_LATE), command=["sleep", "600"])
    running = asyncio.create_task(supervisor.run(host.attempt_directory("att_test")))
    await eventually(lambda: "[one] up" in log.text())
    supervisor.kill("the test asked for it")
    report = await asyncio.wait_for(running, 60)
    assert worker_exit(report).message == "the node killed the worker: the test asked for it"
    assert "[one] leaving" not in log.text()
    assert groups_left(host) == []


async def test_the_resources_of_the_function_bound_its_sidecars_too(run: Run) -> None:
    eat = 'exec python -c "held = bytearray(400 << 20); print(len(held))"'
    report = await run(sidecar("fat", eat), command=["sleep", "600"], memory_bytes_max=100 << 20)
    assert report.sidecar_ended == (
        "its sidecar 'fat' was ended because it and the worker needed more memory than `spec.resources.memory` grants"
    )


async def test_sidecars_have_variables_of_their_own_and_the_servers_stay_reserved(
    run_until: RunUntil, log: Log
) -> None:
    told = sidecar(
        "env", "env; echo told; exec sleep 600", variables=[("MINE", "yes"), ("NODUS_ATTEMPT", "forged")], python="3.12"
    )
    await run_until(lambda: "[env] told" in log.text(), told, variables=[("WORKERS", "secret")])
    lines = log.text("stdout")
    assert "[env] MINE=yes" in lines
    assert "[env] NODUS_ATTEMPT=att_test" in lines
    assert not [line for line in lines if "secret" in line or "NODUS_RUNTIME_SOCKET" in line]
    assert any("[env] the variable 'NODUS_ATTEMPT' was not set" in line for line in log.text("stderr"))


async def test_a_sidecar_has_the_way_out_of_its_function(run_until: RunUntil, log: Log) -> None:
    ask = """
import os, socket
host, port = os.environ["https_proxy"].removeprefix("http://").split(":")
for name in ("listed.example", "other.example"):
    with socket.create_connection((host, int(port))) as way:
        way.sendall(b"CONNECT %s:443 HTTP/1.1\\r\\nHost: %s:443\\r\\n\\r\\n" % (name.encode(), name.encode()))
        print(name, way.recv(100).split(b"\\r\\n")[0].decode(), flush=True)
import time
time.sleep(600)
"""
    plan = EgressPlan(policy="AllowList", hosts=["listed.example"])
    out = SidecarPlan(name="out", command=["python", "-c", ask])
    await run_until(lambda: any("other.example" in line for line in log.text("stdout")), out, egress=plan)
    told = [line for line in log.text("stdout") if line.startswith("[out] ")]
    assert [line.split()[1] for line in told] == ["listed.example", "other.example"]
    assert "403" in told[1]
    assert any("[out]" in line and "other.example" in line for line in log.text("stderr"))


@pytest.mark.parametrize(("number", "blamed"), [(signal.SIGKILL, True), (signal.SIGSEGV, False), (None, False)])
def test_a_sidecar_ended_for_its_memory_only_if_it_was_killed(number: int | None, *, blamed: bool) -> None:
    """The kernel may have killed another process of the group before."""
    ending = Ending(exit_code=1 if number is None else None, signal=number, ran_seconds=1.0)
    assert ("more memory" in how(ending, out_of_memory=True)) is blamed
