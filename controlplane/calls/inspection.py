"""What a person can ask about one call: why it waits, what happened to it, and what that cost.

The views are made from rows when they are asked for, in one snapshot each, and stored nowhere. Every query is bounded
whatever the length of the queue: counting stops at a limit that the answer names. The rule behind the reasons is
`calls/waits.py`, the story is `calls/timeline.py`, the audit `calls/charges.py`; `api/calls.py` serves them.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import orjson

from controlplane.calls.charges import TRANSFERS, TRANSFERS_MAX, CallTransfer, charges_status
from controlplane.calls.funding import lacking_money, most_of_call
from controlplane.calls.rows import CallRow, CallState
from controlplane.calls.selection import engine_lag
from controlplane.calls.shown import view
from controlplane.calls.timeline import PastDispatch, timeline_status
from controlplane.calls.wait_view import WAITING_STATES, LastDispatch, Seen, Workers, wait_status
from controlplane.calls.waits import Place, Pool, pool_of
from controlplane.capacity.revision import pool_revision
from controlplane.capacity.rows import WorkerQueries
from controlplane.clock import Clock
from controlplane.errors import not_found
from controlplane.images.use import image_use
from controlplane.ledger.limits import SpendingLimits, labels_of_work
from controlplane.placement.placements import Placements
from controlplane.settings import Settings
from controlplane.store.cache import ObjectCache
from controlplane.store.contract import Document, Key
from controlplane.store.database import Database

if TYPE_CHECKING:
    from controlplane.store.contract import Connection

CALL = """
SELECT o.doc AS object_doc, c.* FROM objects o LEFT JOIN calls c ON c.uid = o.uid
WHERE o.kind = 'FunctionCall' AND o.org = $1 AND o.project = $2 AND o.name = $3
"""

DISPATCHES = """
SELECT d.number, d.attempt, d.epoch, d.call_created_at, d.started_at, d.cancel_requested_at, d.ended_at, d.cause,
    d.told, d.charge_micro_usd, d.decision, d.delay_seconds, d.applied_at, a.reason AS worker_reason,
    a.message AS worker_message
FROM call_dispatches d LEFT JOIN attempts a ON a.uid = d.attempt
WHERE d.call_uid = $1 ORDER BY d.number DESC LIMIT $2
"""

# What is taken before a call at position p of its session: up to p + 1 calls of each session whose turn comes first and
# up to p of each other one, its own among them. Sessions without a call lose their place only when their turn comes, so
# they are passed over here and no more than $5 are looked at. `seq >= 0` and the orders choose the index.
PLACE = """
WITH own AS (
    SELECT COALESCE((SELECT last_turn FROM call_sessions WHERE function_uid = $1 AND session = $2), 0) AS turn,
        (SELECT count(*) FROM (
            SELECT 1 FROM calls
            WHERE function_uid = $1 AND session = $2 AND state = 'queued' AND seq >= 0 AND (priority, seq) < ($3, $4)
            ORDER BY priority, seq LIMIT $6
        ) AS first) AS position
), sessions AS (
    SELECT t.session, t.last_turn < own.turn AS ahead,
        own.position + (t.last_turn < own.turn)::int AS depth
    FROM own CROSS JOIN LATERAL (
        SELECT session, last_turn FROM call_sessions WHERE function_uid = $1 ORDER BY last_turn LIMIT $5
    ) AS t
)
SELECT own.position,
    (SELECT count(*) FROM sessions s CROSS JOIN LATERAL (
        SELECT 1 FROM calls WHERE function_uid = $1 AND session = s.session AND state = 'queued' AND seq >= 0
        ORDER BY priority, seq LIMIT 1
    ) AS c WHERE s.ahead) AS sessions_ahead,
    (SELECT count(*) FROM sessions) AS sessions_seen,
    COALESCE((SELECT bool_and(ahead) FROM sessions), false) AS all_ahead,
    (SELECT count(*) FROM (
        SELECT 1 FROM sessions s CROSS JOIN LATERAL (
            SELECT 1 FROM calls
            WHERE function_uid = $1 AND session = s.session AND state = 'queued' AND seq >= 0
            ORDER BY priority, seq LIMIT s.depth
        ) AS c LIMIT $6
    ) AS before) AS calls_ahead
FROM own
"""

WORKERS = """
SELECT count(*) FILTER (WHERE ready) AS ready, count(*) FILTER (WHERE ready AND busy > 0) AS busy,
    count(*) FILTER (WHERE draining) AS draining, count(*) FILTER (WHERE starting) AS starting,
    COALESCE(sum(GREATEST(0, concurrency - busy)) FILTER (WHERE ready), 0)::bigint AS free_slots,
    min(created_at) FILTER (WHERE starting) AS starting_since,
    (array_agg(uid ORDER BY created_at) FILTER (WHERE starting))[1] AS starting_uid,
    COALESCE(bool_or(starting AND NOT has_workflow AND created_at < $2), false) AS awaits_engine
FROM (
    SELECT a.uid, a.created_at, a.concurrency, a.draining, a.has_workflow,
        a.state = 'ready' AND NOT a.draining AS ready, a.state = 'starting' AND NOT a.draining AS starting,
        (SELECT count(*) FROM calls c WHERE c.attempt = a.uid AND c.state = 'running') AS busy
    FROM attempts a WHERE a.state <> 'finished' AND a.function_uid = $1
) AS workers
"""

LAST_DISPATCH = """
SELECT ended_at, applied_at, decision, delay_seconds FROM call_dispatches
WHERE call_uid = $1 ORDER BY number DESC LIMIT 1
"""

QUEUED = "SELECT COALESCE((SELECT queued FROM function_load WHERE function_uid = $1), 0)"
ATTEMPT_MESSAGE = """
SELECT doc #>> '{status,message}' FROM objects WHERE kind = 'Attempt' AND org = $1 AND project = $2 AND name = $3
"""


class CallInspector:
    """Answers the questions, from one database."""

    def __init__(
        self, database: Database, cache: ObjectCache, placements: Placements, settings: Settings, clock: Clock
    ) -> None:
        self._database = database
        self._cache = cache
        self._placements = placements
        self._limits = SpendingLimits(cache)
        self._settings = settings
        self._clock = clock
        self._workers = WorkerQueries(database)

    async def timeline(self, key: Key) -> Document:
        """The call's FunctionCallTimeline; NotFound when there is no such call."""
        async with self._database.snapshot() as connection:
            document, row = await _call(connection, key)
            past = await self._past(connection, document)
        return view("FunctionCallTimeline", document, timeline_status(document, past, row, self._clock.now()))

    async def charges(self, key: Key) -> Document:
        """The call's FunctionCallCharges; NotFound when there is no such call."""
        async with self._database.snapshot() as connection:
            document, _ = await _call(connection, key)
            past = await self._past(connection, document)
            records = await connection.fetch(TRANSFERS, document["metadata"]["uid"], TRANSFERS_MAX + 1)
        transfers = [CallTransfer(**dict(record)) for record in records]
        return view("FunctionCallCharges", document, charges_status(document, past, transfers))

    async def _past(self, connection: Connection, document: Document) -> list[PastDispatch]:
        """The dispatches of the call that have ended and are kept, oldest first."""
        records = await connection.fetch(
            DISPATCHES, document["metadata"]["uid"], self._settings.call_dispatches_kept_max
        )
        return [PastDispatch(**dict(record)) for record in reversed(records)]

    async def wait(self, key: Key) -> Document:
        """The call's FunctionCallWait; NotFound when there is no such call."""
        seen = None
        async with self._database.snapshot() as connection:
            document, row = await _call(connection, key)
            if row is not None and row.state in WAITING_STATES:
                seen = await self._look(connection, row, document)
        if seen is not None and seen.function is not None and not seen.pool.ready:
            uid, image = seen.row.function_uid, image_use(seen.row.function_key, seen.function, self._cache)
            revision = pool_revision(seen.function, image)
            starts = (await self._workers.start_records({uid: revision}))[uid]
            failure = starts.last_failure_message or ""
            seen = replace(seen, pool=replace(seen.pool, start_failures=starts.failures, last_failure=failure))
        late_seconds = self._settings.engine_answer_seconds_max
        return view("FunctionCallWait", document, wait_status(document, seen, self._clock.now(), late_seconds))

    async def _look(self, connection: Connection, row: CallRow, document: Document) -> Seen:
        settings, now = self._settings, self._clock.now()
        function = self._cache.get(row.function_key)
        if function is not None and function["metadata"]["uid"] != row.function_uid:
            function = None
        late = now - timedelta(seconds=settings.engine_answer_seconds_max)
        workers = await connection.fetchrow(WORKERS, row.function_uid, late)
        last = await connection.fetchrow(LAST_DISPATCH, row.uid)
        message = None
        assert workers is not None, "an aggregate has one row"
        if workers["starting_uid"] is not None:
            message = await connection.fetchval(ATTEMPT_MESSAGE, row.org, row.project, workers["starting_uid"])
        lag_calls, lag_exceeded = (None, False) if row.has_workflow else await self._lag(connection)
        told = pool_of(function) if function is not None else Pool(deleting=True)
        pool = replace(
            told,
            ready=workers["ready"],
            idle=workers["ready"] - workers["busy"],
            alone=row.suspect,
            free_slots=workers["free_slots"],
            starting=workers["starting"],
            starting_since=workers["starting_since"],
            awaits_engine=workers["awaits_engine"],
            engine_lags=lag_exceeded,
        )
        return Seen(
            row=row,
            function=function,
            pool=pool,
            workers=Workers(busy=workers["busy"], draining=workers["draining"], starting_message=message),
            place=await self._place(connection, row) if row.state is CallState.QUEUED else None,
            queued=await connection.fetchval(QUEUED, row.function_uid),
            last=LastDispatch(**dict(last)) if last is not None else None,
            lag_calls=lag_calls,
            unpaid=None if function is None else await self._unpaid(connection, row, document, function),
        )

    async def _unpaid(self, connection: Connection, row: CallRow, document: Document, function: Document) -> str | None:
        """For which limit of spending the call waits, with the amounts as of now; None when all have room for it."""
        labels = labels_of_work(function["metadata"].get("labels"), document["metadata"].get("labels"))
        limits = [limit for limit in self._limits.of(row.function_key) if limit.covers(labels)]
        if not limits:
            return None
        rate = self._placements.of(function["spec"]).rate_micro_usd_per_hour
        shares = function["spec"].get("scaling", {}).get("targetConcurrency", 1)
        needed = most_of_call(document, rate, shares, self._settings)
        return await lacking_money(connection, limits, needed, self._clock.now())

    async def _lag(self, connection: Connection) -> tuple[int, bool]:
        """Calls ahead of the engine, up to a bound, and whether they use up the budget (`calls/dispatcher.py`)."""
        settings = self._settings
        lag = await engine_lag(connection, settings.engine_lag_calls_max)
        oldest_allowed = self._clock.now() - timedelta(seconds=settings.engine_lag_seconds_max)
        too_old = lag.oldest_at is not None and lag.oldest_at < oldest_allowed
        return lag.calls, too_old or lag.calls > settings.engine_lag_calls_max

    async def _place(self, connection: Connection, row: CallRow) -> Place:
        calls_max, sessions_max = self._settings.wait_calls_counted_max, self._settings.wait_sessions_counted_max
        found = await connection.fetchrow(
            PLACE, row.function_uid, row.session, row.priority, row.seq, sessions_max, calls_max + 1
        )
        assert found is not None, "an aggregate has one row"
        is_cut = found["sessions_seen"] == sessions_max
        return Place(
            position=found["position"] + 1,
            sessions_ahead=found["sessions_ahead"],
            calls_ahead=min(found["calls_ahead"], calls_max),
            calls_max=calls_max,
            sessions_are_cut=is_cut and found["all_ahead"],
            calls_are_cut=is_cut or found["calls_ahead"] > calls_max,
        )


async def _call(connection: Connection, key: Key) -> tuple[Document, CallRow | None]:
    """The call's object and, while it is kept, its row."""
    record = await connection.fetchrow(CALL, key.org, key.project, key.name)
    if record is None:
        raise not_found("functioncalls", key.name)
    row = CallRow.from_record(dict(record)) if record["uid"] is not None else None
    return orjson.loads(record["object_doc"]), row
