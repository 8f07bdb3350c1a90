"""What the tests of `runtime/` share: one environment a Python minor for the whole session, and a host on it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from runtime.cgroups import Cgroups, open_cgroups
from runtime.egress.limits import EgressSettings
from runtime.environments import Environment, Environments
from runtime.gpus import NO_GPUS, Gpus
from runtime.host import LOCK_FILE, Host, HostLimits, open_host
from runtime.logs import Chunk, LogLimits
from runtime.process import SandboxProcess
from runtime.pythons import PythonLocator, find_uv
from runtime.sandbox import Tools, find_tools
from runtime.templates import Template
from runtime.uids import FIRST_UID
from tests.fixtures.eventually import eventually
from tests.runtime.proxied import Attempt, Upstream, attempt_to
from tests.runtime.scripted_api import ScriptedApi

OWN_MINOR = f"{sys.version_info.major}.{sys.version_info.minor}"

TEST_UID = FIRST_UID + 1_000 + os.getpid() % 3_000
"""Far from the uids that leases hand out first, and each test process has its own."""

LIMITS = HostLimits(
    scratch_bytes_max=64 << 20,
    pids_max=128,
    worker_memory_bytes_max=512 << 20,
    all_memory_bytes_max=None,
    start_seconds_max=60,
    exit_seconds_max=5,
    silence_seconds_max=30,
    isolation_min="basic",
    logs=LogLimits(),
    egress=EgressSettings(),
)


@dataclasses.dataclass
class Log:
    """A sink that keeps what it is given."""

    chunks: list[Chunk] = dataclasses.field(default_factory=list)

    async def __call__(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)

    def text(self, stream: str | None = None) -> list[str]:
        lines = [line for chunk in self.chunks for line in chunk.lines]
        return [text for _, name, text in lines if stream in (None, name)]


@pytest.fixture(scope="session")
def locator() -> PythonLocator:
    return PythonLocator(os.environ, find_uv(os.environ))


@pytest.fixture(scope="session")
def environments_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("environments")


@pytest.fixture(scope="session")
def environments(environments_directory: Path) -> Environments:
    uv = find_uv(os.environ)
    return Environments(directory=environments_directory, lock_file=LOCK_FILE, uv=uv, environ=os.environ)


@pytest.fixture(scope="session")
async def environment(environments: Environments, locator: PythonLocator) -> Environment:
    """The worker's environment on the Python that runs the tests."""
    return await environments.ensure(locator.locate(OWN_MINOR), print)


@pytest.fixture(scope="session")
def tools() -> Tools:
    return find_tools(os.environ)


@pytest.fixture
def cgroups() -> Iterator[Cgroups]:
    """Groups of the test process's own; whatever is left in them is killed."""
    made = open_cgroups(f"test-{os.getpid()}")
    yield made
    made.close()


@pytest.fixture
async def api() -> AsyncIterator[ScriptedApi]:
    async with ScriptedApi().serving() as scripted:
        yield scripted


@pytest.fixture
def host_limits() -> HostLimits:
    """Of `host`, for modules that need others."""
    return LIMITS


@pytest.fixture
def host_gpus() -> Gpus:
    """Of `host`, likewise."""
    return NO_GPUS


@pytest.fixture
async def host(
    tmp_path: Path, environments_directory: Path, api: ScriptedApi, host_limits: HostLimits, host_gpus: Gpus
) -> AsyncIterator[Host]:
    opened = await open_host(
        directory=tmp_path / "node",
        environments=environments_directory,
        api_url=api.url,
        environ=os.environ,
        limits=host_limits,
        gpus=host_gpus,
    )
    yield opened
    await opened.close()


@contextlib.asynccontextmanager
async def kept_full(host: Host, template: Template) -> AsyncIterator[Host]:
    """The host with a warm worker of `template`, and another as soon as that is taken."""
    keeping = asyncio.create_task(host.warm.run())
    try:
        host.warm.expect(template)
        await eventually(lambda: host.warm.waiting == 1)
        yield host
    finally:
        keeping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await keeping


async def printed(process: SandboxProcess, text: str) -> None:
    """Wait until the worker has printed `text`."""
    said = b""

    def read() -> bool:
        nonlocal said
        with contextlib.suppress(BlockingIOError):
            said += os.read(process.stdout, 65_536)
        return text.encode() in said

    await eventually(read)


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    made = Upstream()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield made
    server.close()


@pytest.fixture
async def attempt(upstream: Upstream, tmp_path: Path) -> AsyncIterator[Attempt]:
    async with attempt_to(upstream.url, tmp_path) as made:
        yield made
