"""What a look at a queue found, corrected by what its batch has not written yet, pure.

A batch writes once, at its end, so the query in `calls/selection.py` shows the queue as it was before. `corrected` adds
the calls that the batch queued and leaves out those it took away, as far as what was fetched tells their place; the
result is what a look would have found after the write, and `calls/fairness.py` picks from it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from controlplane.calls.fairness import SessionHead
from controlplane.calls.rows import CallRow


@dataclass(frozen=True, kw_only=True)
class Look:
    """What one look at a Function's queue found, in turn order."""

    heads: Sequence[SessionHead[CallRow]]
    all_sessions: bool


NOTHING = Look(heads=(), all_sessions=True)


@dataclass(frozen=True, kw_only=True)
class Unwritten:
    """What a batch has changed in one Function's queue."""

    queued: Sequence[CallRow]
    """Changed calls that are claimable now."""
    changed: Collection[str]
    """Uids of all changed calls: what a look says of them is out of date."""
    opened: Mapping[str, int]
    """Sessions that get this turn unless they have one."""


def corrected(look: Look, unwritten: Unwritten) -> Look:
    """The look as it would be had the batch been written before.

    Where calls beyond the fetched ones might come first, nothing is added, and the head or the look stays marked as
    one that does not show everything.
    """
    queued: dict[str, list[CallRow]] = {}
    for row in unwritten.queued:
        queued.setdefault(row.session, []).append(row)
    heads = [_head(head, queued.pop(head.session, []), unwritten.changed) for head in look.heads]
    if look.all_sessions:
        # The others have no place in the round yet. Their turns are revisions of this batch, later than all there are.
        opened = sorted(queued, key=lambda name: unwritten.opened.get(name, 0))
        heads += [SessionHead(session=name, calls=_in_order(queued[name]), complete=True) for name in opened]
    return Look(heads=heads, all_sessions=look.all_sessions)


def _head(head: SessionHead[CallRow], queued: Sequence[CallRow], changed: Collection[str]) -> SessionHead[CallRow]:
    calls = _in_order([*(row for row in head.calls if row.uid not in changed), *queued])
    if not head.complete:
        last = _place(head.calls[-1])
        calls = [row for row in calls if _place(row) <= last]
    return SessionHead(session=head.session, calls=calls, complete=head.complete)


def _in_order(calls: Sequence[CallRow]) -> list[CallRow]:
    return sorted(calls, key=_place)


def _place(row: CallRow) -> tuple[int, int]:
    return row.priority, row.seq
