"""Clients that do not take what they are sent: they are cut off, and those that are only slow are not."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.fixtures.app import PROJECT, api_settings
from tests.fixtures.eventually import eventually
from tests.fixtures.replicas import Replica, replicas
from tests.fixtures.wire import checked_client

STALL_SECONDS_MAX = 5
"""More than the test itself stands still for on a loaded machine."""
_BUFFER_BYTES = 65_536
"""Smaller, and a window that opens a little is not worth a segment of the loopback device."""
_FILLING = "x" * 100_000
_WATCH = "GET {path}/apps?watch=true&resourceVersion=1 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n\r\n"
_ANSWER = b"HTTP/1.1 200"


@pytest.fixture
async def served(database_url: str, tmp_path: Path) -> AsyncIterator[tuple[Replica, str]]:
    settings = api_settings(database_url, tmp_path, write_stall_seconds_max=STALL_SECONDS_MAX)
    async with replicas(tmp_path, settings, [database_url]) as (key, [replica]):
        yield replica, key


@pytest.fixture
async def writing(served: tuple[Replica, str]) -> AsyncIterator[None]:
    """Somebody who writes more than the kernel buffers, again and again."""
    replica, key = served
    headers = {"Authorization": f"Bearer {key}"}
    merge = {"Content-Type": "application/merge-patch+json"}

    async def write() -> None:
        async with checked_client(base_url=replica.url, headers=headers, timeout=30) as client:
            body: dict[str, Any] = {"metadata": {"name": "a", "annotations": {"filling": _FILLING}}, "spec": {}}
            (await client.post(f"{PROJECT}/apps", json=body)).raise_for_status()
            turn = 0
            while True:
                turn += 1
                patch = {"metadata": {"labels": {"turn": str(turn)}}}
                (await client.patch(f"{PROJECT}/apps/a", json=patch, headers=merge)).raise_for_status()

    task = asyncio.create_task(write())
    yield
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@contextlib.contextmanager
def watching(served: tuple[Replica, str]) -> Iterator[socket.socket]:
    """A raw connection with a small buffer that asked for a watch."""
    replica, key = served
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        connection.connect(("127.0.0.1", replica.port))
        connection.sendall(_WATCH.format(path=PROJECT, key=key).encode())
        yield connection


def holds(replica: Replica, connection: socket.socket) -> bool:
    """Whether the process still has its end of the connection."""
    port = connection.getsockname()[1]
    return any(held.raddr and held.raddr.port == port for held in psutil.Process(replica.pid).net_connections("tcp"))


@pytest.mark.usefixtures("writing")
async def test_a_watcher_that_never_reads_is_cut_off(served: tuple[Replica, str]) -> None:
    with watching(served) as connection:
        connection.setblocking(False)
        # An answer that has begun; how long the process holds it without being read is not for the test to catch.
        begun = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(connection, len(_ANSWER)), 60)
        assert begun == _ANSWER
        await eventually(lambda: not holds(served[0], connection))


@pytest.mark.usefixtures("writing")
async def test_a_watcher_that_reads_slowly_is_not_cut_off(served: tuple[Replica, str]) -> None:
    with watching(served) as connection:
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        until = time.monotonic() + 2 * STALL_SECONDS_MAX
        while time.monotonic() < until:
            assert await asyncio.wait_for(loop.sock_recv(connection, _BUFFER_BYTES), 60)
            await asyncio.sleep(STALL_SECONDS_MAX / 20)
        assert holds(served[0], connection)
