"""One transaction of the writer, from the lock to the commit.

Four round trips carry a batch, however many mutations it holds: begin and lock; the counter with all objects the
batch names; one statement that writes everything; commit. Loaders, hooks and what cannot be part of that one
statement add theirs. What can go wrong is sorted here for `writer.py`: a passing fault (`FaultError`: nothing was
stored, try again), anything else (the batch itself is at fault), and the one case that only the database can answer, a
connection that broke during the commit.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import asyncpg
import orjson
import structlog

from controlplane import failpoints
from controlplane.audit.entries import PART as AUDIT
from controlplane.audit.requests import AuditedRequest
from controlplane.clock import Clock
from controlplane.errors import ApiError, Reason
from controlplane.machinery.kind import Kind
from controlplane.settings import Settings
from controlplane.store import sql
from controlplane.store.batch import Batch, Mark
from controlplane.store.contract import BatchHook, Change, Key, Loader, Mutation, Reads
from controlplane.store.database import DRIVER_ERRORS, Database, is_passing
from controlplane.store.events import store_told

if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]

_Loads = dict[Loader, dict[Any, None]]

log = structlog.get_logger(__name__)

OUTCOME_SECONDS_MAX = 10.0
"""How long to ask whether a commit whose answer was lost took place."""
OUTCOME_PAUSE_SECONDS = 0.2
"""Between two such questions."""

# Sequential scans of a table that was small when the plan was cached would be slow for good once it has grown, and no
# statement of a batch should ever read a whole table. Since only index plans are left, planning anew for each batch's
# arguments finds nothing better and takes as long as running them.
_SESSION = """
SET lock_timeout = {lock}; SET statement_timeout = {statement}; SET idle_in_transaction_session_timeout = {idle};
SET plan_cache_mode = force_generic_plan;
SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off
"""


class FaultError(Exception):
    """A passing fault: nothing of the batch was stored."""


class OutcomeUnknownError(Exception):
    """The connection broke during the commit, and the database stayed away too long to be asked what it did."""


@dataclass(slots=True, eq=False)
class Pending:
    """A mutation on its way: what it reads, where its answer goes, and what it decided."""

    mutation: Mutation[Any]
    reads: Reads
    answer: asyncio.Future[Any]
    queued_at: float
    audited: AuditedRequest | None = None
    """Whose request it belongs to, if anybody's."""
    told: frozenset[str] = frozenset()
    """Uids of what it changed that has an event in the batch."""
    result: Any = None
    error: ApiError | None = None


class Committer:
    """Runs batches, one at a time, on a connection of its own."""

    def __init__(self, database: Database, clock: Clock, kinds: Mapping[str, Kind], settings: Settings) -> None:
        self._database = database
        self._clock = clock
        self._kinds = kinds
        self._settings = settings
        self._connection: Connection | None = None
        self.hooks: list[BatchHook] = []

    async def commit(self, pendings: Sequence[Pending]) -> list[Change]:
        """Store what the mutations decide and return the changes; their answers are in `pendings`, not yet given.

        Raises FaultError when trying again may help, OutcomeUnknownError when it must not be tried again, and anything
        else when a mutation or a hook is at fault. Nothing was stored in the first and the last case.
        """
        entered: list[BatchHook] = []
        try:
            connection = await self._connected()
            xact, changes = await self._run(connection, pendings, entered)
            failpoints.reach("commit-ready")
            await self._end(connection, xact)
            failpoints.reach("commit-written")
        except BaseException as error:
            await self._abandon()
            for hook in reversed(entered):
                hook.rolled_back()
            if is_passing(error):
                raise FaultError(repr(error)) from error
            raise
        for hook in entered:
            try:
                hook.committed()
            except Exception:
                # The batch is durable: whatever a hook makes of that, the answers must go out and nothing is repeated.
                log.exception("a hook failed after the commit", hook=type(hook).__name__)
        return changes

    async def close(self) -> None:
        """Give the connection back."""
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed():
            # One that does not end in time is cut off by the driver, and what was committed is committed.
            with contextlib.suppress(*DRIVER_ERRORS):
                await connection.close(timeout=1)

    async def _run(
        self, connection: Connection, pendings: Sequence[Pending], entered: list[BatchHook]
    ) -> tuple[str, list[Change]]:
        """Everything up to the commit; returns the transaction's id and its changes."""
        await connection.execute(sql.BEGIN)

        async def load_more(keys: Sequence[Key]) -> None:
            _remember(batch, keys, await connection.fetch(sql.load(), *sql.key_columns(keys)))

        batch = Batch(now=self._clock.now(), kinds=self._kinds, loader=load_more)
        keys = list(dict.fromkeys(key for pending in pendings for key in pending.reads.keys))
        joined, alone = _wanted_rows(batch, pendings)
        text = sql.load(tuple(loader.sql for loader in joined))
        found = await connection.fetch(text, *sql.key_columns(keys), *(list(asked) for asked in joined.values()))
        [(batch.rv, xact)] = {(row["counter"], row["xact"]) for row in found if row["xact"] is not None}
        _remember(batch, keys, found)
        for loader, arguments in alone.items():
            for row in await connection.fetch(loader.sql, list(arguments)):
                batch.loaded_rows[(loader.name, row["key"])].append(cast("Mapping[str, Any]", row))
        names = [loader.name for loader in joined]
        for record in found:
            if record["loader"] is not None:
                row = orjson.loads(record["loaded"])
                batch.loaded_rows[(names[record["loader"]], row["key"])].append(row)
        for pending in pendings:
            _apply(batch, pending)
        batch.open_to_hooks()
        for hook in self.hooks:
            entered.append(hook)
            await hook.before_commit(batch, connection)
        await store_told(batch)
        await _write(connection, batch)
        return xact, [logged.change for logged in batch.log]

    async def _end(self, connection: Connection, xact: str) -> None:
        """Commit, and find out what became of it when the connection breaks meanwhile."""
        try:
            await connection.execute("COMMIT")
        except DRIVER_ERRORS as error:
            if not is_passing(error):
                raise
            await self._learn_outcome(xact, error)

    async def _learn_outcome(self, xact: str, error: BaseException) -> None:
        """Return when the transaction was committed after all; raise FaultError when it was not."""
        log.warning("the connection broke during a commit", error=repr(error), xact=xact)
        await self._abandon()
        until = asyncio.get_running_loop().time() + OUTCOME_SECONDS_MAX
        while asyncio.get_running_loop().time() < until:
            try:
                connection = await self._connected()
                status = await connection.fetchval("SELECT pg_xact_status($1::text::xid8)", xact)
            except DRIVER_ERRORS as fault:
                if not is_passing(fault):
                    raise OutcomeUnknownError(f"{error!r}, then {fault!r}") from fault
                await self._abandon()
            else:
                if status == "committed":
                    return
                if status != "in progress":
                    raise FaultError(f"transaction {xact} was rolled back: {error!r}")
            await asyncio.sleep(OUTCOME_PAUSE_SECONDS)
        raise OutcomeUnknownError(repr(error))

    async def _connected(self) -> Connection:
        if self._connection is None or self._connection.is_closed():
            connection = await self._database.connect("writer")
            lock = self._settings.lock_timeout_milliseconds
            await connection.execute(_SESSION.format(lock=lock, statement=2 * lock, idle=2 * lock))
            self._connection = connection
        return self._connection

    async def _abandon(self) -> None:
        """Leave the transaction: roll back when the connection still works, drop it when it does not."""
        connection = self._connection
        if connection is None:
            return
        try:
            await connection.execute("ROLLBACK", timeout=1)
        except DRIVER_ERRORS:
            connection.terminate()
            self._connection = None


def _remember(batch: Batch, keys: Sequence[Key], rows: Sequence[asyncpg.Record]) -> None:
    for row in rows:
        if row["number"] is not None:
            batch.remember(keys[row["number"] - 1], cast("Mapping[str, Any]", row))
    for key in keys:
        batch.live.setdefault(key, None)


def _wanted_rows(batch: Batch, pendings: Sequence[Pending]) -> tuple[_Loads, _Loads]:
    """The loaders of the batch with their arguments: those that join the query for objects, and the others."""
    joined: _Loads = {}
    alone: _Loads = {}
    for pending in pendings:
        for loader, argument in pending.reads.loads:
            (joined if loader.as_json else alone).setdefault(loader, {})[argument] = None
            batch.loaded_rows[(loader.name, argument)] = []
    return joined, alone


def _apply(batch: Batch, pending: Pending) -> None:
    mark = batch.begin(pending.reads)
    pending.result = pending.error = None
    pending.told = frozenset()
    try:
        pending.result = pending.mutation.apply(batch)
        if pending.audited is not None:
            _audit(batch, pending, pending.audited, mark)
    except ApiError as error:
        batch.undo(mark)
        pending.error = error
    except Exception as error:
        # One mutation's bug is one caller's problem; the others of the batch have nothing to do with it.
        batch.undo(mark)
        log.exception("a mutation failed", mutation=type(pending.mutation).__name__)
        pending.error = ApiError(Reason.INTERNAL_ERROR, "the server failed on this change", debug=repr(error))


def _audit(batch: Batch, pending: Pending, audited: AuditedRequest, mark: Mark) -> None:
    """Let what the mutation changed and the events of it be stored together."""
    changes = [logged.change for logged in batch.log[mark.changes :]]
    wrote_rows = len(batch.parts) > mark.parts or len(batch.statements) > mark.statements
    entries = audited.entries(changes, batch.now, wrote_rows=wrote_rows)
    pending.told = frozenset(entries)
    for entry in entries.values():
        batch.join(AUDIT, entry.as_row())


async def _write(connection: Connection, batch: Batch) -> None:
    """Write everything that was buffered."""
    parts = batch.grouped_parts
    rows = [orjson.dumps(rows).decode() for rows in parts.values()]
    if batch.log:
        text = sql.write(removes=sql.removes(batch.log), parts=tuple(parts))
        moved = await connection.execute(text, *sql.write_arguments(batch.log, batch.now), *rows)
        assert moved == "UPDATE 1", f"the counter is not at {batch.log[0].change.rv - 1}: {moved}"
    elif parts:
        await connection.execute(sql.together(tuple(parts)), *rows)
    for text, arguments in batch.grouped_statements.items():
        if len(arguments) == 1:
            await connection.execute(text, *arguments[0])
        else:
            await connection.executemany(text, arguments)
