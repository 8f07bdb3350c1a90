"""The HTTP edge of a process: the application over an open core.

Split from `wiring.py` so that processes which serve no HTTP do not load it. Routes of more than objects (claims, logs,
blobs, nodes) are joined here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping

from starlette.types import ASGIApp

from api.app import create_app
from api.blobs import BlobRoutes
from api.claims import ClaimsRoute
from api.deps import Deps, SubresourceHandler
from controlplane.calls.dispatcher import Dispatcher
from controlplane.identity.authenticator import Authenticator
from controlplane.kinds.registry import BY_PLURAL
from controlplane.settings import Settings
from controlplane.store.database import Database
from controlplane.store.watch import Watches
from workers.wiring import Core, open_core

RELEASE = "0.1.0"
"""The build that answers; equals the version in pyproject.toml."""


@contextlib.asynccontextmanager
async def open_api(settings: Settings) -> AsyncIterator[tuple[ASGIApp, Callable[[], None]]]:
    """The application, and what to call when the process was asked to stop."""
    async with open_core(settings) as core, open_edge(core) as (deps, stop):
        yield create_app(deps), stop


@contextlib.asynccontextmanager
async def open_edge(core: Core) -> AsyncIterator[tuple[Deps, Callable[[], None]]]:
    """What the application is made of, with what runs beside it, and what to call when it is to stop."""
    async with asyncio.TaskGroup() as background:
        deps = _deps(core)
        core.feed.add_listener(core.waiting.on_changes)
        serving = background.create_task(core.waiting.run(core.writer.write, lambda: core.dispatcher.gated))

        def stop() -> None:
            deps.stopping.set()
            core.waiting.close()

        try:
            yield deps, stop
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
