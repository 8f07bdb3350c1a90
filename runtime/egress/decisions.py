"""What the proxy decided for one attempt, told once each.

A decision is worth a line the first time it is made. A worker makes the same one thousands of times, and hostile code
as many different ones as it likes: repeats are counted only, and after a number of different ones so is everything.
"""

from __future__ import annotations

from collections.abc import Callable


class DecisionLog:
    """The decisions of one attempt; `tell` takes a line for the attempt's log."""

    def __init__(self, decisions_max: int, tell: Callable[[str], None]) -> None:
        self._left = decisions_max
        self._tell = tell
        self._told: set[str] = set()
        self._allowed = 0
        self._refused = 0

    def allowed(self, what: str) -> None:
        """A connection that was made."""
        self._allowed += 1
        self._say(f"egress: allowed {what}")

    def refused(self, what: str, why: str) -> None:
        """One that was not, or that was cut for what it turned out to be."""
        self._refused += 1
        self._say(f"egress: refused {what}: {why}")

    def summary(self) -> str | None:
        """How often, for the end of the attempt's log; None when nothing was asked for."""
        if not self._allowed and not self._refused:
            return None
        return f"egress: {self._allowed} connections allowed, {self._refused} refused"

    def _say(self, line: str) -> None:
        if line in self._told or self._left <= 0:
            return
        self._left -= 1
        self._told.add(line)
        self._tell(line if self._left else f"{line} (further ones are only counted)")
