"""Reads of objects: one, a page, a page as of an earlier revision, and what an owner owns.

A page is read in one snapshot together with the revision counter, so a watch from the page's revision misses nothing.
Later pages of the same list show the same snapshot: current rows in the range, with everything written since undone
from the change log (a row changed since is shown as it was; one created since is left out; one deleted since is put
back).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import asyncpg
import orjson

from controlplane.errors import ApiError, Reason
from controlplane.store.contract import Document, Key, ListPage, Selection
from controlplane.store.database import Database
from controlplane.store.selection import matches, where

GET = "SELECT doc FROM objects WHERE kind = $1 AND org = $2 AND project = $3 AND name = $4"
OWNED = "SELECT kind, org, project, name FROM objects WHERE owners @> ARRAY[$1::text] LIMIT $2"
DELETING = "SELECT kind, org, project, name FROM objects WHERE deleting AND kind = $1 LIMIT $2"

# The first change after the snapshot tells, by its prev_rv, what the object was at the snapshot.
UNDO = """
SELECT DISTINCT ON (c.project, c.name) c.project, c.name, p.doc, p.labels, p.fields
FROM changes c LEFT JOIN changes p ON p.rv = c.prev_rv
WHERE c.kind = $1 AND c.org = $2 AND c.rv > $3
    AND ($4::text IS NULL OR c.project = $4) AND (c.project, c.name) > ($5, $6)
ORDER BY c.project, c.name, c.rv
"""


def expired() -> ApiError:
    """The 410 of a revision or token older than the change log."""
    return ApiError(Reason.EXPIRED, "the requested resourceVersion is older than the change log; list again")


class Objects:
    """Reads of the objects table."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, key: Key) -> bytes | None:
        """The object in its wire form."""
        doc = await self._database.pool.fetchval(GET, key.kind, key.org, key.project, key.name)
        return None if doc is None else doc.encode()

    async def get_document(self, key: Key) -> Document | None:
        """The object, decoded."""
        doc = await self.get(key)
        return None if doc is None else orjson.loads(doc)

    async def owned_by(self, uid: str, limit: int) -> list[Key]:
        """Up to `limit` objects whose ownerReferences name the uid."""
        return [Key(*row) for row in await self._database.fetch(OWNED, uid, limit)]

    async def deleting(self, kind: str, limit: int) -> list[Key]:
        """Up to `limit` objects of the kind that wait for their deletion to finish."""
        return [Key(*row) for row in await self._database.fetch(DELETING, kind, limit)]

    async def list_page(
        self,
        selection: Selection,
        *,
        limit: int,
        bytes_max: int,
        after: Key | None = None,
        at_rv: int | None = None,
    ) -> ListPage:
        """A page in key order, exact at its revision.

        `at_rv` asks for the state at that revision, which must not be compacted (Expired). The page ends early at about
        `bytes_max`; `next_key` is the last key returned when more may follow.
        """
        async with (
            self._database.pool.acquire() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            meta = await connection.fetchrow("SELECT rv, compacted_rv FROM meta WHERE id = 1")
            assert meta is not None, "the meta row is missing"
            if at_rv is None or at_rv == meta["rv"]:
                rows = await self._rows(connection, selection, after, limit + 1)
                return _page(rows, meta["rv"], limit, bytes_max)
            if at_rv < meta["compacted_rv"] or at_rv > meta["rv"]:
                raise expired()
            rows = await self._rows_at(connection, selection, after, limit + 1, at_rv)
            return _page(rows, at_rv, limit, bytes_max)

    @staticmethod
    async def _rows(
        connection: Any,  # noqa: ANN401 - a pooled connection proxy
        selection: Selection,
        after: Key | None,
        limit: int,
    ) -> list[tuple[Key, bytes]]:
        condition, arguments = where(selection)
        if after is not None:
            arguments += [after.project, after.name]
            condition += f" AND (o.project, o.name) > (${len(arguments) - 1}, ${len(arguments)})"
        arguments.append(limit)
        text = f"""SELECT o.kind, o.org, o.project, o.name, o.doc FROM objects o WHERE {condition}
            ORDER BY o.project, o.name LIMIT ${len(arguments)}"""  # noqa: S608 - conditions are ours, values are bound
        rows: list[asyncpg.Record] = await connection.fetch(text, *arguments)
        return [(Key(*row[:4]), row["doc"].encode()) for row in rows]

    async def _rows_at(
        self,
        connection: Any,  # noqa: ANN401 - a pooled connection proxy
        selection: Selection,
        after: Key | None,
        limit: int,
        at_rv: int,
    ) -> list[tuple[Key, bytes]]:
        start = (after.project, after.name) if after else ("", "")
        undone: dict[Key, Any] = {}
        for row in await connection.fetch(UNDO, selection.kind, selection.org, at_rv, selection.project, *start):
            undone[Key(selection.kind, selection.org, row["project"], row["name"])] = row
        # Changed rows may vanish from the current page, so read that many more.
        current = await self._rows(connection, selection, after, limit + len(undone))
        rows = {key: doc for key, doc in current if key not in undone}
        exhausted = len(current) < limit + len(undone)
        for key, row in undone.items():
            if row["doc"] is None or (selection.projects is not None and key.project not in selection.projects):
                continue
            if not exhausted and key > current[-1][0]:
                continue
            if matches(selection, key, orjson.loads(row["labels"]), orjson.loads(row["fields"])):
                rows[key] = row["doc"].encode()
        return sorted(rows.items())[:limit]


def _page(rows: list[tuple[Key, bytes]], rv: int, limit: int, bytes_max: int) -> ListPage:
    """Cut at the limit or the byte budget; at least one row is returned when there is one."""
    taken: list[bytes] = []
    size = 0
    last: Key | None = None
    for key, doc in rows[:limit]:
        if taken and size + len(doc) > bytes_max:
            break
        taken.append(doc)
        size += len(doc)
        last = key
    page = ListPage(documents=taken, rv=rv)
    return replace(page, next_key=last) if len(rows) > len(taken) else page
