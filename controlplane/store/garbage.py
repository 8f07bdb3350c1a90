"""Finding what nothing refers to any more; `controlplane/resources/deletion.py` removes it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from controlplane.store.contract import Key
from controlplane.store.database import Database

ORPHANED = """
SELECT o.kind, o.org, o.project, o.name FROM objects o
WHERE o.owners <> '{}' AND NOT o.deleting AND NOT EXISTS (SELECT 1 FROM objects p WHERE p.uid = ANY(o.owners))
LIMIT $1
"""
ORPHANED_BY = """
SELECT o.kind, o.org, o.project, o.name FROM objects o
WHERE o.owners @> ARRAY[$1::text] AND o.owners <> '{}' AND NOT o.deleting
    AND NOT EXISTS (SELECT 1 FROM objects p WHERE p.uid = ANY(o.owners))
LIMIT $2
"""
CONTENTS = """
SELECT kind, org, project, name, deleting FROM objects WHERE org = $1 AND project = $2 ORDER BY deleting LIMIT $3
"""
# The last change of an object is kept however old it is, so the log tells how long nothing has happened to it.
UNCHANGED = """
SELECT o.kind, o.org, o.project, o.name FROM changes c
JOIN objects o ON o.kind = c.kind AND o.org = c.org AND o.project = c.project AND o.name = c.name AND o.rv = c.rv
WHERE c.time < $2 AND c.kind = $1 AND NOT o.deleting
    AND ($3::text[] IS NULL OR o.fields->>'status.phase' = ANY($3::text[]))
ORDER BY c.time LIMIT $4
"""
BLOBS_OF_CALLS = """
SELECT d FROM unnest($3::text[]) AS d WHERE EXISTS (
    SELECT 1 FROM objects
    WHERE kind = 'FunctionCall' AND org = $1 AND project = $2 AND position('sha256:' || d IN doc::text) > 0)
"""


class Garbage:
    """Queries of the garbage collector over all kinds."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def orphaned(self, limit: int) -> list[Key]:
        """Up to `limit` objects all of whose owners are gone and whose delete nobody asked for yet."""
        return [Key(*row) for row in await self._database.fetch(ORPHANED, limit)]

    async def orphaned_by(self, uid: str, limit: int) -> list[Key]:
        """Those of them that the object with this uid owned."""
        return [Key(*row) for row in await self._database.fetch(ORPHANED_BY, uid, limit)]

    async def contents(self, org: str, project: str, limit: int) -> list[tuple[Key, bool]]:
        """Up to `limit` objects of a project, those that nobody deletes yet first, each with whether it is deleting."""
        rows = await self._database.fetch(CONTENTS, org, project, limit)
        return [(Key(*row[:4]), row["deleting"]) for row in rows]

    async def unchanged(self, kind: str, before: datetime, phases: Sequence[str] | None, limit: int) -> list[Key]:
        """Up to `limit` objects to which nothing happened since a time, in one of these phases if any are given."""
        rows = await self._database.fetch(UNCHANGED, kind, before, None if phases is None else list(phases), limit)
        return [Key(*row) for row in rows]

    async def blobs_of_calls(self, org: str, project: str, digests: Sequence[str]) -> set[str]:
        """Those of these blobs that a call of the project takes as input or gave as result. Reads all its calls."""
        rows = await self._database.fetch(BLOBS_OF_CALLS, org, project, list(digests))
        return {row["d"] for row in rows}
