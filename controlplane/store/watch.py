"""Watches: every later change of a selection, once and in order, or an honest end.

A watch registers on the feed first and reads the past second, so nothing falls between. What enters the selection is
ADDED, what leaves it is DELETED, what stays is MODIFIED (R-WATCH-4). A watcher that falls behind its bounded buffer
is cut; it resumes from its last revision. The edge (`api/watch.py`) turns the items into lines.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from dataclasses import dataclass

import orjson

from controlplane.settings import Settings
from controlplane.store.changes import COLUMNS, ChangeFeed, change_of
from controlplane.store.contract import Change, ChangeType, Selection
from controlplane.store.database import Database
from controlplane.store.objects import expired
from controlplane.store.subscriptions import Sighting, Subscription, sighting

REPLAY_ROWS_MAX = 500
"""Changes a query; a watcher that resumes far back gets them in turns with others."""

# Rows of other kinds are passed over in the index-ordered scan, without fetching their documents.
_REPLAY = f"""
SELECT {COLUMNS} FROM changes WHERE rv > $1 AND rv <= $2 AND kind = $3 AND org = $4
    AND ($5::text IS NULL OR project = $5) ORDER BY rv LIMIT $6
"""  # noqa: S608 - a constant


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """An event to send: the words of a watch line."""

    type: ChangeType
    document: bytes
    rv: int


@dataclass(frozen=True, slots=True)
class Bookmark:
    """Everything up to `rv` was sent."""

    rv: int


WatchItem = WatchEvent | Bookmark


class Watches:
    """Opens watches on the feed of this process."""

    def __init__(self, database: Database, feed: ChangeFeed, settings: Settings) -> None:
        self._database = database
        self._feed = feed
        self._settings = settings

    async def follow(
        self, selection: Selection, since_rv: int, bookmark_seconds: float | None, seconds_max: float | None = None
    ) -> AsyncGenerator[list[WatchItem], None]:
        """Yield events after `since_rv` in batches as they come.

        With `bookmark_seconds`, a bookmark comes that often however busy the watch is, and one as the last thing before
        the watch ends after `seconds_max` (R-WATCH-7). A revision that has not happened yet is waited for. Raises
        Expired when the log does not reach back, Unavailable when it must be read and the database is away. Ends early
        when the watcher is too slow or the feed stops. Close the iterator (`aclose`) when leaving it early.
        """
        turns = _Turns(bookmark_seconds, seconds_max)
        start_rv = self._feed.last_rv
        subscription = Subscription(
            selection,
            after_rv=max(since_rv, start_rv),
            events_max=self._settings.watch_buffer_events_max,
            bytes_max=self._settings.watch_buffer_bytes_max,
        )
        self._feed.subscriptions.add(subscription)
        try:
            async for sightings in self._past(selection, since_rv, start_rv):
                if sightings:
                    yield await self._events(sightings)
                if subscription.ended:
                    return
            while not subscription.ended:
                taken = await subscription.take(turns.seconds_left())
                # The buffer is empty now, so with what was taken all that the feed has seen is sent.
                seen_rv = max(self._feed.last_rv, since_rv)
                if taken:
                    yield await self._events(taken)
                if turns.bookmark_due() and not subscription.ended:
                    yield [Bookmark(seen_rv)]
                if turns.over():
                    return
        finally:
            self._feed.subscriptions.remove(subscription)

    async def _past(self, selection: Selection, since_rv: int, until_rv: int) -> AsyncIterator[list[Sighting]]:
        """What (since_rv, until_rv] means to the selection: from memory when it reaches back, else from the log."""
        position = since_rv
        while position < until_rv:
            if position >= self._feed.first_rv - 1:
                changes = [change for change in self._feed.since(position) if change.rv <= until_rv]
                position = until_rv
            else:
                changes = await self._replayed(selection, position, until_rv)
                position = changes[-1].rv if len(changes) == REPLAY_ROWS_MAX else until_rv
            yield _sightings(selection, changes)

    async def _replayed(self, selection: Selection, position: int, until_rv: int) -> list[Change]:
        rows = await self._database.fetch(
            _REPLAY, position, until_rv, selection.kind, selection.org, selection.project, REPLAY_ROWS_MAX
        )
        # The log may have been compacted while it was read, so the check comes after the read.
        if position < await self._database.fetchval("SELECT compacted_rv FROM compaction WHERE id = 1"):
            raise expired()
        return [change_of(row) for row in rows]

    async def _events(self, sightings: Iterable[Sighting]) -> list[WatchItem]:
        events: list[WatchItem] = []
        for seen in sightings:
            document = await self._last_seen(seen.change) if seen.left else seen.change.document
            events.append(WatchEvent(seen.type, document, seen.change.rv))
        return events

    async def _last_seen(self, change: Change) -> bytes:
        """The object as it was while it still belonged to the selection, with the revision at which it left."""
        assert change.previous_rv is not None, f"{change} has no past to leave"
        previous = self._feed.at(change.previous_rv)
        document = previous.document if previous is not None else None
        if document is None:
            document = await self._database.fetchval(
                "SELECT doc FROM changes WHERE rv = $1 AND uid = $2", change.previous_rv, change.uid
            )
        if document is None:
            # Compacted while it was on its way, so everything this watcher was told before is too old as well.
            raise expired()
        last = orjson.loads(document)
        last["metadata"]["resourceVersion"] = str(change.rv)
        return orjson.dumps(last)


class _Turns:
    """When a watch owes a bookmark, and when it is over."""

    def __init__(self, bookmark_seconds: float | None, seconds_max: float | None) -> None:
        self._clock = asyncio.get_running_loop().time
        self._bookmark_seconds = bookmark_seconds
        self._bookmark_at = math.inf if bookmark_seconds is None else self._clock() + bookmark_seconds
        self._end_at = math.inf if seconds_max is None else self._clock() + seconds_max

    def seconds_left(self) -> float | None:
        """Seconds until one of the two, None when neither will come."""
        next_at = min(self._bookmark_at, self._end_at)
        return None if next_at == math.inf else max(next_at - self._clock(), 0.0)

    def bookmark_due(self) -> bool:
        """Whether a bookmark must be sent now; then the next is due one interval later."""
        now = self._clock()
        if self._bookmark_seconds is None or now < min(self._bookmark_at, self._end_at):
            return False
        self._bookmark_at = now + self._bookmark_seconds
        return True

    def over(self) -> bool:
        return self._clock() >= self._end_at


def _sightings(selection: Selection, changes: Iterable[Change]) -> list[Sighting]:
    return [seen for change in changes if (seen := sighting(selection, change)) is not None]
