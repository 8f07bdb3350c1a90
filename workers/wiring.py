"""The composition root: from settings to the parts of a process.

The only module that reads the environment and the only one that knows how the parts fit. `open_core` opens what every
process that touches SQL shares, in the order that loses nothing (the feed before the cache that listens to it) and
closes it in the opposite one; `open_api` adds the edge. Next: `api.py`, `control.py`, `node.py` run the result.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass

from starlette.types import ASGIApp

from api.app import create_app
from api.blobs import BlobRoutes
from api.claims import ClaimsRoute
from api.deps import Deps, SubresourceHandler
from controlplane.blobs.service import BlobStore, open_blob_store
from controlplane.calls.dispatcher import Dispatcher
from controlplane.calls.hooks import FunctionCallHooks
from controlplane.calls.waiting import WaitingClaims
from controlplane.clock import Clock, SystemClock
from controlplane.identity.authenticator import Authenticator
from controlplane.kinds.registry import BY_PLURAL, KINDS
from controlplane.resources import Resources, build
from controlplane.secrets.environment import SecretReader
from controlplane.secrets.hooks import SecretHooks
from controlplane.secrets.sealing import SecretSealer
from controlplane.settings import Settings
from controlplane.store.cache import ObjectCache
from controlplane.store.changes import ChangeFeed
from controlplane.store.database import Database
from controlplane.store.hooks import KindHooks
from controlplane.store.objects import Objects
from controlplane.store.watch import Watches
from controlplane.store.writer import Writer

RELEASE = "0.1.0"
"""The build that answers; equals the version in pyproject.toml."""
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
    waiting: WaitingClaims
    dispatcher: Dispatcher
    blobs: BlobStore
    secrets: SecretReader
    resources: Resources


@contextlib.asynccontextmanager
async def open_core(settings: Settings) -> AsyncIterator[Core]:
    """Open the store; on the way out what waits is committed first."""
    clock = SystemClock()
    database = Database(settings.database_url, settings.database_pool_size)
    feed = ChangeFeed(database, settings)
    writer = Writer(database=database, clock=clock, kinds=KINDS, feed=feed, settings=settings)
    objects = Objects(database)
    cache = ObjectCache(database, feed, CACHED_KINDS)
    waiting = WaitingClaims()
    # Every process that writes calls needs it, also one that serves no claims: it writes the rows of the queue.
    dispatcher = Dispatcher(cache, waiting, settings)
    writer.add_hook(dispatcher)
    sealer = SecretSealer(settings.secret_key)
    async with contextlib.AsyncExitStack() as closing:
        await database.open()
        closing.push_async_callback(database.close)
        await feed.start()
        closing.push_async_callback(feed.stop)
        await cache.start()
        await writer.start()
        closing.push_async_callback(writer.stop)
        blobs = await open_blob_store(database, settings, clock)
        resources = build(
            database=database,
            writer=writer,
            objects=objects,
            cache=cache,
            feed=feed,
            kinds=KINDS,
            hooks=kind_hooks(sealer),
            blob_exists=blobs.exists,
            settings=settings,
            clock=clock,
        )
        yield Core(
            settings=settings,
            clock=clock,
            database=database,
            feed=feed,
            writer=writer,
            objects=objects,
            cache=cache,
            waiting=waiting,
            dispatcher=dispatcher,
            blobs=blobs,
            secrets=SecretReader(database, cache, sealer),
            resources=resources,
        )


def kind_hooks(sealer: SecretSealer) -> Mapping[str, KindHooks]:
    """What some kinds do inside the transaction of a generic verb; the others do nothing."""
    return {"FunctionCall": FunctionCallHooks(), "Secret": SecretHooks(sealer)}


@contextlib.asynccontextmanager
async def open_api(settings: Settings) -> AsyncIterator[tuple[ASGIApp, Callable[[], None]]]:
    """The application, and what to call when the process was asked to stop."""
    async with open_core(settings) as core, asyncio.TaskGroup() as background:
        deps = _deps(core)
        core.feed.add_listener(core.waiting.on_changes)
        serving = background.create_task(core.waiting.run(core.writer.write, lambda: core.dispatcher.gated))

        def stop() -> None:
            deps.stopping.set()
            core.waiting.close()

        try:
            yield create_app(deps), stop
        finally:
            serving.cancel()


def _deps(core: Core) -> Deps:
    return Deps(
        settings=core.settings,
        clock=core.clock,
        kinds=BY_PLURAL,
        resources=core.resources,
        objects=core.objects,
        cache=core.cache,
        feed=core.feed,
        watches=Watches(core.database, core.feed, core.settings),
        authenticate=Authenticator(core.database, core.settings, core.clock),
        subresources=_subresources(core),
        routes=[*BlobRoutes(core.blobs, core.settings).routes()],
        required={"database": lambda: _database_answers(core.database)},
        optional={"engine": lambda: _engine_keeps_up(core.dispatcher)},
        release=RELEASE,
    )


def _subresources(core: Core) -> Mapping[tuple[str, str, str], SubresourceHandler]:
    claims = ClaimsRoute(
        writer=core.writer,
        waiting=core.waiting,
        settings=core.settings,
        blob_present=core.blobs.exists,
        redactor=core.secrets.redactor,
    )
    return {("functions", "claims", "POST"): claims}


async def _database_answers(database: Database) -> bool:
    return bool(await database.fetchval("SELECT true"))


async def _engine_keeps_up(dispatcher: Dispatcher) -> bool:
    """An API has no client of the engine; what it knows is whether workflows lag beyond their budget."""
    return not dispatcher.gated
