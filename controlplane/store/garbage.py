"""Finding what nothing refers to any more; `controlplane/resources/deletion.py` removes it."""

from __future__ import annotations

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
