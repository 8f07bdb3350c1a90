"""A log store over a fresh database, without an edge."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from controlplane.logs.news import LogNews
from controlplane.logs.reader import LogOptions, LogReader
from controlplane.logs.rows import LogChunk, LogWriter
from controlplane.settings import Settings
from controlplane.store.contract import Key
from tests.fixtures.plane import Plane

SECOND = 1_000_000_000


@dataclass(frozen=True)
class Logs:
    """What one API process has for logs."""

    plane: Plane
    news: LogNews
    writer: LogWriter
    reader: LogReader

    async def print(self, attempt: str, seq: int, *texts: str, at: int | None = None) -> None:
        """Store lines of a worker, one nanosecond apart."""
        start = at if at is not None else seq * SECOND
        lines = [(start + index, "stdout", text) for index, text in enumerate(texts)]
        await self.writer.append(attempt, [LogChunk(seq, lines)])

    async def text(self, key: Key, options: LogOptions = LogOptions()) -> str:  # noqa: B008 - frozen
        """A whole log."""
        return b"".join([chunk async for chunk in await self.reader.read(key, options)]).decode()


MakeLogs = Callable[..., Logs]


@pytest.fixture
def make_logs(plane: Plane) -> MakeLogs:
    """Another API process over the same database, with these settings changed."""

    def make(**changes: object) -> Logs:
        core = plane.core
        settings: Settings = plane.settings.model_copy(update=changes)
        news = LogNews(core.database, core.feed, settings)
        reader = LogReader(
            database=core.database,
            objects=core.objects,
            cache=core.cache,
            news=news,
            settings=settings,
            clock=core.clock,
        )
        return Logs(plane, news, LogWriter(core.database, news, settings), reader)

    return make


@pytest.fixture
def logs(make_logs: MakeLogs) -> Logs:
    return make_logs()


MakeFunction = Callable[..., Awaitable[Key]]


@pytest.fixture
def make_function(plane: Plane) -> MakeFunction:
    """Creates a Function with workers `<name>-1`, `<name>-2`, …; returns its key."""

    async def make(name: str, workers: int = 1) -> Key:
        spec = {"code": {"module": "app", "qualname": "f"}, "python": "3.11"}
        created = await plane.create("Function", {"metadata": {"name": name}, "spec": spec})
        uid = created["metadata"]["uid"]
        for number in range(1, workers + 1):
            await plane.attempt(f"{name}-{number}", function=name, function_uid=uid)
        return Key("Function", "default", "default", name)

    return make
