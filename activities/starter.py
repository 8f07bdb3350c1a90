"""The starter: gives every call its workflow, and every workflow the outcome it waits for.

A call is claimable from its commit and usually over before its workflow exists, so nothing that a caller waits for
depends on this loop, except what must be decided (a retry, a lost worker): that comes first. While calls run at speed
it starts only a trickle, because a workflow costs as much CPU as three calls; the backlog is started in the pause
afterwards. When it has grown to half the lag budget (`engine_lag_*` settings), beyond which calls must wait for their
workflows, the starter takes the CPU it needs: the engine is then the limit, as it should be.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from datetime import timedelta

import structlog

from activities.engine import Engine, EngineUnavailableError
from activities.run_call_contract import CallOutcome, CallReference
from controlplane.calls.engine import DetachWorkflow, MarkReported
from controlplane.calls.queries import CallQueries, UnreportedCall
from controlplane.calls.rows import CallRef
from controlplane.clock import Clock
from controlplane.settings import Settings
from controlplane.store.changes import ChangeFeed
from controlplane.store.contract import Change
from controlplane.store.database import Database
from controlplane.store.writer import Writer

log = structlog.get_logger(__name__)

POLL_SECONDS = 1.0
BUSY_PAUSE_SECONDS = 0.1
OUTAGE_PAUSE_SECONDS = 1.0
REPORTS_IN_FLIGHT = 8
LOOK_CALLS = 256
ATTACH_SECONDS_MAX = 60.0
"""A workflow that has not attached by then has lost its activity, or the engine is drowning; it is asked again."""
CAUGHT_UP_FRACTION = 0.5


class AttachBoard:
    """Which started workflows of this process have not attached to their calls yet: what is in flight, truly."""

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

    def clear(self) -> None:
        """Wait for nothing any more."""
        self._pending.clear()

    def overdue(self, seconds: float) -> list[str]:
        """Calls whose workflow should have come; they are forgotten here."""
        before = asyncio.get_running_loop().time() - seconds
        late = [uid for uid, since in self._pending.items() if since < before]
        for uid in late:
            del self._pending[uid]
        return late

    @property
    def count(self) -> int:
        """Workflows in flight."""
        return len(self._pending)


class TransitionMeter:
    """How many changes of calls were committed in the last second, in all processes."""

    def __init__(self) -> None:
        self._recent: deque[tuple[float, int]] = deque()
        self._total = 0

    def saw(self, count: int, now: float) -> None:
        """Count changes that were delivered at `now` (monotonic seconds)."""
        self._recent.append((now, count))
        self._total += count

    def per_second(self, now: float) -> int:
        """Changes during the second before `now`."""
        while self._recent and self._recent[0][0] <= now - 1.0:
            self._total -= self._recent.popleft()[1]
        return self._total


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
        self._wake = asyncio.Event()
        self._starts_wake = board.changed
        self._after = ("", "", "")
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

    @property
    def busy(self) -> bool:
        """Whether calls are running at such a pace that starting workflows should make way."""
        pace = self._meter.per_second(asyncio.get_running_loop().time())
        return pace >= self._settings.starter_busy_transitions

    # Outcomes.

    async def _report_for_ever(self) -> None:
        gate = asyncio.Semaphore(REPORTS_IN_FLIGHT)
        while True:
            await _wait(self._wake, POLL_SECONDS)
            reports = await self._queries.unreported(LOOK_CALLS)
            if self.busy and not await self._pressed():
                # Whoever waits for a decision goes first; ends are known to everybody but the engine.
                reports = [report for report in reports if report.outcome.facts is not None]
            results = await asyncio.gather(*(self._report(gate, report) for report in reports))
            if not all(results):
                await asyncio.sleep(OUTAGE_PAUSE_SECONDS)
            elif self.busy:
                await asyncio.sleep(BUSY_PAUSE_SECONDS)

    async def _report(self, gate: asyncio.Semaphore, report: UnreportedCall) -> bool:
        """Complete the call's activity; False when the engine did not answer."""
        async with gate:
            try:
                taken = await self._engine.complete_call(report.token, CallOutcome(**report.outcome.to_json()))
                # Not taken: an earlier answer was lost on its way to us, or the workflow asks again behind a new token
                # and is told then. Only a decision that no workflow is left to make needs a new one.
                orphaned = not taken and report.outcome.facts is not None
                orphaned = orphaned and not await self._engine.call_is_open(report.ref.uid)
            except EngineUnavailableError:
                return False
            mutation = DetachWorkflow if orphaned else MarkReported
            await self._writer.write(mutation(report.ref, report.token))
            return True

    # Starts.

    async def _start_for_ever(self) -> None:
        while True:
            await _wait(self._starts_wake, POLL_SECONDS)
            for uid in self._board.overdue(ATTACH_SECONDS_MAX):
                self._asked_again.append(uid)
            room = await self._room()
            if room <= 0:
                await asyncio.sleep(BUSY_PAUSE_SECONDS)
                continue
            calls = await self._next_calls(room)
            if not calls:
                continue
            for call, urgent in calls:
                self._spawn(call, urgent=urgent)
            if self.busy and not any(urgent for _, urgent in calls):
                await asyncio.sleep(len(calls) / self._settings.starter_trickle_per_second)

    async def _room(self) -> int:
        """How many workflows may be started now."""
        free = self._settings.workflow_starts_in_flight_max - self._board.count
        return min(1, free) if self.busy and not await self._pressed() else free

    async def _pressed(self) -> bool:
        """Whether the backlog has used up half of the lag budget."""
        lag = await self._queries.lag(self._settings.engine_lag_calls_max)
        oldest_allowed = timedelta(seconds=self._settings.engine_lag_seconds_max * CAUGHT_UP_FRACTION)
        too_old = lag.oldest_at is not None and self._clock.now() - lag.oldest_at > oldest_allowed
        return too_old or lag.calls > self._settings.engine_lag_calls_max * CAUGHT_UP_FRACTION

    async def _next_calls(self, room: int) -> list[tuple[CallRef, bool]]:
        """Calls to start: those that need a decision first, then one of each session in turn."""
        pending = self._board.count
        urgent = await self._queries.to_decide(room + pending)
        calls = {ref.uid: (ref, True) for ref in urgent}
        if len(calls) < room + pending:
            look = await self._queries.to_start(room + pending, self._after)
            self._after = look.next_after
            for ref in look.calls:
                calls.setdefault(ref.uid, (ref, False))
        return [call for uid, call in calls.items() if not self._board.is_pending(uid)][:room]

    def _spawn(self, call: CallRef, *, urgent: bool) -> None:
        self._board.started(call.uid)
        task = asyncio.create_task(self._start(call, urgent=urgent), name=f"start {call.uid}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _start(self, call: CallRef, *, urgent: bool) -> None:
        reference = CallReference(uid=call.uid, org=call.org, project=call.project, name=call.name)
        try:
            if call.uid in self._asked_again:
                log.warning("a workflow did not come for its call and is asked again", call=call.uid)
                self._asked_again.remove(call.uid)
                await self._engine.restart_call(reference)
            elif not await self._engine.start_call(reference, urgent=urgent):
                # It has run and completed: what is left of the call is a row that nobody took away, or, if the
                # database was set back in time, a decision that must be made once more.
                if urgent:
                    await self._engine.restart_call(reference)
                else:
                    await self._writer.write(MarkReported(call, None))
        except EngineUnavailableError as error:
            log.warning("a workflow could not be started, trying again", call=call.uid, told=str(error))
            await asyncio.sleep(OUTAGE_PAUSE_SECONDS)
            self._board.attached(call.uid)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """Until the event, which is cleared, or `seconds` have passed."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
    event.clear()
