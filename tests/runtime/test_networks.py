"""A network that sandboxes share, made with the first of them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from runtime import sandbox
from runtime.environments import Environment
from runtime.process import Command, SandboxProcess
from runtime.sandbox import SandboxSpec, SandboxUnavailableError, Tools
from runtime.templates import worker_template
from tests.runtime.conftest import TEST_UID, printed

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

HOLD_PORT = """
import socket, time
held = socket.create_server(("127.0.0.1", 3128))
print("held", flush=True)
time.sleep(600)
"""


def command(environment: Environment, source: str) -> Command:
    template = worker_template(environment, 1 << 20)
    arguments = (str(template.command.python), "-c", source)
    return dataclasses.replace(template.command, arguments=arguments, bridges={})


@pytest.fixture
def spec(environment: Environment, tmp_path: Path) -> SandboxSpec:
    made = worker_template(environment, 1 << 20).spec
    return dataclasses.replace(made, uid=TEST_UID, read_only=(*made.read_only, (tmp_path, sandbox.RUN)))


@pytest.fixture
async def first(spec: SandboxSpec, environment: Environment, tools: Tools) -> AsyncIterator[SandboxProcess]:
    """A sandbox that holds the port of the API on its loopback."""
    process = await SandboxProcess.start(spec, command(environment, HOLD_PORT), tools, None)
    await printed(process, "held")
    yield process
    process.close_output()


async def end(process: SandboxProcess) -> None:
    process.kill()
    await process.wait()


async def test_a_port_that_another_took_is_told_by_number(
    first: SandboxProcess, spec: SandboxSpec, environment: Environment, tools: Tools
) -> None:
    with contextlib.closing(first.hold_network(spec)) as network:
        worker = dataclasses.replace(command(environment, "pass"), bridges={3128: sandbox.API_SOCKET})
        with pytest.raises(SandboxUnavailableError, match=r"^port 3128, which is the worker's own, cannot be had: Add"):
            await SandboxProcess.start(dataclasses.replace(spec, network=network), worker, tools, None)
    await end(first)


async def test_a_network_outlives_the_sandbox_it_was_made_with_and_is_not_inherited(
    first: SandboxProcess, spec: SandboxSpec, environment: Environment, tools: Tools
) -> None:
    theirs = os.readlink(f"/proc/{first._inner}/ns/net")
    with contextlib.closing(first.hold_network(spec)) as network:
        await end(first)
        look = "import os; print(os.readlink('/proc/self/ns/net'), sorted(map(int, os.listdir('/proc/self/fd')))[:-1])"
        joined = dataclasses.replace(spec, network=network)
        process = await SandboxProcess.start(joined, command(environment, look), tools, None)
        assert (await process.wait()).exit_code == 0
        assert os.read(process.stdout, 1_000).decode() == f"{theirs} [0, 1, 2]\n"
        process.close_output()
    assert theirs != os.readlink("/proc/self/ns/net")


async def test_the_network_of_a_sandbox_that_is_gone_cannot_be_held(first: SandboxProcess, spec: SandboxSpec) -> None:
    await end(first)
    with pytest.raises(OSError, match="No such"):
        first.hold_network(spec)
