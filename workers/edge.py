"""The HTTP edge of a process: the application over an open core.

Split from `wiring.py` so that processes which serve no HTTP do not load it. Routes of more than objects (claims, logs,
blobs, nodes) are joined here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from api.app import create_app
from api.audit_events import AuditEventRoutes
from api.billing import BillingRoutes
from api.blobs import BlobRoutes
from api.calls import ViewRoutes
from api.cancels import CancelsRoute
from api.claims import ClaimsRoute
from api.deps import Deps, SubresourceHandler
from api.login import LoginRoutes
from api.login_pages import AddressLimits, LoginDeps, LoginPages
from api.logs import LogRoutes
from api.node import NodeRoutes
from api.node_images import NodeImageRoutes
from api.quotas import QuotaRoutes
from api.service_accounts import ServiceAccountRoutes
from api.streams import Streams
from controlplane.audit.reading import AuditLog
from controlplane.audit.refusals import AuditQueue
from controlplane.calls.cancels import WaitingCancels
from controlplane.calls.dispatcher import Dispatcher
from controlplane.calls.evidence import LateReports
from controlplane.calls.function_charges import FunctionAuditor
from controlplane.calls.inspection import CallInspector
from controlplane.capacity.leases import AttemptLeases
from controlplane.identity.authenticator import Authenticator
from controlplane.identity.joining import Joining
from controlplane.identity.login_tickets import Tickets
from controlplane.identity.logins import Logins
from controlplane.identity.tokens import TokenHasher
from controlplane.kinds.registry import BY_PLURAL
from controlplane.ledger.grants import Grants
from controlplane.ledger.statements import Statements
from controlplane.ledger.usage import Usage
from controlplane.limits.quota_view import QuotaView
from controlplane.logs.news import LogNews
from controlplane.logs.reader import LogReader
from controlplane.logs.rows import LogWriter
from controlplane.settings import Settings
from controlplane.store.changes import ChangeFeed
from controlplane.store.database import Database
from controlplane.store.watch import Watches
from workers.metrics_server import metrics_served
from workers.wiring import Core, open_core

RELEASE = "0.1.0"
"""The build that answers; equals the version in pyproject.toml."""


@contextlib.asynccontextmanager
async def open_api(settings: Settings) -> AsyncIterator[tuple[ASGIApp, ChangeFeed, Callable[[], None]]]:
    """The application, the feed that it cannot do without, and what to call when the process was asked to stop."""
    async with open_core(settings) as core, open_edge(core) as (deps, stop):
        with metrics_served(settings, core.writer.stats):
            yield create_app(deps), core.feed, stop


@contextlib.asynccontextmanager
async def open_edge(core: Core) -> AsyncIterator[tuple[Deps, Callable[[], None]]]:
    """What the application is made of, with what runs beside it, and what to call when it is to stop."""
    async with asyncio.TaskGroup() as background:
        cancels = WaitingCancels(core.database)
        deps = _deps(core, cancels)
        core.feed.add_listener(cancels.on_changes)
        core.feed.add_listener(core.waiting.on_changes)
        running = [
            background.create_task(core.waiting.run(core.writer.write, lambda: core.dispatcher.gated)),
            background.create_task(deps.audit.run(), name="audit queue"),
        ]

        def stop() -> None:
            deps.stopping.set()
            core.waiting.close()
            cancels.close()

        try:
            yield deps, stop
        finally:
            for task in running:
                task.cancel()


def _deps(core: Core, cancels: WaitingCancels) -> Deps:
    news = LogNews(core.database, core.feed, core.settings)
    reader = LogReader(
        database=core.database,
        objects=core.objects,
        cache=core.cache,
        news=news,
        settings=core.settings,
        clock=core.clock,
    )
    joining = Joining(core.database, core.writer, TokenHasher(core.settings.secret_key), core.clock)
    authenticate = Authenticator(core.database, core.settings, core.clock, joining)
    stopping = asyncio.Event()
    streams = Streams(authenticate.look_again, stopping, core.settings.streams_per_credential_max)
    inspector = CallInspector(core.database, core.cache, core.placements, core.settings, core.clock)
    statements, grants = Statements(core.database, core.clock), Grants(core.database, core.clock)
    billing = BillingRoutes(statements, grants, Usage(core.database), core.settings, core.clock)
    logs = LogRoutes(reader, streams, core.settings)
    return Deps(
        settings=core.settings,
        clock=core.clock,
        kinds=BY_PLURAL,
        resources=core.resources,
        cache=core.cache,
        feed=core.feed,
        watches=Watches(core.database, core.feed, core.settings),
        authenticate=authenticate,
        streams=streams,
        audit=AuditQueue(core.writer, core.settings, core.clock),
        subresources={
            ("functions", "claims", "POST"): _claims(core),
            ("functions", "cancels", "POST"): CancelsRoute(core.writer, cancels, core.settings),
            **logs.subresources(),
            **ViewRoutes(inspector, FunctionAuditor(core.database)).subresources(),
            **ServiceAccountRoutes(core.resources, core.clock).subresources(),
            **billing.subresources(),
        },
        derived={
            **billing.derived(),
            **AuditEventRoutes(AuditLog(core.database), core.settings, core.clock).derived(),
            **QuotaRoutes(QuotaView(core.database), core.settings).derived(),
        },
        routes=[
            *BlobRoutes(core.blobs, core.resources.admission.require_project, core.settings).routes(),
            *_node_routes(core, news).routes(),
            *NodeImageRoutes(core.cache, core.writer, core.blobs).routes(),
            *_login_routes(core, authenticate, joining),
        ],
        required={
            "database": lambda: _database_answers(core.database),
            # Without it watches are silent, and what is cached to admit and dispatch calls is old.
            "changes": lambda: _feed_is_current(core.feed),
        },
        optional={"engine": lambda: _engine_keeps_up(core.dispatcher)},
        stopping=stopping,
        release=RELEASE,
    )


def _login_routes(core: Core, authenticate: Authenticator, joining: Joining) -> Sequence[BaseRoute]:
    hasher = TokenHasher(core.settings.secret_key)
    deps = LoginDeps(
        logins=Logins(core.database, core.settings, hasher, core.clock),
        tickets=Tickets(core.settings.secret_key, core.clock),
        limits=AddressLimits(core.settings),
        creator=core.resources.creator,
        identify=authenticate.people,
        accept=joining.accept,
        cache=core.cache,
        settings=core.settings,
        clock=core.clock,
    )
    return [*LoginRoutes(deps).routes(), *LoginPages(deps).routes()]


def _claims(core: Core) -> SubresourceHandler:
    return ClaimsRoute(
        writer=core.writer,
        waiting=core.waiting,
        settings=core.settings,
        clock=core.clock,
        blob_present=core.blobs.exists,
        redactor=core.secrets.redactor,
        late=LateReports(core.writer, core.settings, core.clock),
    )


def _node_routes(core: Core, news: LogNews) -> NodeRoutes:
    leases = AttemptLeases(
        database=core.database,
        cache=core.cache,
        writer=core.writer,
        secrets=core.secrets,
        hasher=TokenHasher(core.settings.secret_key),
        clock=core.clock,
    )
    return NodeRoutes(leases, LogWriter(core.database, news, core.settings), core.settings)


async def _database_answers(database: Database) -> bool:
    return bool(await database.fetchval("SELECT true"))


async def _feed_is_current(feed: ChangeFeed) -> bool:
    return feed.current


async def _engine_keeps_up(dispatcher: Dispatcher) -> bool:
    """An API has no client of the engine; what it knows is whether workflows lag beyond their budget."""
    return not dispatcher.gated
