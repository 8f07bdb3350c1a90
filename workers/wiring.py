"""The composition root: from settings to the parts of a process.

The only module that reads the environment and the only one that knows how the parts fit. `open_core` opens what every
process that touches SQL shares, in the order that loses nothing (the feed before the cache that listens to it) and
closes it in the opposite one; `open_api` adds the edge. Next: `api.py`, `control.py`, `node.py` run the result.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from controlplane.clock import Clock, SystemClock
from controlplane.kinds.registry import KINDS
from controlplane.settings import Settings
from controlplane.store.cache import ObjectCache
from controlplane.store.changes import ChangeFeed
from controlplane.store.database import Database
from controlplane.store.objects import Objects
from controlplane.store.writer import Writer

CACHED_KINDS = frozenset({"App", "Function", "Image", "Project", "Secret"})
"""What creating and dispatching a call asks about; they change seldom."""


def read_settings(**decided: str) -> Settings:
    """The settings of the environment; `decided` ones count more."""
    return Settings(**decided)  # type: ignore[arg-type]  # text, as the environment has it


@dataclass(frozen=True, kw_only=True)
class Core:
    """What every process that reads and writes objects works with."""

    settings: Settings
    clock: Clock
    database: Database
    feed: ChangeFeed
    writer: Writer
    objects: Objects
    cache: ObjectCache


@contextlib.asynccontextmanager
async def open_core(settings: Settings) -> AsyncIterator[Core]:
    """Open the store; on the way out what waits is committed first."""
    clock = SystemClock()
    database = Database(settings.database_url, settings.database_pool_size)
    feed = ChangeFeed(database, settings)
    writer = Writer(database=database, clock=clock, kinds=KINDS, feed=feed, settings=settings)
    cache = ObjectCache(database, feed, CACHED_KINDS)
    async with contextlib.AsyncExitStack() as closing:
        await database.open()
        closing.push_async_callback(database.close)
        await feed.start()
        closing.push_async_callback(feed.stop)
        await cache.start()
        await writer.start()
        closing.push_async_callback(writer.stop)
        yield Core(
            settings=settings,
            clock=clock,
            database=database,
            feed=feed,
            writer=writer,
            objects=Objects(database),
            cache=cache,
        )
