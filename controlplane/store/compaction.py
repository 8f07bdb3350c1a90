"""Forgetting: old changes and old idempotency keys, in chunks, so the tables stay bounded.

The compaction point moves, in a commit of its own, before rows go: a reader that checks it after reading knows
whether it saw everything. Every change beyond it takes away the version it replaced, and a delete itself, so what
stays below the point is one row for each object that lived there: what a snapshot above the point is rebuilt from.
Progress is stored with each chunk, and nothing here waits for the writers' lock or they for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from controlplane.settings import Settings
from controlplane.store.database import Database

CHUNK_ROWS = 2_000
"""Rows a transaction, so that none is long."""
CHUNKS_MAX = 50
"""Of one run, which is an activity with a bound on its time."""

# Times rise with revisions but for the skew of the replicas' clocks, so a walk from the last point finds the new one
# without an index on time.
_POINT = """
SELECT max(rv) FILTER (WHERE time < $2) AS point, count(*) FILTER (WHERE time < $2) AS old FROM (
    SELECT rv, time FROM changes WHERE rv > $1 ORDER BY rv LIMIT $3) AS next
"""
_MOVE_POINT = "UPDATE compaction SET compacted_rv = $1 WHERE id = 1 AND compacted_rv < $1"
_PRUNE = """
WITH span AS (SELECT rv, prev_rv, type FROM changes WHERE rv > $1 AND rv <= $2), gone AS (
    SELECT prev_rv AS rv FROM span WHERE prev_rv IS NOT NULL UNION SELECT rv FROM span WHERE type = 'DELETED'
), removed AS (DELETE FROM changes c USING gone WHERE c.rv = gone.rv RETURNING 1
), progress AS (UPDATE compaction SET pruned_rv = $2 WHERE id = 1 AND pruned_rv < $2)
SELECT count(*) FROM removed
"""
_FORGET_KEYS = """
WITH old AS (SELECT scope, key FROM idempotency WHERE created_at < $1 ORDER BY created_at LIMIT $2), gone AS (
    DELETE FROM idempotency i USING old WHERE i.scope = old.scope AND i.key = old.key RETURNING 1
)
SELECT count(*) FROM gone
"""


@dataclass(frozen=True, slots=True)
class Compacted:
    """What one run did; when `more` is set, run again soon instead of waiting for the next turn."""

    compacted_rv: int
    removed_changes: int
    more: bool


async def compact(database: Database, settings: Settings, now: datetime) -> Compacted:
    """Forget changes older than `change_retention_hours` and keys older than `idempotency_hours`, a bounded number of
    each. Runs of several processes at once are harmless."""
    row = await database.fetchrow("SELECT compacted_rv, pruned_rv FROM compaction WHERE id = 1")
    assert row is not None, "the row of compaction is missing"
    point, pruned = row["compacted_rv"], row["pruned_rv"]
    before = now - timedelta(hours=settings.change_retention_hours)
    more = True
    for _ in range(CHUNKS_MAX):
        found = await database.fetchrow(_POINT, point, before, CHUNK_ROWS)
        assert found is not None
        point = found["point"] or point
        if found["old"] < CHUNK_ROWS:
            more = False
            break
    await database.execute(_MOVE_POINT, point)
    removed = 0
    for _ in range(CHUNKS_MAX):
        if pruned >= point:
            break
        upto = min(pruned + CHUNK_ROWS, point)
        removed += await database.fetchval(_PRUNE, pruned, upto)
        pruned = upto
    more_keys = await _forget_keys(database, now - timedelta(hours=settings.idempotency_hours))
    return Compacted(compacted_rv=point, removed_changes=removed, more=more or pruned < point or more_keys)


async def _forget_keys(database: Database, before: datetime) -> bool:
    """Drop idempotency keys, a bounded number of them; whether there are more. There is one for nearly every call."""
    for _ in range(CHUNKS_MAX):
        if await database.fetchval(_FORGET_KEYS, before, CHUNK_ROWS) < CHUNK_ROWS:
            return False
    return True
