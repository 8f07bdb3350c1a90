"""What spending limits missed, found and mended apart from the batches that spend.

A process that has not heard of a new Budget dispatches and ends calls as if there was none. What that leaves behind is
found by comparing the rows with what runs and with the ledger, so it is due whenever it is looked at; the keeper of
Budgets looks (`activities/budgets.py`). What is written is worked out under the lock that all writers share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import orjson

from controlplane.ledger.budget_hooks import follow
from controlplane.ledger.limits import Limit, limit_at
from controlplane.ledger.reservations import (
    CHARGED,
    LIMIT_ROWS,
    RUNNING,
    SETTLE,
    EndedDispatch,
    about,
    as_json,
    opening,
)
from controlplane.store.contract import Key, Reads, Tx
from controlplane.store.database import Database

_PER_READ = 500
"""Limits whose objects are in memory at once."""

_WITHOUT_ROW = """
SELECT w.id FROM unnest($1::text[]) AS w(id) LEFT JOIN spending_limits l ON l.id = w.id WHERE l.id IS NULL
"""

_ENDED_UNNOTICED = """
SELECT r.call_uid, r.dispatch, COALESCE(max(t.amount_micro_usd), 0)::bigint AS cost_micro_usd
FROM spending_reservations r
LEFT JOIN calls c ON c.uid = r.call_uid AND c.state = 'running' AND c.dispatches = r.dispatch
LEFT JOIN worker_accounts w ON w.uid = r.call_uid
LEFT JOIN ledger_transfers t ON t.id = 'charge/' || r.call_uid || '/' || r.dispatch
WHERE c.uid IS NULL AND w.uid IS NULL GROUP BY 1, 2 LIMIT $1
"""

_RUNNING_UNNOTICED = f"""
SELECT n.* FROM ({RUNNING}) AS n
LEFT JOIN spending_reservations r ON r.call_uid = n.uid AND r.dispatch = n.dispatches AND r.limit_id = $1
WHERE r.call_uid IS NULL LIMIT $3
"""  # noqa: S608 - constants

# It runs already, so it is held whatever that comes to: the row blocks again from the next statement on.
_ADD = """
WITH taken AS (
    INSERT INTO spending_reservations (call_uid, dispatch, limit_id, amount_micro_usd)
    SELECT c.uid, c.dispatches, $1::text, c.reserved_micro_usd
    FROM json_to_recordset($2::text::json) AS n (uid text, dispatches bigint)
    JOIN calls c ON c.uid = n.uid AND c.dispatches = n.dispatches AND c.state = 'running'
    WHERE EXISTS (SELECT FROM spending_limits WHERE id = $1::text)
    ON CONFLICT DO NOTHING RETURNING amount_micro_usd
)
UPDATE spending_limits SET blocks = false,
    held_micro_usd = held_micro_usd + (SELECT COALESCE(sum(amount_micro_usd), 0) FROM taken)
WHERE id = $1::text
"""


_BLOCK = "UPDATE spending_limits SET blocks = $2 WHERE id = $1"

_BEHIND = """
SELECT l.id FROM spending_limits l
JOIN json_to_recordset($1::text::json) AS n (id text, limit_micro_usd bigint, blocks boolean) ON n.id = l.id
WHERE (l.limit_micro_usd, l.blocks) IS DISTINCT FROM (n.limit_micro_usd, n.blocks)
"""


# Both sides as of one moment: whatever ends a dispatch charges it and counts it in one transaction.
_COUNTED = f"""
SELECT l.spent_micro_usd, (
    SELECT COALESCE(sum(t.amount_micro_usd), 0)::bigint FROM ({CHARGED}) AS t
    WHERE t.org = l.org AND t.created_at >= l.period_start
        AND t.created_at < COALESCE(l.period_end, 'infinity') $charged
) AS charged_micro_usd
FROM spending_limits l WHERE l.id = $1
"""  # noqa: S608 - constants

_RECOUNT = f"""
UPDATE spending_limits l SET spent_micro_usd = c.charged_micro_usd FROM ({_COUNTED}) AS c
WHERE l.id = $1 AND l.spent_micro_usd <> c.charged_micro_usd
"""  # noqa: S608 - constants

_WITH_OBJECT = """
SELECT l.id, o.kind, o.org, o.project, o.name, o.doc
FROM spending_limits l JOIN objects o ON o.uid = l.id AND o.kind IN ('Budget', 'Function')
WHERE l.id > $1 ORDER BY l.id LIMIT $2
"""


@dataclass(frozen=True, kw_only=True)
class Miscount:
    """A limit whose row tells something else than the ledger."""

    limit: Limit
    spent_micro_usd: int
    charged_micro_usd: int


async def miscount(database: Database, limit: Limit) -> Miscount | None:
    """How far the row of the limit is from the ledger; None where they agree, or it has no row. It reads what its
    organisation was charged in the period."""
    sql, arguments = about(limit, _COUNTED, [limit.id])
    for row in await database.fetch(sql, *arguments):
        if row["spent_micro_usd"] != row["charged_micro_usd"]:
            return Miscount(limit=limit, **dict(row))
    return None


async def miscounts(database: Database, most: int) -> list[Miscount]:
    """Up to `most` limits of all that tell something else than the ledger: for those who look at everything."""
    found: list[Miscount] = []
    after = ""
    while len(found) < most:
        rows = await database.fetch(_WITH_OBJECT, after, _PER_READ)
        for row in rows:
            key = Key(row["kind"], row["org"], row["project"], row["name"])
            limit = limit_at(key, orjson.loads(row["doc"]))
            wrong = None if limit is None else await miscount(database, limit)
            found += [] if wrong is None else [wrong]
        if len(rows) < _PER_READ:
            break
        after = rows[-1]["id"]
    return found[:most]


async def limits_behind(database: Database, limits: Sequence[Limit]) -> list[str]:
    """Which of these limits have a row that says something else: opened by a process that had not heard of a change, or
    written by an older server."""
    known = [{"id": each.id, "limit_micro_usd": each.limit_micro_usd, "blocks": each.blocks} for each in limits]
    return [row["id"] for row in await database.fetch(_BEHIND, as_json(known))]


async def limits_without_row(database: Database, limit_ids: Sequence[str]) -> list[str]:
    """Which of these limits nobody has asked about yet."""
    return [row["id"] for row in await database.fetch(_WITHOUT_ROW, list(limit_ids))]


async def ended_unnoticed(database: Database, limit: int) -> list[EndedDispatch]:
    """Dispatches that hold money and run no more, with what the ledger charged for them."""
    return [EndedDispatch(**dict(row)) for row in await database.fetch(_ENDED_UNNOTICED, limit)]


async def running_unnoticed(database: Database, limit: Limit, count: int) -> list[dict[str, object]]:
    """Dispatches that the limit covers, and that run without holding anything of it."""
    sql, arguments = about(limit, _RUNNING_UNNOTICED, [limit.id, limit.org, count])
    return [{"uid": row["uid"], "dispatches": row["dispatches"]} for row in await database.fetch(sql, *arguments)]


class OpenLimit:
    """Makes the row of a limit (`open_limit`)."""

    def __init__(self, limit: Limit, now: datetime) -> None:
        self._statement = opening(limit, now)

    def reads(self) -> Reads:
        return Reads()

    def apply(self, tx: Tx) -> None:
        tx.execute(*self._statement)


class SettleDispatches:
    """Settles dispatches whose end nobody counted; one that was settled meanwhile is not settled again."""

    def __init__(self, ended: Sequence[EndedDispatch]) -> None:
        self._ended = as_json([vars(each) for each in ended])

    def reads(self) -> Reads:
        return Reads()

    def apply(self, tx: Tx) -> None:
        tx.execute(SETTLE, (self._ended,))


class AddReservations:
    """Holds what running dispatches may cost of a limit that they were not asked of; one that ended holds nothing."""

    def __init__(self, limit: Limit, running: Sequence[Mapping[str, object]]) -> None:
        self._limit_id = limit.id
        self._running = as_json(running)

    def reads(self) -> Reads:
        return Reads(loads=((LIMIT_ROWS, self._limit_id),))

    def apply(self, tx: Tx) -> None:
        rows = tx.rows(LIMIT_ROWS, self._limit_id)
        if rows:
            tx.execute(_ADD, (self._limit_id, self._running))
            tx.execute(_BLOCK, (self._limit_id, rows[0]["blocks"]))


class FollowObject:
    """Brings the row of a limit to what its Budget or Function says, and to what the ledger has charged."""

    def __init__(self, key: Key) -> None:
        self._key = key

    def reads(self) -> Reads:
        return Reads(keys=(self._key,))

    def apply(self, tx: Tx) -> None:
        document = tx.get(self._key)
        limit = None if document is None else limit_at(self._key, document)
        if limit is not None:
            follow(tx, limit)
            # After all that this batch charges is written.
            tx.execute(*about(limit, _RECOUNT, [limit.id]))
