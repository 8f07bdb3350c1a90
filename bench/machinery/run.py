"""The whole measurement: fill a store, then ask it what its clients ask."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import aiohttp
import asyncpg

from bench.machinery import watching
from bench.machinery.filling import PROJECT, fill
from bench.machinery.pages import Pages
from bench.machinery.report import Figure
from bench.machinery.server import ApiProcess, Installation, api_process, install, ready

BATCH_CALLS = 1_000
FUNCTIONS = ("large", "medium", "small")
_ROOT = f"/apis/nodus.dev/v1/namespaces/{PROJECT}"
_CODE = {"code": {"module": "app", "qualname": "f"}, "python": "3.11", "image": "nodus/python:3.11"}
_INPUT = {"encoding": "Pickle", "inline": "gASVBAAAAAAAAABLKi4="}


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much is measured."""

    calls: int
    queued: int
    pages_max: int
    page_samples: int
    idle_watches: int
    idle_seconds: float
    writes: int


FULL = Sizes(
    calls=1_000_000,
    queued=10_000,
    pages_max=5_000,
    page_samples=200,
    idle_watches=1_000,
    idle_seconds=60,
    writes=4_000,
)
QUICK = Sizes(calls=50_000, queued=500, pages_max=20, page_samples=20, idle_watches=200, idle_seconds=5, writes=600)


async def measure(sizes: Sizes, folder: Path) -> list[Figure]:
    """Run everything and return the figures in the order they are printed."""
    installation = await install(folder)
    try:
        await _with_api(installation, _make_templates)
        begun = time.monotonic()
        filled = await fill(installation.settings.database_url, sizes.calls, datetime.now(UTC))
        say(f"{filled.calls:,} calls and {filled.changes:,} changes in {time.monotonic() - begun:.0f} s")
        say(await _table_sizes(installation))
        with api_process(installation, "api") as near, api_process(installation, "api-2") as far:
            await asyncio.gather(ready(near), ready(far))
            async with aiohttp.ClientSession(headers=installation.headers) as client:
                return await _measure(sizes, installation, near, far, client)
    finally:
        installation.postgres.stop()


async def _measure(
    sizes: Sizes, installation: Installation, near: ApiProcess, far: ApiProcess, client: aiohttp.ClientSession
) -> list[Figure]:
    create = partial(_post, client, f"{near.url}{_ROOT}/functioncalls", _call("large"))
    await _queue(near.url, client, sizes.queued)
    pages = Pages(installation, near, client)
    figures = await pages.measure(sizes.pages_max, sizes.page_samples)
    figures += await watching.idle(far, installation.headers, sizes.idle_watches, sizes.idle_seconds)
    figures += await watching.latency(installation, near, far, create, sizes.writes)
    figures += await pages.of_the_past(sizes.writes, sizes.page_samples)
    return figures


def say(text: str) -> None:
    """Print at once: a run takes minutes."""
    print(text, flush=True)


async def _with_api(installation: Installation, act: Callable[[str, aiohttp.ClientSession], Awaitable[None]]) -> None:
    with api_process(installation, "api-of-the-fill") as process:
        await ready(process)
        async with aiohttp.ClientSession(headers=installation.headers) as client:
            await act(process.url, client)


async def _make_templates(url: str, client: aiohttp.ClientSession) -> None:
    """A call of each Function, created by the server; the fill multiplies them."""
    for name in FUNCTIONS:
        await _post(client, f"{url}{_ROOT}/functions", {"metadata": {"name": name}, "spec": _CODE})
        await _post(client, f"{url}{_ROOT}/functioncalls", _call(name))


async def _queue(url: str, client: aiohttp.ClientSession, calls: int) -> None:
    """Calls that wait, through the API: they have rows in the queue."""
    for begin in range(0, calls, BATCH_CALLS):
        items = [_call("large")] * min(BATCH_CALLS, calls - begin)
        body = {"apiVersion": "nodus.dev/v1", "kind": "FunctionCallList", "items": items}
        await _post(client, f"{url}{_ROOT}/functions/large/calls", body)


def _call(function: str) -> dict[str, object]:
    return {"metadata": {"generateName": f"{function}-"}, "spec": {"function": function, "input": _INPUT}}


async def _post(client: aiohttp.ClientSession, url: str, body: Mapping[str, object]) -> None:
    async with client.post(url, json=body) as response:
        if response.status >= 300:
            raise AssertionError(f"{url} answered {response.status}: {await response.text()}")


async def _table_sizes(installation: Installation) -> str:
    connection = await asyncpg.connect(installation.settings.database_url)
    try:
        rows = await connection.fetch(
            "SELECT relname, pg_total_relation_size(oid) AS bytes, pg_indexes_size(oid) AS indexes FROM pg_class "
            "WHERE relname IN ('objects', 'changes') ORDER BY relname DESC"
        )
    finally:
        await connection.close()
    told = (f"{row['relname']} {row['bytes'] >> 20:,} MiB ({row['indexes'] >> 20:,} of indexes)" for row in rows)
    return ", ".join(told)


def run(sizes: Sizes) -> list[Figure]:
    """Measure on a scratch folder, printing each figure."""
    say(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores at the start; autovacuum is off")
    with tempfile.TemporaryDirectory(prefix="nodus-bench-") as folder:
        figures = asyncio.run(measure(sizes, Path(folder)))
    for figure in figures:
        say(figure.line())
    missed = sum(figure.verdict == "MISSED" for figure in figures)
    say(f"load {os.getloadavg()[0]:.1f} at the end; {missed} of {len(figures)} figures beyond their bounds")
    return figures
