"""Processes that are kept alive, told by real processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fixtures.eventually import eventually
from workers import supervision
from workers.engines import child as children
from workers.engines.child import first_outgoing_port, free_port, start_child, stop_child
from workers.supervision import GaveUpError, Supervisor, bound_log, ended, tail


class Sleeper:
    """A unit that runs a Python program; `starts` counts how often."""

    def __init__(self, log: Path, program: str = "import signal; signal.pause()") -> None:
        self._log = log
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    async def start(self) -> None:
        self.starts += 1
        self._process = start_child([sys.executable, "-c", self._program], environment=dict(os.environ), log=self._log)

    def stop(self) -> None:
        stop_child(self.process)


@contextlib.asynccontextmanager
async def running(supervisor: Supervisor) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(supervisor.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_unit_that_dies_is_started_again_and_the_operator_is_told(tmp_path: Path) -> None:
    told: list[str] = []
    supervisor = Supervisor(told.append, tmp_path)
    unit = Sleeper(tmp_path / "unit.log")
    await supervisor.start("unit", unit)
    async with running(supervisor):
        os.kill(unit.process.pid, signal.SIGKILL)
        await eventually(lambda: unit.starts == 2 and unit.process.poll() is None)
        await eventually(lambda: told == ["unit ended (code -9), starting it again", "unit is back"])
    await supervisor.stop(["unit"])
    assert unit.process.poll() is not None


async def test_a_unit_that_cannot_run_ends_the_supervisor_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "PAUSE_SECONDS_FIRST", 0.01)
    supervisor = Supervisor(lambda text: None, tmp_path)
    unit = Sleeper(tmp_path / "unit.log", program="raise SystemExit(3)")
    await supervisor.start("unit", unit)
    with pytest.raises(ExceptionGroup) as raised:
        await asyncio.wait_for(supervisor.run(), 60)
    assert raised.group_contains(GaveUpError, match=r"unit ended 5 times within 60 s; its log is .*unit\.log")
    assert unit.starts == supervision.DEATHS_MAX


async def test_stopping_is_not_mistaken_for_a_death(tmp_path: Path) -> None:
    told: list[str] = []
    supervisor = Supervisor(told.append, tmp_path)
    unit = Sleeper(tmp_path / "unit.log")
    await supervisor.start("unit", unit)
    async with running(supervisor):
        await supervisor.stop(["unit"])
        await ended(unit.process)
    assert (unit.starts, told) == (1, [])


async def test_a_child_does_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    program = f"""
import os, sys
from pathlib import Path
from workers.engines.child import start_child
pause = [sys.executable, "-c", "import signal; signal.pause()"]
child = start_child(pause, environment={{}}, log=Path({str(tmp_path / "log")!r}))
print(child.pid, flush=True)
os.kill(os.getpid(), 9)
"""
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=subprocess.PIPE)
    child = int((await parent.communicate())[0])

    def is_gone() -> bool:
        try:
            return Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
        except (FileNotFoundError, ProcessLookupError):
            return True  # before the look, or during it

    await eventually(is_gone)


def test_a_chosen_port_is_none_that_a_client_of_it_could_be_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = first_outgoing_port()
    assert all(children.PORT_MIN <= free_port() < first for _ in range(100))
    told = tmp_path / "ip_local_port_range"
    monkeypatch.setattr(children, "OUTGOING_PORTS", told)
    # A kernel that does not tell, or leaves none, is asked for one.
    assert free_port() >= first
    told.write_text("1024\t60999\n")
    assert free_port() >= first


def test_a_log_is_bounded_and_its_writer_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "LOG_BYTES_MAX", 1_000)
    log = tmp_path / "unit.log"
    with log.open("ab", buffering=0) as writer:
        writer.write(b"old line\n" * 200)
        bound_log(log)
        assert log.stat().st_size == 0
        writer.write(b"new line\n")
    assert tail(log) == "new line"
    assert (tmp_path / "unit.log.1").read_bytes() == b"old line\n" * 200
