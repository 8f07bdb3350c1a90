"""The deadlines of a claim's answer, in the time of this host.

The public worker compares a deadline, which the server gives in its own time, with the clock of the host it runs on. A
host whose clock is minutes fast would end each call as it begins, one whose clock is slow would let calls run on. The
server tells its time in each answer to a claim; how far this host is from it is what its deadlines are moved by on
their way through the worker's socket (`proxy.py`). The moved text is as long as the original, so the framing stays.
"""

from __future__ import annotations

import re
import time
from datetime import datetime, timedelta

APART_SECONDS_MIN = 1.0
"""Clocks that are closer agree; an answer's way takes its milliseconds as well."""
HEAD_BYTES_MAX = 65_536

_NOW = re.compile(rb"\r\nnodus-now: *(\d{1,12}\.\d{1,6}) *\r\n", re.IGNORECASE)
_DEADLINE = re.compile(rb'"deadline":"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d{6})?Z"')
_DEADLINE_BYTES_MAX = len(b'"deadline":"2026-11-29T12:00:00.000000Z"')


class DeadlineMover:
    """Moves the deadlines of one answer, fed in pieces as they come."""

    def __init__(self) -> None:
        self._kept = b""
        self._apart: timedelta | None = None
        """By how much this host is ahead of the server; None until the head of the answer is known."""

    def feed(self, data: bytes) -> bytes:
        """What can be passed on now; a piece that may hold the beginning of a deadline is kept for the next one."""
        self._kept += data
        if self._apart is None:
            head = self._kept.find(b"\r\n\r\n")
            if head < 0 and len(self._kept) <= HEAD_BYTES_MAX:
                return b""
            self._apart = _apart(self._kept[: head + 2] if head >= 0 else b"")
        if not self._apart:
            passed, self._kept = self._kept, b""
            return passed
        moved = _DEADLINE.sub(self._moved, self._kept)
        # A deadline that was moved is not found once more: what is kept begins behind it.
        ends = [match.end() for match in _DEADLINE.finditer(self._kept)]
        cut = max([len(moved) - _DEADLINE_BYTES_MAX + 1, 0, *ends[-1:]])
        self._kept = moved[cut:]
        return moved[:cut]

    def rest(self) -> bytes:
        """What was kept, when the answer is complete."""
        kept, self._kept = self._kept, b""
        return kept

    def _moved(self, match: re.Match[bytes]) -> bytes:
        assert self._apart is not None
        seconds, fraction = match[1].decode(), (match[2] or b"").decode()
        try:
            at = datetime.fromisoformat(seconds + fraction) + self._apart
        except (ValueError, OverflowError):
            return match[0]
        return f'"deadline":"{at.isoformat(timespec="microseconds" if fraction else "seconds")}Z"'.encode()


def _apart(head: bytes) -> timedelta:
    """How far this host is ahead of the server that wrote this head; zero when they agree or it does not tell."""
    told = _NOW.search(head)
    seconds = time.time() - float(told[1]) if told is not None else 0.0
    return timedelta(seconds=seconds) if abs(seconds) >= APART_SECONDS_MIN else timedelta()
