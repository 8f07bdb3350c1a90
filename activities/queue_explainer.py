"""Tells calls at the head of their queues why they wait, when that has changed.

Level-triggered and bounded: the autoscaler asks after each look at a Function, and nothing is read unless the reason
has lasted for a moment and the last time was long enough ago; then the few calls that are next are read, and only those
that say something else are written. So a queue of any length costs a query every few seconds, and a burst that finds
its workers costs nothing. The reason itself is `controlplane/calls/waits.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from controlplane.calls.explaining import (
    ExplainCalls,
    Explanation,
    QueuePlace,
    WaitingCall,
    late_decisions,
    queue_heads,
    queued_after,
)
from controlplane.calls.queries import CallQueries
from controlplane.calls.transitions import WAITS_FOR_MONEY
from controlplane.calls.waits import Pool, WaitReason, pool_of, queue_reason, stored_message
from controlplane.capacity.function_status import Observation
from controlplane.capacity.rows import AttemptState, LiveWorker
from controlplane.clock import Clock, format_time
from controlplane.settings import Settings
from controlplane.store.contract import Document
from controlplane.store.database import Database
from controlplane.store.writer import Writer


@dataclass
class _Told:
    """What is so in one queue; times are of the event loop's clock."""

    message: str
    since: float
    told_at: float = float("-inf")
    walk: QueuePlace | None = None
    """How far all calls have been told that money is what they wait for; None before that is so, and when all have."""


class QueueExplainer:
    """What one process remembers of the queues; all of it may be lost."""

    def __init__(self, database: Database, writer: Writer, settings: Settings, clock: Clock) -> None:
        self._database = database
        self._writer = writer
        self._settings = settings
        self._clock = clock
        self._calls = CallQueries(database)
        self._told: dict[str, _Told] = {}
        self._lag_read_at = float("-inf")
        self._lags = False

    async def explain(self, function: Document, seen: Observation, workers: Sequence[LiveWorker]) -> float | None:
        """Tell the calls that are next in a Function's queue; when to be asked again, None while nothing waits."""
        uid, at = function["metadata"]["uid"], asyncio.get_running_loop().time()
        if not seen.queued or "deletionTimestamp" in function["metadata"]:
            # Calls of a Function that is being deleted are failed at once, and nobody looks at it afterwards.
            self._told.pop(uid, None)
            return None
        pool = self._pool(function, seen, workers)
        message = stored_message(queue_reason(pool), pool)
        told = self._told.setdefault(uid, _Told(message, at))
        lacks_money = queue_reason(pool) in WAITS_FOR_MONEY
        if told.message != message or told.told_at < told.since:
            told.walk = QueuePlace() if lacks_money else None
        if told.message != message:
            told.message, told.since = message, at
        settings = self._settings
        pause = settings.wait_message_seconds if told.walk is None else settings.wait_message_settle_seconds
        due = max(told.since + settings.wait_message_settle_seconds, told.told_at + pause)
        if at < due:
            return due
        told.told_at = at
        lags = await self._engine_lags(at)
        heads = await queue_heads(
            self._database, uid, settings.wait_message_sessions_max, settings.wait_message_calls_max
        )
        await self._tell([_explained(call, pool, lags=lags) for call in heads])
        if told.walk is not None:
            most = settings.wait_message_unfunded_calls_max
            calls, told.walk = await queued_after(self._database, uid, told.walk, most)
            await self._tell([_explained(call, pool, lags=lags) for call in calls])
        return at + (settings.wait_message_seconds if told.walk is None else settings.wait_message_settle_seconds)

    async def explain_late_decisions(self) -> None:
        """Tell calls between two dispatches that the engine, which should offer them again, does not answer."""
        before = self._clock.now() - timedelta(seconds=self._settings.engine_answer_seconds_max)
        late = await late_decisions(self._database, before, self._settings.wait_message_late_calls_max)
        await self._tell(
            [
                Explanation(
                    call=call,
                    reason=WaitReason.ENGINE_UNAVAILABLE,
                    message=f"{call.again or 'its end'} waits for the engine, which has not answered since "
                    f"{format_time(call.updated_at)}",
                )
                for call in late
            ]
        )

    async def _tell(self, explanations: Sequence[Explanation]) -> None:
        news = [explanation for explanation in explanations if explanation.is_news]
        if news:
            await self._writer.write(ExplainCalls(news))

    async def _engine_lags(self, at: float) -> bool:
        """Whether only calls with a workflow are handed out, as `calls/dispatcher.py` judges it."""
        settings = self._settings
        if at - self._lag_read_at >= settings.wait_message_seconds:
            lag = await self._calls.lag(settings.engine_lag_calls_max)
            oldest_allowed = self._clock.now() - timedelta(seconds=settings.engine_lag_seconds_max)
            too_old = lag.oldest_at is not None and lag.oldest_at < oldest_allowed
            self._lags, self._lag_read_at = too_old or lag.calls > settings.engine_lag_calls_max, at
        return self._lags

    def _pool(self, function: Document, seen: Observation, workers: Sequence[LiveWorker]) -> Pool:
        late = self._clock.now() - timedelta(seconds=self._settings.engine_answer_seconds_max)
        starting = [worker.row for worker in workers if worker.row.state == AttemptState.STARTING]
        ready = [worker for worker in workers if worker.row.state == AttemptState.READY and not worker.row.draining]
        return replace(
            pool_of(function),
            ready=len(ready),
            idle=sum(not worker.busy for worker in ready),
            free_slots=sum(max(0, worker.row.concurrency - worker.busy) for worker in ready),
            starting=seen.starting,
            start_failures=seen.start_failures,
            last_failure=seen.failure_message,
            lacks_quota=seen.lacks_quota,
            no_offering=seen.no_offering,
            lacks_funds=seen.lacks_funds,
            capped=seen.capped,
            lacks_room=seen.lacks_room,
            awaits_engine=any(not row.has_workflow and not row.draining and row.created_at < late for row in starting),
        )


def _explained(call: WaitingCall, pool: Pool, *, lags: bool) -> Explanation:
    """What one call at the head of the queue should say."""
    own = replace(pool, engine_lags=lags and not call.has_workflow, alone=call.suspect)
    reason = queue_reason(own)
    message = stored_message(reason, own)
    return Explanation(call=call, reason=reason, message=f"{message} ({call.again})" if call.again else message)
