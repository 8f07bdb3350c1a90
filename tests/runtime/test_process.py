"""How a sandboxed process ends, and what ends with it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path

import psutil
import pytest

from runtime import sandbox
from runtime.cgroups import Cgroups, Limits
from runtime.environments import Environment
from runtime.process import Command, SandboxProcess, init_config
from runtime.sandbox import SandboxSpec, SandboxUnavailableError, Tools
from tests.fixtures.eventually import eventually
from tests.runtime.conftest import TEST_UID, printed

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

UID = TEST_UID
PYTHON = sandbox.ENVIRONMENT / "bin" / "python"
Start = Callable[..., Awaitable[SandboxProcess]]


def spec(environment: Environment, run_directory: Path) -> SandboxSpec:
    prefix = environment.interpreter.prefix
    read_only = [(prefix, prefix), (environment.path, sandbox.ENVIRONMENT), (run_directory, sandbox.RUN)]
    return SandboxSpec(uid=UID, read_only=read_only)


def command(source: str, directory: str = "/workspace") -> Command:
    arguments = [str(PYTHON), "-u", "-c", textwrap.dedent(source)]
    return Command(python=PYTHON, arguments=arguments, environment={"PATH": "/usr/bin:/bin"}, directory=directory)


@pytest.fixture
async def start(tools: Tools, environment: Environment, tmp_path: Path, cgroups: Cgroups) -> AsyncIterator[Start]:
    """Start Python source as a worker."""
    run_directory = tmp_path / "run"
    run_directory.mkdir()
    started: list[SandboxProcess] = []

    async def begin(source: str, limits: Limits | None = None, directory: str = "/workspace") -> SandboxProcess:
        group = cgroups.create("one", limits or Limits())
        process = await SandboxProcess.start(spec(environment, run_directory), command(source, directory), tools, group)
        started.append(process)
        return process

    yield begin
    for process in started:
        process.close_output()
    cgroups.create("one", Limits()).remove()


@pytest.mark.parametrize(
    ("source", "code", "number"),
    [
        ("pass", 0, None),
        ("import sys; sys.exit(7)", 7, None),
        ("import sys; sys.exit(137)", 137, None),
        ("import os; os.kill(os.getpid(), 9)", None, 9),
        ("import os; os.abort()", None, 6),
        ("import os; os._exit(143)", 143, None),
    ],
)
async def test_an_exit_and_a_signal_are_told_apart(
    start: Start, source: str, code: int | None, number: int | None
) -> None:
    ending = await (await start(source)).wait()
    assert (ending.exit_code, ending.signal) == (code, number)
    assert ending.ran_seconds > 0


async def test_a_sigterm_reaches_the_worker_and_its_own_exit_code_comes_back(start: Start) -> None:
    process = await start(
        """
        import signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
        print("ready")
        time.sleep(60)
        """
    )
    await printed(process, "ready")
    process.terminate()
    ending = await process.wait()
    assert (ending.exit_code, ending.signal) == (7, None)


STUBBORN = """
import os, signal, subprocess, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(2):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(600)
        os._exit(0)
print("ready")
time.sleep(600)
"""


async def test_a_kill_takes_along_what_ignores_signals_and_what_hid_in_a_session(start: Start) -> None:
    process = await start(STUBBORN)
    await printed(process, "ready")
    await eventually(lambda: len(processes_of(UID)) >= 4)
    process.terminate()
    process.kill()
    ending = await process.wait()
    assert ending.signal == signal.SIGKILL
    assert processes_of(UID) == []


async def test_orphans_end_with_the_worker(start: Start) -> None:
    process = await start(
        """
        import os, time
        if os.fork() == 0:
            os.setsid()
            time.sleep(600)
        """
    )
    assert (await process.wait()).exit_code == 0
    assert processes_of(UID) == []


async def test_a_process_that_outgrows_its_memory_is_counted_by_its_group(start: Start, cgroups: Cgroups) -> None:
    assert "memory" in cgroups.limits
    process = await start("bytearray(300 << 20)", Limits(memory_bytes_max=64 << 20))
    ending = await process.wait()
    assert ending.signal == signal.SIGKILL
    assert cgroups.create("one", Limits()).out_of_memory_kills() == 1


async def test_a_process_gets_no_more_of_the_processors_than_it_may(start: Start) -> None:
    source = """
        import time
        until, before = time.monotonic() + 1, time.process_time()
        while time.monotonic() < until:
            pass
        print(time.process_time() - before)
    """
    process = await start(source, Limits(cpus_least=0.1, cpus_max=0.2))
    await process.wait()
    # Two tenths of the second it spun, and what a limit that is kept for each tenth of a second lets through.
    assert float(os.read(process.stdout, 100)) < 0.5


async def test_files_in_memory_count_as_memory(start: Start, cgroups: Cgroups) -> None:
    process = await start("open('/tmp/x', 'wb').write(bytes(1 << 20) * 200)", Limits(memory_bytes_max=64 << 20))
    await process.wait()
    assert cgroups.create("one", Limits()).out_of_memory_kills() >= 1


async def test_a_fork_bomb_meets_its_limit(start: Start, cgroups: Cgroups) -> None:
    assert "pids" in cgroups.limits
    process = await start(
        """
        import os, time
        made = 0
        try:
            while True:
                if os.fork() == 0:
                    time.sleep(600)
                made += 1
        except BlockingIOError:
            print("made", made)
        """,
        Limits(pids_max=40),
    )
    await printed(process, "made 3")
    await process.wait()


async def test_a_working_directory_is_made_where_one_may_be(start: Start) -> None:
    process = await start("import os; print(os.getcwd())", directory="/workspace/deep/er")
    await printed(process, "/workspace/deep/er")
    await process.wait()


async def test_a_working_directory_that_cannot_be_says_so(start: Start) -> None:
    with pytest.raises(SandboxUnavailableError, match="working directory cannot be used"):
        await start("pass", directory="/usr/nowhere")


async def test_a_sandbox_that_cannot_be_made_says_why(tools: Tools, environment: Environment, tmp_path: Path) -> None:
    with pytest.raises(SandboxUnavailableError, match=r"(?i)no such file"):
        await SandboxProcess.start(
            spec(environment, tmp_path / "missing"), command("pass"), tools, Cgroups([]).create("x", Limits())
        )


async def test_a_failed_start_leaves_no_descriptor_open(tools: Tools, environment: Environment, tmp_path: Path) -> None:
    before = own_descriptors()
    with pytest.raises(SandboxUnavailableError):
        await SandboxProcess.start(
            spec(environment, tmp_path / "missing"), command("pass"), tools, Cgroups([]).create("x", Limits())
        )
    assert own_descriptors() == before


async def test_an_ended_process_leaves_no_descriptor_open(
    tools: Tools, environment: Environment, tmp_path: Path
) -> None:
    before = own_descriptors()
    process = await SandboxProcess.start(
        spec(environment, tmp_path), command("pass"), tools, Cgroups([]).create("x", Limits())
    )
    await process.wait()
    process.close_output()
    assert own_descriptors() == before


async def test_a_start_that_is_cancelled_ends_at_once_and_leaves_nothing(
    tools: Tools, environment: Environment, tmp_path: Path
) -> None:
    """Also while bubblewrap is forking, when nobody knows yet what it has begun."""
    before = own_descriptors()
    cancelled = 0
    for _ in range(20):
        others = {process.pid for process in psutil.Process().children()}
        group, idle = Cgroups([]).create("x", Limits()), command("import time; time.sleep(600)")
        starting = asyncio.create_task(SandboxProcess.start(spec(environment, tmp_path), idle, tools, group))
        await eventually(partial(_has_forked, others))
        if starting.cancel():
            with pytest.raises(asyncio.CancelledError):
                await starting
            cancelled += 1
        else:  # It was quicker than a look at the processes.
            process = await starting
            process.kill()
            await process.wait()
            process.close_output()
    assert cancelled
    assert own_descriptors() == before
    await eventually(lambda: processes_of(UID) == [])


def _has_forked(others: set[int]) -> bool:
    """Whether a child of this process that is not one of the others has a child itself."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return any(child.children() for child in psutil.Process().children() if child.pid not in others)
    return False


async def test_nothing_survives_the_process_that_started_it(environment: Environment, tmp_path: Path) -> None:
    source = f"""
import asyncio, os, sys
from functools import partial
from pathlib import Path
from runtime import sandbox
from runtime.cgroups import Cgroups, Limits
from runtime.process import Command, SandboxProcess
from runtime.sandbox import SandboxSpec

PYTHON = sandbox.ENVIRONMENT / "bin" / "python"
prefix, env = Path({str(environment.interpreter.prefix)!r}), Path({str(environment.path)!r})

async def main():
    read_only = [(prefix, prefix), (env, sandbox.ENVIRONMENT), (Path({str(tmp_path)!r}), sandbox.RUN)]
    arguments = [str(PYTHON), "-c", {STUBBORN!r}]
    command = Command(python=PYTHON, arguments=arguments, environment={{}}, directory="/workspace")
    tools, group = sandbox.find_tools(os.environ), Cgroups([]).create("x", Limits())
    process = await SandboxProcess.start(SandboxSpec(uid={UID}, read_only=read_only), command, tools, group)
    print("started", flush=True)
    await process.wait()

asyncio.run(main())
"""
    root = Path(sandbox.__file__).parents[1]
    node = subprocess.Popen([sys.executable, "-c", source], cwd=root, stdout=subprocess.PIPE)
    assert node.stdout is not None
    assert await asyncio.to_thread(node.stdout.readline) == b"started\n"
    await eventually(lambda: len(processes_of(UID)) >= 4)
    node.kill()
    node.wait()
    await eventually(lambda: processes_of(UID) == [])


def test_a_variable_with_a_nul_character_is_refused() -> None:
    bad = Command(python=PYTHON, arguments=[], environment={"A": "x\0B=y"}, directory="/")
    with pytest.raises(ValueError, match="NUL"):
        init_config(bad)


def own_descriptors() -> set[tuple[str, str]]:
    """The descriptors of this process with what they lead to, but for sockets and event queues: those that other tests
    hold with clients of real servers come and go on threads, and a sandbox is given none. What other tests dropped is
    closed first, or it would be at some moment in between.
    """
    gc.collect()
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.add((descriptor.name, str(descriptor.readlink())))
    return {(number, leads) for number, leads in found if not leads.startswith(("socket:", "anon_inode:[event"))}


def processes_of(uid: int) -> list[int]:
    """Live processes of the host that run as `uid`."""
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            facts = dict(line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line)
            if facts["Uid"].split()[0] == str(uid) and not facts["State"].startswith("Z"):
                found.append(int(facts["Pid"]))
    return found
