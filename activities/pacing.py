"""When the starter may use the CPU: the rule, pure, and the meter it reads.

Nothing that a caller waits for depends on a call's workflow, so workflows are started in the pauses of real work.
While calls run, only one is in flight; while they run at speed, a trickle goes on, because a pool that is never quiet
must still move. The lag budget (`engine_lag_*` settings) bounds how long that may last: from half of it on, more and
more workflows start whatever else there is to do, and at the whole of it as many as at night.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

QUIET_SECONDS = 0.2
"""Without a change of a call for this long, whoever waited has been answered."""
PRESSED_FROM = 0.5
"""The part of the lag budget from which on the backlog counts more than what runs."""


class TransitionMeter:
    """How many changes of calls were committed in the last second, in all processes, and when the last one was."""

    def __init__(self) -> None:
        self._recent: deque[tuple[float, int]] = deque()
        self._total = 0
        self.last_at = float("-inf")

    def saw(self, count: int, now: float) -> None:
        """Count changes that were delivered at `now` (monotonic seconds)."""
        self._forget_before(now)
        self._recent.append((now, count))
        self._total += count
        self.last_at = now

    def per_second(self, now: float) -> int:
        """Changes during the second before `now`."""
        self._forget_before(now)
        return self._total

    def _forget_before(self, now: float) -> None:
        """Drop what is older than a second; also while nobody reads the meter, as in a process that was not elected."""
        while self._recent and self._recent[0][0] <= now - 1.0:
            self._total -= self._recent.popleft()[1]

    def is_quiet(self, now: float) -> bool:
        """Whether nothing has changed for a moment."""
        return now - self.last_at >= QUIET_SECONDS


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What the rule depends on."""

    quiet: bool
    transitions_per_second: int
    pressure: float
    """The part of the lag budget that is used up: 0 without a backlog, 1 at the budget."""


@dataclass(frozen=True, kw_only=True)
class Pacing:
    """The bounds of the rule; all come from the settings."""

    in_flight_max: int
    busy_transitions: int
    trickle_per_second: float

    def is_busy(self, traffic: Traffic) -> bool:
        """Whether calls run at such a pace that even a single workflow in flight would slow them down."""
        hurried = traffic.quiet or traffic.pressure >= PRESSED_FROM
        return not hurried and traffic.transitions_per_second >= self.busy_transitions

    def in_flight(self, traffic: Traffic) -> int:
        """How many workflows may be on their way to their calls at once."""
        if traffic.quiet:
            return self.in_flight_max
        if traffic.pressure < PRESSED_FROM:
            return 1
        used = min(1.0, (traffic.pressure - PRESSED_FROM) / (1.0 - PRESSED_FROM))
        return max(2, round(self.in_flight_max * used))

    def pause_seconds(self, traffic: Traffic) -> float:
        """How long to wait after a start before the next one."""
        return 1.0 / self.trickle_per_second if self.is_busy(traffic) else 0.0
