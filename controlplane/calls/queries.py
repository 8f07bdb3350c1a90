"""What controllers ask about calls and workers: each question is one indexed query, outside any transaction.

Answers may be out of date when they are used, so nothing is changed on their strength alone: the mutations in
`calls/engine.py` and `calls/recovery.py` look again when they commit. Who asks: the starter (calls without a
workflow, unreported outcomes), the autoscaler (loads, workers to drain or kill) and the sweeper (overdue calls,
lapsed leases).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import cast

import asyncpg

from controlplane.calls.engine import CallOutcome, Ended
from controlplane.calls.rows import LET_GO_GRACES, PRIORITY_NEW, PRIORITY_REOFFERED, CallRef, CallRow, CallState
from controlplane.calls.selection import Lag, engine_lag
from controlplane.store.contract import Key
from controlplane.store.database import Database

_SESSIONS_MAX = 256
"""Sessions one look of the starter shares its starts between; the next look goes on after them."""


@dataclass(frozen=True, kw_only=True)
class FunctionLoad:
    """The open calls of a Function, by what may happen to them next, and its bill."""

    function_uid: str
    org: str
    project: str
    function: str
    queued: int
    """Claimable now."""
    running: int
    alone: int
    """Those of the queued and running ones that share no worker (`calls/seats.py`)."""
    pending: int
    """Between two dispatches: a decision or a backoff is awaited."""
    charge_micro_usd: int
    last_end_at: datetime | None
    """When a dispatch of any of its calls last ended."""


@dataclass(frozen=True, kw_only=True)
class UnreportedCall:
    """An outcome whose workflow waits for it behind a task token."""

    ref: CallRef
    token: bytes
    outcome: CallOutcome


@dataclass(frozen=True, kw_only=True)
class UnstartedCall:
    """A call without a workflow; `ended` tells how it ended, if it has."""

    ref: CallRef
    ended: Ended | None = None
    session: str = ""

    @classmethod
    def from_record(cls, record: asyncpg.Record) -> UnstartedCall:
        """The call from a record with its state, outcome and session."""
        outcome = CallRow.outcome_of(record) if record["state"] == CallState.DONE else None
        ended = CallOutcome.from_json(outcome).ended if outcome else None
        return cls(ref=CallRef.from_record(record), ended=ended, session=record["session"])

    @property
    def place(self) -> SessionAfter:
        """Its session among all."""
        return self.ref.org, self.ref.project, self.session


@dataclass(frozen=True, kw_only=True)
class AttemptRef:
    """A worker a controller must do something about, and why."""

    uid: str
    epoch: int
    reason: str


_LOAD_COLUMNS = "function_uid, org, project, function, queued, running, alone, pending, charge_micro_usd, last_end_at"

_LOADS = f"SELECT {_LOAD_COLUMNS} FROM function_load WHERE function_uid = ANY($1::text[])"  # noqa: S608 - a constant
_BUSY_LOADS = f"SELECT {_LOAD_COLUMNS} FROM function_load WHERE queued > 0 OR running > 0 OR pending > 0"  # noqa: S608

_TO_DECIDE = """
SELECT uid, org, project, name FROM calls
WHERE NOT has_workflow AND state IN ('deciding', 'waiting') ORDER BY seq LIMIT $1
"""

# A loose scan that goes round: one index probe finds the next session that has an unstarted call, so a session of any
# length costs one. After the last session come the first ones, as far as where it began.
_FAIRLY = """
WITH RECURSIVE sessions AS (
    SELECT $2::text AS org, $3::text AS project, $4::text AS session, 0 AS number, false AS wrapped
    UNION ALL
    SELECT n.org, n.project, n.session, s.number + 1, n.wrapped FROM sessions s
    CROSS JOIN LATERAL (
        (SELECT org, project, session, s.wrapped AS wrapped FROM calls
        WHERE $unstarted AND (org, project, session) > (s.org, s.project, s.session)
            AND (NOT s.wrapped OR (org, project, session) <= ($2, $3, $4))
        ORDER BY org, project, session LIMIT 1)
        UNION ALL
        (SELECT org, project, session, true FROM calls
        WHERE $unstarted AND NOT s.wrapped AND (org, project, session) <= ($2, $3, $4)
        ORDER BY org, project, session LIMIT 1)
        ORDER BY wrapped LIMIT 1
    ) AS n
    WHERE s.number < $5
)
SELECT c.uid, c.org, c.project, c.name, c.state, c.outcome, s.session
FROM (SELECT *, count(*) OVER () AS seen FROM sessions WHERE number > 0) AS s
CROSS JOIN LATERAL (
    SELECT *, row_number() OVER (ORDER BY seq) AS turn FROM (
        SELECT uid, org, project, name, seq, state, outcome FROM calls
        WHERE $unstarted AND org = s.org AND project = s.project AND session = s.session
        ORDER BY seq LIMIT ($1 + s.seen - 1) / s.seen
    ) AS oldest
) AS c
ORDER BY c.turn, s.number LIMIT $1
"""
_BEHIND = _FAIRLY.replace("$unstarted", "NOT has_workflow AND state <> 'queued' AND priority >= 0")
_QUEUED = _FAIRLY.replace("$unstarted", "NOT has_workflow AND state = 'queued' AND priority >= 0")

_OPEN = "SELECT count(*) FROM (SELECT 1 FROM calls WHERE has_workflow AND seq >= 0 ORDER BY seq LIMIT $1) AS open"

_WITHOUT_WORKFLOW = "SELECT uid FROM calls WHERE uid = ANY($1::text[]) AND NOT has_workflow"

# Decisions first: somebody waits for them, and the ends that only the engine has yet to learn may be many.
_UNREPORTED = """
SELECT uid, org, project, name, task_token, outcome FROM (
    (SELECT *, 1 AS turn FROM calls WHERE state = 'deciding' AND task_token IS NOT NULL ORDER BY seq LIMIT $1)
    UNION ALL
    (SELECT *, 2 AS turn FROM calls WHERE state = 'done' AND task_token IS NOT NULL ORDER BY seq LIMIT $1)
) AS unreported ORDER BY turn, seq LIMIT $1
"""

_OVERDUE = """
SELECT DISTINCT attempt FROM (
    (SELECT c.attempt FROM calls c JOIN attempts a ON a.uid = c.attempt
    WHERE c.state = 'running' AND c.deadline < $1 AND a.last_claim_at >= c.deadline LIMIT $3)
    UNION ALL
    (SELECT c.attempt FROM calls c JOIN attempts a ON a.uid = c.attempt
    WHERE c.state = 'running' AND c.cancel_requested_at < $2 AND a.last_claim_at >= c.cancel_requested_at
        AND (c.let_go_at IS NULL OR c.cancel_requested_at < $4) LIMIT $3)
) AS overdue
"""

# What runs beside on such a worker has its lease: only what is overdue itself goes with the worker before.
_SILENT_ATTEMPTS = """
SELECT DISTINCT a.uid, a.epoch, overdue.reason FROM (
    (SELECT c.attempt, 'DeadlineExceeded' AS reason FROM calls c JOIN attempts a ON a.uid = c.attempt
    WHERE c.state = 'running' AND c.deadline < $1 AND a.last_claim_at < c.deadline ORDER BY c.deadline LIMIT $3)
    UNION ALL
    (SELECT c.attempt, 'CallCancelled' AS reason FROM calls c JOIN attempts a ON a.uid = c.attempt
    WHERE c.state = 'running' AND c.cancel_requested_at < $2 AND a.last_claim_at < c.cancel_requested_at
    ORDER BY c.cancel_requested_at LIMIT $3)
) AS overdue JOIN attempts a ON a.uid = overdue.attempt
WHERE a.finished_at IS NULL AND NOT EXISTS (
    SELECT 1 FROM calls beside WHERE beside.attempt = a.uid AND beside.state = 'running'
        AND COALESCE(beside.deadline >= $1, true) AND COALESCE(beside.cancel_requested_at >= $2, true)
)
"""

# A runtime that had nothing to tell by now has a thread that goes on, or is not one of ours.
_RUNNING_ON = """
SELECT DISTINCT c.attempt FROM calls c JOIN attempts a ON a.uid = c.attempt
WHERE c.state = 'running' AND c.cancel_requested_at IS NOT NULL AND c.let_go_at < $1
    AND a.finished_at IS NULL AND (NOT a.draining OR a.kill_at IS NULL) LIMIT $2
"""

_TO_STOP = """
SELECT DISTINCT c.attempt, c.org, c.project, c.function FROM calls c JOIN attempts a ON a.uid = c.attempt
WHERE c.state = 'running' AND c.cancel_requested_at < $1 AND c.let_go_at IS NULL
    AND a.finished_at IS NULL AND NOT a.draining LIMIT $2
"""

# Sessions served longest ago, and their first calls: whoever waits longest is among them, whatever the queue's length.
# Sessions that were emptied keep their turn until it comes, and without a worker it never does. New calls wait in the
# order of their creation. Those that were offered again come first and wait since then, in no order, so each is looked
# at: any number of young ones may stand before the others.
_UNSERVED = """
SELECT c.uid, c.org, c.project, c.name
FROM (
    SELECT t.session FROM call_sessions t
    CROSS JOIN LATERAL (
        SELECT 1 FROM calls
        WHERE function_uid = t.function_uid AND session = t.session AND state = 'queued' AND seq >= 0
        ORDER BY priority, seq LIMIT 1
    ) AS first
    WHERE t.function_uid = $1 ORDER BY t.last_turn LIMIT $3
) AS s
CROSS JOIN LATERAL (
    (SELECT * FROM calls
    WHERE function_uid = $1 AND session = s.session AND priority = $reoffered AND state = 'queued' AND seq >= 0
        AND CASE WHEN dispatches > 0 THEN updated_at ELSE created_at END < $2
    ORDER BY seq LIMIT $3)
    UNION ALL
    (SELECT * FROM calls
    WHERE function_uid = $1 AND session = s.session AND priority = $new AND state = 'queued' AND seq >= 0
    ORDER BY seq LIMIT $3)
) AS c
WHERE CASE WHEN c.dispatches > 0 THEN c.updated_at ELSE c.created_at END < $2
LIMIT $3
""".replace("$reoffered", str(PRIORITY_REOFFERED)).replace("$new", str(PRIORITY_NEW))

_LAPSED = """
SELECT uid, epoch, 'LeaseExpired' AS reason FROM attempts
WHERE state = 'ready' AND last_claim_at < $1 ORDER BY last_claim_at LIMIT $2
"""

# Calls that run on a worker which has ended; there are none unless something went wrong.
_ORPHANED = """
SELECT DISTINCT a.uid, a.epoch, 'Finished' AS reason FROM calls c JOIN attempts a ON a.uid = c.attempt
WHERE c.state = 'running' AND a.finished_at IS NOT NULL LIMIT $1
"""

_TO_DRAIN = """
SELECT uid, epoch, COALESCE(drain_reason, '') AS reason FROM attempts
WHERE finished_at IS NULL AND draining AND state <> 'finished' AND function_uid = ANY($1::text[])
"""

_TO_KILL = """
SELECT a.uid, a.epoch, COALESCE(a.drain_reason, '') AS reason FROM attempts a
WHERE a.state <> 'finished' AND a.finished_at IS NULL AND a.kill_at < $1
    AND NOT EXISTS (SELECT 1 FROM calls c WHERE c.attempt = a.uid AND c.state = 'running' AND c.let_go_at IS NULL)
"""

_SILENT = """
SELECT uid, org, project, name, updated_at FROM calls
WHERE state IN ('deciding', 'waiting', 'done') AND has_workflow AND task_token IS NULL
    AND updated_at < $1 AND (updated_at, uid) > ($3, $4)
ORDER BY updated_at, uid LIMIT $2
"""


SessionAfter = tuple[str, str, str]
FROM_THE_FIRST_SESSION: SessionAfter = ("", "", "")
SilentAfter = tuple[datetime, str]
SILENT_FROM_THE_START: SilentAfter = (datetime.min.replace(tzinfo=UTC), "")


class CallQueries:
    """The questions, asked of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def loads(self, function_uids: Sequence[str]) -> dict[str, FunctionLoad]:
        """The loads of these Functions by uid; one that never had a call is absent."""
        records = await self._database.fetch(_LOADS, list(function_uids))
        return {record["function_uid"]: FunctionLoad(**dict(record)) for record in records}

    async def busy_loads(self) -> list[FunctionLoad]:
        """The loads of all Functions that have an open call."""
        return [FunctionLoad(**dict(record)) for record in await self._database.fetch(_BUSY_LOADS)]

    async def lag(self, calls_max: int) -> Lag:
        """How far the engine is behind: calls that were handed out and have no workflow, counted up to one more than
        `calls_max`."""
        async with self._database.pool.acquire() as connection:
            return await engine_lag(cast(asyncpg.Connection, connection), calls_max)

    async def to_decide(self, limit: int) -> list[UnstartedCall]:
        """Calls without a workflow that need one to go on; they are started before any other."""
        records = await self._database.fetch(_TO_DECIDE, limit)
        return [UnstartedCall(ref=CallRef.from_record(record)) for record in records]

    async def without_workflow(self, uids: Sequence[str]) -> set[str]:
        """Those of these calls that have a row and no workflow yet."""
        return {record["uid"] for record in await self._database.fetch(_WITHOUT_WORKFLOW, list(uids))}

    async def behind(self, limit: int, after: SessionAfter = FROM_THE_FIRST_SESSION) -> list[UnstartedCall]:
        """Calls without a workflow that run or have ended: what the engine is behind with. In the order of `_look`."""
        return await self._look(_BEHIND, limit, after)

    async def queued(self, limit: int, after: SessionAfter = FROM_THE_FIRST_SESSION) -> list[UnstartedCall]:
        """Calls without a workflow that wait for a worker, which need none until they are handed out. In the order of
        `_look`."""
        return await self._look(_QUEUED, limit, after)

    async def open_workflows(self, limit: int) -> int:
        """How many calls have a workflow that does not know their end yet, counted up to a bound."""
        count: int = await self._database.fetchval(_OPEN, limit)
        return count

    async def _look(self, question: str, limit: int, after: SessionAfter) -> list[UnstartedCall]:
        """Calls, oldest first in each session and one of each session in turn, beginning behind the session `after`.

        No more than `_SESSIONS_MAX` sessions are seen: go on after the last call that was taken to reach the others.
        """
        # Each session has a call to start, so more sessions than calls need not be found.
        records = await self._database.fetch(question, limit, *after, min(limit, _SESSIONS_MAX))
        return [UnstartedCall.from_record(record) for record in records]

    async def unreported(self, limit: int) -> list[UnreportedCall]:
        """Outcomes that the engine has not taken yet though it gave a token for them: decisions first, and the oldest
        call first among each."""
        records = await self._database.fetch(_UNREPORTED, limit)
        return [
            UnreportedCall(
                ref=CallRef.from_record(record),
                token=record["task_token"],
                outcome=CallOutcome.from_json(CallRow.outcome_of(record) or {}),
            )
            for record in records
        ]

    async def attempts_with_overdue_calls(
        self, now: datetime, deadline_grace_seconds: int, cancel_grace_seconds: int, limit: int
    ) -> list[str]:
        """Uids of workers that hold a call past its deadline or cancel and the grace, and were alive after it; for
        `EndOverdue`."""
        records = await self._database.fetch(
            _OVERDUE,
            now - timedelta(seconds=deadline_grace_seconds),
            now - timedelta(seconds=cancel_grace_seconds),
            limit,
            now - timedelta(seconds=LET_GO_GRACES * cancel_grace_seconds),
        )
        return [record["attempt"] for record in records]

    async def silent_attempts(self, deadline_before: datetime, cancel_before: datetime, limit: int) -> list[AttemptRef]:
        """Workers that have not claimed since the deadline, or the cancel, of a call they hold, which was before these
        times, and hold nothing else; to be killed."""
        records = await self._database.fetch(_SILENT_ATTEMPTS, deadline_before, cancel_before, limit)
        return [AttemptRef(**dict(record)) for record in records]

    async def attempts_running_on(self, before: datetime, limit: int) -> list[str]:
        """Uids of workers, not yet to be killed, that let go of a call before a time and still hold it."""
        return [record["attempt"] for record in await self._database.fetch(_RUNNING_ON, before, limit)]

    async def attempts_to_stop_calls(self, before: datetime, limit: int) -> list[tuple[str, Key]]:
        """Uids of workers, not draining yet, that hold a call which was cancelled before a time, and the keys of their
        Functions."""
        records = await self._database.fetch(_TO_STOP, before, limit)
        return [
            (record["attempt"], Key("Function", record["org"], record["project"], record["function"]))
            for record in records
        ]

    async def unserved(self, function_uid: str, before: datetime, limit: int) -> list[CallRef]:
        """Queued calls of a Function that have waited for a worker since before a time; for `EndUnserved`."""
        return [
            CallRef.from_record(record) for record in await self._database.fetch(_UNSERVED, function_uid, before, limit)
        ]

    async def lapsed_attempts(self, now: datetime, lease_seconds: int, limit: int) -> list[AttemptRef]:
        """Ready workers that have not claimed for a lease; for `LoseAttempt`."""
        records = await self._database.fetch(_LAPSED, now - timedelta(seconds=lease_seconds), limit)
        return [AttemptRef(**dict(record)) for record in records]

    async def orphaned_attempts(self, limit: int) -> list[AttemptRef]:
        """Workers that have ended and still hold calls; for `LoseAttempt`."""
        return [AttemptRef(**dict(record)) for record in await self._database.fetch(_ORPHANED, limit)]

    async def draining_attempts(self, function_uids: Sequence[str]) -> list[AttemptRef]:
        """Workers of these Functions that take no more calls and must be replaced."""
        return [AttemptRef(**dict(record)) for record in await self._database.fetch(_TO_DRAIN, list(function_uids))]

    async def attempts_to_kill(self, now: datetime) -> list[AttemptRef]:
        """Workers whose grace after a cancel or deadline is over and that run nothing the server still counts."""
        return [AttemptRef(**dict(record)) for record in await self._database.fetch(_TO_KILL, now)]

    async def silent_workflows(
        self, before: datetime, limit: int, after: SilentAfter = SILENT_FROM_THE_START
    ) -> SilentLook:
        """Calls that have had something to tell since `before` and a workflow that has not asked, oldest first.

        The workflow may sleep through a backoff, or be gone: whoever asks checks with the engine and detaches the
        call. Those that sleep stay, so the next look goes on after them: give `SilentLook.next_after` back.
        """
        records = await self._database.fetch(_SILENT, before, limit, *after)
        calls = [CallRef.from_record(record) for record in records]
        if len(records) < limit:
            return SilentLook(calls=calls, next_after=SILENT_FROM_THE_START)
        return SilentLook(calls=calls, next_after=(records[-1]["updated_at"], records[-1]["uid"]))


@dataclass(frozen=True, kw_only=True)
class SilentLook:
    """What one look for silent workflows found, and where the next one begins: the start again after the last."""

    calls: list[CallRef]
    next_after: SilentAfter
