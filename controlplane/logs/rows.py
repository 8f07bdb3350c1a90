"""The rows of `log_chunks`: appended by nodes, each chunk once, and bounded for each worker.

A node numbers the chunks of an attempt without gaps and repeats one until it is acknowledged, so the number makes an
append idempotent. `end_bytes` counts all bytes up to a chunk's end: how much an attempt's log holds, and how much was
dropped before what is left, are told by single rows. Next: `sources.py` reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import orjson

from controlplane.errors import not_found
from controlplane.logs.news import LogNews
from controlplane.settings import Settings
from controlplane.store.database import Database

Line = tuple[int, str, str]
"""(nanoseconds since 1970, `stdout` or `stderr`, text without its newline); the node stamps the time."""

LINE_OVERHEAD_BYTES = 16
"""What a line counts beyond its text, so that empty lines are not free."""
_TRIMS_A_LIMIT = 16
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CUT = " … [cut]"
_OWNERS_MAX = 10_000
_CHUNKS_REMOVED_MAX = 2_000

# Of a worker, or of a build, which is named by its Image and a mark of its own; its lines are filed under the Image.
_OWNER = """
SELECT org, project, function_uid FROM attempts WHERE uid = $1
UNION ALL SELECT org, project, uid FROM objects WHERE kind = 'Image' AND uid = split_part($1, '.', 1)
"""
_APPEND = """
INSERT INTO log_chunks (attempt, seq, org, project, function_uid, first_time, last_time, received_at, size_bytes,
                        end_bytes, lines)
SELECT $1, $2, $3, $4, $5, $6, $7, clock_timestamp(), $8,
    $8 + COALESCE((SELECT end_bytes FROM log_chunks WHERE attempt = $1 AND seq < $2 ORDER BY seq DESC LIMIT 1), 0), $9
ON CONFLICT (attempt, seq) DO NOTHING RETURNING end_bytes
"""
# Reads from the oldest row to the first that stays, and no further.
_TRIM = """
DELETE FROM log_chunks WHERE attempt = $1 AND seq < (
    SELECT seq FROM log_chunks WHERE attempt = $1 AND end_bytes > $2 ORDER BY seq LIMIT 1)
"""
_REMOVE_OLD = """
DELETE FROM log_chunks WHERE (attempt, seq) IN (
    SELECT attempt, seq FROM log_chunks WHERE received_at < $1 ORDER BY received_at LIMIT $2)
"""


@dataclass(frozen=True, slots=True)
class LogChunk:
    """Consecutive lines under their number."""

    seq: int
    lines: Sequence[Line]


@dataclass(frozen=True, slots=True)
class _Owner:
    org: str
    project: str
    function_uid: str


class LogWriter:
    """Stores what nodes send. One per process."""

    def __init__(self, database: Database, news: LogNews, settings: Settings) -> None:
        self._database = database
        self._news = news
        self._attempt_bytes_max = settings.log_attempt_bytes_max
        self._line_bytes_max = settings.log_line_bytes_max
        self._owners: dict[str, _Owner] = {}

    async def append(self, attempt: str, chunks: Sequence[LogChunk]) -> None:
        """Store the chunks that are not stored yet; NotFound for an attempt, or a build of an Image, nobody knows."""
        owner = await self._owner(attempt)
        for chunk in chunks:
            if chunk.lines:
                await self._append(attempt, owner, chunk)
        self._news.publish(owner.function_uid, attempt)

    async def _append(self, attempt: str, owner: _Owner, chunk: LogChunk) -> None:
        lines = [(time_ns, stream, self._cut(text)) for time_ns, stream, text in chunk.lines]
        times = [time_ns for time_ns, _, _ in lines]
        size_bytes = sum(len(text.encode()) + LINE_OVERHEAD_BYTES for _, _, text in lines)
        end_bytes = await self._database.fetchval(
            _APPEND,
            attempt,
            chunk.seq,
            owner.org,
            owner.project,
            owner.function_uid,
            _moment(min(times)),
            _moment(max(times)),
            size_bytes,
            orjson.dumps(lines).decode(),
        )
        step = max(1, self._attempt_bytes_max // _TRIMS_A_LIMIT)
        if end_bytes is not None and end_bytes > self._attempt_bytes_max and _crosses(step, end_bytes, size_bytes):
            await self._database.execute(_TRIM, attempt, end_bytes - self._attempt_bytes_max)

    def _cut(self, text: str) -> str:
        if len(text) * 4 <= self._line_bytes_max or len(content := text.encode()) <= self._line_bytes_max:
            return text
        return content[: self._line_bytes_max].decode(errors="ignore") + _CUT

    async def _owner(self, attempt: str) -> _Owner:
        owner = self._owners.get(attempt)
        if owner is None:
            rows = await self._database.fetch(_OWNER, attempt)
            if not rows:
                raise not_found("attempts", attempt)
            owner = _Owner(rows[0]["org"], rows[0]["project"], rows[0]["function_uid"])
            if len(self._owners) >= _OWNERS_MAX:
                self._owners.clear()
            self._owners[attempt] = owner
        return owner


async def remove_old_chunks(database: Database, before: datetime) -> int:
    """Remove up to some thousand chunks that arrived before a time; how many, so that the caller goes on while any."""
    return int((await database.execute(_REMOVE_OLD, before, _CHUNKS_REMOVED_MAX)).rsplit(" ", 1)[-1])


def _crosses(step: int, end_bytes: int, size_bytes: int) -> bool:
    """Whether this chunk completes another step, so that trimming happens once a step and not with every chunk."""
    return end_bytes // step != (end_bytes - size_bytes) // step


def _moment(time_ns: int) -> datetime:
    return _EPOCH + timedelta(microseconds=time_ns // 1_000)
