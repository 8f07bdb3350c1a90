"""Watches: every later change of a selection, once and in order, or an honest end.

A watch registers on the feed first and reads the past second, so nothing falls between. What enters the selection is
ADDED, what leaves it is DELETED, what stays is MODIFIED (R-WATCH-4). A watcher that falls behind its bounded buffer
is cut; it resumes from its last revision. The edge (`api/watch.py`) turns the items into lines.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from controlplane.settings import Settings
from controlplane.store.changes import READ_AFTER, READ_ROWS_MAX, ChangeFeed, change_of
from controlplane.store.contract import Change, ChangeType, Selection
from controlplane.store.database import Database
from controlplane.store.objects import expired
from controlplane.store.selection import covers, matches


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """An event to send: the words of a watch line."""

    type: ChangeType
    document: bytes
    rv: int


@dataclass(frozen=True, slots=True)
class Bookmark:
    """Everything up to `rv` was sent. `initial_end` marks the end of the initial events of a WatchList."""

    rv: int
    initial_end: bool = False


WatchItem = WatchEvent | Bookmark


def event_of(selection: Selection, change: Change) -> WatchEvent | None:
    """What the change means to a watcher of the selection; None when it does not concern it."""
    if not covers(selection, change.key):
        return None
    now = change.type is not ChangeType.DELETED and matches(selection, change.key, change.labels, change.fields)
    before = change.previous_labels is not None and matches(
        selection, change.key, change.previous_labels, change.previous_fields or {}
    )
    if not now and not before:
        return None
    stays = ChangeType.MODIFIED if before else ChangeType.ADDED
    return WatchEvent(stays if now else ChangeType.DELETED, change.document, change.rv)


class Watches:
    """Opens watches on the feed of this process."""

    def __init__(self, database: Database, feed: ChangeFeed, settings: Settings) -> None:
        self._database = database
        self._feed = feed
        self._settings = settings

    async def follow(
        self, selection: Selection, since_rv: int, bookmark_seconds: float | None
    ) -> AsyncIterator[list[WatchItem]]:
        """Yield events after `since_rv` in batches as they come, and bookmarks in quiet times when asked.

        Raises Expired before the first batch when the log no longer reaches back. Ends when the watcher is too slow.
        """
        pending: deque[WatchEvent] = deque()
        wake = asyncio.Event()
        overflow = False

        def listen(changes: Sequence[Change]) -> None:
            nonlocal overflow
            for change in changes:
                event = event_of(selection, change)
                if event is not None and change.rv > since_rv:
                    if len(pending) >= self._settings.watch_buffer_events_max:
                        overflow = True
                        break
                    pending.append(event)
            if pending or overflow:
                wake.set()

        remove = self._feed.add_listener(listen)
        start_rv = self._feed.last_rv
        try:
            async for events in self._past(selection, since_rv, start_rv):
                yield list(events)
            while True:
                if not pending:
                    seen = self._feed.last_rv
                    with suppress(TimeoutError):
                        async with asyncio.timeout(bookmark_seconds):
                            await wake.wait()
                    if not pending and not overflow:
                        yield [Bookmark(max(seen, since_rv))]
                        continue
                wake.clear()
                if pending:
                    batch: list[WatchItem] = list(pending)
                    pending.clear()
                    yield batch
                if overflow:
                    return
        finally:
            remove()

    async def _past(self, selection: Selection, since_rv: int, start_rv: int) -> AsyncIterator[Sequence[WatchEvent]]:
        """The events of (since_rv, start_rv]: from memory when it reaches back, else from the log."""
        if since_rv >= start_rv:
            return
        if since_rv >= self._feed.first_rv - 1:
            changes = [change for change in self._feed.since(since_rv) if change.rv <= start_rv]
            events = [event for change in changes if (event := event_of(selection, change)) is not None]
            if events:
                yield events
            return
        position = since_rv
        while position < start_rv:
            rows = await self._database.fetch(READ_AFTER, position, READ_ROWS_MAX)
            # The log may have been compacted while it was read: the check comes after the read.
            compacted = await self._database.pool.fetchval("SELECT compacted_rv FROM meta WHERE id = 1")
            if position < compacted or not rows:
                raise expired()
            changes = [change_of(row) for row in rows if row["rv"] <= start_rv]
            position = rows[-1]["rv"]
            events = [event for change in changes if (event := event_of(selection, change)) is not None]
            if events:
                yield events
