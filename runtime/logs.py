"""What a worker prints becomes its Function's log.

Two pipes are read to their end whatever happens, because a full pipe would stop the worker in the middle of a call.
Lines are stamped on arrival, cut to size, made harmless to who reads them (`log_text.py`), held to a rate, and
handed to the sink in numbered chunks a few times a second. While the sink is away a bounded amount waits; what does
not fit is counted, and a line in the log says how much is missing. Chunk numbers have no gaps: a repeated chunk is
recognised by its number, a missing one never was.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import sys
import termios
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from runtime import log_text

Line = tuple[int, str, str]
"""(nanoseconds since 1970, `stdout` or `stderr`, text without its newline)"""

EVENT_PREFIX = b"nodus.event "
"""The public SDK prints telemetry so when there is no events socket; it is not part of the log."""
BATCH_SECONDS = 0.2
RETRY_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0)
CLOSE_SECONDS_MAX = 10.0
LINE_OVERHEAD_BYTES = 64
"""What a line costs beyond its text, so that a flood of empty ones is a flood too."""
_READ_BYTES = 65_536


@dataclass(frozen=True, kw_only=True)
class LogLimits:
    """Bounds of one attempt's log. A chunk stays below the API's body limit even if all of it must be escaped."""

    line_bytes_max: int = 16_384
    chunk_bytes_max: int = 131_072
    bytes_per_second_max: int = 1 << 20
    burst_bytes_max: int = 4 << 20
    waiting_bytes_max: int = 4 << 20


@dataclass(frozen=True)
class Chunk:
    """Consecutive lines under one number, counted from 1 for each attempt."""

    seq: int
    lines: tuple[Line, ...]


class SinkUnavailableError(Exception):
    """The sink may take the chunk later."""


class SinkRefusedError(Exception):
    """The sink will never take chunks of this attempt."""


Sink = Callable[[Chunk], Awaitable[None]]
"""Stores one chunk; repeats are harmless. Raises SinkUnavailableError or SinkRefusedError."""


class LogCollector:
    """The log of one attempt. Make it on the event loop that will read the pipes."""

    def __init__(self, sink: Sink, limits: LogLimits) -> None:
        self.limits = limits
        self._sink = sink
        self._allowance = _Allowance(limits)
        self._waiting: deque[tuple[Line, int]] = deque()
        self._waiting_bytes = 0
        self._dropped = 0
        self._refused = False
        self._arrived = asyncio.Event()
        self._closing = asyncio.Event()
        self._next_seq = 1
        self._pipes: list[_Pipe] = []
        self._sender = asyncio.get_running_loop().create_task(self._send_all())

    def read(self, descriptor: int, stream: str, mark: str = "") -> None:
        """Take over a non-blocking pipe and read it to its end; `stream` is `stdout` or `stderr`.

        Every line begins with `mark`, which tells whose it is where several write into one log.
        """
        self._pipes.append(_Pipe(descriptor, stream, mark.encode(), self))

    def note(self, text: str) -> None:
        """Add lines of our own, about the worker rather than from it; no line of a worker begins as they do."""
        lines = log_text.note_lines(text)
        self._take(lines, len(lines), "stderr", time.time_ns())

    @property
    def full(self) -> bool:
        """Whether lines are being dropped, and will be until there is room for a good many again."""
        return self._dropped > 0 and not (self._allowance.roomy() and self._room() >= _READ_BYTES)

    def drop(self, count: int) -> None:
        """Count lines that nobody looked at."""
        self._dropped += count

    def take(self, lines: Sequence[bytes], stream: str, time_nanoseconds: int) -> None:
        """Add lines of a worker that arrived together; from the first that does not fit, the rest is dropped."""
        texts = (log_text.workers_line(line.decode(errors="replace")) for line in lines)
        self._take(texts, len(lines), stream, time_nanoseconds)

    def _take(self, texts: Iterable[str], count: int, stream: str, time_nanoseconds: int) -> None:
        if self._dropped and count:
            self._mark_dropped(time_nanoseconds)
        for index, text in enumerate(texts):
            size = len(text.encode()) + LINE_OVERHEAD_BYTES
            if size > self._room() or not self._allowance.take(size):
                self.drop(count - index)
                return
            self._append((time_nanoseconds, stream, text), size)

    def _room(self) -> int:
        return self.limits.waiting_bytes_max - self._waiting_bytes

    def _append(self, line: Line, size: int) -> None:
        if self._refused:
            return
        self._waiting.append((line, size))
        self._waiting_bytes += size
        self._arrived.set()

    def _mark_dropped(self, time_nanoseconds: int) -> None:
        lines = "1 line is" if self._dropped == 1 else f"{self._dropped} lines are"
        self._dropped = 0
        text = f"{log_text.NOTE_MARK}{lines} missing here, more was printed than the log takes"
        self._append((time_nanoseconds, "stderr", text), len(text) + LINE_OVERHEAD_BYTES)

    async def close(self) -> None:
        """Read what is left in the pipes, send everything and stop; gives up on a sink that stays away.

        Call it when the process is gone. Raises what the sink raised unexpectedly.
        """
        for pipe in self._pipes:
            pipe.finish()
        if self._dropped:
            self._mark_dropped(time.time_ns())
        self._closing.set()
        self._arrived.set()
        # The log of a worker that is gone is not worth keeping its slot for.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS_MAX):
                await self._sender

    async def _send_all(self) -> None:
        sent_at = -BATCH_SECONDS
        while not (self._closing.is_set() and not self._waiting):
            await self._arrived.wait()
            self._arrived.clear()
            # The first lines after a quiet time leave at once: their readers may be waiting for them already.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(sent_at + BATCH_SECONDS):
                    await self._closing.wait()
            while self._waiting:
                if not await self._send(self._cut_chunk()):
                    self._refused = True
                    self._waiting.clear()
            sent_at = asyncio.get_running_loop().time()

    def _cut_chunk(self) -> Chunk:
        lines: list[Line] = []
        taken = 0
        while self._waiting and taken < self.limits.chunk_bytes_max:
            line, size = self._waiting.popleft()
            taken += size
            lines.append(line)
        self._waiting_bytes -= taken
        chunk = Chunk(seq=self._next_seq, lines=tuple(lines))
        self._next_seq += 1
        return chunk

    async def _send(self, chunk: Chunk) -> bool:
        """Send until it is taken; false when the sink refuses the attempt for good."""
        tries = 0
        while True:
            try:
                await self._sink(chunk)
            except SinkUnavailableError:
                await asyncio.sleep(RETRY_SECONDS[min(tries, len(RETRY_SECONDS) - 1)])
                tries += 1
            except SinkRefusedError:
                return False
            else:
                return True


class _Pipe:
    """One output pipe: bytes in, lines out."""

    def __init__(self, descriptor: int, stream: str, mark: bytes, collector: LogCollector) -> None:
        self._descriptor = descriptor
        self._stream = stream
        self._mark = mark
        self._collector = collector
        self._partial = b""
        self._in_event = False
        self._open = True
        asyncio.get_running_loop().add_reader(descriptor, self._read)

    def finish(self) -> None:
        """Read what the pipe holds now, and close it: what escaped a node without sandboxes may write on for ever."""
        left = self._held_bytes() if self._open else 0
        while left > 0 and (taken := self._read()):
            left -= taken
        self._close()

    def _held_bytes(self) -> int:
        return int.from_bytes(fcntl.ioctl(self._descriptor, termios.FIONREAD, bytes(4)), sys.byteorder)

    def _read(self) -> int:
        """Take one piece; how many bytes it had, 0 when there is none."""
        try:
            data = os.read(self._descriptor, _READ_BYTES)
        except BlockingIOError:
            return 0
        if not data:
            self._close()
            return 0
        if self._collector.full:
            # Counting newlines is all a flood may cost; the rest of a line that began before it is lost with it.
            self._collector.drop(data.count(b"\n"))
            self._partial = data[data.rfind(b"\n") + 1 :][: self._collector.limits.line_bytes_max]
            self._in_event = False
            return len(data)
        self._feed(data)
        return len(data)

    def _feed(self, data: bytes) -> None:
        whole, newline, partial = (self._partial + data).rpartition(b"\n")
        lines = self._cut(whole.split(b"\n")) if newline else []
        longest = self._collector.limits.line_bytes_max
        while len(partial) > longest:
            in_event = self._in_event or partial.startswith(EVENT_PREFIX)
            # Progress is cut where it was printed anew, if it is.
            cut_at = partial.rfind(b"\r", 1, longest) + 1 or longest
            lines += self._cut([partial[:cut_at]])
            # What follows belongs to the same line, an event included.
            self._in_event = in_event
            partial = partial[cut_at:]
        self._partial = partial
        self._collector.take(lines, self._stream, time.time_ns())

    def _cut(self, lines: Sequence[bytes]) -> list[bytes]:
        """Leave telemetry out and cut what is too long; the first line may be the rest of an event."""
        longest = self._collector.limits.line_bytes_max
        kept: list[bytes] = []
        for printed in lines:
            if not self._in_event and not printed.startswith(EVENT_PREFIX):
                line = log_text.last_state(printed)
                kept += [self._mark + line[at : at + longest] for at in range(0, max(len(line), 1), longest)]
            self._in_event = False
        return kept

    def _close(self) -> None:
        if not self._open:
            return
        self._open = False
        if self._partial:
            self._collector.take(self._cut([self._partial]), self._stream, time.time_ns())
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)


class _Allowance:
    """A token bucket over bytes. There is no total: a worker may live for months, and the store keeps only the end."""

    def __init__(self, limits: LogLimits) -> None:
        self._limits = limits
        self._tokens = float(limits.burst_bytes_max)
        self._at = time.monotonic()

    def take(self, size: int) -> bool:
        self._refill()
        if size > self._tokens:
            return False
        self._tokens -= size
        return True

    def roomy(self) -> bool:
        """Whether a whole read would fit: below that, resuming would only make a mark of every other line."""
        self._refill()
        return self._tokens >= min(_READ_BYTES, self._limits.burst_bytes_max)

    def _refill(self) -> None:
        now = time.monotonic()
        refilled = self._tokens + (now - self._at) * self._limits.bytes_per_second_max
        self._tokens = min(float(self._limits.burst_bytes_max), refilled)
        self._at = now
