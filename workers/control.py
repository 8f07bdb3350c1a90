"""The control process: workflows, and the activities that touch SQL.

Any number of them share the work; the controllers (`activities/controllers.py`) run in one of them at a time. The
process needs PostgreSQL to start and waits for Temporal, before the start and at any time later, without failing: what
must happen is in SQL, and what must wait, waits. It ends with an error when it finds itself wedged (`watchdog.py`) or
its change feed has ended, so that its supervisor starts a fresh one.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta

import structlog
from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import Worker

from activities.apps import AppKeeper
from activities.attempts import AttemptActivities
from activities.audit_keeper import AuditKeeper
from activities.autoscaler import Autoscaler
from activities.budgets import BudgetKeeper
from activities.calls import CallActivities
from activities.census import CENSUS_SECONDS, Census
from activities.chores import Keeper
from activities.controller_contract import ControllerName
from activities.controllers import ControllerActivities, ControllerLoop, Together
from activities.credentials_keeper import CredentialsKeeper
from activities.departures import Departures
from activities.engine import Engine, EngineUnavailableError
from activities.estimates_keeper import EstimatesKeeper
from activities.farewell import Farewell
from activities.funds_keeper import FundsKeeper
from activities.images import ImageActivities, ImageKeeper
from activities.incarnation import EngineKeeper
from activities.ledger_keeper import LedgerKeeper
from activities.offerings import OfferingKeeper
from activities.queue_explainer import QueueExplainer
from activities.retention import Retention
from activities.run_call_contract import CONTROL_TASK_QUEUE
from activities.starter import AttachBoard, Starter
from activities.sweeper import Sweeper
from controlplane.calls.outcomes import CallRules
from controlplane.errors import ApiError
from controlplane.ledger.worker_accounts import FundingRules
from controlplane.settings import Settings
from workers.heap import keep
from workers.metrics_server import metrics_served
from workers.sandbox import production_runner
from workers.watchdog import watch
from workers.wiring import Core, open_core
from workflows.registry import WORKFLOWS

log = structlog.get_logger(__name__)

BUILD_ID = "control"
"""Constant: without one the SDK hashes every module at start, about a second."""
CONNECT_RETRY_SECONDS = 0.5
KEEP_SECONDS = 10.0
HEARTBEAT_EVERY = timedelta(seconds=2)
"""The SDK would send the heartbeats of controllers 4 s apart, too close to their limit of 5 s for a busy machine."""
STOP_WITHIN = timedelta(seconds=5)
STICKY_WITHIN = timedelta(seconds=3)
"""The news of a workflow waits this long for the process that has it in its cache. The engine's own 10 s would be how
long a worker's end stays unknown after a restart of this process; replaying a history that was not lost costs less."""
ACTIVITIES_MAX = 200
CACHED_WORKFLOWS_MAX = 2_000
"""Waiting calls beyond this are replayed when their outcome comes; each takes some 50 KB of memory meanwhile."""


async def run_control(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT. Raises WedgedError when workflows are accepted and not run."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with open_core(settings) as core:
        client = await connected(settings, stop)
        if client is not None:
            with metrics_served(settings, core.writer.stats):
                await serve(core, client, stop)
    log.info("stopped")


async def connected(settings: Settings, stop: asyncio.Event) -> Client | None:
    """A client of Temporal, as soon as it answers; None when asked to stop before."""
    told = False
    while not stop.is_set():
        try:
            return await Client.connect(settings.temporal_address, namespace=settings.temporal_namespace)
        except (RuntimeError, RPCError) as error:
            if not told:
                log.warning("waiting for Temporal", address=settings.temporal_address, told=str(error).splitlines()[0])
                told = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CONNECT_RETRY_SECONDS):
                await stop.wait()
    return None


async def serve(core: Core, client: Client, stop: asyncio.Event) -> None:
    """Run workflows, activities and controllers over an open core until `stop` is set."""
    control = Control(core, client)
    worker = Worker(
        client,
        task_queue=CONTROL_TASK_QUEUE,
        workflows=WORKFLOWS,
        activities=control.activities,
        workflow_runner=production_runner(),
        build_id=BUILD_ID,
        max_concurrent_workflow_tasks=core.settings.workflow_tasks_max,
        max_concurrent_activities=ACTIVITIES_MAX,
        max_cached_workflows=CACHED_WORKFLOWS_MAX,
        max_heartbeat_throttle_interval=HEARTBEAT_EVERY,
        sticky_queue_schedule_to_start_timeout=STICKY_WITHIN,
        graceful_shutdown_timeout=STOP_WITHIN,
    )
    keep()
    async with worker:
        background = [
            asyncio.create_task(_repeat(control.keeper.keep, KEEP_SECONDS), name="engine keeper"),
            asyncio.create_task(watch(client, core.settings.canary_seconds), name="watchdog"),
            asyncio.create_task(core.feed.ended(), name="feed watch"),
            asyncio.create_task(_repeat(Census(core.database).take, CENSUS_SECONDS), name="census"),
        ]
        log.info("started", temporal=core.settings.temporal_address)
        stopped = asyncio.create_task(stop.wait())
        try:
            done, _ = await asyncio.wait([stopped, *background], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if task is not stopped:
                    log.critical("this process ends, so that its supervisor starts another", ended=task.get_name())
                task.result()
        finally:
            for task in (stopped, *background):
                task.cancel()


class Control:
    """The parts of a control process, wired to each other."""

    def __init__(self, core: Core, client: Client) -> None:
        settings, clock = core.settings, core.clock
        database, writer, feed, cache = core.database, core.writer, core.feed, core.cache
        deleter, rules = core.resources.deleter, CallRules.from_settings(settings)
        engine = Engine(client, settings.engine_call_seconds_max)
        board = AttachBoard()
        funding = FundingRules.from_settings(settings)
        attempts = AttemptActivities(writer, rules, funding, clock)
        departures = Departures(
            database=database, writer=writer, engine=engine, attempts=attempts, settings=settings, clock=clock
        )
        starter = Starter(
            database=database, writer=writer, feed=feed, engine=engine, board=board, settings=settings, clock=clock
        )
        explainer = QueueExplainer(database, writer, settings, clock)
        autoscaler = Autoscaler(
            database=database,
            writer=writer,
            feed=feed,
            cache=cache,
            engine=engine,
            departures=departures,
            farewell=Farewell(writer, deleter, rules),
            explainer=explainer,
            redactor=core.secrets.redactor,
            switches=core.switches,
            placements=core.placements,
            settings=settings,
            clock=clock,
        )
        sweeper = Sweeper(
            database=database,
            writer=writer,
            cache=cache,
            engine=engine,
            deleter=deleter,
            departures=departures,
            attempts=attempts,
            keepers=_keepers(core, funding),
            explainer=explainer,
            settings=settings,
            clock=clock,
        )
        loops: dict[ControllerName, ControllerLoop] = {
            ControllerName.STARTER: starter,
            ControllerName.AUTOSCALER: Together(
                autoscaler,
                AppKeeper(writer=writer, feed=feed, cache=cache),
                ImageKeeper(feed=feed, cache=cache, engine=engine, settings=settings),
            ),
            ControllerName.SWEEPER: sweeper,
        }
        calls = CallActivities(writer, board.attached)
        controllers = ControllerActivities(loops, settings.controller_round_seconds)
        self.activities = [*calls.all, *attempts.all, *ImageActivities(database, writer).all, *controllers.all]
        self.keeper = EngineKeeper(database=database, writer=writer, engine=engine, attempts=attempts)


def _keepers(core: Core, funding: FundingRules) -> Sequence[Keeper]:
    """Who brings the sweeper chores."""
    database, writer, clock = core.database, core.writer, core.clock
    return (
        LedgerKeeper(database, writer, clock),
        FundsKeeper(database, writer, core.cache, funding, clock),
        BudgetKeeper(database, writer, core.cache, clock),
        OfferingKeeper(database, writer, clock, core.placements.books),
        EstimatesKeeper(
            database=database,
            writer=writer,
            cache=core.cache,
            estimator=core.resources.estimator,
            placements=core.placements,
            clock=clock,
        ),
        CredentialsKeeper(database, writer, clock),
        AuditKeeper(database, writer, core.settings, clock),
        Retention(
            database=database,
            cache=core.cache,
            deleter=core.resources.deleter,
            blobs=core.blobs,
            sealer=core.sealer,
            settings=core.settings,
            clock=clock,
        ),
    )


async def _repeat(do: Callable[[], Awaitable[None]], seconds: float) -> None:
    """Do it every so often, however often it cannot be done."""
    while True:
        try:
            await do()
        except EngineUnavailableError as error:
            log.warning("the engine does not answer", told=str(error))
        except ApiError as error:
            log.warning("the database does not answer", told=error.message)
        await asyncio.sleep(seconds)
