"""Reading chunks in order, from any place, a page at a time.

A source is one worker's chunks, ordered by their numbers, or those of all workers of some Functions, ordered by
arrival. Arrival is stamped before the commit, so what arrived in the last seconds may still get a predecessor. Pages
go by arrival only through what is older; from there on a query asks for what arrived lately beyond the last chunk seen
of each worker, which misses nothing because a node sends a chunk only after the one before it was acknowledged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import orjson

from controlplane.logs.rows import Line
from controlplane.store.database import Database

PAGE_CHUNKS = 32
_COUNT_CHUNKS = 512
OVERLAP = timedelta(seconds=10)
"""How long an append may take from its stamp to its commit."""

_START = datetime(1970, 1, 1, tzinfo=UTC)
_COLUMNS = "attempt, seq, received_at, end_bytes - size_bytes AS start_bytes, end_bytes, lines"
# Lines of a chunk that is wanted as a whole are counted here; a chunk that is wanted in part is taken apart by us.
_COUNTED = """attempt, seq, received_at, json_array_length(lines) AS count,
    CASE WHEN first_time < {first} OR last_time > {last} THEN lines END AS lines"""

_ATTEMPT_PAGE = f"""
SELECT {_COLUMNS} FROM log_chunks WHERE attempt = $1 AND seq > $2 AND last_time >= $3 AND first_time <= $4
ORDER BY seq LIMIT {PAGE_CHUNKS}
"""  # noqa: S608 - constants
_ATTEMPT_COUNTS = f"""
SELECT {_COUNTED.format(first="$3", last="$4")} FROM log_chunks
WHERE attempt = $1 AND seq < $2 AND last_time >= $3 AND first_time <= $4 ORDER BY seq DESC LIMIT {_COUNT_CHUNKS}
"""  # noqa: S608 - constants

# Each Function's own index is read in order; their first rows are merged.
_FUNCTIONS_PAGE = f"""
SELECT c.* FROM unnest($1::text[]) AS f(uid) CROSS JOIN LATERAL (
    SELECT {_COLUMNS} FROM log_chunks
    WHERE function_uid = f.uid AND received_at >= $2 AND (received_at, attempt, seq) > ($2, $3, $4)
        AND received_at < clock_timestamp() - $6::interval AND last_time >= $5
    ORDER BY received_at, attempt, seq LIMIT {PAGE_CHUNKS}) c
ORDER BY c.received_at, c.attempt, c.seq LIMIT {PAGE_CHUNKS}
"""  # noqa: S608 - constants
_FUNCTIONS_NEW = f"""
SELECT {_COLUMNS} FROM log_chunks c LEFT JOIN unnest($4::text[], $5::bigint[]) AS s(seen_attempt, seen_seq)
    ON s.seen_attempt = c.attempt
WHERE c.function_uid = ANY($1::text[]) AND c.received_at > $2 AND c.last_time >= $3
    AND (s.seen_seq IS NULL OR c.seq > s.seen_seq)
ORDER BY received_at, attempt, seq LIMIT {PAGE_CHUNKS}
"""  # noqa: S608 - constants
_FUNCTIONS_COUNTS = f"""
SELECT c.* FROM unnest($1::text[]) AS f(uid) CROSS JOIN LATERAL (
    SELECT {_COUNTED.format(first="$5", last="'infinity'")} FROM log_chunks
    WHERE function_uid = f.uid AND received_at <= $2 AND (received_at, attempt, seq) < ($2, $3, $4)
        AND last_time >= $5
    ORDER BY received_at DESC, attempt DESC, seq DESC LIMIT {_COUNT_CHUNKS}) c
ORDER BY c.received_at DESC, c.attempt DESC, c.seq DESC LIMIT {_COUNT_CHUNKS}
"""  # noqa: S608 - constants

_FUNCTIONS_SEEN = """
SELECT DISTINCT ON (attempt) attempt, seq, received_at FROM log_chunks
WHERE function_uid = ANY($1::text[]) AND received_at > $2 AND (received_at, attempt, seq) < ($3, $4, $5)
ORDER BY attempt, seq DESC
"""


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """Where a chunk is in the order of arrival; within one worker its number alone decides."""

    received_at: datetime = _START
    attempt: str = ""
    seq: int = -1


END = Position(datetime(9999, 1, 1, tzinfo=UTC), "", (1 << 63) - 1)
"""After every chunk."""


@dataclass(frozen=True, slots=True)
class Window:
    """The times of the lines that are wanted, both ends included, in nanoseconds since 1970."""

    first_ns: int = 0
    last_ns: int = (1 << 63) - 1

    @property
    def first(self) -> datetime:
        """No later than the first line."""
        return _START + timedelta(microseconds=self.first_ns // 1_000)

    @property
    def last(self) -> datetime:
        """No earlier than the last line."""
        if self.last_ns >= 1 << 62:
            return END.received_at
        return _START + timedelta(microseconds=self.last_ns // 1_000 + 1)

    def covers(self, time_ns: int) -> bool:
        """Whether a line of this time is wanted."""
        return self.first_ns <= time_ns <= self.last_ns


EVERYTHING = Window()
"""All times."""


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """A chunk as it was stored; `start_bytes` and `end_bytes` place it in all that its worker ever printed."""

    position: Position
    start_bytes: int
    end_bytes: int
    lines: list[Line]


class Source(Protocol):
    """Chunks in one order."""

    async def next_page(self) -> list[StoredChunk]:
        """The chunks after those already given; empty when there are no more now."""

    async def seek_tail(self, lines: int) -> int:
        """Go to where the last `lines` lines begin; the answer says how many lines to skip from there."""


@dataclass(slots=True)
class AttemptSource:
    """The chunks of one worker."""

    database: Database
    attempt: str
    window: Window
    _seq: int = -1

    async def next_page(self) -> list[StoredChunk]:
        rows = await self.database.fetch(_ATTEMPT_PAGE, self.attempt, self._seq, self.window.first, self.window.last)
        chunks = [_chunk(row) for row in rows]
        if chunks:
            self._seq = chunks[-1].position.seq
        return chunks

    async def seek_tail(self, lines: int) -> int:
        before = END.seq
        while True:
            rows = await self.database.fetch(_ATTEMPT_COUNTS, self.attempt, before, self.window.first, self.window.last)
            start, skip, lines = _reached(rows, lines, self.window)
            if start is not None:
                self._seq = start.seq - 1
                return skip
            if len(rows) < _COUNT_CHUNKS:
                return 0
            before = rows[-1]["seq"]


@dataclass(slots=True)
class FunctionsSource:
    """The chunks of all workers of some Functions, as they arrived. `function_uids` may grow while it is read."""

    database: Database
    function_uids: Sequence[str]
    window: Window
    _at: Position = field(default_factory=Position)
    _caught_up: bool = False
    _seen: dict[str, Position] = field(default_factory=dict)
    """The last chunk given of each worker that printed lately."""

    async def next_page(self) -> list[StoredChunk]:
        if not self._caught_up:
            chunks = await self._history()
            if chunks:
                return chunks
            self._caught_up = True
        return await self._new()

    async def _history(self) -> list[StoredChunk]:
        at = self._at
        rows = await self.database.fetch(
            _FUNCTIONS_PAGE, self.function_uids, at.received_at, at.attempt, at.seq, self.window.first, OVERLAP
        )
        return self._given([_chunk(row) for row in rows])

    async def _new(self) -> list[StoredChunk]:
        since = self._at.received_at - OVERLAP if self._at.seq >= 0 else _START
        self._seen = {attempt: position for attempt, position in self._seen.items() if position.received_at > since}
        seqs = [position.seq for position in self._seen.values()]
        rows = await self.database.fetch(
            _FUNCTIONS_NEW, self.function_uids, since, self.window.first, list(self._seen), seqs
        )
        return self._given([_chunk(row) for row in rows])

    def _given(self, chunks: list[StoredChunk]) -> list[StoredChunk]:
        for chunk in chunks:
            self._at = max(self._at, chunk.position)
            self._seen[chunk.position.attempt] = chunk.position
        return chunks

    async def seek_tail(self, lines: int) -> int:
        before = END
        while True:
            rows = await self.database.fetch(
                *(_FUNCTIONS_COUNTS, self.function_uids, before.received_at, before.attempt, before.seq),
                self.window.first,
            )
            start, skip, lines = _reached(rows, lines, self.window)
            if start is not None:
                await self._start_at(start)
                return skip
            if len(rows) < _COUNT_CHUNKS:
                return 0
            before = _position(rows[-1])

    async def _start_at(self, start: Position) -> None:
        """Give nothing before `start`, also when following looks a few seconds back."""
        self._at = replace(start, seq=start.seq - 1)
        rows = await self.database.fetch(
            *(_FUNCTIONS_SEEN, self.function_uids, start.received_at - OVERLAP),
            *(start.received_at, start.attempt, start.seq),
        )
        self._seen = {row["attempt"]: _position(row) for row in rows}


def _reached(rows: Sequence[Any], lines: int, window: Window) -> tuple[Position | None, int, int]:
    """Where to begin so that `lines` matching lines follow, and how many to skip there; else how many are still wanted.

    `rows` go backwards. For no lines at all that is behind the newest of them.
    """
    if lines <= 0 and rows:
        newest = _position(rows[0])
        return replace(newest, seq=newest.seq + 1), 0, 0
    for row in rows:
        lines -= _matching(row, window)
        if lines <= 0:
            return _position(row), -lines, 0
    return None, 0, lines


def _matching(row: Any, window: Window) -> int:  # noqa: ANN401 - a driver row
    if row["lines"] is None:
        count: int = row["count"]
        return count
    return sum(window.covers(time_ns) for time_ns, _, _ in orjson.loads(row["lines"]))


def _position(row: Any) -> Position:  # noqa: ANN401 - a driver row
    return Position(row["received_at"], row["attempt"], row["seq"])


def _chunk(row: Any) -> StoredChunk:  # noqa: ANN401 - a driver row
    return StoredChunk(_position(row), row["start_bytes"], row["end_bytes"], orjson.loads(row["lines"]))
