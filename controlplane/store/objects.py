"""Reads of objects: one, a page, a page as of an earlier revision, and what an owner owns.

A page is read in one snapshot together with the revision counter, so a watch from the page's revision misses nothing.
Later pages of the same list show the same snapshot: current rows that were not written since, and for the others what
the change log says they were (one created since is left out; one deleted since is put back).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import asyncpg
import orjson

from controlplane.errors import ApiError, Cause, Reason
from controlplane.store.contract import Document, Key, ListPage, Selection
from controlplane.store.database import Database
from controlplane.store.selection import searches, where

if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]

FETCH_ROWS = 200
"""Rows a round trip of a page; a page of large objects ends before many of them were fetched for nothing."""
REMAINING_MAX = 10_000

GET = "SELECT doc FROM objects WHERE kind = $1 AND org = $2 AND project = $3 AND name = $4"
# The second condition is the index's own.
OWNED = """
SELECT kind, org, project, name FROM objects WHERE owners @> ARRAY[$1::text] AND owners <> '{}' LIMIT $2
"""
DELETING = "SELECT kind, org, project, name FROM objects WHERE deleting AND kind = $1 LIMIT $2"
# How the page is planned is set in the same round trip, for the rest of the transaction.
REVISIONS = """
SELECT m.rv, c.compacted_rv, set_config('plan_cache_mode', $1, true) FROM meta m, compaction c
WHERE m.id = 1 AND c.id = 1
"""


def expired() -> ApiError:
    """The 410 of a revision or token older than the change log."""
    return ApiError(Reason.EXPIRED, "the requested resourceVersion is older than the change log; list again")


def not_yet(rv: int, current_rv: int) -> ApiError:
    """The 504 of a revision that has not happened; the cause is the word that client-go looks for."""
    return ApiError(
        Reason.TIMEOUT,
        f"Too large resource version: {rv}, current: {current_rv}",
        causes=(Cause("", "Too large resource version", "ResourceVersionTooLarge"),),
        retry_after_seconds=1,
    )


class Objects:
    """Reads of the objects table. All raise ApiError Unavailable when the database is away."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, key: Key) -> bytes | None:
        """The object in its wire form."""
        doc: str | None = await self._database.fetchval(GET, key.kind, key.org, key.project, key.name)
        return None if doc is None else doc.encode()

    async def get_document(self, key: Key) -> Document | None:
        """The object, decoded; the caller's own."""
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

        `at_rv` asks for the state at that revision; it must not be compacted (Expired) nor in the future (Timeout). The
        page ends early at about `bytes_max`, but holds at least one object when there is one; `next_key` is the last
        key returned when more follow.
        """
        async with self._database.snapshot() as connection:
            # A plan that serves all values takes every term for rare, and then sorts a million calls for each page.
            plan = "force_custom_plan" if searches(selection) else "auto"
            revisions = await connection.fetchrow(REVISIONS, plan)
            assert revisions is not None, "the rows of meta and compaction are missing"
            current_rv = revisions["rv"]
            if at_rv is not None and at_rv > current_rv:
                raise not_yet(at_rv, current_rv)
            if at_rv is not None and at_rv < revisions["compacted_rv"]:
                raise expired()
            past_rv = at_rv if at_rv != current_rv else None
            documents, last = await _page(connection, selection, after, past_rv, limit, bytes_max)
            countable = last is not None and past_rv is None and not selection.labels and not selection.fields
            return ListPage(
                documents=documents,
                rv=current_rv if at_rv is None else at_rv,
                next_key=last,
                remaining=await _remaining(connection, selection, last) if last is not None and countable else None,
            )


class _Query:
    """The SQL of a page: its text and its arguments, numbered as they are bound."""

    def __init__(self, selection: Selection, after: Key | None) -> None:
        self._selection = selection
        self._after = after
        self.arguments: list[object] = []

    def bind(self, value: object) -> str:
        self.arguments.append(value)
        return f"${len(self.arguments)}"

    def current(self) -> str:
        """Current rows, in key order."""
        condition = where(self._selection, "o", self.bind)
        return f"SELECT o.project, o.name, o.doc FROM objects o WHERE {condition}{self._beyond('o')}"  # noqa: S608

    def past(self, rv: int) -> str:
        """What the rows that were written after `rv` were at `rv`.

        The first change after it names, by its prev_rv, the change that made the object what it was then. Rows come out
        in key order straight from the index, so a page costs what was written in its range of keys, not in the table.
        """
        selection = self._selection
        in_project = "" if selection.project is None else f" AND c.project = {self.bind(selection.project)}"
        return f"""
            SELECT first.project, first.name, p.doc FROM (
                SELECT DISTINCT ON (c.project, c.name) c.project, c.name, c.prev_rv FROM changes c
                WHERE c.kind = {self.bind(selection.kind)} AND c.org = {self.bind(selection.org)}{in_project}
                    AND c.rv > {self.bind(rv)}{self._beyond("c")}
                ORDER BY c.project, c.name, c.rv
            ) first JOIN changes p ON p.rv = first.prev_rv WHERE {where(selection, "p", self.bind)}
        """  # noqa: S608 - conditions are ours, values are bound

    def _beyond(self, table: str) -> str:
        if self._after is None:
            return ""
        name = self.bind(self._after.name)
        if self._selection.project is not None:
            return f" AND {table}.name > {name}"
        return f" AND ({table}.project, {table}.name) > ({self.bind(self._after.project)}, {name})"


def page_query(selection: Selection, after: Key | None, past_rv: int | None, rows: int) -> tuple[str, Sequence[object]]:
    """The query of up to `rows` objects after a key, as they are or as they were at `past_rv`, and its arguments."""
    query = _Query(selection, after)
    text = query.current()
    if past_rv is not None:
        text = f"({text} AND o.rv <= {query.bind(past_rv)}) UNION ALL ({query.past(past_rv)})"
    return f"{text} ORDER BY project, name LIMIT {query.bind(rows)}", query.arguments


async def _page(
    connection: Connection, selection: Selection, after: Key | None, past_rv: int | None, limit: int, bytes_max: int
) -> tuple[list[bytes], Key | None]:
    """The documents of a page, and its last key when more follow."""
    text, arguments = page_query(selection, after, past_rv, limit + 1)
    documents: list[bytes] = []
    size = 0
    last: Key | None = None
    cursor = await connection.cursor(text, *arguments)
    while rows := await cursor.fetch(FETCH_ROWS):
        for row in rows:
            document = row["doc"].encode()
            if len(documents) == limit or (documents and size + len(document) > bytes_max):
                return documents, last
            documents.append(document)
            size += len(document)
            last = Key(selection.kind, selection.org, row["project"], row["name"])
        if len(rows) < FETCH_ROWS:
            break
    return documents, None


async def _remaining(connection: Connection, selection: Selection, after: Key) -> int | None:
    """How many follow, when counting them is cheap; None when there are more than REMAINING_MAX."""
    query = _Query(selection, after)
    text = f"SELECT count(*) FROM ({query.current()} LIMIT {REMAINING_MAX + 1}) o"  # noqa: S608
    count: int = await connection.fetchval(text, *query.arguments)
    return count if count <= REMAINING_MAX else None
