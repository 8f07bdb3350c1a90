"""Finding what nothing refers to any more; `controlplane/resources/deletion.py` removes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import asyncpg

from controlplane.store.contract import Key
from controlplane.store.database import Database

ORPHANED = """
SELECT o.kind, o.org, o.project, o.name, o.owners, false AS shared FROM objects o
WHERE o.owners <> '{}' AND NOT o.deleting AND NOT EXISTS (SELECT 1 FROM objects p WHERE p.uid = ANY(o.owners))
LIMIT $1
"""
ORPHANED_BY = """
SELECT o.kind, o.org, o.project, o.name, o.owners, false AS shared FROM objects o
WHERE o.owners @> ARRAY[$1::text] AND o.owners <> '{}' AND NOT o.deleting
    AND NOT EXISTS (SELECT 1 FROM objects p WHERE p.uid = ANY(o.owners))
LIMIT $2
"""
# These two read documents as text, in the one way that the serialiser writes them: as JSON a document with a NUL in any
# string could not be looked into. A quote inside a string is escaped there, so neither pattern can match in one.
UNTOUCHED = r"""
SELECT o.kind, o.org, o.project, o.name, o.owners, EXISTS (
    SELECT 1 FROM objects p WHERE p.uid = ANY(o.owners) AND p.uid <> $1
        AND NOT (p.deleting AND p.doc::text ~ '"finalizers":\[[^]]*"foregroundDeletion"')
) AS shared
FROM objects o WHERE o.owners @> ARRAY[$1::text] AND o.owners <> '{}' AND NOT o.deleting LIMIT $2
"""
BLOCKED = r"""
SELECT EXISTS (
    SELECT 1 FROM objects o WHERE o.owners @> ARRAY[$1::text] AND o.owners <> '{}' AND o.deleting AND (
        o.doc::text ~ ('"uid":"' || $1 || '"[^{}]*"blockOwnerDeletion":true')
        OR o.doc::text ~ ('"blockOwnerDeletion":true[^{}]*"uid":"' || $1 || '"')
    )
)
"""
CONTENTS = """
SELECT kind, org, project, name, deleting FROM objects WHERE org = $1 AND project = $2 ORDER BY deleting LIMIT $3
"""
_FORGET_BLOBS = """
DELETE FROM blobs WHERE org = $1 AND project = $2 AND digest IN (
    SELECT digest FROM blobs WHERE org = $1 AND project = $2 LIMIT $3)
"""
FORGOTTEN_BLOBS_MAX = 1_000
"""Rows deleted at once, each of which changes two sums."""
# The last change of an object is kept however old it is, so the log tells how long nothing has happened to it. A change
# of an object that is gone stays for a day, at the front of the index: the walk goes on after those it has seen.
_UNCHANGED = """
SELECT c.time, c.rv, c.org, c.project, c.name, o.uid,
    EXISTS (SELECT 1 FROM objects d WHERE d.owners @> ARRAY[o.uid] AND d.owners <> '{}') AS has_dependents
FROM (
    SELECT time, rv, kind, org, project, name FROM changes
    WHERE $which AND time < $1 AND (time, rv) > ($2, $3) ORDER BY time, rv LIMIT $4
) AS c
LEFT JOIN objects o ON o.kind = c.kind AND o.org = c.org AND o.project = c.project AND o.name = c.name
    AND o.rv = c.rv AND NOT o.deleting
ORDER BY c.time, c.rv
"""
# Written as their indexes are (`store/tables.py`), or these would not be used.
UNCHANGED = {
    "FunctionCall": _UNCHANGED.replace(
        "$which", "kind = 'FunctionCall' AND fields ->> 'status.phase' IN ('Succeeded', 'Failed', 'Cancelled')"
    ),
    "Event": _UNCHANGED.replace("$which", "kind = 'Event'"),
}
BLOBS_OF_CALLS = """
SELECT d FROM unnest($3::text[]) AS d WHERE EXISTS (
    SELECT 1 FROM objects
    WHERE kind = 'FunctionCall' AND org = $1 AND project = $2 AND position('sha256:' || d IN doc::text) > 0)
"""


Position = tuple[datetime, int]
"""A change in the order of time."""
BEGINNING: Position = (datetime.min.replace(tzinfo=UTC), 0)


@dataclass(frozen=True, slots=True)
class Owned:
    """An object whose delete nobody asked for yet, and the owners it had when it was found."""

    key: Key
    owners: frozenset[str]
    """Their uids, living or not."""
    shared: bool
    """Whether another owner lives that is not itself waiting for its dependents to go."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Unchanged:
    """An object to which nothing has happened for long, and whether others name it as their owner."""

    key: Key
    uid: str
    has_dependents: bool


@dataclass(frozen=True, kw_only=True)
class Walk:
    """One piece of a walk through old changes: what it found, how far it came, and whether there are more of them."""

    found: list[Unchanged]
    seen_upto: Position
    more: bool


class Garbage:
    """Queries of the garbage collector over all kinds."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def orphaned(self, limit: int) -> list[Owned]:
        """Up to `limit` objects all of whose owners are gone and whose delete nobody asked for yet."""
        return _owned(await self._database.fetch(ORPHANED, limit))

    async def orphaned_by(self, uid: str, limit: int) -> list[Owned]:
        """Those of them that the object with this uid owned."""
        return _owned(await self._database.fetch(ORPHANED_BY, uid, limit))

    async def untouched(self, uid: str, limit: int) -> list[Owned]:
        """Up to `limit` dependents of the object with this uid whose delete nobody asked for yet."""
        return _owned(await self._database.fetch(UNTOUCHED, uid, limit))

    async def is_blocked(self, uid: str) -> bool:
        """Whether a dependent that is being deleted blocks the delete of the object with this uid."""
        blocked: bool = await self._database.fetchval(BLOCKED, uid)
        return blocked

    async def contents(self, org: str, project: str, limit: int) -> list[tuple[Key, bool]]:
        """Up to `limit` objects of a project, those that nobody deletes yet first, each with whether it is deleting."""
        rows = await self._database.fetch(CONTENTS, org, project, limit)
        return [(Key(*row[:4]), row["deleting"]) for row in rows]

    async def forget_blobs(self, org: str, project: str) -> bool:
        """Delete some of a project's blobs, to which nothing in it refers any more; whether there may be more. Their
        bytes, which no row names then, are found by the sweeper."""
        status = await self._database.execute(_FORGET_BLOBS, org, project, FORGOTTEN_BLOBS_MAX)
        return int(status.rpartition(" ")[2]) == FORGOTTEN_BLOBS_MAX

    async def unchanged(self, kind: str, before: datetime, after: Position, limit: int) -> Walk:
        """Calls that have ended, or events, to which nothing happened since `before`, among the next `limit` changes
        after a position."""
        rows = await self._database.fetch(UNCHANGED[kind], before, *after, limit)
        return Walk(
            found=[
                Unchanged(
                    key=Key(kind, row["org"], row["project"], row["name"]),
                    uid=row["uid"],
                    has_dependents=row["has_dependents"],
                )
                for row in rows
                if row["uid"] is not None
            ],
            seen_upto=(rows[-1]["time"], rows[-1]["rv"]) if rows else after,
            more=len(rows) == limit,
        )

    async def blobs_of_calls(self, org: str, project: str, digests: Sequence[str]) -> set[str]:
        """Those of these blobs that a call of the project takes as input or gave as result. Reads all its calls."""
        rows = await self._database.fetch(BLOBS_OF_CALLS, org, project, list(digests))
        return {row["d"] for row in rows}


def _owned(rows: Sequence[asyncpg.Record]) -> list[Owned]:
    return [Owned(Key(*row[:4]), frozenset(row["owners"]), row["shared"]) for row in rows]
