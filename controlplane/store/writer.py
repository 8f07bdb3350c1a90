"""The single write path: group commit under the revision counter.

Mutations wait in a queue; one task takes all that wait, locks the counter, loads what they name in a few queries,
lets each decide, writes objects, changes and other rows in bulk, and commits. Revisions are therefore contiguous and
in commit order, and a writer pays a share of a commit instead of one of its own. After the commit the changes go to
the `ChangeFeed` of this process at once and a notification tells the others. If the process dies after the commit and
before the answer, the client's retry meets its own write: idempotency keys and names make that harmless.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import asyncpg
import orjson
import structlog

from controlplane.clock import Clock
from controlplane.errors import ApiError, Reason
from controlplane.machinery.kind import Kind
from controlplane.settings import Settings
from controlplane.store import sql
from controlplane.store.batch import Batch, Live, Logged
from controlplane.store.changes import CHANNEL, ChangeFeed
from controlplane.store.contract import BatchHook, ChangeType, Key, Mutation, Result
from controlplane.store.database import Database

log = structlog.get_logger(__name__)

RETRIES_MAX = 5
RETRY_SECONDS = 0.2
NOTIFY_SECONDS = 0.005

_CONNECTION_ERRORS = (
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.TooManyConnectionsError,
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.LockNotAvailableError,
    asyncpg.QueryCanceledError,
    TimeoutError,
)


@dataclass(slots=True)
class _Pending:
    mutation: Mutation[Any]
    answer: asyncio.Future[Any]
    result: Any = None
    error: BaseException | None = None


@dataclass
class WriterStats:
    """Counts since the process started, for metrics."""

    batches: int = 0
    mutations: int = 0
    changes: int = 0
    retries: int = 0


class Writer:
    """Commits mutations of this process. Start it once; `write` may be called from any task of the same loop."""

    def __init__(
        self,
        *,
        database: Database,
        clock: Clock,
        kinds: Mapping[str, Kind],
        feed: ChangeFeed,
        settings: Settings,
    ) -> None:
        self._database = database
        self._clock = clock
        self._kinds = kinds
        self._feed = feed
        self._settings = settings
        self._hooks: list[BatchHook] = []
        self._queue: deque[_Pending] = deque()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None
        self._notifying: asyncio.Task[None] | None = None
        self._notify_again = False
        self.stats = WriterStats()

    def add_hook(self, hook: BatchHook) -> None:
        """Let `hook` join every batch from now on."""
        self._hooks.append(hook)

    @property
    def waiting(self) -> int:
        """Mutations that wait for a commit."""
        return len(self._queue)

    async def start(self) -> None:
        """Begin to commit."""
        self._task = asyncio.create_task(self._run(), name="writer")

    async def stop(self) -> None:
        """Commit what waits, then stop."""
        while self._queue:
            await asyncio.sleep(0)
            await asyncio.wait([pending.answer for pending in list(self._queue)], timeout=1)
        for task in (self._task, self._notifying):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        await self._disconnect()

    async def write(self, mutation: Mutation[Result]) -> Result:
        """Commit the mutation and return what it decided.

        Raises the mutation's own ApiError, or Unavailable when the queue is full or the database stays away.
        """
        if len(self._queue) >= self._settings.write_queue_max:
            raise ApiError(Reason.UNAVAILABLE, "too many writes are waiting for the database", retry_after_seconds=1)
        pending = _Pending(mutation, asyncio.get_running_loop().create_future())
        self._queue.append(pending)
        self._wake.set()
        result: Result = await pending.answer
        return result

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            if not self._queue:
                self._wake.clear()
                continue
            size = min(len(self._queue), self._settings.flush_mutations_max)
            batch = [self._queue.popleft() for _ in range(size)]
            await self._commit_with_retries([pending for pending in batch if not pending.answer.done()])

    async def _commit_with_retries(self, batch: list[_Pending]) -> None:
        """Commit, retrying what a passing fault stopped and isolating a mutation that SQL refuses."""
        for attempt in range(1, RETRIES_MAX + 1):
            if not batch:
                return
            try:
                await self._commit(batch)
                self._resolve(batch)
                return
            except _CONNECTION_ERRORS as error:
                self.stats.retries += 1
                log.warning("commit failed, retrying", attempt=attempt, error=repr(error))
                await self._disconnect()
                if attempt == RETRIES_MAX:
                    self._fail(
                        batch,
                        ApiError(
                            Reason.UNAVAILABLE,
                            "the database cannot be reached",
                            retry_after_seconds=2,
                            debug=repr(error),
                        ),
                    )
                    return
                await asyncio.sleep(RETRY_SECONDS * attempt)
            except Exception as error:
                await self._disconnect()
                if len(batch) == 1:
                    log.exception("a mutation cannot be written", mutation=type(batch[0].mutation).__name__)
                    self._fail(
                        batch, ApiError(Reason.INTERNAL_ERROR, "the change could not be stored", debug=repr(error))
                    )
                    return
                # One of them is at fault: alone, only that one fails.
                for pending in batch:
                    await self._commit_with_retries([pending])
                return

    async def _commit(self, pendings: Sequence[_Pending]) -> None:
        connection = await self._connect()
        await connection.execute("BEGIN")
        base = await connection.fetchval(sql.LOCK_REVISION)
        batch = Batch(now=self._clock.now(), rv=base, kinds=self._kinds, loader=self._load_nothing)
        batch.loader = lambda keys: self._load_objects(connection, batch, keys)
        await self._load(connection, batch, pendings)
        for pending in pendings:
            self._apply(batch, pending)
        written = await self._write(connection, batch)
        for hook in self._hooks:
            await hook.before_commit(batch, connection)
        written += await self._write(connection, batch)
        try:
            await connection.execute(f"UPDATE meta SET rv = {batch.rv:d} WHERE id = 1; COMMIT")  # noqa: S608 - an int
        except BaseException:
            for hook in self._hooks:
                hook.rolled_back()
            raise
        self.stats.batches += 1
        self.stats.mutations += len(pendings)
        self.stats.changes += len(written)
        for hook in self._hooks:
            hook.committed()
        if written:
            self._feed.publish([logged.change for logged in written])
            self._notify()

    @staticmethod
    async def _load_nothing(_keys: Sequence[Key]) -> None:
        return None

    async def _load(
        self, connection: asyncpg.Connection[asyncpg.Record], batch: Batch, pendings: Sequence[_Pending]
    ) -> None:
        keys: dict[Key, None] = {}
        wanted: dict[str, tuple[str, dict[Any, None]]] = {}
        for pending in pendings:
            reads = pending.mutation.reads()
            keys.update(dict.fromkeys(reads.keys))
            for loader, argument in reads.loads:
                wanted.setdefault(loader.name, (loader.sql, {}))[1][argument] = None
        await self._load_objects(connection, batch, list(keys))
        for name, (text, arguments) in wanted.items():
            for argument in arguments:
                batch.loaded_rows[(name, argument)] = []
            for row in await connection.fetch(text, list(arguments)):
                batch.loaded_rows[(name, row["key"])].append(dict(row))

    @staticmethod
    async def _load_objects(connection: asyncpg.Connection[asyncpg.Record], batch: Batch, keys: Sequence[Key]) -> None:
        if not keys:
            return
        for key in keys:
            batch.live[key] = None
        columns = [[getattr(key, name) for key in keys] for name in ("kind", "org", "project", "name")]
        for row in await connection.fetch(sql.LOAD_OBJECTS, *columns):
            key = Key(row["kind"], row["org"], row["project"], row["name"])
            batch.live[key] = Live(
                document=orjson.loads(row["doc"]),
                rv=row["rv"],
                create_rv=row["create_rv"],
                uid=row["uid"],
                labels=orjson.loads(row["labels"]),
                fields=orjson.loads(row["fields"]),
            )

    @staticmethod
    def _apply(batch: Batch, pending: _Pending) -> None:
        mark = batch.mark()
        pending.error = None
        try:
            pending.result = pending.mutation.apply(batch)
        except ApiError as error:
            batch.undo(mark)
            pending.error = error
        except Exception as error:
            batch.undo(mark)
            log.exception("a mutation failed", mutation=type(pending.mutation).__name__)
            pending.error = ApiError(Reason.INTERNAL_ERROR, "the server failed on this change", debug=repr(error))

    async def _write(self, connection: asyncpg.Connection[asyncpg.Record], batch: Batch) -> list[Logged]:
        changes = batch.take_log()
        if changes:
            latest = {logged.change.key: logged for logged in changes}
            gone = [key for key, logged in latest.items() if logged.change.type is ChangeType.DELETED]
            kept = [logged for logged in latest.values() if logged.change.type is not ChangeType.DELETED]
            if gone:
                await connection.execute(
                    sql.DELETE_OBJECTS,
                    *[[getattr(key, name) for key in gone] for name in ("kind", "org", "project", "name")],
                )
            if kept:
                await connection.execute(sql.UPSERT_OBJECTS, *sql.object_columns(kept))
            await connection.execute(sql.INSERT_CHANGES, batch.now, *sql.change_columns(changes))
        for text, rows in batch.take_statements().items():
            if len(rows) == 1:
                await connection.execute(text, *rows[0])
            else:
                await connection.executemany(text, rows)
        return changes

    @staticmethod
    def _resolve(batch: Sequence[_Pending]) -> None:
        for pending in batch:
            if pending.answer.done():
                continue
            if pending.error is not None:
                pending.answer.set_exception(pending.error)
            else:
                pending.answer.set_result(pending.result)

    @staticmethod
    def _fail(batch: Sequence[_Pending], error: ApiError) -> None:
        for pending in batch:
            if not pending.answer.done():
                pending.answer.set_exception(error)

    async def _connect(self) -> asyncpg.Connection[asyncpg.Record]:
        if self._connection is None or self._connection.is_closed():
            self._connection = await self._database.connect()
            await self._connection.execute(f"SET lock_timeout = {int(self._settings.lock_timeout_milliseconds)}")
        return self._connection

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            for hook in self._hooks:
                hook.rolled_back()
            connection.terminate()

    def _notify(self) -> None:
        """Tell other processes, at most once every few milliseconds; a lost notification costs them one poll."""
        if self._notifying is not None and not self._notifying.done():
            self._notify_again = True
            return
        self._notifying = asyncio.create_task(self._send_notification(), name="notify")

    async def _send_notification(self) -> None:
        while True:
            self._notify_again = False
            try:
                await self._database.execute(f"NOTIFY {CHANNEL}")
            except _CONNECTION_ERRORS as error:
                log.warning("notification failed; readers will poll", error=repr(error))
                return
            await asyncio.sleep(NOTIFY_SECONDS)
            if not self._notify_again:
                return
