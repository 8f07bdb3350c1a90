"""What the autoscaler remembers about one Function between two looks.

All of it may be lost: a controller that begins anew waits one window before it trusts the peak of the load, and
measures again. What decides about workers for good is in SQL.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from controlplane.capacity.function_status import Band, Observation

SAMPLES_MAX = 32
PENDING_MAX = 64


@dataclass
class PoolMemory:
    """One Function's past, as far as this process has seen it. `written_at` is of the event loop's clock."""

    since: datetime
    loads: deque[tuple[datetime, int]] = field(default_factory=deque)
    seen: Observation | None = None
    written: Observation | None = None
    written_at: float = float("-inf")
    cold: Band | None = None
    ready_known: set[str] = field(default_factory=set)
    failure_uid: str = ""
    failure_message: str = ""
    waits: deque[float] = field(default_factory=lambda: deque(maxlen=SAMPLES_MAX))
    pending: dict[str, float] = field(default_factory=dict)

    def note_load(self, now: datetime, workers: int, window: timedelta) -> None:
        """Remember how many workers the load asks for now, for as long as the window."""
        self.loads.append((now, workers))
        # What was asked for just before the window began still held when it did.
        while len(self.loads) > 1 and self.loads[1][0] <= now - window:
            self.loads.popleft()

    def peak(self, now: datetime, window: timedelta) -> int | None:
        """The most workers asked for during the window; None until a whole one was seen."""
        if self.since > now - window or not self.loads:
            return None
        return max(workers for _, workers in self.loads)

    def queued(self, uid: str, at: float) -> None:
        """A call was created while a worker was idle: how long will it wait?"""
        if self.seen is not None and self.seen.idle > 0 and len(self.pending) < PENDING_MAX:
            self.pending[uid] = at

    def claimed(self, uid: str, at: float) -> None:
        """A worker took the call."""
        since = self.pending.pop(uid, None)
        if since is not None:
            self.waits.append(at - since)

    def ended(self, uid: str) -> None:
        """The call ended without having been seen on a worker."""
        self.pending.pop(uid, None)

    @property
    def warm(self) -> Band | None:
        """How long calls waited that found an idle worker."""
        if not self.waits:
            return None
        ordered = sorted(self.waits)
        return Band(
            p50_seconds=ordered[len(ordered) // 2], p90_seconds=ordered[min(len(ordered) - 1, len(ordered) * 9 // 10)]
        )
