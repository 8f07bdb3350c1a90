"""Pages of a large store: what a client that lists by `limit` and `continue` waits for, at any depth.

Each list is walked from its first page on, which also proves it whole and in order; then pages at random depths are
asked for again. The floor is the least that any server must do for the same page: the keyset query over one connection
and the rows joined to a JSON list.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import asyncpg
import orjson

from bench.machinery.filling import ORG, PROJECT, WIDE_MAP
from bench.machinery.report import Figure, percentile
from bench.machinery.server import ApiProcess, Installation

LIMIT = 500
PAGE_P99_MILLISECONDS_MAX = 50.0
PAGE_CPU_MILLISECONDS_MAX = 30.0
"""Of the API process and PostgreSQL together: what leaves room in the limit above for a machine that does more."""
CALLS = f"/apis/nodus.dev/v1/namespaces/{PROJECT}/functioncalls"
MAP, FUNCTION = "nodus.dev/map", "nodus.dev/function"

UNBOUNDED = frozenset({"small function, Failed", "large function, not Succeeded"})
"""Lists whose pages read more than they show: no index has both terms, and one finds nothing by what is unequal."""
LISTS: Mapping[str, Mapping[str, str]] = {
    "all calls": {},
    "one map": {"labelSelector": f"{MAP}=map-42"},
    "wide map": {"labelSelector": f"{MAP}={WIDE_MAP}"},
    "large function": {"labelSelector": f"{FUNCTION}=large"},
    "medium function": {"labelSelector": f"{FUNCTION}=medium"},
    "small function": {"labelSelector": f"{FUNCTION}=small"},
    "phase Succeeded": {"fieldSelector": "status.phase=Succeeded"},
    "phase Failed": {"fieldSelector": "status.phase=Failed"},
    "phase Cancelled": {"fieldSelector": "status.phase=Cancelled"},
    "phase Queued": {"fieldSelector": "status.phase=Queued"},
    "small function, Failed": {"labelSelector": f"{FUNCTION}=small", "fieldSelector": "status.phase=Failed"},
    "large function, not Succeeded": {
        "labelSelector": f"{FUNCTION}=large",
        "fieldSelector": "status.phase!=Succeeded",
    },
}

PAST_LISTS = ("all calls", "large function", "phase Succeeded")

_FLOOR = """
SELECT doc FROM objects WHERE kind = 'FunctionCall' AND org = $1 AND project = $2 AND name > $3 ORDER BY name LIMIT $4
"""


@dataclass
class Walk:
    """A list read to its end."""

    names: list[str]
    tokens: list[str]
    seconds: list[float]


class Pages:
    """A client of one API process that times its pages."""

    def __init__(self, installation: Installation, process: ApiProcess, client: aiohttp.ClientSession) -> None:
        self._installation = installation
        self._process = process
        self._client = client
        self._random = random.Random(1)
        self._floor: list[float] = []
        self.walks: dict[str, Walk] = {}

    async def measure(self, pages_max: int, samples: int) -> list[Figure]:
        """The figures of all lists; a walk ends after `pages_max` pages."""
        self._floor = await self.floor(samples)
        figures = [
            Figure(name=f"floor: SQL and JSON of a page, p{percent}", value=percentile(self._floor, percent), unit="ms")
            for percent in (50, 99)
        ]
        for name, query in LISTS.items():
            walk = await self.walk(query, pages_max)
            self.walks[name] = walk
            figures += await self._figures(name, query, walk, samples)
        return figures

    async def of_the_past(self, writes: int, samples: int) -> list[Figure]:
        """Pages whose tokens were given out before so many calls were written: they must not show these."""
        figures = []
        for name in PAST_LISTS:
            figures += await self._figures(f"{name}, {writes:,} writes ago", LISTS[name], self.walks[name], samples)
        return figures

    async def walk(self, query: Mapping[str, str], pages_max: int) -> Walk:
        """Read a list page by page, and see that it is in order and holds nothing twice."""
        found, token = Walk([], [], []), ""
        while True:
            seconds, page = await self._page(query, token)
            found.seconds.append(seconds)
            found.names += [item["metadata"]["name"] for item in page["items"]]
            token = page["metadata"].get("continue", "")
            if not token or len(found.seconds) == pages_max:
                break
            found.tokens.append(token)
        if found.names != sorted(set(found.names)):
            raise AssertionError(f"the list of {dict(query)} is out of order or shows a call twice")
        return found

    async def floor(self, samples: int) -> list[float]:
        """Milliseconds of the least work for a page at random depth."""
        connection = await asyncpg.connect(self._installation.settings.database_url)
        try:
            names = await connection.fetch(
                "SELECT name FROM objects WHERE kind = 'FunctionCall' ORDER BY md5(name) LIMIT $1", samples
            )
            taken = []
            for row in names:
                begun = time.perf_counter()
                page = await connection.fetch(_FLOOR, ORG, PROJECT, row["name"], LIMIT)
                b'{"items":[%s]}' % b",".join([found["doc"].encode() for found in page])
                taken.append((time.perf_counter() - begun) * 1e3)
            return taken
        finally:
            await connection.close()

    async def _figures(self, name: str, query: Mapping[str, str], walk: Walk, samples: int) -> list[Figure]:
        depths = [self._random.choice(["", *walk.tokens]) for _ in range(samples)]
        api, database = self._process.cpu_seconds(), self._installation.database_cpu_seconds()
        timed = [(await self._page(query, token))[0] * 1e3 for token in depths]
        api = (self._process.cpu_seconds() - api) / samples * 1e3
        database = (self._installation.database_cpu_seconds() - database) / samples * 1e3
        bounded = name not in UNBOUNDED
        return [
            Figure(
                name=f"{name}: page, p50",
                value=percentile(timed, 50),
                unit="ms",
                floor=percentile(self._floor, 50),
            ),
            Figure(
                name=f"{name}: page, p99",
                value=percentile(timed, 99),
                unit="ms",
                bound=PAGE_P99_MILLISECONDS_MAX if bounded else None,
                floor=percentile(self._floor, 99),
                note=f"slowest of the walk {max(walk.seconds) * 1e3:.0f} ms",
            ),
            Figure(
                name=f"{name}: CPU of a page",
                value=api + database,
                unit="ms",
                bound=PAGE_CPU_MILLISECONDS_MAX if bounded else None,
                note=f"{api:.1f} api, {database:.1f} database",
            ),
        ]

    async def _page(self, query: Mapping[str, str], token: str) -> tuple[float, dict[str, Any]]:
        asked = {**query, "limit": str(LIMIT), **({"continue": token} if token else {})}
        begun = time.perf_counter()
        async with self._client.get(self._process.url + CALLS, params=asked) as response:
            body = await response.read()
        seconds = time.perf_counter() - begun
        if response.status != 200:
            raise AssertionError(f"a page was answered with {response.status}: {body[:500]!r}")
        return seconds, orjson.loads(body)
