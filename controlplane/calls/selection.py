"""The queries behind a dispatch: whose turn it is, which held requests still count, and how far the engine lags.

Each costs a few index probes whatever the length of the queue: sessions are read in turn order, and of each session
only as many calls as could be taken. The partial indexes they rely on are in `store/tables.py`. `calls/fairness.py`
picks from what they return; `calls/dispatcher.py` applies it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from controlplane.calls.fairness import SessionHead
from controlplane.calls.rows import CallRow

if TYPE_CHECKING:
    from controlplane.store.contract import Connection

# A session that was emptied by cancels is only found when its turn comes, so a look takes some more than it needs.
_SPARE_SESSIONS = 8

_HEADS = """
SELECT s.function_uid AS turn_function_uid, s.session AS turn_session, s.seen, s.depth, c.*
FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS w(function_uid, wanted, sessions_max)
CROSS JOIN LATERAL (
    SELECT t.*, count(*) OVER () AS seen, (w.wanted + count(*) OVER () - 1) / count(*) OVER () AS depth
    FROM (
        SELECT function_uid, session, last_turn FROM call_sessions
        WHERE function_uid = w.function_uid ORDER BY last_turn LIMIT w.sessions_max
    ) AS t
) AS s
LEFT JOIN LATERAL (
    SELECT * FROM calls WHERE function_uid = s.function_uid AND session = s.session AND state = 'queued'
    ORDER BY priority, seq LIMIT s.depth
) AS c ON true
ORDER BY s.function_uid, s.last_turn, c.priority, c.seq
"""

# Beyond the lag budget: one call of each session whose workflow exists, in turn order, skipping the other sessions.
_STARTED_HEADS = """
SELECT s.function_uid AS turn_function_uid, s.session AS turn_session, s.*
FROM unnest($1::text[], $2::bigint[]) AS w(function_uid, wanted)
CROSS JOIN LATERAL (
    SELECT t.last_turn, c.* FROM call_sessions t
    CROSS JOIN LATERAL (
        SELECT * FROM calls
        WHERE function_uid = t.function_uid AND session = t.session AND state = 'queued' AND has_workflow
        ORDER BY priority, seq LIMIT 1
    ) AS c
    WHERE t.function_uid = w.function_uid ORDER BY t.last_turn LIMIT w.wanted
) AS s
ORDER BY s.function_uid, s.last_turn
"""

_ALIVE = """
SELECT a.uid FROM unnest($1::text[], $2::bigint[]) AS w(uid, claim_seq)
JOIN attempts a ON a.uid = w.uid AND a.claim_seq = w.claim_seq
WHERE a.finished_at IS NULL AND NOT a.draining
"""

_LAG = """
SELECT (SELECT count(*) FROM (SELECT 1 FROM calls WHERE NOT has_workflow LIMIT $1) AS unstarted) AS calls,
    (SELECT min(oldest.created_at)
    FROM unnest(ARRAY['queued', 'running', 'deciding', 'waiting', 'done']) AS s(state)
    CROSS JOIN LATERAL (
        SELECT created_at FROM calls WHERE NOT has_workflow AND state = s.state ORDER BY seq LIMIT 1
    ) AS oldest) AS oldest_at
"""


@dataclass(frozen=True, kw_only=True)
class Look:
    """What one look at a Function's queue found, in turn order."""

    heads: list[SessionHead[CallRow]]
    all_sessions: bool


@dataclass(frozen=True, kw_only=True)
class Lag:
    """Calls that no workflow knows yet, counted up to a bound, and when the oldest of them was created."""

    calls: int
    oldest_at: datetime | None


async def look(connection: Connection, wanted: Mapping[str, int], round_number: int) -> dict[str, Look]:
    """The heads of the sessions of each Function in `wanted` (uid to number of calls), enough to pick that many.

    Later rounds look at more sessions, so that any number of empty ones is passed in few rounds.
    """
    sessions_max = {uid: count + (_SPARE_SESSIONS << round_number) for uid, count in wanted.items()}
    records = await connection.fetch(_HEADS, list(wanted), list(wanted.values()), list(sessions_max.values()))
    grouped = _grouped(records)
    looks = {}
    for function_uid, sessions in grouped.items():
        heads = [
            SessionHead(session=session, calls=_calls(rows), complete=len(_calls(rows)) < rows[0]["depth"])
            for session, rows in sessions.items()
        ]
        looks[function_uid] = Look(heads=heads, all_sessions=len(heads) < sessions_max[function_uid])
    return looks


async def look_started(connection: Connection, wanted: Mapping[str, int]) -> dict[str, Look]:
    """Like `look`, but only of calls whose workflow exists; what else a session has is not told."""
    records = await connection.fetch(_STARTED_HEADS, list(wanted), list(wanted.values()))
    looks = {}
    for function_uid, sessions in _grouped(records).items():
        heads = [SessionHead(session=session, calls=_calls(rows), complete=False) for session, rows in sessions.items()]
        looks[function_uid] = Look(heads=heads, all_sessions=len(heads) < wanted[function_uid])
    return looks


async def alive(connection: Connection, claims: Sequence[tuple[str, int]]) -> set[str]:
    """Of held claims, as (attempt, claim number), those whose worker may still be given calls by them."""
    attempts, numbers = [attempt for attempt, _ in claims], [number for _, number in claims]
    return {record["uid"] for record in await connection.fetch(_ALIVE, attempts, numbers)}


async def engine_lag(connection: Connection, calls_max: int) -> Lag:
    """How many calls, up to one more than `calls_max`, have no workflow."""
    [record] = await connection.fetch(_LAG, calls_max + 1)
    return Lag(calls=record["calls"], oldest_at=record["oldest_at"])


def _grouped(records: Sequence[Any]) -> dict[str, dict[str, list[Mapping[str, Any]]]]:
    grouped: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    for record in records:
        sessions = grouped.setdefault(record["turn_function_uid"], {})
        sessions.setdefault(record["turn_session"], []).append(record)
    return grouped


def _calls(records: Sequence[Mapping[str, Any]]) -> list[CallRow]:
    return [CallRow.from_record(record) for record in records if record["uid"] is not None]
