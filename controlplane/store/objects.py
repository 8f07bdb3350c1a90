"""Reads of objects: one, a page, a page as of an earlier revision, and what an owner owns.

A page is read in one snapshot together with the revision counter, so a watch from the page's revision misses nothing.
Later pages of the same list show the same snapshot: current rows that were not written since, and for the others what
the change log says they were (one created since is left out; one deleted since is put back).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import merge
from typing import TYPE_CHECKING

import asyncpg
import orjson

from controlplane.errors import ApiError, Cause, Reason
from controlplane.store.contract import Document, Key, ListPage, Selection
from controlplane.store.database import Database
from controlplane.store.selection import where

if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]

NOT_YET_RETRY_SECONDS = 1
"""When to ask again for a revision of another process: the least that Retry-After can say, as they travel in a part of
a second."""
FETCH_ROWS = 200
"""Rows a round trip of a page; a page of large objects ends before many of them were fetched for nothing."""
REMAINING_MAX = 2_000
"""Counting these costs a tenth of a page of 500, ten times as many cost half of one; with more to come,
`remainingItemCount` is left out."""

GET = "SELECT doc FROM objects WHERE kind = $1 AND org = $2 AND project = $3 AND name = $4"
# The second condition is the index's own.
OWNED = """
SELECT kind, org, project, name FROM objects WHERE owners @> ARRAY[$1::text] AND owners <> '{}' LIMIT $2
"""
DELETING = """
SELECT kind, org, project, name FROM objects
WHERE deleting AND kind = $1 AND (org, project, name) > ($2, $3, $4) ORDER BY org, project, name LIMIT $5
"""
# The page that is read next in the transaction gets a plan of its own: one that serves all arguments takes every value
# for rare and every page for large, and sorts a million calls for fifty.
REVISIONS = """
SELECT m.rv, c.compacted_rv, set_config('plan_cache_mode', 'force_custom_plan', true) FROM meta m, compaction c
WHERE m.id = 1 AND c.id = 1
"""
WRITTEN_MAX = 500
"""Changes since the snapshot of a page that may be read by revision to undo the few between its keys: as many as a page
has objects. The planner guesses how many there are, and reads all of thousands."""
# Changes lie in the order of keys and of revisions; only the first needs no sort here.
BY_KEYS = "SET LOCAL enable_sort = off"


def expired() -> ApiError:
    """The 410 of a revision or token older than the change log."""
    return ApiError(Reason.EXPIRED, "the requested resourceVersion is older than the change log; list again")


def not_yet(rv: int, current_rv: int) -> ApiError:
    """The 504 of a revision that has not happened; the cause is the word that client-go looks for."""
    return ApiError(
        Reason.TIMEOUT,
        f"Too large resource version: {rv}, current: {current_rv}",
        causes=(Cause("", "Too large resource version", "ResourceVersionTooLarge"),),
        retry_after_seconds=NOT_YET_RETRY_SECONDS,
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

    async def deleting(self, kind: str, after: Key | None, limit: int) -> list[Key]:
        """The next objects of the kind, up to `limit` after a key, that wait for their deletion to finish."""
        begin = ("", "", "") if after is None else (after.org, after.project, after.name)
        return [Key(*row) for row in await self._database.fetch(DELETING, kind, *begin, limit)]

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
            revisions = await connection.fetchrow(REVISIONS)
            assert revisions is not None, "the rows of meta and compaction are missing"
            current_rv = revisions["rv"]
            if at_rv is not None and at_rv > current_rv:
                raise not_yet(at_rv, current_rv)
            if at_rv is not None and at_rv < revisions["compacted_rv"]:
                raise expired()
            past_rv = at_rv if at_rv != current_rv else None
            past = None if past_rv is None else Past(past_rv, current_rv - past_rv)
            documents, last = await _page(connection, selection, after, past, limit, bytes_max)
            countable = last is not None and past_rv is None and not selection.labels and not selection.fields
            return ListPage(
                documents=documents,
                rv=current_rv if at_rv is None else at_rv,
                next_key=last,
                remaining=await _remaining(connection, selection, last) if last is not None and countable else None,
            )


@dataclass(frozen=True)
class Past:
    """An earlier revision, and how many changes there were since."""

    rv: int
    changes: int


Row = tuple[Key, bytes]
Query = tuple[str, Sequence[object]]
"""The text of a query and its arguments."""


class _Conditions:
    """Conditions of a query; arguments are numbered as they are bound."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self.arguments: list[object] = []

    def bind(self, value: object) -> str:
        self.arguments.append(value)
        return f"${len(self.arguments)}"

    def selected(self, table: str) -> str:
        return where(self._selection, table, self.bind)

    def beside(self, table: str, sign: str, key: Key | None) -> str:
        """On which side of the key the rows are, in the order of lists."""
        if key is None:
            return ""
        name = self.bind(key.name)
        if self._selection.project is not None:
            return f" AND {table}.name {sign} {name}"
        return f" AND ({table}.project, {table}.name) {sign} ({self.bind(key.project)}, {name})"


def current_query(selection: Selection, after: Key | None, past_rv: int | None, rows: int) -> Query:
    """Up to `rows` objects after a key as they are; with `past_rv` only those that were not written since."""
    asked = _Conditions(selection)
    condition = asked.selected("o") + asked.beside("o", ">", after)
    if past_rv is not None:
        condition += f" AND o.rv <= {asked.bind(past_rv)}"
    text = f"SELECT o.project, o.name, o.doc FROM objects o WHERE {condition}"  # noqa: S608 - values are bound
    return f"{text} ORDER BY o.project, o.name LIMIT {asked.bind(rows)}", asked.arguments


def past_query(selection: Selection, after: Key | None, upto: Key | None, rv: int, rows: int) -> Query:
    """Up to `rows` objects between two keys that were written after `rv`, as they were at `rv`.

    The first change after it names, by its prev_rv, the change that made the object what it was then. Read by keys this
    costs what lies between them, read by revisions what was written since (`WRITTEN_MAX`). OFFSET keeps the selection
    out of the look for that change, which would be made by its kind as well while the log has no statistics.
    """
    asked = _Conditions(selection)
    in_project = "" if selection.project is None else f" AND c.project = {asked.bind(selection.project)}"
    text = f"""
        SELECT first.project, first.name, p.doc FROM (
            SELECT DISTINCT ON (c.project, c.name) c.project, c.name, c.prev_rv FROM changes c
            WHERE c.kind = {asked.bind(selection.kind)} AND c.org = {asked.bind(selection.org)}{in_project}
                AND c.rv > {asked.bind(rv)}{asked.beside("c", ">", after)}{asked.beside("c", "<=", upto)}
            ORDER BY c.project, c.name, c.rv
        ) first CROSS JOIN LATERAL (SELECT * FROM changes WHERE rv = first.prev_rv OFFSET 0) p
        WHERE {asked.selected("p")}
        ORDER BY first.project, first.name LIMIT {asked.bind(rows)}
    """  # noqa: S608 - conditions are ours, values are bound
    return text, asked.arguments


@dataclass
class _Room:
    """What a page may still take; it takes one object however large it is."""

    items: int
    size: int
    taken: list[Row] = field(default_factory=list)

    def take(self, row: Row) -> bool:
        """Add the row if there is room."""
        if self.items == 0 or (self.taken and len(row[1]) > self.size):
            return False
        self.taken.append(row)
        self.items -= 1
        self.size -= len(row[1])
        return True


async def _page(
    connection: Connection, selection: Selection, after: Key | None, past: Past | None, limit: int, bytes_max: int
) -> tuple[list[bytes], Key | None]:
    """The documents of a page, and its last key when more follow."""
    # One row more than the page holds tells whether there is one.
    query = current_query(selection, after, None if past is None else past.rv, limit + 1)
    rows, more = await _fetch(connection, selection, query, _Room(limit, bytes_max))
    if past is not None:
        if past.changes > WRITTEN_MAX:
            await connection.execute(BY_KEYS)
        # Between the keys of the page; to the end when it is the last.
        upto = rows[-1][0] if more else None
        query = past_query(selection, after, upto, past.rv, limit + 1)
        undone, more_undone = await _fetch(connection, selection, query, _Room(limit, bytes_max))
        rows, cut = _merged(rows, undone, undone[-1][0] if more_undone else None, _Room(limit, bytes_max))
        more = more or more_undone or cut
    return [document for _, document in rows], rows[-1][0] if more else None


async def _fetch(connection: Connection, selection: Selection, query: Query, room: _Room) -> tuple[list[Row], bool]:
    """The rows that there is room for, and whether there are more."""
    text, arguments = query
    cursor = await connection.cursor(text, *arguments)
    while rows := await cursor.fetch(FETCH_ROWS):
        for row in rows:
            key = Key(selection.kind, selection.org, row["project"], row["name"])
            if not room.take((key, row["doc"].encode())):
                return room.taken, True
        if len(rows) < FETCH_ROWS:
            break
    return room.taken, False


def _merged(current: list[Row], undone: list[Row], upto: Key | None, room: _Room) -> tuple[list[Row], bool]:
    """Both in key order, no further than `upto`, where `undone` ends early; and whether something was left out."""
    for row in merge(current, undone):
        if (upto is not None and row[0] > upto) or not room.take(row):
            return room.taken, True
    return room.taken, False


async def _remaining(connection: Connection, selection: Selection, after: Key) -> int | None:
    """How many follow, when counting them is cheap; None when there are more than REMAINING_MAX."""
    page, arguments = current_query(selection, after, None, REMAINING_MAX + 1)
    count: int = await connection.fetchval(f"SELECT count(*) FROM ({page}) o", *arguments)  # noqa: S608
    return count if count <= REMAINING_MAX else None
