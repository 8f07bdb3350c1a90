"""The change feed of one process: every committed change, once and in order.

The writer of this process hands its changes over directly; those of other processes are read from the log by one
tailer, woken by a notification and, as a safety net, by a poll. Because revisions have no gaps, the feed can tell
whether it missed something: what does not follow the last revision waits until the tailer has read what lies between.
The newest changes stay in a ring, so a watcher that resumes a little late reads memory, not SQL. Next: `watch.py`.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

import asyncpg
import orjson
import structlog

from controlplane.settings import Settings
from controlplane.store.contract import Change, ChangeType, Key
from controlplane.store.database import Database, is_passing
from controlplane.store.notify import CHANNEL
from controlplane.store.subscriptions import Subscriptions

if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]

log = structlog.get_logger(__name__)

READ_ROWS_MAX = 1_000
"""Changes a query; a process that was away reads on until it has caught up."""
RECONNECT_SECONDS = 0.25
"""Between two attempts to reach the database again."""

COLUMNS = "rv, type, kind, org, project, name, uid, prev_rv, labels, fields, prev_labels, prev_fields, doc"
# The compaction point of the same moment comes with every row, and alone when there is none: who slept for long must
# notice that changes are gone although what is left looks whole, or nothing is left.
READ_AFTER = f"""
SELECT c.compacted_rv, n.* FROM compaction c LEFT JOIN LATERAL (
    SELECT {COLUMNS} FROM changes WHERE rv > $1 ORDER BY rv LIMIT $2
) n ON true WHERE c.id = 1 ORDER BY n.rv
"""  # noqa: S608 - a constant
READ_SECONDS_MAX = 10.0
"""A look at the log that takes longer is given up and made over a new connection: the old one may be dead."""

Listener = Callable[[Sequence[Change]], None]


class ChangeFeed:
    """Delivers changes to listeners and watchers of this process and keeps the latest in memory."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings
        self._ring: deque[Change] = deque()
        self._ring_bytes = 0
        self._listeners: list[Listener] = []
        self._losses: list[Callable[[], None]] = []
        self._wake = asyncio.Event()
        self._advanced = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.subscriptions = Subscriptions()
        self.last_rv = 0
        self._looked_at: float | None = None

    async def start(self) -> None:
        """Begin at the current revision; raises ApiError Unavailable when the database is away."""
        self.last_rv = await self._database.fetchval("SELECT rv FROM meta WHERE id = 1")
        self._task = asyncio.create_task(self._run(), name="change-feed")

    @property
    def current(self) -> bool:
        """Whether the tailer's last look at the log succeeded and is not long ago: watchers learn what happens."""
        looked_at = self._looked_at
        return looked_at is not None and time.monotonic() - looked_at < self._settings.change_stale_seconds

    async def ended(self) -> None:
        """Wait until the feed ends; raises what ended it. It must have been started.

        A process without its feed must end as well: its watches and caches would be silent and old for ever.
        """
        assert self._task is not None, "the feed was not started"
        await asyncio.shield(self._task)

    async def stop(self) -> None:
        """Stop reading and end all watches."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self.subscriptions.end()

    def add_listener(self, listener: Listener, *, lost: Callable[[], None] | None = None) -> Callable[[], None]:
        """Call `listener` with every batch of changes from now on, in order; returns a function that removes it.

        Listeners run on the event loop and must be quick and must not raise. Whoever keeps state that is built from
        changes passes `lost`: it is called when this process slept for so long that changes it had not read were
        compacted, and must build the state anew.
        """
        self._listeners.append(listener)
        if lost is not None:
            self._losses.append(lost)

        def remove() -> None:
            with suppress(ValueError):
                self._listeners.remove(listener)
            if lost is not None:
                with suppress(ValueError):
                    self._losses.remove(lost)

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
        missing = self.last_rv - rv
        newest = list(islice(reversed(self._ring), max(missing, 0)))
        return newest[::-1]

    def at(self, rv: int) -> Change | None:
        """The change with this revision when it is still in memory."""
        return self._ring[rv - self.first_rv] if self.first_rv <= rv <= self.last_rv else None

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
            self._ring_bytes += len(change.document)
        while len(self._ring) > self._settings.ring_events_max or self._ring_bytes > self._settings.ring_bytes_max:
            self._ring_bytes -= len(self._ring.popleft().document)
        self.subscriptions.deliver(changes)
        for listener in list(self._listeners):
            try:
                listener(changes)
            except Exception:
                # The changes are history and the other listeners have a right to them, as has the writer to go on.
                log.exception("a listener failed", listener=repr(listener))
        self._advanced.set()
        self._advanced.clear()

    async def _run(self) -> None:
        while True:
            began = time.monotonic()
            try:
                await self._follow()
            except Exception as error:
                self._looked_at = None
                if not is_passing(error):
                    # A gap in the log or a broken table: watchers get an end instead of silence, readiness goes.
                    log.critical("the change feed stopped", exc_info=error)
                    self.subscriptions.end()
                    raise
                log.warning("the change feed lost its connection", error=repr(error))
            # One that held until now is replaced at once: watchers wait for it.
            if time.monotonic() - began < RECONNECT_SECONDS:
                await asyncio.sleep(RECONNECT_SECONDS)

    async def _follow(self) -> None:
        connection = await self._database.connect("feed")
        try:
            await connection.add_listener(CHANNEL, self._notified)
            while True:
                self._wake.clear()
                await self._read(connection)
                self._looked_at = time.monotonic()
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._settings.change_poll_seconds):
                        await self._wake.wait()
        finally:
            connection.terminate()

    def _notified(self, *arguments: object) -> None:
        """Read, unless the notification is about what this process has: most are echoes of its own commits."""
        told = str(arguments[-1])
        if not told.isdigit() or int(told) > self.last_rv:
            self._wake.set()

    async def _read(self, connection: Connection) -> None:
        """Deliver everything after the last revision that this process did not publish meanwhile."""
        while True:
            rows = await connection.fetch(READ_AFTER, self.last_rv, READ_ROWS_MAX, timeout=READ_SECONDS_MAX)
            compacted_rv: int = rows[0]["compacted_rv"]
            fresh = [row for row in rows if row["rv"] is not None and row["rv"] > self.last_rv]
            whole = [row for rv, row in enumerate(fresh, self.last_rv + 1) if row["rv"] == rv]
            if whole:
                self._deliver([change_of(row) for row in whole])
            beyond_gap = fresh[len(whole) :]
            at_end = len(rows) < READ_ROWS_MAX
            if beyond_gap or (at_end and self.last_rv < compacted_rv):
                self._skip(beyond_gap[0]["rv"] if beyond_gap else None, compacted_rv)
            elif at_end:
                return

    def _skip(self, next_rv: int | None, compacted_rv: int) -> None:
        """Go on after changes that were compacted before this process read them; any other gap is a bug."""
        assert self.last_rv < compacted_rv, f"change {next_rv} follows {self.last_rv}, compacted up to {compacted_rv}"
        log.error("changes were compacted before they were read", last_rv=self.last_rv, compacted_rv=compacted_rv)
        self._ring.clear()
        self._ring_bytes = 0
        # Rows up to the compaction point are only some of what there was.
        self.last_rv = compacted_rv
        self.subscriptions.end()
        for lost in list(self._losses):
            lost()
        self._advanced.set()
        self._advanced.clear()


def change_of(row: asyncpg.Record) -> Change:
    """A row of the change log as a Change."""
    kind = ChangeType(row["type"])
    labels = orjson.loads(row["labels"])
    fields = orjson.loads(row["fields"])
    added = kind is ChangeType.ADDED
    # The log leaves out what a write did not change.
    previous_labels = labels if row["prev_labels"] is None else orjson.loads(row["prev_labels"])
    previous_fields = fields if row["prev_fields"] is None else orjson.loads(row["prev_fields"])
    return Change(
        rv=row["rv"],
        type=kind,
        key=Key(row["kind"], row["org"], row["project"], row["name"]),
        uid=row["uid"],
        document=row["doc"].encode(),
        labels=labels,
        fields=fields,
        previous_labels=None if added else previous_labels,
        previous_fields=None if added else previous_fields,
        previous_rv=row["prev_rv"],
    )
