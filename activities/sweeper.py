"""The sweeper: whatever should have happened by now and did not.

A list of chores, each with its period. Every chore looks at what is there and does what is due, a bounded piece at a
time, so it may run at any time, twice, or after a crash. What a chore cannot do now, because the engine or the
database is away, it does at its next turn. Chores about workers and calls are here; forgetting old things is in
`activities/retention.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import structlog

from activities.attempts import AttemptActivities
from activities.chores import Chore, Keeper
from activities.departures import Departures
from activities.engine import Engine, EngineUnavailableError
from activities.queue_explainer import QueueExplainer
from activities.run_worker_contract import NODE_LOST, PLATFORM_AWAY
from controlplane.apps.expiry import expires_at
from controlplane.calls.engine import DetachWorkflow, MarkReported
from controlplane.calls.outcomes import CallRules
from controlplane.calls.queries import SILENT_FROM_THE_START, CallQueries
from controlplane.calls.recovery import EndOverdue, EndUnserved, LoseAttempt
from controlplane.calls.rows import CallRef
from controlplane.capacity.endings import WorkerEnd
from controlplane.capacity.patience import queue_patience, waits_since
from controlplane.capacity.pool import DrainReason
from controlplane.capacity.rows import AttemptState, WorkerQueries, WorkerRow
from controlplane.clock import Clock
from controlplane.errors import ApiError, Reason
from controlplane.kinds.starting import worker_start
from controlplane.resources import DeleteOptions, Propagation
from controlplane.resources.deletion import Deleter
from controlplane.settings import Settings
from controlplane.store.cache import ObjectCache
from controlplane.store.contract import Document, Key
from controlplane.store.database import Database
from controlplane.store.events import NORMAL, Happening, RecordEvent
from controlplane.store.writer import Writer

log = structlog.get_logger(__name__)

PER_TURN = 100
KILL_PATIENCE_SECONDS = 30
"""A worker whose lease ran out and whose end nobody could confirm by then is given up, and its calls with it."""
DRAIN_MARGIN_SECONDS = 15
"""The node kills after the drain grace; this much later it has evidently not."""
SILENT_SECONDS = 60
CANCELLED_WORKERS_MAX = 1_000
"""Looked at in one turn; nearly all of them stop their calls by themselves, in milliseconds."""
CANCELS_SECONDS = 0.5
"""A waiter is promised the end of a cancelled call within 5 s, and this is part of them."""
ASK_AGAIN_SECONDS = 300.0
FAULT_PAUSE_SECONDS = 5.0
"""More, before a chore is repeated that met what nobody foresaw: each time writes a traceback into the log."""
NOTHING = datetime.min.replace(tzinfo=UTC)
"""Before this time nothing was due."""


class Sweeper:
    """The loop. One object lives as long as its process; `run` is called whenever this process is elected."""

    def __init__(
        self,
        *,
        database: Database,
        writer: Writer,
        cache: ObjectCache,
        engine: Engine,
        deleter: Deleter,
        departures: Departures,
        attempts: AttemptActivities,
        keepers: Sequence[Keeper],
        explainer: QueueExplainer,
        settings: Settings,
        clock: Clock,
    ) -> None:
        self._database = database
        self._writer = writer
        self._cache = cache
        self._engine = engine
        self._deleter = deleter
        self._departures = departures
        self._attempts = attempts
        self._settings = settings
        self._clock = clock
        self._rules = CallRules.from_settings(settings)
        self._calls = CallQueries(database)
        self._workers = WorkerQueries(database)
        self._silent_after = SILENT_FROM_THE_START
        self._asked: dict[str, float] = {}
        self._heard_since = datetime.min.replace(tzinfo=UTC)
        """Leases and renewals count from here: nobody could give a sign of life while the server was away.

        Away is a controller that was not elected, or the database; what else a chore meets says nothing about who
        could be heard."""
        self.chores = (
            Chore("note absences of the database", 1.0, self.note_absences),
            Chore("end overdue calls", 1.0, self.end_overdue_calls),
            Chore("drain workers of cancelled threads", CANCELS_SECONDS, self.drain_running_on),
            Chore("drain workers that hear no cancel", CANCELS_SECONDS, self.drain_deaf),
            Chore("end lapsed leases", 1.0, self.end_lapsed_leases),
            Chore("kill silent workers of overdue calls", 1.0, self.kill_silent_workers),
            Chore("end unserved calls", 1.0, self.end_unserved_calls),
            Chore("recover orphaned calls", 30.0, self.recover_orphaned_calls),
            Chore("end stuck workers", CANCELS_SECONDS, self.end_stuck_workers),
            Chore("expire apps", 5.0, self.expire_apps),
            Chore("wake silent workflows", 10.0, self.wake_silent_workflows),
            Chore("explain late decisions", 5.0, explainer.explain_late_decisions),
            Chore("collect garbage", 30.0, self.collect_garbage),
            *(chore for keeper in keepers for chore in keeper.chores),
        )

    async def run(self) -> None:
        """Do each chore in its time until cancelled."""
        self._heard_since = self._clock.now()
        async with asyncio.TaskGroup() as group:
            for chore in self.chores:
                group.create_task(self._repeat(chore), name=chore.name)

    async def _repeat(self, chore: Chore) -> None:
        while True:
            try:
                await chore.do()
            except EngineUnavailableError as error:
                log.warning("a chore waits for the engine", chore=chore.name, told=str(error))
            except ApiError as error:
                log.warning("a chore failed and will be repeated", chore=chore.name, told=error.message)
            except Exception:
                # A fault that only one chore meets, of a disk or our own, must not end the others.
                log.exception("a chore failed unexpectedly and will be repeated", chore=chore.name)
                await asyncio.sleep(FAULT_PAUSE_SECONDS)
            await asyncio.sleep(chore.every_seconds)

    async def note_absences(self) -> None:
        """Look whether the database answers."""
        try:
            await self._database.reach()
        except ApiError:
            self._heard_since = self._clock.now()
            raise

    # Calls.

    async def end_overdue_calls(self) -> None:
        """End calls whose worker let their deadline, or their cancel, and the grace pass in silence."""
        settings = self._settings
        overdue = await self._calls.attempts_with_overdue_calls(
            self._clock.now(), settings.deadline_grace_seconds, settings.cancel_grace_seconds, PER_TURN
        )
        for uid in overdue:
            ended = await self._writer.write(EndOverdue(uid, self._rules))
            log.info("overdue calls ended", attempt=uid, calls=ended)

    async def drain_running_on(self) -> None:
        """Let workers go in which a thread goes on after its call was cancelled; they are killed when nothing else runs
        there."""
        now, settings = self._clock.now(), self._settings
        found = await self._calls.attempts_running_on(now - timedelta(seconds=settings.cancel_settle_seconds), PER_TURN)
        await self._release_cancelled(found, now, "cancelled calls run on, their workers are let go")

    async def drain_deaf(self) -> None:
        """Let workers go that were started by a command of their Function and hold a cancelled call.

        Nobody in them asks for cancels. Such a worker hears of one with its next claim, up to 5 s later, and cannot
        tell whether the body stopped, so it goes in any case; told to go, it claims at once.
        """
        now, settings = self._clock.now(), self._settings
        cancelled_before = now - timedelta(seconds=settings.cancel_settle_seconds)
        holders = await self._calls.attempts_to_stop_calls(cancelled_before, CANCELLED_WORKERS_MAX)
        deaf = [
            uid for uid, key in holders if (function := self._cache.get(key)) and worker_start(function["spec"]).command
        ]
        told = "cancelled calls run on workers that do not ask for cancels, these are let go"
        await self._release_cancelled(deaf, now, told)

    async def _release_cancelled(self, attempts: Sequence[str], now: datetime, told: str) -> None:
        """Drain workers for the cancelled calls on them; they are killed when nothing else runs there."""
        if attempts:
            kill_at = now + timedelta(seconds=self._settings.cancelled_thread_seconds)
            await self._departures.release(attempts, DrainReason.CANCELLED, kill_at)
            log.info(told, attempts=attempts)

    async def end_unserved_calls(self) -> None:
        """Fail queued calls that no worker took for the whole `placement.queueTimeout` of their Function: a batch of
        each Function in turn, until none of them has more."""
        now = self._clock.now()
        impatient = []
        for load in await self._calls.busy_loads():
            function = self._cache.get(Key("Function", load.org, load.project, load.function))
            if not load.queued or function is None or function["metadata"]["uid"] != load.function_uid:
                continue
            patience = queue_patience(function)
            if patience is not None and waits_since(function, now) + patience <= now:
                impatient.append((function, now - patience))
        while impatient:
            impatient = [each for each in impatient if await self._end_unserved(*each)]

    async def _end_unserved(self, function: Document, before: datetime) -> bool:
        """Fail the first calls of a Function that have waited since before a time; whether there may be more."""
        found = await self._calls.unserved(function["metadata"]["uid"], before, PER_TURN)
        if not found:
            return False
        told = function["spec"]["placement"]["queueTimeout"]
        ended = await self._writer.write(EndUnserved(found, before, told, self._rules))
        log.info("unserved calls ended", function=function["metadata"]["name"], calls=ended)
        return ended > 0

    async def recover_orphaned_calls(self) -> None:
        """Give back calls of workers that were closed without that."""
        for attempt in await self._calls.orphaned_attempts(PER_TURN):
            held = await self._writer.write(LoseAttempt(attempt.uid, attempt.epoch, None, self._rules))
            log.warning("calls of an ended worker were recovered", attempt=attempt.uid, calls=held)

    async def wake_silent_workflows(self) -> None:
        """Look after calls that have had something to tell for a minute and no workflow that asked."""
        before = self._clock.now() - timedelta(seconds=SILENT_SECONDS)
        at = asyncio.get_running_loop().time()
        self._asked = {uid: since for uid, since in self._asked.items() if since > at - ASK_AGAIN_SECONDS}
        look = await self._calls.silent_workflows(before, PER_TURN, self._silent_after)
        self._silent_after = look.next_after
        for call in look.calls:
            if call.uid in self._asked:
                continue
            self._asked[call.uid] = at
            await self._wake(call)

    async def _wake(self, call: CallRef) -> None:
        """A workflow that sleeps through a backoff only notes the signal; one that lost its activity asks anew."""
        if await self._engine.ask_again(call.uid):
            return
        # No workflow is left: an ended call needs none, any other gets a new one.
        await self._writer.write(MarkReported(call, None))
        await self._writer.write(DetachWorkflow(call, None))

    # Workers.

    async def end_lapsed_leases(self) -> None:
        """Kill workers that have not claimed for a lease, and give up those whose end nobody confirms."""
        now = self._clock.now()
        if self._heard_since + timedelta(seconds=self._settings.lease_seconds) > now:
            return  # Workers that live claim within a lease.
        lapsed = await self._calls.lapsed_attempts(now, self._settings.lease_seconds, PER_TURN)
        for row in await self._workers.rows([attempt.uid for attempt in lapsed]):
            if row.kill_at is not None and row.kill_at < now - timedelta(seconds=KILL_PATIENCE_SECONDS):
                log.warning("a worker vanished", attempt=row.uid, function=row.function)
                end = WorkerEnd(outcome=NODE_LOST, message="the worker sent no claim for the length of its lease")
                await self._attempts.settle(row.key, row.epoch, end)
            else:
                await self._departures.kill(row, "LeaseExpired")

    async def kill_silent_workers(self) -> None:
        """Kill workers that let the deadline or the cancel of all they hold, and the grace, pass without any claim.

        A body that blocks the event loop keeps its worker from claiming as well as from ending it. What becomes of its
        calls is decided when the worker is gone: one that died before its time, unseen, is lost.
        """
        now, settings = self._clock.now(), self._settings
        found = await self._calls.silent_attempts(
            self._passed_listening(settings.deadline_grace_seconds, now),
            self._passed_listening(settings.cancel_grace_seconds, now),
            PER_TURN,
        )
        reasons = {attempt.uid: attempt.reason for attempt in found}
        for row in await self._workers.rows(list(reasons)):
            log.info("a worker is silent past the end of its calls' time", attempt=row.uid, reason=reasons[row.uid])
            await self._departures.kill(row, reasons[row.uid])

    def _passed_listening(self, grace_seconds: float, now: datetime) -> datetime:
        """What was due before this time had its whole grace while workers could be heard."""
        due_before = now - timedelta(seconds=grace_seconds)
        return due_before if self._heard_since <= due_before else NOTHING

    async def end_stuck_workers(self) -> None:
        """Kill workers that hold no call and should be gone: after a deadline, a drain, or a start that took too
        long."""
        settings = self._settings
        stuck = await self._workers.stuck(
            self._clock.now(),
            settings.worker_start_seconds_max,
            settings.drain_seconds + DRAIN_MARGIN_SECONDS,
            PER_TURN,
        )
        for row in stuck:
            late = row.state == AttemptState.STARTING and not row.draining
            if late and row.created_at + await self._start_time(row) > self._clock.now():
                continue
            if late and not row.has_workflow:
                # The engine was away for all of its time: no node ever heard of it.
                end = WorkerEnd(outcome=PLATFORM_AWAY, message="the engine did not start it in the time it had")
                await self._attempts.settle(row.key, row.epoch, end)
                continue
            await self._departures.kill(row, "StartupTimeout" if late else row.drain_reason or "Drained")

    async def _start_time(self, row: WorkerRow) -> timedelta:
        """How long the worker may take to its first claim: what every one has, and the time of what comes before."""
        function = await self._cache.read(Key("Function", row.org, row.project, row.function))
        before_seconds_max = worker_start(function["spec"]).before_seconds_max if function is not None else 0
        return timedelta(seconds=self._settings.worker_start_seconds_max + before_seconds_max)

    # Objects.

    async def expire_apps(self) -> None:
        """Delete ephemeral Apps that their clients have left alone."""
        expiry = timedelta(seconds=self._settings.app_expiry_seconds)
        now = self._clock.now()
        if self._heard_since + expiry > now:
            return  # Clients that live renew within the time.
        for key, app in self._cache.of_kind("App"):
            due = expires_at(app, expiry)
            if due is not None and due <= now:
                await self._expire(key, app)

    async def _expire(self, key: Key, app: Document) -> None:
        message = f"not renewed for {self._settings.app_expiry_seconds} s; deleted with everything it owns"
        happening = Happening(key=key, uid=app["metadata"]["uid"], type=NORMAL, reason="AppExpired", message=message)
        try:
            await self._deleter.delete(
                key, DeleteOptions(propagation=Propagation.FOREGROUND, uid=app["metadata"]["uid"])
            )
        except ApiError as error:
            if error.reason not in (Reason.NOT_FOUND, Reason.CONFLICT):
                raise
            return  # somebody else was quicker
        log.info("app expired", app=key.name, project=key.project)
        await self._writer.write(RecordEvent(happening))

    async def collect_garbage(self) -> None:
        """Finish deletions that were interrupted, and delete what lost its last owner."""
        await self._deleter.collect()
