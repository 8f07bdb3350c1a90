"""Cancels of running calls, between the server and the runtime around a worker.

The public worker hears of a cancel with its next claim, and says of a thread that it was cancelled while it runs on.
The runtime that started the worker (`runtime/worker_start.py`) knows better: it waits here for cancels of what its
worker runs (`WaitingCancels`), and tells when nothing of a cancelled call is left (`EndStopped`). A worker whose
runtime says nothing is drained and killed (`activities/sweeper.py`). `api/cancels.py` is the route.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from controlplane.calls.book import CallBook
from controlplane.calls.claims import admitted, holds
from controlplane.calls.decide import Cause
from controlplane.calls.outcomes import CallRules, Outcome, conclude
from controlplane.calls.reports import ReportLimits, call_names, wait_seconds
from controlplane.calls.rows import CLAIMANT, claimant_rows
from controlplane.calls.transitions import Phase
from controlplane.calls.wants import Claimant
from controlplane.errors import ApiError, Reason
from controlplane.store.contract import Change, ChangeType, Key, Reads, Tx
from controlplane.store.database import Database

_ASKED = """
SELECT name FROM calls
WHERE attempt = $1 AND epoch = $2 AND state = 'running' AND cancel_requested_at IS NOT NULL AND let_go_at IS NULL
"""


@dataclass(frozen=True, kw_only=True)
class RuntimeWord:
    """What the runtime of a worker says: calls of which nothing runs any more after a cancel, calls that it is
    stopping and need not hear of again, and how long it waits for others."""

    stopped: Sequence[str]
    stopping: frozenset[str]
    wait_seconds: float


def parse_word(body: bytes, limits: ReportLimits, concurrency: int) -> RuntimeWord:
    """The word from its JSON body. Raises ApiError BAD_REQUEST or INVALID as `parse_claim` does."""
    try:
        word = json.loads(body or b"{}")
    except (ValueError, RecursionError):
        word = None
    if not isinstance(word, dict):
        raise ApiError(Reason.BAD_REQUEST, "the body must be a JSON object")
    return RuntimeWord(
        stopped=tuple(call_names(word, "stopped", concurrency)),
        stopping=frozenset(call_names(word, "stopping", concurrency)),
        wait_seconds=wait_seconds(word.get("wait"), limits),
    )


class EndStopped:
    """Ends calls whose cancel was asked for, on the word of their worker's runtime that nothing of them runs.

    The word may come before the worker's own report of them, which then changes nothing. The result is how many ended.
    Raises NOT_FOUND for a worker that is finished.
    """

    def __init__(self, claimant: Claimant, stopped: Iterable[str], rules: CallRules) -> None:
        self._claimant = claimant
        self._stopped = frozenset(stopped)
        self._rules = rules

    def reads(self) -> Reads:
        claimant = self._claimant
        keys = [Key("FunctionCall", claimant.org, claimant.project, name) for name in sorted(self._stopped)]
        return Reads(keys=keys, loads=((CLAIMANT, claimant.attempt),))

    def apply(self, tx: Tx) -> int:
        book = CallBook.of(tx)
        loaded, loaded_calls = claimant_rows(tx.rows(CLAIMANT, self._claimant.attempt))
        attempt = admitted(book.attempt(loaded), self._claimant)
        ended = [
            row
            for row in book.see(loaded_calls)
            if row.name in self._stopped and row.cancel_requested and holds(attempt, row)
        ]
        for row in ended:
            outcome = Outcome(cause=Cause.CANCELLED, ran_until=tx.now, reported=True)
            conclude(tx, row, None, outcome, self._rules)
        return len(ended)


class WaitingCancels:
    """Runtimes that wait in this process for cancels of what their workers run, one request of each.

    Nothing here is durable: a request that is lost with its process is made again, and asks the database first.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: dict[str, asyncio.Event] = {}
        self._closed = False

    async def wait(self, claimant: Claimant, word: RuntimeWord, gone: asyncio.Future[Any]) -> list[str]:
        """Names of calls to stop, beside those that are being stopped; empty after the word's time, as soon as `gone`
        is done, or when the same worker asks anew."""
        news = asyncio.Event()
        older = self._waiting.get(claimant.attempt)
        self._waiting[claimant.attempt] = news
        if older is not None:
            older.set()
        loop = asyncio.get_running_loop()
        until = loop.time() + word.wait_seconds
        try:
            while True:
                news.clear()
                cancel = await self._asked(claimant, word)
                left = until - loop.time()
                superseded = self._waiting.get(claimant.attempt) is not news
                if cancel or left <= 0 or gone.done() or superseded or self._closed:
                    return cancel
                told = asyncio.ensure_future(news.wait())
                await asyncio.wait({told, gone}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                told.cancel()
        finally:
            if self._waiting.get(claimant.attempt) is news:
                del self._waiting[claimant.attempt]

    def on_changes(self, changes: Sequence[Change]) -> None:
        """Wake the runtimes around the workers that hold calls which are being cancelled."""
        if not self._waiting:
            return
        for change in changes:
            if change.key.kind != "FunctionCall" or change.type is ChangeType.DELETED:
                continue
            if change.fields.get("status.phase") == Phase.CANCELLING:
                worker = orjson.loads(change.document)["status"].get("worker", {})
                news = self._waiting.get(worker.get("attempt", ""))
                if news is not None:
                    news.set()

    def close(self) -> None:
        """Let every runtime go: this process stops, and they ask again elsewhere."""
        self._closed = True
        for news in self._waiting.values():
            news.set()

    async def _asked(self, claimant: Claimant, word: RuntimeWord) -> list[str]:
        records = await self._database.fetch(_ASKED, claimant.attempt, claimant.epoch)
        return sorted({record["name"] for record in records} - word.stopping)
