"""What every client and worker of a fault run saw and did, as JSON lines in one file.

Many processes append at once, and any of them may be killed: a line is one `write` to a file opened for appending, so
lines do not mix. The kernel takes it in page by page, though, so that a reader may meet a part of the last line, and a
writer that was killed may have left a part of one; `whole_lines` passes these over. `checker.py` judges the history
after the run. Times are seconds of the host's monotonic clock, which no clock step moves.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Event = dict[str, Any]
"""`event` names it (the constants below), `at` is its time, `by` who wrote it; the rest depends on the event."""

CREATED = "created"
"""A client was told that its call exists: call, uid, kind, bound_seconds."""
ASKED = "asked"
"""A client asked for the end of a call early: call, what (`cancel` or `delete`)."""
SEEN = "seen"
"""A watch told a client about a call: call, type, rv, phase, retries, recoveries."""
ENDED = "ended"
"""A client that waited for a call stopped waiting: call, phase (empty when it gave up), seconds."""
STARTED = "started"
"""A worker began to serve: attempt, concurrency, pid."""
BEGAN = "began"
"""A worker began to run a call: attempt, call, run."""
FINISHED = "finished"
"""That run is over: attempt, call, run, outcome, digest of the result if there is one."""
FAULT = "fault"
"""The harness did something to the system: what."""


class History:
    """One writer's end of the file."""

    def __init__(self, path: Path, by: str) -> None:
        self.path = path
        self._by = by
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def add(self, event: str, **fields: Any) -> None:
        """Append one event."""
        # The end of the line before stands first: a part of one that nobody will complete spoils no other.
        line = "\n" + json.dumps({"event": event, "at": time.monotonic(), "by": self._by, **fields})
        os.write(self._descriptor, line.encode())

    def close(self) -> None:
        """Give the file back."""
        os.close(self._descriptor)


def whole_lines(path: Path) -> Iterator[str]:
    """The lines that are there whole, in the order in which they were written."""
    return (line for line in path.read_text().split("\n") if line.endswith("}"))


def read_history(path: Path) -> list[Event]:
    """All events, in the order in which they were written."""
    return [json.loads(line) for line in whole_lines(path)]
