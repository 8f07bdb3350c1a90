"""A log as text: what is there, and with `follow` what comes, until nothing more can.

`LogReader.read` finds the object first, so that a missing one is a 404 and not an empty log; the generator it returns
then alternates between reading all there is and waiting for news. Lines take a moment from a worker to here, longer
than a result takes to its caller: who asks for the log of a call that has just ended waits that moment. Memory holds
one page, however long the log is or however slow its reader.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from controlplane.clock import Clock
from controlplane.logs.departed import departed
from controlplane.logs.news import LogNews
from controlplane.logs.sources import EVERYTHING, AttemptSource, FunctionsSource, Source, StoredChunk, Window
from controlplane.logs.subjects import Look, Part, Places, Subject, nanoseconds, subject_of
from controlplane.settings import Settings
from controlplane.store.cache import ObjectCache
from controlplane.store.contract import Key
from controlplane.store.database import Database
from controlplane.store.objects import Objects

RECHECK_SECONDS = 30.0
"""A follower looks at its object this often without any news: a lost message costs time, never the end of a stream."""
_REMEMBERED_MAX = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """How a log is asked for; the words of the query."""

    follow: bool = False
    tail_lines: int | None = None
    since_seconds: int | None = None
    timestamps: bool = False
    attempt: str = ""


class LogReader:
    """Reads logs. One per process."""

    def __init__(
        self,
        *,
        database: Database,
        objects: Objects,
        cache: ObjectCache,
        news: LogNews,
        settings: Settings,
        clock: Clock,
    ) -> None:
        self._places = Places(database, objects, cache)
        self._news = news
        self._settings = settings
        self._clock = clock

    async def read(self, key: Key, options: LogOptions) -> AsyncGenerator[bytes, None]:
        """The log in chunks of whole lines; NotFound when there is no such object."""
        subject = subject_of(self._places, key, options.attempt)
        look = await subject.look()
        if look is None:
            raise await departed(self._places.database, key)
        reading = _Reading(self._places.database, self._settings, self._clock, options)
        return self._follow(subject, reading) if options.follow else self._once(subject, look, reading)

    async def _once(self, subject: Subject, look: Look, reading: _Reading) -> AsyncGenerator[bytes, None]:
        if (seconds := reading.settling_seconds(look)) > 0:
            await asyncio.sleep(seconds)
        async for text in self._new_text(subject, look, reading):
            yield text

    async def _follow(self, subject: Subject, reading: _Reading) -> AsyncGenerator[bytes, None]:
        with self._news.follower() as follower:
            while (look := await subject.look()) is not None:
                if look.topics != follower.topics:
                    # Look once more when nothing can be missed any longer.
                    self._news.set_topics(follower, look.topics)
                    continue
                async for text in self._new_text(subject, look, reading):
                    yield text
                patience = reading.patience_seconds(look)
                if patience <= 0:
                    return
                await follower.wait(patience)

    @staticmethod
    async def _new_text(subject: Subject, look: Look, reading: _Reading) -> AsyncGenerator[bytes, None]:
        """Everything that is there and was not given yet."""
        while chunks := await reading.next_chunks(look):
            # The chunks may hold lines from after the end of a call that still ran at the last look: look again, since
            # whatever still runs now ran when they were read.
            look = await subject.look() or look
            if text := reading.text(look, chunks):
                yield text


class _Reading:
    """One reader's way through one log."""

    def __init__(self, database: Database, settings: Settings, clock: Clock, options: LogOptions) -> None:
        self._database = database
        self._clock = clock
        self._settle_seconds = settings.log_settle_seconds
        self._read_settle_seconds = settings.log_read_settle_seconds
        self._options = options
        self._since_ns = 0
        if options.since_seconds is not None:
            self._since_ns = max(0, nanoseconds(clock.now()) - options.since_seconds * 1_000_000_000)
        self._tail_lines = None if options.tail_lines is None else min(options.tail_lines, settings.log_tail_lines_max)
        self._part = 0
        self._source: Source | None = None
        self._passed_end = False
        """Whether a line from after the part's window was seen: none from inside can come any more."""
        self._skip = 0
        self._ends: dict[str, int] = {}
        self._from_start = False

    async def next_chunks(self, look: Look) -> list[StoredChunk]:
        """The next chunks of the present part, or of the next when it is read; empty when there are none now."""
        while look.parts:
            if self._tail_lines is not None:
                self._part = len(look.parts) - 1
            self._part = min(self._part, len(look.parts) - 1)
            part = look.parts[self._part]
            source = await self._source_of(part)
            chunks = [] if self._passed_end else await source.next_page()
            if chunks:
                return chunks
            if self._part + 1 == len(look.parts) or (self._options.follow and self._under_way_seconds(part) > 0):
                return []
            self._part += 1
            self._source = None
        return []

    def settling_seconds(self, look: Look) -> float:
        """How much longer lines of a call that has just ended are waited for by who does not follow."""
        closed_at = look.parts[-1].closed_at if look.parts else None
        if closed_at is None:
            return 0.0
        age_seconds = max(0.0, (self._clock.now() - closed_at).total_seconds())
        return max(0.0, self._read_settle_seconds - age_seconds)

    def patience_seconds(self, look: Look) -> float:
        """How long to wait for news; 0 when everything was given and nothing more can come."""
        if not look.ended:
            return RECHECK_SECONDS
        if not look.parts:
            return 0.0
        return self._under_way_seconds(look.parts[min(self._part, len(look.parts) - 1)])

    def _under_way_seconds(self, part: Part) -> float:
        """How much longer lines of a part may arrive."""
        if not part.closed:
            return RECHECK_SECONDS
        if self._passed_end or part.closed_at is None:
            return 0.0
        return max(0.0, self._settle_seconds - (self._clock.now() - part.closed_at).total_seconds())

    async def _source_of(self, part: Part) -> Source:
        if self._source is not None:
            if isinstance(self._source, FunctionsSource):
                self._source.function_uids = part.function_uids
            return self._source
        window = self._window(part)
        source: AttemptSource | FunctionsSource
        if part.attempt is not None:
            # Without an end so far, lines from behind it will tell that it was passed.
            source = AttemptSource(self._database, part.attempt, window)
        else:
            source = FunctionsSource(self._database, part.function_uids, window)
        # Who asks for a part of a log does not expect its beginning.
        self._from_start = window.first_ns == 0 and self._tail_lines is None
        self._source = source
        self._passed_end = False
        if self._tail_lines is not None:
            self._skip = await source.seek_tail(self._tail_lines)
            self._tail_lines = None
        return source

    def _window(self, part: Part) -> Window:
        return Window(max(part.window.first_ns, self._since_ns), part.window.last_ns)

    def text(self, look: Look, chunks: Sequence[StoredChunk]) -> bytes:
        """The wanted lines of chunks that `next_chunks` gave, as they are sent."""
        window = self._window(look.parts[min(self._part, len(look.parts) - 1)]) if look.parts else EVERYTHING
        lines: list[str] = []
        for chunk in chunks:
            lines += self._lines(chunk, window)
        return "".join(lines).encode()

    def _lines(self, chunk: StoredChunk, window: Window) -> Iterator[str]:
        attempt = chunk.position.attempt
        known = self._ends.get(attempt, 0 if self._from_start else chunk.start_bytes)
        if chunk.start_bytes > known:
            yield f"nodus: {chunk.start_bytes - known} bytes of this log are gone: only its end is kept\n"
        if len(self._ends) >= _REMEMBERED_MAX:
            self._ends.clear()
        self._ends[attempt] = chunk.end_bytes
        for time_ns, _, text in chunk.lines:
            if not window.covers(time_ns):
                self._passed_end = self._passed_end or time_ns > window.last_ns
            elif self._skip:
                self._skip -= 1
            else:
                yield f"{_stamp(time_ns)} {text}\n" if self._options.timestamps else f"{text}\n"


def _stamp(time_ns: int) -> str:
    """RFC 3339 with nanoseconds."""
    seconds, nanoseconds = divmod(time_ns, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{nanoseconds:09d}Z"
