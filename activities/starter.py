"""The starter: gives every call its workflow, and every workflow the outcome it waits for.

A call is claimable from its commit and usually over before its workflow exists, so nothing that a caller waits for
depends on this loop, except what must be decided (a retry, a lost worker): that is done at once. All else waits for a
pause in the work of the machine, within the lag budget: a workflow costs as much CPU as three calls. The rule is in
`pacing.py`. Calls that run or have ended come first. One that waits for its turn is known to SQL, which cancels it and
ends it when it has waited too long, so of those only as many get workflows as keep the open ones within a bound.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta

import structlog

from activities.engine import Engine, EngineUnavailableError
from activities.pacing import QUIET_SECONDS, Pacing, Traffic, TransitionMeter
from activities.run_call_contract import CallOutcome, CallReference
from activities.waking import woken
from controlplane import failpoints
from controlplane.calls.engine import DetachWorkflow, Ended, MarkReported
from controlplane.calls.queries import (
    FROM_THE_FIRST_SESSION,
    CallQueries,
    SessionAfter,
    UnreportedCall,
    UnstartedCall,
)
from controlplane.calls.rows import CallRef
from controlplane.clock import Clock
from controlplane.settings import Settings
from controlplane.store.changes import ChangeFeed
from controlplane.store.contract import Change
from controlplane.store.database import Database
from controlplane.store.writer import Writer

log = structlog.get_logger(__name__)

POLL_SECONDS = 1.0
LOOK_PAUSE_SECONDS = 0.05
"""Between two looks in a pause of the work, however many changes come."""
BUSY_LOOK_PAUSE_SECONDS = 0.15
"""The same while calls run: a look is up to five queries, and what they take is missing to those who wait for calls. A
decision waits at most this long to be seen."""
OUTAGE_PAUSE_SECONDS = 1.0
REPORTS_IN_FLIGHT = 8
LOOK_CALLS = 256
ATTACH_SECONDS_MAX = 60.0
"""A workflow that has not attached by then has lost its activity, or the engine is drowning; it is asked again."""


ATTACH_LOOK_SECONDS = 0.2
"""How long a workflow may take to attach here before SQL is asked whether it did so in another process."""


class AttachBoard:
    """Which workflows started by this process have not attached to their calls yet: what is in flight, truly."""

    def __init__(self) -> None:
        self._pending: dict[str, float] = {}
        self.changed = asyncio.Event()

    def started(self, uid: str) -> None:
        """A workflow was started for this call."""
        self._pending[uid] = asyncio.get_running_loop().time()

    def attached(self, uid: str) -> None:
        """The workflow of this call is there; for `CallActivities`."""
        self._pending.pop(uid, None)
        self.changed.set()

    def is_pending(self, uid: str) -> bool:
        """Whether the call's workflow was started here and is awaited."""
        return uid in self._pending

    def waiting(self, seconds: float) -> list[str]:
        """Calls whose workflow has been awaited for longer than that."""
        before = asyncio.get_running_loop().time() - seconds
        return [uid for uid, since in self._pending.items() if since < before]

    def clear(self) -> None:
        """Wait for nothing any more."""
        self._pending.clear()

    def overdue(self, seconds: float) -> list[str]:
        """Calls whose workflow should have come; they are forgotten here."""
        late = self.waiting(seconds)
        for uid in late:
            del self._pending[uid]
        return late

    @property
    def count(self) -> int:
        """Workflows in flight."""
        return len(self._pending)


class Starter:
    """The loop. One object lives as long as its process; `run` is called whenever this process is elected."""

    def __init__(
        self,
        *,
        database: Database,
        writer: Writer,
        feed: ChangeFeed,
        engine: Engine,
        board: AttachBoard,
        settings: Settings,
        clock: Clock,
    ) -> None:
        self._writer = writer
        self._engine = engine
        self._board = board
        self._settings = settings
        self._clock = clock
        self._queries = CallQueries(database)
        self._meter = TransitionMeter()
        self._pacing = Pacing(
            in_flight_max=settings.workflow_starts_in_flight_max,
            busy_transitions=settings.starter_busy_transitions_per_second,
            trickle_per_second=settings.starter_trickle_per_second,
        )
        self._wake = asyncio.Event()
        self._starts_wake = board.changed
        self._not_before = 0.0
        self._look_at = 0.0
        self._waiting = False
        self._behind = _Rounds(self._queries.behind)
        self._queued = _Rounds(self._queries.queued)
        self._asked_again: deque[str] = deque(maxlen=LOOK_CALLS)
        self._tasks: set[asyncio.Task[None]] = set()
        feed.add_listener(self._changed)

    async def run(self) -> None:
        """Report outcomes and start workflows until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._report_for_ever())
                group.create_task(self._start_for_ever())
        finally:
            for task in list(self._tasks):
                task.cancel()
            self._board.clear()

    # Waking.

    def _changed(self, changes: Sequence[Change]) -> None:
        calls = sum(change.key.kind == "FunctionCall" for change in changes)
        if calls:
            self._meter.saw(calls, asyncio.get_running_loop().time())
            self._wake.set()
            self._starts_wake.set()

    async def _traffic(self) -> Traffic:
        lag = await self._queries.lag(self._settings.engine_lag_calls_max)
        age = self._clock.now() - lag.oldest_at if lag.oldest_at is not None else timedelta(0)
        now = asyncio.get_running_loop().time()
        return Traffic(
            quiet=self._meter.is_quiet(now),
            transitions_per_second=self._meter.per_second(now),
            pressure=max(
                age.total_seconds() / self._settings.engine_lag_seconds_max,
                lag.calls / self._settings.engine_lag_calls_max,
            ),
        )

    # Outcomes.

    async def _report_for_ever(self) -> None:
        gate = asyncio.Semaphore(REPORTS_IN_FLIGHT)
        while True:
            await woken(self._wake, POLL_SECONDS)
            reports = await self._queries.unreported(LOOK_CALLS)
            if reports and not (traffic := await self._traffic()).quiet:
                # Whoever waits for a decision goes first; ends are known to everybody but the engine, and go at the
                # pace of starts, so that open workflows do not pile up.
                ends = [report for report in reports if report.outcome.facts is None]
                decisions = [report for report in reports if report.outcome.facts is not None]
                reports = decisions + ends[: self._pacing.in_flight(traffic)]
            results = await asyncio.gather(*(self._report(gate, report) for report in reports))
            await asyncio.sleep(self._look_pause_seconds() if all(results) else OUTAGE_PAUSE_SECONDS)

    async def _report(self, gate: asyncio.Semaphore, report: UnreportedCall) -> bool:
        """Complete the call's activity; False when the engine did not answer."""
        async with gate:
            try:
                failpoints.reach("outcome-reporting")
                taken = await self._engine.complete_call(report.token, CallOutcome(**report.outcome.to_json()))
                # Not taken: an earlier answer was lost on its way to us, or the workflow asks again behind a new token
                # and is told then. Only a decision that no workflow is left to make needs a new one.
                orphaned = not taken and report.outcome.facts is not None
                orphaned = orphaned and not await self._engine.call_is_open(report.ref.uid)
            except EngineUnavailableError:
                return False
            failpoints.reach("outcome-reported")
            mutation = DetachWorkflow if orphaned else MarkReported
            await self._writer.write(mutation(report.ref, report.token))
            return True

    # Starts.

    async def _start_for_ever(self) -> None:
        while True:
            hurried = self._waiting or self._board.count
            await woken(self._starts_wake, QUIET_SECONDS if hurried else POLL_SECONDS)
            await self._notice_attached()
            for uid in self._board.overdue(ATTACH_SECONDS_MAX):
                self._asked_again.append(uid)
            for call in await self._to_decide():
                self._spawn(call, urgent=True)
            for call in await self._to_start():
                self._spawn(call, urgent=False)
            await asyncio.sleep(self._look_pause_seconds())

    def _look_pause_seconds(self) -> float:
        quiet = self._meter.is_quiet(asyncio.get_running_loop().time())
        return LOOK_PAUSE_SECONDS if quiet else BUSY_LOOK_PAUSE_SECONDS

    async def _notice_attached(self) -> None:
        """Take workflows off the board that attached in another process; half of them do when there are two."""
        now = asyncio.get_running_loop().time()
        waiting = self._board.waiting(ATTACH_LOOK_SECONDS) if now >= self._look_at else []
        if not waiting:
            return
        self._look_at = now + ATTACH_LOOK_SECONDS
        for uid in set(waiting) - await self._queries.without_workflow(waiting):
            self._board.attached(uid)

    async def _to_decide(self) -> list[UnstartedCall]:
        """Calls that go on only when their workflow exists."""
        room = self._settings.workflow_starts_in_flight_max - self._board.count
        return await self._fresh(self._queries.to_decide, room)

    async def _to_start(self) -> list[UnstartedCall]:
        """Other calls that may be given their workflow now, one of each session in turn."""
        traffic = await self._traffic()
        now = asyncio.get_running_loop().time()
        self._waiting = traffic.pressure > 0
        if now < self._not_before and self._pacing.is_busy(traffic):
            return []
        room = self._pacing.in_flight(traffic) - self._board.count
        calls = await self._in_turn(self._behind, room)
        if len(calls) < room:
            calls += await self._in_turn(self._queued, min(room - len(calls), await self._openings(len(calls))))
        self._waiting = self._waiting or bool(calls)
        self._not_before = now + self._pacing.pause_seconds(traffic) if calls else self._not_before
        return calls

    async def _openings(self, about_to_start: int) -> int:
        """How many calls that wait for a worker may be given a workflow.

        Those in flight count as open. What another process started before this one was elected may not have attached
        yet, so for a moment there can be as many too many as may be in flight.
        """
        open_max = self._settings.open_workflows_max
        return open_max - await self._queries.open_workflows(open_max) - self._board.count - about_to_start

    async def _fresh(self, find: Callable[[int], Awaitable[list[UnstartedCall]]], room: int) -> list[UnstartedCall]:
        """Up to `room` of the calls that `find` gives and that have not been started already."""
        if room <= 0:
            return []
        found = await find(room + self._board.count)
        return [call for call in found if not self._board.is_pending(call.ref.uid)][:room]

    async def _in_turn(self, rounds: _Rounds, room: int) -> list[UnstartedCall]:
        """The same of calls whose sessions have turns."""
        calls = await self._fresh(rounds.look, room)
        rounds.took(calls)
        return calls

    def _spawn(self, call: UnstartedCall, *, urgent: bool) -> None:
        self._board.started(call.ref.uid)
        start = self._start(call.ref, urgent=urgent) if call.ended is None else self._end(call.ref, call.ended)
        task = asyncio.create_task(start, name=f"start {call.ref.uid}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _end(self, call: CallRef, end: Ended) -> None:
        """Tell the engine of a call that was over before its workflow started, and that is all.

        If the process dies in between, the next look finds the row again and the workflow started or completed.
        """
        try:
            failpoints.reach("call-starting")
            await self._engine.tell_end(_reference(call), end.to_json())
            failpoints.reach("call-started")
            await self._writer.write(MarkReported(call, None))
        except EngineUnavailableError as error:
            log.warning("a workflow could not be started, trying again", call=call.uid, told=str(error))
            await asyncio.sleep(OUTAGE_PAUSE_SECONDS)
        finally:
            self._board.attached(call.uid)

    async def _start(self, call: CallRef, *, urgent: bool) -> None:
        reference = _reference(call)
        try:
            failpoints.reach("call-starting")
            if call.uid in self._asked_again:
                log.warning("a workflow did not come for its call and is asked again", call=call.uid)
                self._asked_again.remove(call.uid)
                if await self._engine.ask_again(call.uid):
                    return
            if not await self._engine.start_call(reference, urgent=urgent):
                await self._go_on_after_completed(call, urgent=urgent)
        except EngineUnavailableError as error:
            log.warning("a workflow could not be started, trying again", call=call.uid, told=str(error))
            await asyncio.sleep(OUTAGE_PAUSE_SECONDS)
            self._board.attached(call.uid)
        else:
            failpoints.reach("call-started")

    async def _go_on_after_completed(self, call: CallRef, *, urgent: bool) -> None:
        """What is left of a call whose workflow completed is a row that nobody took away, or, if the database was set
        back in time, a decision that must be made once more. Not one that was made since the row was looked at."""
        if not urgent:
            await self._writer.write(MarkReported(call, None))
        elif await self._queries.without_workflow([call.uid]):
            await self._engine.start_call_over(_reference(call))


class _Rounds:
    """Looks for unstarted calls of one kind, each of which goes on after the session that had the last turn."""

    def __init__(self, find: Callable[[int, SessionAfter], Awaitable[list[UnstartedCall]]]) -> None:
        self._find = find
        self._after = FROM_THE_FIRST_SESSION

    async def look(self, limit: int) -> list[UnstartedCall]:
        """Up to `limit` calls, one of each session in turn."""
        return await self._find(limit, self._after)

    def took(self, calls: Sequence[UnstartedCall]) -> None:
        """These of the calls that were found have had their turns."""
        if calls:
            self._after = calls[-1].place


def _reference(call: CallRef) -> CallReference:
    return CallReference(uid=call.uid, org=call.org, project=call.project, name=call.name)
