"""The queries behind a dispatch: whose turn it is, which held requests still count, and how far the engine lags.

Each costs a few index probes whatever the length of the queue: sessions are read in turn order, and of each session
only as many calls as could be taken. The partial indexes they rely on are in `store/call_tables.py`.
`calls/fairness.py` picks from what they return; `calls/dispatcher.py` applies it. Conditions that are always true
(`seq >= 0`) choose the index.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from controlplane.calls.fairness import SessionHead
from controlplane.calls.looks import Look
from controlplane.calls.rows import CallRow
from controlplane.store.contract import Key

if TYPE_CHECKING:
    from controlplane.store.contract import Connection

# A session that was emptied by cancels is only found when its turn comes, so a look takes some more than it needs.
_SPARE_SESSIONS = 8

# Each look answers two questions in one round trip: which of the held claims ($1, $2) still count, and what the queues
# hold. The objects of the calls come along, since nearly all of them are about to be handed out.
_LOOK = """
SELECT held.alive, q.*, o.*
FROM (SELECT ARRAY(
    SELECT a.uid FROM unnest($1::text[], $2::bigint[]) AS w(uid, claim_seq)
    JOIN attempts a ON a.uid = w.uid AND a.claim_seq = w.claim_seq
    WHERE a.finished_at IS NULL AND NOT a.draining
) AS alive) AS held
LEFT JOIN ($heads) AS q ON true
LEFT JOIN LATERAL (
    SELECT uid AS object_uid, rv AS object_rv, create_rv AS object_create_rv, labels AS object_labels,
        fields AS object_fields, doc AS object_doc
    FROM objects
    WHERE kind = 'FunctionCall' AND org = q.org COLLATE "C" AND project = q.project COLLATE "C"
        AND name = q.name COLLATE "C" LIMIT 1
) AS o ON true
ORDER BY q.turn_function_uid, q.turn, q.priority, q.seq
"""

_HEADS = _LOOK.replace(
    "$heads",
    """
    SELECT s.function_uid AS turn_function_uid, s.session AS turn_session, s.last_turn AS turn, s.depth, c.*
    FROM unnest($3::text[], $4::bigint[], $5::bigint[]) AS w(function_uid, wanted, sessions_max)
    CROSS JOIN LATERAL (
        SELECT t.*, (w.wanted + count(*) OVER () - 1) / count(*) OVER () AS depth
        FROM (
            SELECT function_uid, session, last_turn FROM call_sessions
            WHERE function_uid = w.function_uid ORDER BY last_turn LIMIT w.sessions_max
        ) AS t
    ) AS s
    LEFT JOIN LATERAL (
        SELECT * FROM calls
        WHERE function_uid = s.function_uid AND session = s.session AND state = 'queued' AND seq >= 0
        ORDER BY priority, seq LIMIT s.depth
    ) AS c ON true
    """,
)

# Beyond the lag budget: one call of each session whose workflow exists, in turn order, skipping the other sessions.
_STARTED_HEADS = _LOOK.replace(
    "$heads",
    """
    SELECT s.function_uid AS turn_function_uid, s.session AS turn_session, 1 AS depth, s.*
    FROM unnest($3::text[], $4::bigint[]) AS w(function_uid, wanted)
    CROSS JOIN LATERAL (
        SELECT t.last_turn AS turn, c.* FROM call_sessions t
        CROSS JOIN LATERAL (
            SELECT * FROM calls
            WHERE function_uid = t.function_uid AND session = t.session AND state = 'queued' AND has_workflow
            ORDER BY priority, seq LIMIT 1
        ) AS c
        WHERE t.function_uid = w.function_uid ORDER BY t.last_turn LIMIT w.wanted
    ) AS s
    """,
)

# A call that waits for its turn is no lag: nothing has happened to it that the engine does not know.
_LAG = """
SELECT (SELECT count(*) FROM (
        SELECT 1 FROM calls WHERE NOT has_workflow AND state <> 'queued' AND dispatches > 0
        ORDER BY updated_at LIMIT $1
    ) AS ahead) AS calls,
    (SELECT updated_at FROM calls WHERE NOT has_workflow AND state <> 'queued' AND dispatches > 0
        ORDER BY updated_at LIMIT 1) AS oldest_at
"""


@dataclass(frozen=True, kw_only=True)
class Found:
    """What one query found: the looks by Function, which held claims still count, and the objects of the calls."""

    looks: Mapping[str, Look]
    alive: frozenset[str]
    """Workers that may still be given calls by the held claims that were asked about."""
    objects: Sequence[tuple[Key, Mapping[str, Any]]]
    """Keys and records; the columns of the objects begin with OBJECT_PREFIX."""


@dataclass(frozen=True, kw_only=True)
class Lag:
    """Calls that were handed out and that no workflow knows yet, counted up to a bound, and since when nothing has
    happened to the one of them that has waited longest."""

    calls: int
    oldest_at: datetime | None


OBJECT_PREFIX = "object_"


async def look(
    connection: Connection, wanted: Mapping[str, int], round_number: int, held: Sequence[tuple[str, int]]
) -> Found:
    """The heads of the sessions of each Function in `wanted` (uid to number of calls), enough to pick that many.

    `held` are the claims, as (attempt, claim number), of which it asks whether they still count. Later rounds look at
    more sessions, so that any number of empty ones is passed in few rounds.
    """
    sessions_max = {uid: count + (_SPARE_SESSIONS << round_number) for uid, count in wanted.items()}
    arguments = (list(wanted), list(wanted.values()), list(sessions_max.values()))
    return _found(await connection.fetch(_HEADS, *_claims(held), *arguments), sessions_max)


async def look_started(connection: Connection, wanted: Mapping[str, int], held: Sequence[tuple[str, int]]) -> Found:
    """Like `look`, but only of calls whose workflow exists; what else a session has is not told."""
    return _found(
        await connection.fetch(_STARTED_HEADS, *_claims(held), list(wanted), list(wanted.values())), dict(wanted)
    )


async def engine_lag(connection: Connection, calls_max: int) -> Lag:
    """How many calls, up to one more than `calls_max`, were handed out and have no workflow."""
    [record] = await connection.fetch(_LAG, calls_max + 1)
    return Lag(calls=record["calls"], oldest_at=record["oldest_at"])


def _claims(held: Sequence[tuple[str, int]]) -> tuple[list[str], list[int]]:
    return [attempt for attempt, _ in held], [number for _, number in held]


def _found(records: Sequence[Any], sessions_max: Mapping[str, int]) -> Found:
    heads: dict[str, dict[str, list[CallRow]]] = {uid: {} for uid in sessions_max}
    depths: dict[tuple[str, str], int] = {}
    objects: list[tuple[Key, Mapping[str, Any]]] = []
    for record in records:
        function_uid, session = record["turn_function_uid"], record["turn_session"]
        if function_uid is None:
            continue
        calls = heads[function_uid].setdefault(session, [])
        depths[function_uid, session] = record["depth"]
        if record["uid"] is None:
            continue
        row = CallRow.from_record(record)
        calls.append(row)
        if record["object_uid"] is not None:
            objects.append((row.key, record))
    looks = {
        uid: Look(
            heads=[
                SessionHead(session=session, calls=calls, complete=len(calls) < depths[uid, session])
                for session, calls in sessions.items()
            ],
            all_sessions=len(sessions) < sessions_max[uid],
        )
        for uid, sessions in heads.items()
    }
    return Found(looks=looks, alive=frozenset(records[0]["alive"]), objects=objects)
