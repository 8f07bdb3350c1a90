"""The change feed of one process: every committed change, once and in order.

The writer of this process hands its changes over directly; those of other processes are read from the log by one
tailer, woken by a notification and, as a safety net, by a poll. Because revisions have no gaps, the feed can tell
whether it missed something: what does not follow the last revision waits until the tailer has read what lies between.
The newest changes stay in a ring, so a watcher that resumes a little late reads memory, not SQL. Next: `watch.py`.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

import asyncpg
import orjson
import structlog

from controlplane.settings import Settings
from controlplane.store.contract import Change, ChangeType, Key
from controlplane.store.database import Database

log = structlog.get_logger(__name__)

CHANNEL = "nodus_changes"
READ_ROWS_MAX = 1_000
RECONNECT_SECONDS = 0.5

READ_AFTER = """
SELECT rv, type, kind, org, project, name, uid, labels, fields, prev_labels, prev_fields, doc
FROM changes WHERE rv > $1 ORDER BY rv LIMIT $2
"""

Listener = Callable[[Sequence[Change]], None]


class ChangeFeed:
    """Delivers changes to listeners of this process and keeps the latest in memory."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings
        self._ring: deque[Change] = deque(maxlen=settings.ring_events_max)
        self._listeners: list[Listener] = []
        self._wake = asyncio.Event()
        self._advanced = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.last_rv = 0

    async def start(self) -> None:
        """Begin at the current revision."""
        self.last_rv = await self._database.pool.fetchval("SELECT rv FROM meta WHERE id = 1")
        self._task = asyncio.create_task(self._run(), name="change-feed")

    async def stop(self) -> None:
        """Stop reading; watchers are ended by whoever serves them."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def add_listener(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with every batch of changes from now on, in order; returns a function that removes it.

        Listeners run on the event loop and must be quick and must not raise.
        """
        self._listeners.append(listener)

        def remove() -> None:
            with suppress(ValueError):
                self._listeners.remove(listener)

        return remove

    def publish(self, changes: Sequence[Change]) -> None:
        """Take changes this process has just committed; a gap before them is left to the tailer."""
        if changes[0].rv == self.last_rv + 1:
            self._deliver(changes)
        elif changes[-1].rv > self.last_rv:
            self._wake.set()

    @property
    def first_rv(self) -> int:
        """The oldest revision in memory, or the next one when there is none."""
        return self._ring[0].rv if self._ring else self.last_rv + 1

    def since(self, rv: int) -> list[Change]:
        """The changes in memory after `rv`, which must not be older than `first_rv` - 1."""
        start = bisect_right(self._ring, rv, key=lambda change: change.rv)
        return list(islice(self._ring, start, None))

    async def wait_until(self, rv: int, seconds: float) -> bool:
        """Whether the feed reached `rv` within `seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.last_rv < rv:
                    self._wake.set()
                    await self._advanced.wait()
        return self.last_rv >= rv

    def _deliver(self, changes: Sequence[Change]) -> None:
        for change in changes:
            # A gap here would be a lost watch event: better to stop than to go on silently.
            assert change.rv == self.last_rv + 1, f"change {change.rv} follows {self.last_rv}"
            self.last_rv = change.rv
            self._ring.append(change)
        for listener in list(self._listeners):
            listener(changes)
        self._advanced.set()
        self._advanced.clear()

    async def _run(self) -> None:
        while True:
            try:
                await self._follow()
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError) as error:
                log.warning("the change feed lost its connection", error=repr(error))
                await asyncio.sleep(RECONNECT_SECONDS)

    async def _follow(self) -> None:
        connection = await self._database.connect()
        try:
            await connection.add_listener(CHANNEL, self._notified)
            while True:
                await self._read(connection)
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._settings.change_poll_seconds):
                        await self._wake.wait()
                self._wake.clear()
        finally:
            connection.terminate()

    def _notified(self, *_arguments: object) -> None:
        self._wake.set()

    async def _read(self, connection: asyncpg.Connection[asyncpg.Record]) -> None:
        """Deliver everything after the last revision that this process did not publish meanwhile."""
        while True:
            rows = await connection.fetch(READ_AFTER, self.last_rv, READ_ROWS_MAX)
            fresh = [change_of(row) for row in rows if row["rv"] > self.last_rv]
            if fresh:
                self._deliver(fresh)
            if len(rows) < READ_ROWS_MAX:
                return


def change_of(row: Any) -> Change:  # noqa: ANN401 - a driver row
    """A row of the change log as a Change."""
    return Change(
        rv=row["rv"],
        type=ChangeType(row["type"]),
        key=Key(row["kind"], row["org"], row["project"], row["name"]),
        uid=row["uid"],
        document=row["doc"].encode(),
        labels=orjson.loads(row["labels"]),
        fields=orjson.loads(row["fields"]),
        previous_labels=None if row["prev_labels"] is None else orjson.loads(row["prev_labels"]),
        previous_fields=None if row["prev_fields"] is None else orjson.loads(row["prev_fields"]),
    )
