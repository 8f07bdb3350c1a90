"""What a worker itself may cost, reserved of the limits that cover its Function: its start, its window, its stop.

Calls reserve for themselves (`reservations.py`); this is for what they leave of the worker. A worker is started, and
its window renewed, only where every limit that blocks has room for it, and it is charged no more than is reserved for
it: what goes beyond that, because a controller was away or a call holds a worker that was asked to go, is the
platform's. So warm time does not pass a limit either. Mutations decide by the rows that were loaded under the writers'
lock and note what they change; `Reservations.open` writes it in the same transaction, before calls are dispatched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from controlplane.ledger.limits import Limit
from controlplane.ledger.reservations import LIMIT_ROWS, remaining
from controlplane.store.contract import Tx

if TYPE_CHECKING:
    from controlplane.store.contract import Connection

# One row for each limit, under the number of no dispatch.
_KEEP = """
WITH before AS (
    SELECT limit_id, amount_micro_usd FROM spending_reservations WHERE call_uid = $1 AND dispatch = 0
), gone AS (
    DELETE FROM spending_reservations WHERE call_uid = $1 AND dispatch = 0 AND limit_id <> ALL($2::text[])
), kept AS (
    INSERT INTO spending_reservations (call_uid, dispatch, limit_id, amount_micro_usd)
    SELECT $1, 0, l.id, $3 FROM spending_limits l WHERE l.id = ANY($2::text[])
    ON CONFLICT (call_uid, dispatch, limit_id) DO UPDATE SET amount_micro_usd = EXCLUDED.amount_micro_usd
    RETURNING limit_id, amount_micro_usd
)
UPDATE spending_limits l SET held_micro_usd = l.held_micro_usd + c.more FROM (
    SELECT limit_id, sum(amount)::bigint AS more FROM (
        SELECT limit_id, -amount_micro_usd AS amount FROM before UNION ALL SELECT limit_id, amount_micro_usd FROM kept
    ) AS both_of GROUP BY 1
) AS c WHERE l.id = c.limit_id
"""


@dataclass(frozen=True, kw_only=True)
class Reserved:
    """What a worker reserves from now on: the same of each of these limits."""

    limits: Sequence[Limit]
    amount_micro_usd: int


@dataclass
class WorkerReservations:
    """Those that one batch changes, by worker."""

    changed: dict[str, Reserved] = field(default_factory=dict)
    _taken: dict[str, int] = field(default_factory=dict)
    """By limit, what this batch has taken of it already, in micro-USD."""

    @classmethod
    def of(cls, tx: Tx) -> WorkerReservations:
        """Those of the batch."""
        scratch = tx.scratch("spending")
        if "workers" not in scratch:
            scratch["workers"] = cls()
        found: WorkerReservations = scratch["workers"]
        return found

    @property
    def limits(self) -> Iterable[Limit]:
        """What is taken of."""
        return (limit for reserved in self.changed.values() for limit in reserved.limits)

    def room(self, tx: Tx, limits: Sequence[Limit], own: Mapping[str, int], else_micro_usd: int) -> int | None:
        """The most (micro-USD) that a worker may reserve of all these limits, which has `own` of some already and
        `else_micro_usd` of the others; None when none blocks. Reads `LIMIT_ROWS`. A limit without a row has no room
        until it is opened."""
        rooms = []
        for limit in limits:
            rows = tx.rows(LIMIT_ROWS, limit.id)
            if not (rows[0]["blocks"] if rows else limit.blocks):
                continue
            if not rows:
                return 0
            left = remaining(limit, rows, tx.now) - rows[0]["held_micro_usd"] - self._taken.get(limit.id, 0)
            rooms.append(left + own.get(limit.id, else_micro_usd))
        return min(rooms, default=None)

    def keep(self, uid: str, limits: Sequence[Limit], own: Sequence[str], own_micro_usd: int, micro_usd: int) -> None:
        """Let the worker reserve `micro_usd` of these limits from now on, and nothing of any other."""
        if not limits and not own:
            return
        for limit in limits:
            more = micro_usd - (own_micro_usd if limit.id in own else 0)
            self._taken[limit.id] = self._taken.get(limit.id, 0) + max(0, more)
        self.changed[uid] = Reserved(limits=limits, amount_micro_usd=micro_usd)

    async def write(self, connection: Connection) -> None:
        """Store what changed; the rows of the limits are there and of the present period."""
        for uid, reserved in self.changed.items():
            ids = [limit.id for limit in reserved.limits]
            await connection.execute(_KEEP, uid, ids, reserved.amount_micro_usd)
