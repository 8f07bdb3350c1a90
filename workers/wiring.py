"""The composition root: from settings to the parts of a process.

The only place that knows how the parts fit. `open_core` opens what every process that touches SQL shares, in the order
that loses nothing (the feed before the cache that listens to it), and closes it in the opposite one. Next: `edge.py`
adds the HTTP edge, `control.py` the engine.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from controlplane import failpoints
from controlplane.blobs.service import BlobStore, open_blob_store
from controlplane.calls.dispatcher import Dispatcher
from controlplane.calls.hooks import FunctionCallHooks
from controlplane.calls.waiting import WaitingClaims
from controlplane.clock import Clock
from controlplane.identity.api_keys import ApiKeyHooks
from controlplane.identity.invites import InviteHooks
from controlplane.identity.owners import MemberHooks, ServiceAccountHooks
from controlplane.identity.tokens import TokenHasher
from controlplane.kinds.accelerators import offer_accelerators
from controlplane.kinds.registry import KINDS
from controlplane.ledger.budget_hooks import BudgetHooks, CapHooks
from controlplane.ledger.limits import SpendingLimits
from controlplane.ledger.pricebook import load_books
from controlplane.limits.projects import ProjectHooks
from controlplane.limits.switches import Switches
from controlplane.placement.placements import Placements
from controlplane.resources import Resources, build
from controlplane.secrets.environment import SecretReader
from controlplane.secrets.hooks import SecretHooks
from controlplane.secrets.sealing import SecretSealer, secret_sealer
from controlplane.settings import Settings
from controlplane.store.cache import ObjectCache
from controlplane.store.changes import ChangeFeed
from controlplane.store.database import Database
from controlplane.store.hooks import KindHooks
from controlplane.store.objects import Objects
from controlplane.store.server_clock import DatabaseClock
from controlplane.store.writer import Writer

CACHED_KINDS = frozenset({"App", "Budget", "Function", "Image", "Project", "Secret", "ServiceAccount"})
"""What creating and dispatching a call asks about; they change seldom."""


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
    sealer: SecretSealer
    resources: Resources
    switches: Switches
    placements: Placements


@contextlib.asynccontextmanager
async def open_core(settings: Settings) -> AsyncIterator[Core]:
    """Open the store; on the way out what waits is committed first."""
    failpoints.watch_folder(settings.failpoints_dir)
    offer_accelerators(settings.accelerators_offered)
    database = Database(settings.database_url, settings.database_pool_size)
    clock = DatabaseClock(database)
    placements = Placements(load_books(settings.pricebook_file), settings, clock)
    feed = ChangeFeed(database, settings)
    writer = Writer(database=database, clock=clock, kinds=KINDS, feed=feed, settings=settings)
    objects = Objects(database)
    cache = ObjectCache(database, feed, CACHED_KINDS)
    waiting, switches = WaitingClaims(), Switches(database, settings.switch_poll_seconds)
    # Every process that writes calls needs it, also one that serves no claims: it writes the rows of the queue.
    dispatcher = Dispatcher(cache, switches, waiting, settings)
    writer.add_hook(dispatcher)
    sealer = secret_sealer(settings)
    secrets = SecretReader(database, cache, sealer)
    async with contextlib.AsyncExitStack() as closing:
        await database.open()
        closing.push_async_callback(database.close)
        for part in (clock, switches, feed):
            await part.start()
            closing.push_async_callback(part.stop)
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
            hooks=kind_hooks(sealer, TokenHasher(settings.secret_key), cache, settings, placements),
            blob_exists=blobs.exists,
            secrets_holding=secrets.holding,
            settings=settings,
            clock=clock,
            switches=switches,
            placements=placements,
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
            secrets=secrets,
            sealer=sealer,
            resources=resources,
            switches=switches,
            placements=placements,
        )


def kind_hooks(
    sealer: SecretSealer, hasher: TokenHasher, cache: ObjectCache, settings: Settings, placements: Placements
) -> Mapping[str, KindHooks]:
    """What some kinds do inside the transaction of a generic verb; the others do nothing."""
    return {
        "FunctionCall": FunctionCallHooks(SpendingLimits(cache), settings, placements),
        "Budget": BudgetHooks(),
        "Project": ProjectHooks(),
        "Function": CapHooks(),
        "Secret": SecretHooks(sealer),
        "Member": MemberHooks(),
        "ServiceAccount": ServiceAccountHooks(),
        "APIKey": ApiKeyHooks(sealer, hasher),
        "Invite": InviteHooks(sealer, hasher),
    }
