"""The egress proxy as a node runs it, in its own sandbox, with a name server and web servers around it."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from runtime.cgroups import Cgroups
from runtime.egress.gate import EgressGate
from runtime.egress.limits import EgressLimits, EgressSettings
from runtime.egress.rules import EgressRules, Policy, allowed_hosts
from runtime.pythons import PythonLocator
from runtime.sandbox import Tools
from tests.fixtures.names import NameServer, name_server
from tests.runtime.conftest import OWN_MINOR
from tests.runtime.egress.origin import Origin, origin_in
from tests.runtime.proxied import answer_to

OPENED = "127.0.0.0/8"
LIMITS = EgressLimits(connections_max=8, head_seconds_max=60.0, connect_seconds_max=60.0, decisions_max=20)
"""Patient: a test that stands still for some seconds is no slow client."""
HASTY = dataclasses.replace(
    LIMITS, head_seconds_max=2.0, connect_seconds_max=5.0, hello_seconds_max=2.0, idle_seconds_max=2.0
)
"""For what does not come in time."""


@dataclasses.dataclass
class Outlet:
    """The proxy of one attempt: its socket, and the lines that its log got."""

    gate: EgressGate
    socket: Path
    lines: list[str]

    async def raw(self, request: bytes, *, finish: bool = False) -> bytes:
        """Send bytes as they are and read until the proxy closes."""
        return await answer_to([request], self.socket, finish=finish)

    async def connect(self, authority: str) -> tuple[bytes, asyncio.StreamReader, asyncio.StreamWriter]:
        """Ask for a tunnel; returns the head of the answer, and the streams."""
        reader, writer = await asyncio.open_unix_connection(str(self.socket))
        writer.write(f"CONNECT {authority} HTTP/1.1\r\nhost: {authority}\r\n\r\n".encode())
        async with asyncio.timeout(60):
            return await reader.readuntil(b"\r\n\r\n"), reader, writer

    async def refusal(self, authority: str) -> str:
        """The status line of a tunnel that is refused; AssertionError when it is not."""
        head, _, writer = await self.connect(authority)
        writer.close()
        line = head.split(b"\r\n")[0].decode()
        assert " 200 " not in line
        return line.removeprefix("HTTP/1.1 ")

    async def fetch(self, origin: Origin, host: str, sni: str | None = None, said: str | None = None) -> bytes:
        """GET within TLS through a tunnel to `host`; `sni` and `said` are other names to give in TLS and in Host."""
        head, reader, writer = await self.connect(f"{host}:{origin.port}")
        assert head.startswith(b"HTTP/1.1 200 "), head
        context = ssl.create_default_context(cafile=str(origin.certificate))
        await writer.start_tls(context, server_hostname=sni or host)
        writer.write(b"GET / HTTP/1.1\r\nhost: %b\r\n\r\n" % (said or host).encode())
        async with asyncio.timeout(60):
            answer = await reader.readuntil(b"\r\n\r\n") + await reader.read(1_000)
        writer.close()
        return answer


Make = Callable[..., Any]


@pytest.fixture
async def names(tmp_path: Path) -> AsyncIterator[tuple[NameServer, Path]]:
    async with name_server(tmp_path) as server:
        server[0].names["allowed.test"] = ["127.0.0.1"]
        yield server


@pytest.fixture
async def secure(tmp_path: Path) -> AsyncIterator[Origin]:
    async with origin_in(tmp_path, tls=True) as origin:
        yield origin


@pytest.fixture
async def plain(tmp_path: Path) -> AsyncIterator[Origin]:
    async with origin_in(tmp_path, tls=False) as origin:
        yield origin


@pytest.fixture
async def make_gate(
    tools: Tools, locator: PythonLocator, cgroups: Cgroups, names: tuple[NameServer, Path]
) -> AsyncIterator[Make]:
    """Make the proxy of a node; it ends with the test."""
    async with AsyncExitStack() as stack:

        def make(**changes: Any) -> EgressGate:
            settings = EgressSettings(opened=[OPENED], resolv_conf=names[1], limits=LIMITS)
            gate = EgressGate(tools, locator.locate(OWN_MINOR), cgroups, dataclasses.replace(settings, **changes))
            stack.push_async_callback(gate.stop)
            return gate

        yield make


@pytest.fixture
async def outlet(make_gate: Make, secure: Origin, plain: Origin, tmp_path: Path) -> AsyncIterator[Make]:
    """Open the way out of an attempt: `await outlet("allowed.test", policy="AllowList", gate=…)`."""
    async with AsyncExitStack() as stack:

        async def open_outlet(
            *hosts: str,
            policy: Policy = "AllowList",
            gate: EgressGate | None = None,
            attempt: str = "att_test",
            owner: int | None = None,
            **changes: Any,
        ) -> Outlet:
            chosen = gate or make_gate(**changes)
            rules = EgressRules(
                policy=policy,
                hosts=allowed_hosts(hosts),
                ports=frozenset({443, secure.port, plain.port}),
                closed_ports=frozenset({25}),
            )
            folder = tmp_path / attempt
            (folder / "run").mkdir(parents=True)
            lines: list[str] = []
            await chosen.open(attempt, folder / "run", owner, rules, lines.append)
            stack.push_async_callback(chosen.close, attempt)
            return Outlet(chosen, folder / "run" / "egress.sock", lines)

        yield open_outlet


needs_root = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="a name server needs port 53")]
