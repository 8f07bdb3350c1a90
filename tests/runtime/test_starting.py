"""What a worker starts with: another command than the public worker's, and what must succeed before it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from activities.run_worker import worker_exit
from runtime.host import Host
from runtime.plans import StartPlan, WorkerPlan
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
    return open("/workspace/made").read()
"""
PUBLIC_WORKER = ["python", "-m", "nodus._worker"]

Run = Callable[..., Awaitable[WorkerReport]]


@pytest.fixture
def supervise(host: Host, log: Log) -> Callable[..., WorkerSupervisor]:
    """The supervisor of a worker that starts as told."""

    def make(directory: str | None = None, disk_bytes: int | None = None, **start: Any) -> WorkerSupervisor:
        identity = WorkerIdentity(attempt="att_test", project="default", function="fn", concurrency=1)
        plan = WorkerPlan(
            identity=identity,
            python=OWN_MINOR,
            token="nodusatt_test",
            variables=[("GREETING", "hello")],
            directory=directory,
            memory_bytes_least=128 << 20,
            disk_bytes_least=disk_bytes,
            start=StartPlan(**{"init_seconds_max": 60, **start}),
        )
        return WorkerSupervisor(host, plan, log, lambda phase: None)

    return make


@pytest.fixture
def run(supervise: Callable[..., WorkerSupervisor], host: Host) -> Run:
    """Run it to its end."""

    async def run_it(**start: Any) -> WorkerReport:
        async with asyncio.timeout(90):
            return await supervise(**start).run(host.attempt_directory("att_test"))

    return run_it


async def test_a_command_replaces_the_public_worker(run: Run, log: Log) -> None:
    report = await run(command=["sh", "-c", 'echo "$GREETING $NODUS_FUNCTION $0 $1"; exit 3', "first", "second"])
    assert report.ending is not None
    assert (report.ending.exit_code, report.ending.unprepared) == (3, None)
    assert log.text("stdout") == ["hello fn first second"]


async def test_the_working_directory_is_the_one_that_was_asked_for(run: Run, log: Log) -> None:
    await run(command=["pwd"], directory="/workspace/deep/down")
    assert log.text("stdout") == ["/workspace/deep/down"]


async def test_a_worker_has_the_disk_it_asks_for_and_what_is_more_does_not_fit(run: Run, log: Log) -> None:
    """Of 512 MiB, its memory leaves room for more than the 64 MiB that every worker has here."""
    write = "for folder in /workspace /tmp; do head -c 110M /dev/zero > $folder/file; rm $folder/file; done"
    report = await run(command=["sh", "-c", f"{write}; head -c 150M /dev/zero > file"], disk_bytes=120 << 20)
    assert report.ending is not None
    assert report.ending.exit_code == 1
    assert log.text()[-1:] == ["head: error writing 'standard output': No space left on device"]


async def test_a_disk_below_what_every_worker_has_changes_nothing(run: Run, log: Log) -> None:
    await run(command=["sh", "-c", "head -c 60M /dev/zero > file && echo fits"], disk_bytes=1)
    assert log.text("stdout") == ["fits"]


async def test_a_disk_that_the_host_cannot_keep_is_a_failed_start_that_says_how_much_it_can(run: Run) -> None:
    report = await run(command=["true"], disk_bytes=400 << 20)
    ended = worker_exit(report)
    assert ended.outcome == "NotStarted"
    assert ended.message.startswith(
        "`spec.resources.disk` asks for 400 MiB, and this host, whose workers write to memory, can give 384 MiB beside"
    )


async def test_a_command_that_is_not_there_says_so(run: Run) -> None:
    report = await run(command=["no-such-program"])
    assert report.problem == "no-such-program cannot be started: No such file or directory"
    assert worker_exit(report).outcome == "NotStarted"


async def test_the_init_command_runs_in_the_sandbox_before_the_worker(run: Run, log: Log) -> None:
    report = await run(
        init_command=["sh", "-c", "pwd; echo prepared > made; echo $GREETING"], command=["sh", "-c", "cat made"]
    )
    assert report.ending is not None
    assert report.ending.exit_code == 0
    assert log.text("stdout") == ["/workspace", "hello", "prepared"]


async def test_the_public_worker_starts_after_its_init_command(
    supervise: Callable[..., WorkerSupervisor], host: Host, api: ScriptedApi
) -> None:
    api.set_code({"app.py": APP})
    api.call("one")
    supervisor = supervise(init_command=["sh", "-c", "echo prepared > made"], command=PUBLIC_WORKER)
    running = asyncio.create_task(supervisor.run(host.attempt_directory("att_test")))
    await eventually(lambda: "one" in api.outcomes or running.done())
    supervisor.drain(None)
    await asyncio.wait_for(running, 60)
    assert api.outcomes["one"]["outcome"] == "Succeeded"


@pytest.mark.parametrize(
    ("script", "seconds", "how"),
    [
        ("echo broken >&2; exit 4", 60, "exited with code 4"),
        ("echo broken >&2; kill -9 $$", 60, "was ended by signal 9"),
        ("echo broken >&2; sleep 600", 5, "did not end in the time it had and was killed"),
    ],
)
async def test_a_failed_init_command_is_a_failed_start_and_no_worker_begins(
    run: Run, log: Log, script: str, seconds: int, how: str
) -> None:
    report = await run(init_command=["sh", "-c", script], init_seconds_max=seconds, command=["echo", "began"])
    result = worker_exit(report)
    assert (result.outcome, result.message) == ("NotStarted", f"its init command {how}")
    assert log.text("stderr")[-1:] == ["broken"]
    assert log.text("stdout") == []


async def test_a_drain_reaches_the_init_command(
    supervise: Callable[..., WorkerSupervisor], host: Host, log: Log
) -> None:
    supervisor = supervise(init_command=["sh", "-c", "echo begun; exec sleep 600"], command=["echo", "began"])
    running = asyncio.create_task(supervisor.run(host.attempt_directory("att_test")))
    await eventually(lambda: "begun" in log.text())
    supervisor.drain(30)
    report = await asyncio.wait_for(running, 60)
    assert worker_exit(report).outcome == "Drained"
    assert log.text("stdout") == ["begun"]
