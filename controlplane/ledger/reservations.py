"""Reservations: the most that a dispatch may cost, taken from every limit that covers it before it starts.

`Reservations` belongs to one batch. It reads what the limits have left under the lock that all writers share, so no two
dispatches are given the same money; what it takes is written in the transaction that dispatches, and given back, less
the charge, in the one that records the end. A process that dies between leaves neither. A limit's row begins with what
the ledger and the running calls say, whenever it is first asked about, so nobody has to open it in time.

What a process did before it heard of a new Budget is found later (`spending_repairs.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

import orjson

from controlplane.ledger.limits import Limit
from controlplane.store.contract import Loader, Tx
from controlplane.store.database import Database
from controlplane.store.selection import label_condition

if TYPE_CHECKING:
    from controlplane.store.contract import Connection

LIMIT_ROWS = Loader(
    "spending limits",
    "SELECT id AS key, blocks, limit_micro_usd, spent_micro_usd, held_micro_usd, refused_micro_usd, period_end "
    "FROM spending_limits WHERE id = ANY($1::text[])",
)
"""The row of a limit, for mutations; none before it was first asked about by a dispatch."""

_ROWS = """
SELECT id, blocks, limit_micro_usd, spent_micro_usd, held_micro_usd, period_end
FROM spending_limits WHERE id = ANY($1::text[])
"""

_ROLL = """
UPDATE spending_limits SET spent_micro_usd = 0, period_start = $2, period_end = $3
WHERE id = ANY($1::text[]) AND period_end <= $4
"""

# Labels of a call and, where it has none of that name, of its Function: `calls/funding.py` asks by the same.
RUNNING = """
SELECT c.uid, c.dispatches, c.reserved_micro_usd FROM (
    SELECT r.*, COALESCE(r.function_labels, '{}') || COALESCE(o.labels, '{}') AS labels
    FROM calls r LEFT JOIN objects o ON o.kind = 'FunctionCall' AND o.org = r.org COLLATE "C"
        AND o.project = r.project COLLATE "C" AND o.name = r.name COLLATE "C" AND o.uid = r.uid
    WHERE r.state = 'running' AND r.deadline > '-infinity' AND r.reserved_micro_usd > 0
) AS c WHERE c.org = $2 $running
"""

# What workers reserve for themselves is in their accounts (`worker_reservations.py`); it has the number of no dispatch.
_WORKERS = """
SELECT c.uid, 0 AS dispatches, c.reserved_micro_usd FROM (
    SELECT w.*, COALESCE(o.labels, '{}') AS labels
    FROM worker_accounts w LEFT JOIN objects o ON o.kind = 'Function' AND o.org = w.org COLLATE "C"
        AND o.project = w.project COLLATE "C" AND o.name = w.function COLLATE "C" AND o.uid = w.function_uid
    WHERE w.reserved_micro_usd > 0
) AS c WHERE c.org = $2 $running
"""

CHARGED = """
SELECT org, project, function_uid, created_at, amount_micro_usd, COALESCE(labels, '{}') AS labels
FROM ledger_transfers WHERE kind IN ('charge', 'post')
"""
"""What counts as spent; labels as they were when it was charged."""

_OPEN = f"""
WITH running AS ({RUNNING} UNION ALL {_WORKERS}), opened AS (
    INSERT INTO spending_limits
        (id, org, blocks, limit_micro_usd, period_start, period_end, spent_micro_usd, held_micro_usd)
    SELECT $1, $2, $3, $4, $5, $6, (
        SELECT COALESCE(sum(t.amount_micro_usd), 0) FROM ({CHARGED}) AS t
        WHERE t.org = $2 AND t.created_at >= $5 $charged
    ), COALESCE((SELECT sum(reserved_micro_usd) FROM running), 0)
    ON CONFLICT (id) DO NOTHING RETURNING id
)
INSERT INTO spending_reservations (call_uid, dispatch, limit_id, amount_micro_usd)
SELECT r.uid, r.dispatches, o.id, r.reserved_micro_usd FROM running r CROSS JOIN opened o
"""  # noqa: S608 - constants

SETTLE = """
WITH ended AS (
    DELETE FROM spending_reservations r
    USING json_to_recordset($1::text::json) AS n (call_uid text, dispatch bigint, cost_micro_usd bigint)
    WHERE r.call_uid = n.call_uid AND r.dispatch = n.dispatch
    RETURNING r.limit_id, r.amount_micro_usd, n.cost_micro_usd
)
UPDATE spending_limits l
SET held_micro_usd = l.held_micro_usd - s.held, spent_micro_usd = l.spent_micro_usd + s.spent
FROM (
    SELECT limit_id, sum(amount_micro_usd)::bigint AS held, sum(cost_micro_usd)::bigint AS spent FROM ended GROUP BY 1
) AS s WHERE l.id = s.limit_id
"""

_RESERVE = """
WITH taken AS (
    INSERT INTO spending_reservations (call_uid, dispatch, limit_id, amount_micro_usd)
    SELECT * FROM json_to_recordset($1::text::json)
        AS n (call_uid text, dispatch bigint, limit_id text, amount_micro_usd bigint)
    RETURNING limit_id, amount_micro_usd
)
UPDATE spending_limits l
SET held_micro_usd = l.held_micro_usd + s.held, refused_micro_usd = NULL
FROM (SELECT limit_id, sum(amount_micro_usd)::bigint AS held FROM taken GROUP BY 1) AS s
WHERE l.id = s.limit_id
"""


_SPEND = "UPDATE spending_limits SET spent_micro_usd = spent_micro_usd + $2 WHERE id = $1"

_NOTE_REFUSED = """
UPDATE spending_limits l SET refused_micro_usd = n.amount
FROM unnest($1::text[], $2::bigint[]) AS n (id, amount)
WHERE l.id = n.id AND l.refused_micro_usd IS DISTINCT FROM n.amount
"""
"""The least that did not fit when the queues were looked at last: as long as less than that is left, the limit is
reached. It is forgotten when a dispatch fits and when a call leaves the queue, and lowered by calls that need less:
otherwise a Function would wait for money that nobody asks for any more."""

_FORGET_REFUSED = """
UPDATE spending_limits SET refused_micro_usd = NULL WHERE id = ANY($1::text[]) AND refused_micro_usd IS NOT NULL
"""
_LOWER_REFUSED = "UPDATE spending_limits SET refused_micro_usd = $2 WHERE id = $1 AND refused_micro_usd > $2"


@dataclass(frozen=True, kw_only=True)
class EndedDispatch:
    """A dispatch that ended in this batch, with what it cost."""

    call_uid: str
    dispatch: int
    cost_micro_usd: int


@dataclass
class Reservations:
    """What the limits have left in this batch, and what is taken from them."""

    now: datetime
    left: dict[str, int] = field(default_factory=dict)
    """By limit, in micro-USD; below zero when its amount was lowered. What the amount is and whether it blocks is read
    from the rows, which change with their Budgets: this process may not have heard of that yet."""
    _blocking: set[str] = field(default_factory=set)
    _limits: dict[str, Limit] = field(default_factory=dict)
    _taken: list[dict[str, object]] = field(default_factory=list)
    _refused: dict[str, int] = field(default_factory=dict)

    async def open(
        self,
        connection: Connection,
        limits: Iterable[Limit],
        ended: Sequence[EndedDispatch],
        beside: Sequence[tuple[Limit, int]] = (),
        reserve_for_workers: Callable[[Connection], Awaitable[None]] | None = None,
    ) -> None:
        """Read what these limits have left, once the dispatches that ended in this batch gave theirs back, what its
        workers cost `beside` them was counted and what they reserve for themselves was written.

        Limits without a row get one first, while the database still shows what ended as running: so it is in.
        """
        self._limits = {limit.id: limit for limit in limits}
        rows = {row["id"]: row for row in await connection.fetch(_ROWS, list(self._limits))}
        for limit in self._limits.values():
            if limit.id not in rows:
                await open_limit(connection, limit, self.now)
        due = [row["id"] for row in rows.values() if row["period_end"] is not None and row["period_end"] <= self.now]
        for limit_id in due:
            await connection.execute(_ROLL, [limit_id], *self._limits[limit_id].period(self.now), self.now)
        if ended:
            await settle(connection, ended)
        for limit, micro_usd in beside:
            await connection.execute(_SPEND, limit.id, micro_usd)
        if reserve_for_workers is not None:
            await reserve_for_workers(connection)
        if ended or beside or due or reserve_for_workers is not None or len(rows) < len(self._limits):
            rows = {row["id"]: row for row in await connection.fetch(_ROWS, list(self._limits))}
        for limit in self._limits.values():
            row = rows[limit.id]
            self.left[limit.id] = row["limit_micro_usd"] - row["spent_micro_usd"] - row["held_micro_usd"]
        self._blocking = {row["id"] for row in rows.values() if row["blocks"]}

    def take(self, limits: Sequence[Limit], amount_micro_usd: int, call_uid: str, dispatch: int) -> Limit | None:
        """Reserve the amount of all these limits; or nothing of any, and the one that it does not fit."""
        if amount_micro_usd == 0:
            return None
        for limit in limits:
            if limit.id in self._blocking and self.left[limit.id] < amount_micro_usd:
                self._refused[limit.id] = min(amount_micro_usd, self._refused.get(limit.id, amount_micro_usd))
                return limit
        for limit in limits:
            self.left[limit.id] -= amount_micro_usd
            self._taken.append(
                {
                    "call_uid": call_uid,
                    "dispatch": dispatch,
                    "limit_id": limit.id,
                    "amount_micro_usd": amount_micro_usd,
                }
            )
        return None

    def give_back(self, call_uid: str, dispatch: int) -> None:
        """Take nothing for this dispatch after all."""
        for taken in [each for each in self._taken if (each["call_uid"], each["dispatch"]) == (call_uid, dispatch)]:
            self._taken.remove(taken)
            amount = taken["amount_micro_usd"]
            assert isinstance(amount, int), "it was taken above"
            self.left[str(taken["limit_id"])] += amount

    async def write(self, connection: Connection, freed: Collection[str] = ()) -> None:
        """Store what was taken, and what did not fit: of the `freed` limits only what did not in this batch."""
        if freed:
            await connection.execute(_FORGET_REFUSED, list(freed))
        if self._taken:
            await connection.execute(_RESERVE, as_json(self._taken))
        if self._refused:
            await connection.execute(_NOTE_REFUSED, list(self._refused), list(self._refused.values()))


async def open_limit(connection: Connection, limit: Limit, now: datetime) -> None:
    """Make the row of a limit, with what its period has cost already and what runs now; one that is there stays."""
    sql, arguments = opening(limit, now)
    await connection.execute(sql, *arguments)


def opening(limit: Limit, now: datetime) -> tuple[str, list[object]]:
    """The statement of `open_limit`."""
    return about(limit, _OPEN, [limit.id, limit.org, limit.blocks, limit.limit_micro_usd, *limit.period(now)])


async def settle(connection: Connection, ended: Sequence[EndedDispatch]) -> None:
    """Give back what these dispatches had reserved, and count what they cost."""
    await connection.execute(SETTLE, as_json([vars(each) for each in ended]))


def want_less(tx: Tx, limit: Limit, needed_micro_usd: int) -> None:
    """A call waits that needs no more than this of the limit: it is not reached by what did not fit before. Reads
    `LIMIT_ROWS`."""
    rows = tx.rows(LIMIT_ROWS, limit.id)
    if rows and (rows[0]["refused_micro_usd"] or 0) > needed_micro_usd:
        tx.execute(_LOWER_REFUSED, (limit.id, needed_micro_usd))


def remaining(limit: Limit, rows: Sequence[Mapping[str, object]], now: datetime) -> int:
    """What a row of `LIMIT_ROWS` leaves for work once everything that runs has given back its reservation: what a new
    call is judged by, which may wait for that."""
    if not rows:
        return limit.limit_micro_usd
    ends_at, spent, most = rows[0]["period_end"], rows[0]["spent_micro_usd"], rows[0]["limit_micro_usd"]
    assert isinstance(spent, int), "a column of the table"
    assert isinstance(most, int), "a column of the table"
    is_over = isinstance(ends_at, datetime) and ends_at <= now
    return most - (0 if is_over else spent)


async def left_for_workers(
    database: Database, limits: Mapping[str, Sequence[Limit]], now: datetime
) -> dict[str, int | None]:
    """By Function uid, the least that the limits which block all of its work have left, in micro-USD; None where none
    does. As of now, for those who plan workers: nothing is taken."""
    ids = list({limit.id for found in limits.values() for limit in found})
    rows = {row["key"]: dict(row) for row in await database.fetch(LIMIT_ROWS.sql, ids)} if ids else {}
    return {
        uid: min(
            (
                max(0, remaining(limit, [rows[limit.id]], now) - rows[limit.id]["held_micro_usd"])
                if limit.id in rows
                else limit.limit_micro_usd
                for limit in found
            ),
            default=None,
        )
        for uid, found in limits.items()
    }


def reservations_of(tx: Tx) -> Reservations:
    """Those of the batch."""
    scratch = tx.scratch("spending")
    if "reservations" not in scratch:
        scratch["reservations"] = Reservations(tx.now)
    found: Reservations = scratch["reservations"]
    return found


def about(limit: Limit, sql: str, arguments: list[object]) -> tuple[str, list[object]]:
    """A statement about what the limit covers: of work that runs, a table `c`, in place of `$running`, and of
    transfers, a table `t`, in place of `$charged`. Its arguments come after those that are given."""
    arguments = [*arguments]

    def bind(value: object) -> str:
        arguments.append(value)
        return f"${len(arguments)}"

    for place, table in (("$running", "c"), ("$charged", "t")):
        if place in sql:
            sql = sql.replace(place, _scope_of(limit, table, bind))
    return sql, arguments


def _scope_of(limit: Limit, table: str, bind: Callable[[object], str]) -> str:
    """What the work that a limit covers fulfils, as conditions on a table, each with its AND before it."""
    parts = [label_condition(term, table, bind) for term in limit.terms]
    if limit.project is not None:
        parts.append(f"{table}.project = {bind(limit.project)}")
    if limit.function_uid is not None:
        parts.append(f"{table}.function_uid = {bind(limit.function_uid)}")
    return "".join(f" AND {part}" for part in parts)


def as_json(rows: object) -> str:
    """What a statement here takes as an array."""
    return orjson.dumps(rows).decode()
