"""Forgetting: old changes and old idempotency keys, in chunks, so the tables stay bounded.

The compaction point is moved before rows go, so a reader that checks it after reading knows whether it saw
everything. The newest change of a live object is kept however old it is: it is what an earlier snapshot of the object
is rebuilt from.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from controlplane.settings import Settings
from controlplane.store.database import Database

CHUNK_ROWS = 5_000

MOVE_POINT = """
UPDATE meta SET compacted_rv = greatest(compacted_rv, (SELECT coalesce(max(rv), 0) FROM changes WHERE time < $1))
WHERE id = 1 RETURNING compacted_rv
"""
DELETE_CHANGES = """
DELETE FROM changes WHERE rv IN (
    SELECT c.rv FROM changes c
    LEFT JOIN objects o ON o.kind = c.kind AND o.org = c.org AND o.project = c.project AND o.name = c.name
    WHERE c.rv <= $1 AND o.rv IS DISTINCT FROM c.rv
        AND NOT EXISTS (SELECT 1 FROM changes n WHERE n.prev_rv = c.rv AND n.rv > $1 AND n.kind = c.kind
            AND n.org = c.org AND n.project = c.project AND n.name = c.name)
    ORDER BY c.rv LIMIT $2)
"""
DELETE_KEYS = """
DELETE FROM idempotency WHERE (scope, key) IN (SELECT scope, key FROM idempotency WHERE created_at < $1 LIMIT $2)
"""


async def compact(database: Database, settings: Settings, now: datetime) -> int:
    """Remove one chunk of each and return how many changes went; call again while it returns a full chunk."""
    compacted = await database.pool.fetchval(MOVE_POINT, now - timedelta(hours=settings.change_retention_hours))
    removed = await database.execute(DELETE_CHANGES, compacted, CHUNK_ROWS)
    await database.execute(DELETE_KEYS, now - timedelta(hours=settings.idempotency_hours), CHUNK_ROWS)
    return int(removed.rsplit(" ", 1)[-1])
