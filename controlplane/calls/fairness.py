"""Whose turn it is: fair round-robin between the sessions of one Function, pure.

A session (`spec.session`; calls without one share a session) has a turn number: the revision of its last dispatch,
or of its first call. The session with the lowest number goes next and then goes to the back, so a caller with one
call waits at most one turn of every other session, however many calls those have. Inside a session the order is
(priority, seq): re-offered calls first, then first come, first served. `calls/dispatcher.py` fetches the heads in
`calls/selection.py` and applies what is picked here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Call = TypeVar("Call")


@dataclass(frozen=True, kw_only=True)
class SessionHead(Generic[Call]):
    """One session in turn order and the first of its claimable calls; `complete` when those are all it has."""

    session: str
    calls: Sequence[Call]
    complete: bool


@dataclass(frozen=True, kw_only=True)
class Pick(Generic[Call]):
    """The calls to dispatch, in order, each with its session; and what the look at the queue showed."""

    taken: list[tuple[str, Call]] = field(default_factory=list)
    emptied: list[str] = field(default_factory=list)
    """Sessions that have no claimable call left after this."""
    look_again: bool = False
    """More calls may be waiting than were fetched, in an order this look cannot know."""


def pick(heads: Sequence[SessionHead[Call]], wanted: int, all_sessions: bool) -> Pick[Call]:
    """Take up to `wanted` calls, one of each session a round, as far as the fetched heads determine the order.

    `heads` are in turn order. When `all_sessions` is false there are sessions behind them, and those come before
    any second turn of the ones seen here, so only one round is taken.
    """
    taken: list[tuple[str, Call]] = []
    used = dict.fromkeys((head.session for head in heads), 0)
    round_robin = deque(heads)
    while round_robin and len(taken) < wanted:
        head = round_robin[0]
        position = used[head.session]
        if position == len(head.calls) and head.complete:
            round_robin.popleft()
        elif position == len(head.calls) or (position and not all_sessions):
            break
        else:
            taken.append((head.session, head.calls[position]))
            used[head.session] += 1
            round_robin.rotate(-1)
    emptied = [head.session for head in heads if head.complete and used[head.session] == len(head.calls)]
    look_again = len(taken) < wanted and (bool(round_robin) or not all_sessions)
    return Pick(taken=taken, emptied=emptied, look_again=look_again)
