"""The one source of "now" for everything the server stamps.

Durations that are billed and deadlines that are enforced come from a single clock, injected where it is needed, so
tests can move it and no two modules disagree. `workers/wiring.py` passes the database's time
(`store/server_clock.py`), so that no two processes disagree either; `SystemClock` is for what runs before there is a
database. Times on the wire are written by `format_time` and `format_time_micro`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Whatever can tell the time as an aware UTC datetime."""

    def now(self) -> datetime: ...


class SystemClock:
    """The host's clock, in UTC."""

    def now(self) -> datetime:
        return datetime.now(UTC)


def format_time(moment: datetime) -> str:
    """RFC 3339 in whole seconds with `Z`, the only form strict Kubernetes clients parse (R-OBJ-2)."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def format_time_micro(moment: datetime) -> str:
    """RFC 3339 with exactly six fraction digits: the form of claim deadlines (Python 3.10 parses 0 or 6 digits)."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_time(text: str) -> datetime:
    """An aware UTC datetime from RFC 3339 text; `ValueError` when it is not one or has no offset."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("a time must carry an offset such as Z")
    return moment.astimezone(UTC)
