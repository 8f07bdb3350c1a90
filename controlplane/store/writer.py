"""The single write path: group commit under the revision counter.

Mutations wait in a queue; one task takes all that wait and hands them to `commit.py`, which stores them in one
transaction. Revisions are therefore contiguous and in commit order, and a writer pays a share of a commit instead of
one of its own. After the commit the changes go to the `ChangeFeed` of this process at once and a notification tells the
others. If the process dies after the commit and before the answer, the client's retry meets its own write:
idempotency keys and names make that harmless.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import structlog

from controlplane.audit.requests import AUDITED
from controlplane.clock import Clock
from controlplane.errors import ApiError, Reason
from controlplane.machinery.kind import Kind
from controlplane.settings import Settings
from controlplane.store.changes import ChangeFeed
from controlplane.store.commit import Committer, FaultError, OutcomeUnknownError, Pending
from controlplane.store.contract import BatchHook, Change, Mutation, Result
from controlplane.store.database import AWAY_RETRY_SECONDS, Database
from controlplane.store.notify import Notifier

log = structlog.get_logger(__name__)

RETRY_SECONDS_MIN = 0.02
"""First pause after a passing fault of the database; each is twice the one before."""
RETRY_SECONDS_MAX = 0.5
"""Longest of these pauses."""
FULL_RETRY_SECONDS = 1
"""When to ask again after a full queue, which a working database empties in less, or of another process when this one
stops."""
STOP_SECONDS_MAX = 15.0
"""What waits when the process stops is committed within this time or refused."""


@dataclass
class WriterStats:
    """Counts since the process started, for metrics."""

    batches: int = 0
    """Transactions that were committed."""
    mutations: int = 0
    """Mutations in them, refused ones included."""
    refused: int = 0
    """Mutations answered with an error of their own."""
    changes: int = 0
    retries: int = 0
    """Batches tried again after a passing fault of the database."""
    unavailable: int = 0
    """Mutations given up because the database stayed away or the queue was full."""
    broken: int = 0
    """Mutations that the database refused to store: bugs."""
    batch_mutations_max: int = 0
    seconds: float = 0.0
    """Time spent in transactions, failed ones included."""


class Writer:
    """Commits mutations of this process. Start it once; `write` may be called from any task of the same loop."""

    def __init__(
        self, *, database: Database, clock: Clock, kinds: Mapping[str, Kind], feed: ChangeFeed, settings: Settings
    ) -> None:
        self._feed = feed
        self._settings = settings
        self._committer = Committer(database, clock, kinds, settings)
        self._notifier = Notifier(database)
        self._queue: deque[Pending] = deque()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self.stats = WriterStats()

    def add_hook(self, hook: BatchHook) -> None:
        """Let `hook` join every batch from now on, after the hooks added before."""
        self._committer.hooks.append(hook)

    @property
    def waiting(self) -> int:
        """Mutations that wait for a commit."""
        return len(self._queue)

    async def start(self) -> None:
        """Begin to commit."""
        self._task = asyncio.create_task(self._run(), name="writer")

    async def stop(self) -> None:
        """Commit what waits, for at most STOP_SECONDS_MAX, refuse what comes, and give the connections back."""
        self._stopping = True
        self._wake.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=STOP_SECONDS_MAX)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._give_up(self._queue, "the server is shutting down")
        self._queue.clear()
        await self._notifier.stop()
        await self._committer.close()

    async def write(self, mutation: Mutation[Result]) -> Result:
        """Commit the mutation and return what it decided.

        Raises the mutation's own ApiError; Unavailable when the queue is full, the server is stopping, or the database
        stayed away for `write_retry_seconds`; InternalError when the change cannot be stored. If the caller is
        cancelled, the mutation may or may not be committed.
        """
        if self._stopping or len(self._queue) >= self._settings.write_queue_max:
            self.stats.unavailable += 1
            why = "the server is shutting down" if self._stopping else "too many writes are waiting for the database"
            raise ApiError(Reason.UNAVAILABLE, why, retry_after_seconds=FULL_RETRY_SECONDS)
        loop = asyncio.get_running_loop()
        pending = Pending(mutation, mutation.reads(), loop.create_future(), loop.time(), AUDITED.get())
        self._queue.append(pending)
        self._wake.set()
        result: Result = await pending.answer
        return result

    async def _run(self) -> None:
        while True:
            batch = self._take()
            if batch:
                await self._settle(batch)
            elif self._stopping:
                return
            else:
                self._wake.clear()
                await self._wake.wait()

    def _take(self) -> list[Pending]:
        """The next mutations in their order, as many as one commit may hold; those whose callers left are dropped."""
        batch: list[Pending] = []
        keys = 0
        while self._queue and len(batch) < self._settings.flush_mutations_max:
            keys += len(self._queue[0].reads.keys)
            if batch and keys > self._settings.flush_keys_max:
                break
            pending = self._queue.popleft()
            if not pending.answer.done():
                batch.append(pending)
        return batch

    async def _settle(self, batch: list[Pending]) -> None:
        """Commit and answer, repeating what a passing fault stopped and isolating what cannot be stored."""
        until = asyncio.get_running_loop().time() + self._settings.write_retry_seconds
        pause = RETRY_SECONDS_MIN
        while batch:
            began = time.perf_counter()
            try:
                changes = await self._committer.commit(batch)
            except FaultError as fault:
                log.warning("a commit failed", error=str(fault))
                if asyncio.get_running_loop().time() + pause > until:
                    self._give_up([*batch, *self._overdue()], "the database cannot be reached", str(fault))
                    return
                self.stats.retries += 1
                await asyncio.sleep(pause)
                pause = min(2 * pause, RETRY_SECONDS_MAX)
                batch = [pending for pending in batch if not pending.answer.done()]
            except OutcomeUnknownError as error:
                # Trying again could apply it twice; whoever asked knows whether asking again is safe.
                self._give_up(batch, "the database went away while the change was being stored", str(error))
                return
            except Exception as error:
                await self._isolate(batch, error)
                return
            else:
                self._answer(batch, changes)
                return
            finally:
                self.stats.seconds += time.perf_counter() - began

    async def _isolate(self, batch: list[Pending], error: Exception) -> None:
        """Something in the batch cannot be stored. Alone, only the culprit fails."""
        if len(batch) > 1:
            for pending in batch:
                await self._settle([pending])
            return
        self.stats.broken += 1
        log.error("a mutation cannot be stored", mutation=type(batch[0].mutation).__name__, exc_info=error)
        self._refuse(batch[0], ApiError(Reason.INTERNAL_ERROR, "the change could not be stored", debug=repr(error)))

    def _answer(self, batch: Sequence[Pending], changes: Sequence[Change]) -> None:
        self.stats.batches += 1
        self.stats.mutations += len(batch)
        self.stats.batch_mutations_max = max(self.stats.batch_mutations_max, len(batch))
        self.stats.changes += len(changes)
        if changes:
            # Before the answers: whoever is answered finds its own write in the caches of this process.
            self._feed.publish(changes)
            self._notifier.notify(changes[-1].rv)
        for pending in batch:
            if pending.audited is not None:
                pending.audited.recorded |= pending.told
            if pending.error is not None:
                self.stats.refused += 1
                self._refuse(pending, pending.error)
            elif not pending.answer.done():
                pending.answer.set_result(pending.result)

    def _overdue(self) -> list[Pending]:
        """Those in the queue that waited as long as the batch that is given up; they leave the queue."""
        before = asyncio.get_running_loop().time() - self._settings.write_retry_seconds
        overdue: list[Pending] = []
        while self._queue and self._queue[0].queued_at < before:
            overdue.append(self._queue.popleft())
        return overdue

    def _give_up(self, pendings: Sequence[Pending], why: str, debug: str | None = None) -> None:
        self.stats.unavailable += len(pendings)
        for pending in pendings:
            refusal = ApiError(Reason.UNAVAILABLE, why, retry_after_seconds=AWAY_RETRY_SECONDS, debug=debug)
            self._refuse(pending, refusal)

    @staticmethod
    def _refuse(pending: Pending, error: ApiError) -> None:
        if not pending.answer.done():
            pending.answer.set_exception(error)
