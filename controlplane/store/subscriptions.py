"""Who wants to see which changes: the watchers of one process, found without asking each of them.

A server may have a thousand watches open, most of them for one name or one label. Each subscription is filed under the
rarest thing that every object it selects must have had or got: its name, a label with one value, or else its kind. A
change is offered only to those filed under what it carries, so its cost does not grow with the number of watchers. Each
subscription buffers what it was offered, within bounds: who does not keep up is cut and resumes. Next: `watch.py`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from controlplane.machinery.selectors import LabelOperator
from controlplane.store.contract import Change, ChangeType, Selection
from controlplane.store.selection import covers, matches, named


@dataclass(frozen=True, slots=True)
class Sighting:
    """A change as one selection sees it: `type` is what happened to the selection, not to the object (R-WATCH-4)."""

    type: ChangeType
    change: Change

    @property
    def left(self) -> bool:
        """Whether the object still exists but no longer belongs to the selection."""
        return self.type is ChangeType.DELETED and self.change.type is not ChangeType.DELETED


def sighting(selection: Selection, change: Change) -> Sighting | None:
    """What the change means to a watcher of the selection; None when it does not concern it."""
    if not covers(selection, change.key):
        return None
    now = change.type is not ChangeType.DELETED and matches(selection, change.key, change.labels, change.fields)
    before = change.previous_labels is not None and matches(
        selection, change.key, change.previous_labels, change.previous_fields or {}
    )
    if now:
        return Sighting(ChangeType.MODIFIED if before else ChangeType.ADDED, change)
    return Sighting(ChangeType.DELETED, change) if before else None


class Subscription:
    """A bounded buffer of what one watcher has not taken yet."""

    def __init__(self, selection: Selection, *, after_rv: int, events_max: int, bytes_max: int) -> None:
        self.selection = selection
        self._after_rv = after_rv
        self._events_max = events_max
        self._bytes_max = bytes_max
        self._buffer: deque[Sighting] = deque()
        self._bytes = 0
        self._wake = asyncio.Event()
        self.ended = False
        """No more changes will come: the watcher was too slow, or the feed stopped."""

    def offer(self, change: Change) -> None:
        """Take the change if it concerns the selection; end when there is no room for it."""
        if self.ended or change.rv <= self._after_rv:
            return
        seen = sighting(self.selection, change)
        if seen is None:
            return
        self._buffer.append(seen)
        self._bytes += len(change.document)
        if len(self._buffer) > self._events_max or self._bytes > self._bytes_max:
            self.end()
        self._wake.set()

    def end(self) -> None:
        """Drop what is buffered and take no more; the client resumes from what it saw last."""
        self.ended = True
        self._buffer.clear()
        self._bytes = 0
        self._wake.set()

    async def take(self, seconds: float | None) -> list[Sighting]:
        """What came since the last call, waiting up to `seconds` for it; empty when nothing did or it has ended."""
        if not self._buffer and not self.ended:
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._wake.wait()
        taken = list(self._buffer)
        self._buffer.clear()
        self._bytes = 0
        return taken


class Subscriptions:
    """All subscriptions of a process, by what they look for."""

    def __init__(self) -> None:
        self._filed: dict[Hashable, dict[Subscription, None]] = {}

    def add(self, subscription: Subscription) -> None:
        """Offer it every change from now on."""
        self._filed.setdefault(_place(subscription.selection), {})[subscription] = None

    def remove(self, subscription: Subscription) -> None:
        """Offer it no more."""
        place = _place(subscription.selection)
        filed = self._filed.get(place, {})
        filed.pop(subscription, None)
        if not filed:
            self._filed.pop(place, None)

    def deliver(self, changes: Sequence[Change]) -> None:
        """Offer each change to those whom it may concern."""
        if not self._filed:
            return
        for change in changes:
            for place in _places(change):
                for subscription in self._filed.get(place, ()):
                    subscription.offer(change)

    def end(self) -> None:
        """End all of them."""
        for filed in self._filed.values():
            for subscription in filed:
                subscription.end()

    def __len__(self) -> int:
        return sum(len(filed) for filed in self._filed.values())


def _place(selection: Selection) -> Hashable:
    name = named(selection)
    if name is not None:
        return selection.kind, selection.org, name
    for term in selection.labels:
        if term.operator is LabelOperator.IN and len(term.values) == 1:
            return selection.kind, selection.org, term.key, term.values[0]
    return selection.kind, selection.org


def _places(change: Change) -> Iterable[Hashable]:
    kind, org = change.key.kind, change.key.org
    yield kind, org
    yield kind, org, change.key.name
    for label in {**change.labels, **(change.previous_labels or {})}.items():
        yield kind, org, *label
    for key, value in (change.previous_labels or {}).items():
        if key in change.labels and change.labels[key] != value:
            yield kind, org, key, change.labels[key]
