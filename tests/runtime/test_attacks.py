"""Attacks of a worker's code that no other test of the sandbox makes. `docs/attacks.md` lists all of them."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from runtime import sandbox
from runtime.cgroups import Cgroups, Limits
from runtime.environments import Environment
from runtime.process import Command, SandboxProcess
from runtime.sandbox import SandboxSpec, Tools
from tests.runtime.conftest import TEST_UID, printed

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

PYTHON = sandbox.ENVIRONMENT / "bin" / "python"
MEMORY_BYTES = 64 << 20

Begin = Callable[..., Awaitable[SandboxProcess]]


@pytest.fixture
async def begin(tools: Tools, environment: Environment, tmp_path: Path, cgroups: Cgroups) -> AsyncIterator[Begin]:
    """Start one of several neighbours: each has a number, a uid, a folder and a group of its own."""
    async with AsyncExitStack() as stack:

        async def start(number: int, source: str, *arguments: str) -> SandboxProcess:
            folder = tmp_path / f"attempt-{number}"
            folder.mkdir(mode=0o700)
            (folder / "run").mkdir(mode=0o755)
            prefix = environment.interpreter.prefix
            read_only = [(prefix, prefix), (environment.path, sandbox.ENVIRONMENT), (folder / "run", sandbox.RUN)]
            group = cgroups.create(str(number), Limits(memory_bytes_max=MEMORY_BYTES, pids_max=32))
            process = await SandboxProcess.start(
                SandboxSpec(uid=TEST_UID + number, read_only=read_only),
                Command(
                    python=PYTHON,
                    arguments=[str(PYTHON), "-u", "-c", source, *arguments],
                    environment={"PATH": "/usr/bin:/bin"},
                    directory=str(sandbox.WORKSPACE),
                ),
                tools,
                group,
            )
            stack.callback(group.remove)
            stack.callback(process.close_output)
            return process

        yield start


async def answer(process: SandboxProcess) -> str:
    """What the process printed until it ended."""
    await asyncio.wait_for(process.wait(), 60)
    said = b""
    while piece := os.read(process.stdout, 65_536):
        said += piece
    return said.decode()


NEIGHBOUR = """
import os, socket, time
listener = socket.socket(socket.AF_UNIX)
listener.bind("/tmp/neighbour.sock")
os.chmod("/tmp/neighbour.sock", 0o777)
listener.listen()
hidden = socket.socket(socket.AF_UNIX)
hidden.bind("\\0neighbour")
hidden.listen()
open("/dev/shm/neighbour", "w").write("secret")
print("ready")
time.sleep(120)
"""

INTRUDER = """
import json, os, socket, sys
folder, pid = sys.argv[1], int(sys.argv[2])
def met(act):
    try:
        act()
    except OSError as error:
        return type(error).__name__
    return "nothing"
print(json.dumps({
    "folder": met(lambda: os.listdir(folder)),
    "socket": met(lambda: socket.socket(socket.AF_UNIX).connect("/tmp/neighbour.sock")),
    "abstract socket": met(lambda: socket.socket(socket.AF_UNIX).connect("\\0neighbour")),
    "shared memory": met(lambda: open("/dev/shm/neighbour")),
    "signal": met(lambda: os.kill(pid, 9)),
    "memory": met(lambda: open(f"/proc/{pid}/mem", "rb")),
}))
"""


async def test_a_neighbour_cannot_be_found_reached_or_signalled(begin: Begin, tmp_path: Path) -> None:
    neighbour = await begin(1, NEIGHBOUR)
    await printed(neighbour, "ready")
    intruder = await begin(2, INTRUDER, str(tmp_path / "attempt-1"), str(neighbour.pid))
    met = json.loads(await answer(intruder))
    assert met.pop("signal") in ("ProcessLookupError", "PermissionError")
    assert met == {
        "folder": "FileNotFoundError",
        "socket": "FileNotFoundError",
        "abstract socket": "ConnectionRefusedError",
        "shared memory": "FileNotFoundError",
        "memory": "FileNotFoundError",
    }
    assert neighbour.pid in {int(entry) for entry in os.listdir("/proc") if entry.isdigit()}
    neighbour.kill()
    await neighbour.wait()


MEMORY_FILE = """
import os
file = os.memfd_create("x")
for _ in range(200):
    os.write(file, bytes(1 << 20))
print("done")
"""

EMPTY_FILES = """
import os
made = 0
try:
    for folder in range(1_000):
        os.mkdir(f"/tmp/{folder}")
        for name in range(1_000):
            os.close(os.open(f"/tmp/{folder}/{name}", os.O_CREAT | os.O_WRONLY))
            made += 1
except OSError:
    print("refused")
else:
    print("done")
"""


@pytest.mark.parametrize("source", [MEMORY_FILE, EMPTY_FILES], ids=["a file of memory", "a million empty files"])
async def test_what_the_kernel_keeps_for_a_worker_counts_as_its_memory(begin: Begin, source: str) -> None:
    """It is refused or killed; the host pays for none of it beyond the worker's own limit."""
    said = await answer(await begin(1, source))
    assert "done" not in said
