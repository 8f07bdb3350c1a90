"""Watches: what a thousand idle ones cost, and how soon a busy one hears of a commit.

Idle watches are those that the public SDK opens: one call by its name, or one map by its label. For the latency a
steady stream of calls is created through one API process while clients watch that process and another one; PostgreSQL
tells when each change was committed (`track_commit_timestamp`), so the figure begins at the commit and ends when the
client has read the line. Every watcher must have seen every change. The floor is PostgreSQL's own way of saying it: a
NOTIFY, from its commit to a listener in this process, now and then during the same seconds.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import asyncpg
import orjson

from bench.machinery.pages import CALLS, MAP
from bench.machinery.report import Figure, percentile
from bench.machinery.server import ApiProcess, Installation

IDLE_MEMORY_MEBIBYTES_MAX = 200.0
IDLE_CPU_PERCENT_MAX = 5.0
SAME_PROCESS_P99_MILLISECONDS_MAX = 50.0
OTHER_PROCESS_P99_MILLISECONDS_MAX = 250.0
WRITES_PER_SECOND = 200
BUSY_WATCHERS = 4
"""Clients that see every write, on each process."""
SETTLE_SECONDS = 2.0
ARRIVE_SECONDS_MAX = 60
FLOOR_CHANNEL = "bench_floor"
FLOOR_SECONDS = 0.05
_OPENING = 50
"""Watches that are opened at once."""

Create = Callable[[], Coroutine[Any, Any, None]]


async def idle(process: ApiProcess, headers: Mapping[str, str], watches: int, seconds: float) -> list[Figure]:
    """Memory and CPU of the process while it holds `watches` on which nothing happens."""
    async with _client(headers) as client:
        # What the first watches load is not what the others cost.
        async with _opened(client, process, 10):
            await asyncio.sleep(SETTLE_SECONDS)
        before = process.memory_bytes()
        async with _opened(client, process, watches):
            await asyncio.sleep(SETTLE_SECONDS)
            cpu, begun = process.cpu_seconds(), time.monotonic()
            await asyncio.sleep(seconds)
            percent = (process.cpu_seconds() - cpu) / (time.monotonic() - begun) * 100
            grown = (process.memory_bytes() - before) / (1 << 20)
    return [
        Figure(
            name=f"{watches} idle watches: memory",
            value=grown,
            unit="MiB",
            bound=IDLE_MEMORY_MEBIBYTES_MAX,
            note=f"{grown * 1024 / watches:.0f} KiB each",
        ),
        Figure(
            name=f"{watches} idle watches: CPU", value=percent, unit="% core", bound=IDLE_CPU_PERCENT_MAX
        ),
    ]  # fmt: skip


async def latency(
    installation: Installation, near: ApiProcess, far: ApiProcess, create: Create, writes: int
) -> list[Figure]:
    """Milliseconds from commit to client at WRITES_PER_SECOND through `near`, for watchers of both processes."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(_client(installation.headers))
        watchers = [
            _Watcher(await stack.enter_async_context(_watch(client, process, {})), process)
            for process in (near, far)
            for _ in range(BUSY_WATCHERS)
        ]
        reading = [asyncio.create_task(watcher.read(writes)) for watcher in watchers]
        api, begun = near.cpu_seconds(), time.monotonic()
        async with _notified(installation) as floor:
            await _steady(create, writes)
            async with asyncio.timeout(ARRIVE_SECONDS_MAX):
                await asyncio.gather(*reading)
        percent = (near.cpu_seconds() - api) / (time.monotonic() - begun) * 100
    committed = await _commit_times(installation, watchers[0].seen)
    if any(watcher.seen.keys() != committed.keys() for watcher in watchers):
        raise AssertionError("the watchers did not all see the same changes")
    figures = [
        Figure(name="floor: commit to NOTIFY, p50", value=percentile(floor, 50), unit="ms"),
        Figure(name="floor: commit to NOTIFY, p99", value=percentile(floor, 99), unit="ms"),
    ]
    note = f"at {WRITES_PER_SECOND} writes/s by a process at {percent:.0f} % of a core, {BUSY_WATCHERS} clients each"
    for name, process, bound in (
        ("watch of the writing process", near, SAME_PROCESS_P99_MILLISECONDS_MAX),
        ("watch of another process", far, OTHER_PROCESS_P99_MILLISECONDS_MAX),
    ):
        late = [
            (at - committed[rv]) * 1e3
            for watcher in watchers
            if watcher.process is process
            for rv, at in watcher.seen.items()
        ]
        for percent_of, limit in ((50, None), (99, bound)):
            value, base = percentile(late, percent_of), percentile(floor, percent_of)
            told = f"{name}: commit to client, p{percent_of}"
            figures.append(Figure(name=told, value=value, unit="ms", bound=limit, floor=base, note=note))
    return figures


class _Watcher:
    """A client that notes when it has read each change."""

    def __init__(self, response: aiohttp.ClientResponse, process: ApiProcess) -> None:
        self.process = process
        self.seen: dict[int, float] = {}
        self._response = response

    async def read(self, events: int) -> None:
        while len(self.seen) < events:
            line = await self._response.content.readline()
            at = time.time()
            event = orjson.loads(line)
            if event["type"] != "BOOKMARK":
                self.seen[int(event["object"]["metadata"]["resourceVersion"])] = at


@asynccontextmanager
async def _notified(installation: Installation) -> AsyncIterator[list[float]]:
    """Milliseconds from commit to listener of notifications that are sent until the block is left."""
    url = installation.settings.database_url
    sender, listener = await asyncpg.connect(url), await asyncpg.connect(url)
    taken: list[float] = []

    def heard(*told: object) -> None:
        taken.append((time.time() - float(str(told[-1]))) * 1e3)

    async def send() -> None:
        while True:
            await sender.execute("SELECT pg_notify($1, extract(epoch FROM clock_timestamp())::text)", FLOOR_CHANNEL)
            await asyncio.sleep(FLOOR_SECONDS)

    await listener.add_listener(FLOOR_CHANNEL, heard)
    sending = asyncio.create_task(send())
    try:
        yield taken
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        await asyncio.gather(sender.close(), listener.close())


async def _steady(create: Create, writes: int) -> None:
    """Create `writes` calls, each at its time however long the others take."""
    begun = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for number in range(writes):
            await asyncio.sleep(max(0.0, begun + number / WRITES_PER_SECOND - time.monotonic()))
            group.create_task(create())


async def _commit_times(installation: Installation, revisions: Mapping[int, float]) -> dict[int, float]:
    connection = await asyncpg.connect(installation.settings.database_url)
    try:
        rows = await connection.fetch(
            "SELECT rv, extract(epoch FROM pg_xact_commit_timestamp(xmin))::float8 AS at FROM changes "
            "WHERE rv = ANY($1::bigint[])",
            list(revisions),
        )
    finally:
        await connection.close()
    return {row["rv"]: row["at"] for row in rows}


@asynccontextmanager
async def _opened(client: aiohttp.ClientSession, process: ApiProcess, watches: int) -> AsyncIterator[None]:
    """So many watches, half of one call each and half of one map."""
    name = os.urandom(4).hex()
    queries = [
        {"fieldSelector": f"metadata.name=large-{name}-{number}"} if number % 2 else
        {"labelSelector": f"{MAP}={name}-{number}"}
        for number in range(watches)
    ]  # fmt: skip
    async with AsyncExitStack() as stack:
        for begin in range(0, watches, _OPENING):
            opening = [_watch(client, process, query) for query in queries[begin : begin + _OPENING]]
            await asyncio.gather(*(stack.enter_async_context(watch) for watch in opening))
        yield


@asynccontextmanager
async def _watch(
    client: aiohttp.ClientSession, process: ApiProcess, query: Mapping[str, str]
) -> AsyncIterator[aiohttp.ClientResponse]:
    """A watch of what happens from now on."""
    revision = await _revision(client, process)
    asked = {**query, "watch": "true", "allowWatchBookmarks": "true", "resourceVersion": revision}
    async with client.get(process.url + CALLS, params=asked) as response:
        if response.status != 200:
            raise AssertionError(f"a watch was answered with {response.status}: {await response.text()}")
        yield response


async def _revision(client: aiohttp.ClientSession, process: ApiProcess) -> str:
    async with client.get(process.url + CALLS, params={"limit": "1"}) as response:
        revision: str = (await response.json())["metadata"]["resourceVersion"]
    return revision


def _client(headers: Mapping[str, str]) -> aiohttp.ClientSession:
    """A client that holds any number of connections and reads for as long as a watch lasts."""
    return aiohttp.ClientSession(
        headers=headers, connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None)
    )
