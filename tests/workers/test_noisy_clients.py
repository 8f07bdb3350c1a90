"""Clients that hold connections without end: they do not make others wait.

Two processes over one database are asked the same, in turns: one of them holds 500 heads that never end and 1,000 open
watches of one client. Whatever else the machine does slows both.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.fixtures.app import FUNCTION, PROJECT, ROOT, api_settings
from tests.fixtures.eventually import eventually
from tests.fixtures.replicas import Replica, replicas
from tests.fixtures.wire import checked_client

HEADS, WATCHES = 500, 1_000
TURNS, FULL_TURNS = 100, 1_000
FACTOR_MAX = 2.0
"""What the issue allows; without other load it is about 1.1."""
OPENED_AT_ONCE = 50


@pytest.fixture
async def pair(database_url: str, tmp_path: Path) -> AsyncIterator[tuple[str, list[Replica]]]:
    settings = api_settings(database_url, tmp_path, http_head_seconds_max=600)
    async with replicas(tmp_path, settings, [database_url] * 2) as made:
        yield made


async def test_unfinished_heads_and_watches_do_not_make_others_wait(
    pair: tuple[str, list[Replica]], full: bool
) -> None:
    key, [quiet, noisy] = pair
    async with contextlib.AsyncExitStack() as closing:
        clients = [
            await closing.enter_async_context(
                checked_client(base_url=replica.url, headers={"Authorization": f"Bearer {key}"}, timeout=60)
            )
            for replica in (quiet, noisy)
        ]
        (await clients[0].post(f"{ROOT}/projects", json={"metadata": {"name": "noisy"}})).raise_for_status()
        await open_all(closing, noisy, HEADS, "GET /healthz HTTP/1.1\r\nHost: x\r\nX: ")
        path = f"{ROOT}/namespaces/noisy/functions?watch=true"
        watch = f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n\r\n"
        await open_all(closing, noisy, WATCHES, watch)
        await eventually(lambda: connections(noisy) >= HEADS + WATCHES)
        turns = FULL_TURNS if full else TURNS
        medians = await measured(clients, turns)
        told = ", ".join(f"{name}: {q * 1000:.1f} ms beside {n * 1000:.1f} ms" for name, (q, n) in medians.items())
        print(told)  # noqa: T201 - the numbers of a run
        assert all(noise <= FACTOR_MAX * calm for calm, noise in medians.values()), told


async def open_all(closing: contextlib.AsyncExitStack, replica: Replica, count: int, content: str) -> None:
    """Connections that send `content` and stay."""
    for _ in range(count // OPENED_AT_ONCE):
        opened = await asyncio.gather(
            *(asyncio.open_connection("127.0.0.1", replica.port) for _ in range(OPENED_AT_ONCE))
        )
        for _, writer in opened:
            writer.write(content.encode())
            closing.callback(writer.close)


def connections(replica: Replica) -> int:
    """How many the process has."""
    return len([held for held in psutil.Process(replica.pid).net_connections("tcp") if held.status == "ESTABLISHED"])


async def measured(clients: list[httpx.AsyncClient], turns: int) -> dict[str, tuple[float, float]]:
    """The median seconds of a read and a write at each process, asked in turns."""
    reads: tuple[list[float], list[float]] = ([], [])
    writes: tuple[list[float], list[float]] = ([], [])
    body = {"metadata": {"generateName": "f-"}, "spec": FUNCTION}
    for turn in range(turns):
        for number in (0, 1) if turn % 2 else (1, 0):
            started = time.perf_counter()
            answer = await clients[number].post(f"{PROJECT}/functions", json=body)
            written = time.perf_counter()
            answer.raise_for_status()
            (await clients[number].get(f"{PROJECT}/functions/{answer.json()['metadata']['name']}")).raise_for_status()
            writes[number].append(written - started)
            reads[number].append(time.perf_counter() - written)
    return {
        name: (statistics.median(seconds[0]), statistics.median(seconds[1]))
        for name, seconds in (("reads", reads), ("writes", writes))
    }
