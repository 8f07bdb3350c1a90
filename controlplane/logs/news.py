"""Waking those who follow a log, without any of them asking the database all the time.

A follower names topics: uids of Functions or attempts whose lines it shows, keys of objects whose end it waits for.
Lines that this process stored and changes of objects wake it at once; for lines stored by other processes one poll a
process, and only while somebody follows, looks what arrived lately. A wake-up may be for nothing; none is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import structlog

from controlplane.errors import ApiError, Reason
from controlplane.settings import Settings
from controlplane.store.changes import ChangeFeed
from controlplane.store.contract import Change
from controlplane.store.database import Database

log = structlog.get_logger(__name__)

_OVERLAP_SECONDS = 2.0
"""A chunk is seen up to this long after the time in its row, which was taken before its commit."""

_ARRIVED = """
SELECT function_uid, attempt, max(seq) AS seq FROM log_chunks
WHERE received_at > now() - make_interval(secs => $1) GROUP BY function_uid, attempt
"""


class Follower:
    """One reader's bell."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()
        self.topics: set[Hashable] = set()

    def ring(self) -> None:
        """Wake the reader, now or when it next waits."""
        self._rung.set()

    async def wait(self, seconds: float | None) -> None:
        """Until it rings, or for that long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._rung.wait()
        self._rung.clear()


class LogNews:
    """The bells of one process."""

    def __init__(self, database: Database, feed: ChangeFeed, settings: Settings) -> None:
        self._database = database
        self._poll_seconds = settings.log_poll_seconds
        self._followers_max = settings.log_followers_max
        self._followers: dict[Hashable, set[Follower]] = {}
        self._count = 0
        self._polling: asyncio.Task[None] | None = None
        feed.add_listener(self._changed)

    @contextmanager
    def follower(self) -> Iterator[Follower]:
        """A follower, without topics yet; TooManyRequests when the process has as many as it may."""
        if self._count >= self._followers_max:
            raise ApiError(
                Reason.TOO_MANY_REQUESTS, "too many logs are being followed on this server", retry_after_seconds=5
            )
        self._count += 1
        if self._polling is None:
            self._polling = asyncio.create_task(self._poll(), name="log-poll")
        follower = Follower()
        try:
            yield follower
        finally:
            self.set_topics(follower, ())
            self._count -= 1
            if not self._count and self._polling is not None:
                self._polling.cancel()
                self._polling = None

    def set_topics(self, follower: Follower, topics: Iterable[Hashable]) -> None:
        """What wakes the follower from now on."""
        wanted = set(topics)
        for topic in follower.topics - wanted:
            followers = self._followers[topic]
            followers.discard(follower)
            if not followers:
                del self._followers[topic]
        for topic in wanted - follower.topics:
            self._followers.setdefault(topic, set()).add(follower)
        follower.topics = wanted

    def publish(self, *topics: Hashable) -> None:
        """Something happened to these topics."""
        for topic in topics:
            for follower in self._followers.get(topic, ()):
                follower.ring()

    def _changed(self, changes: Sequence[Change]) -> None:
        if not self._followers:
            return
        for change in changes:
            key = change.key
            self.publish(key, (key.kind, key.org, key.project))

    async def _poll(self) -> None:
        """Ring for lines that other processes stored."""
        seen: dict[str, int] = {}
        looked_at = time.monotonic()
        while True:
            await asyncio.sleep(self._poll_seconds)
            looking_at = time.monotonic()
            try:
                # However long ago the last look was: what came while none succeeded must still be told.
                rows = await self._database.fetch(_ARRIVED, looking_at - looked_at + _OVERLAP_SECONDS)
            except ApiError as error:
                log.warning("followed logs wait for the database", told=error.message)
                continue
            looked_at = looking_at
            for row in rows:
                if seen.get(row["attempt"]) != row["seq"]:
                    self.publish(row["function_uid"], row["attempt"])
            seen = {row["attempt"]: row["seq"] for row in rows}
