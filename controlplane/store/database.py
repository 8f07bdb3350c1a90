"""The connection to PostgreSQL.

One pool a process for reads; the writer, the change feed and its notifier hold connections of their own, because the
first must never wait for a reader and the second listens. Queries are SQL text over asyncpg (docs/decisions/0002);
tables are described in `tables.py` and made by `migrations/`. Next: `writer.py` for writes, `objects.py` for reads.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import asyncpg

from controlplane.errors import ApiError, Reason

if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]

CONNECT_SECONDS_MAX = 10.0
"""A database that takes longer to greet is away."""
STATEMENT_SECONDS_MAX = 30.0
"""No query of ours takes this long unless the database is sick."""
AWAY_RETRY_SECONDS = 2
"""When to ask a database again that is away: a fail-over or a restart takes seconds, and who was refused has waited for
some already."""
WAIT_SECONDS_MAX = 10.0
"""How long a read waits for a connection of the pool before it answers that the database is overloaded."""

# What a statement can raise. InternalClientError is the driver losing its place when a connection dies at a bad moment.
DRIVER_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)

# SQLSTATE classes: connection, transaction rollback, insufficient resources, operator intervention, system error.
_PASSING_CLASSES = frozenset({"08", "40", "53", "57", "58"})
# Lock not available, idle in transaction too long, and a standby that was asked to write during a fail-over.
_PASSING_STATES = frozenset({"55P03", "25P03", "25006"})


def is_passing(error: BaseException) -> bool:
    """Whether the fault lies with the database or the way to it, so that the same request may work later."""
    if isinstance(error, asyncpg.PostgresError):
        state = error.sqlstate or ""
        return state[:2] in _PASSING_CLASSES or state in _PASSING_STATES
    if isinstance(error, asyncpg.InterfaceError):
        # A closed connection; but DataError, its subclass, says that an argument does not fit its parameter.
        return not isinstance(error, ValueError)
    return isinstance(error, asyncpg.InternalClientError | OSError | TimeoutError)


def unavailable(error: BaseException) -> ApiError:
    """The 503 for a database that cannot be reached."""
    why = "the database cannot be reached"
    return ApiError(Reason.UNAVAILABLE, why, retry_after_seconds=AWAY_RETRY_SECONDS, debug=repr(error))


class Database:
    """Where the tables are: the pool of readers, and single connections for those who need their own.

    `reach`, `fetch`, `fetchrow`, `fetchval`, `execute` and `snapshot` raise ApiError Unavailable when the database is
    away.
    """

    def __init__(self, url: str, pool_size: int) -> None:
        self.url = url
        self._pool_size = pool_size
        self._pool: asyncpg.Pool[asyncpg.Record] | None = None

    async def open(self) -> None:
        """Open the pool; raises OSError or asyncpg.PostgresError when the server cannot be reached."""
        self._pool = await asyncpg.create_pool(
            self.url,
            min_size=1,
            max_size=self._pool_size,
            timeout=CONNECT_SECONDS_MAX,
            command_timeout=STATEMENT_SECONDS_MAX,
            reset=_reset,
            server_settings={"application_name": "nodus-reader"},
        )

    async def close(self) -> None:
        """Close the pool and wait for its connections."""
        if self._pool is not None:
            await self._pool.close()
            self._pool = None

    @property
    def pool(self) -> asyncpg.Pool[asyncpg.Record]:
        """The pool of readers; `open` must have been awaited."""
        if self._pool is None:
            raise RuntimeError("the database is not open")
        return self._pool

    async def connect(self, role: str) -> Connection:
        """A connection outside the pool, owned by the caller; `role` names it in pg_stat_activity."""
        connection: Connection = await asyncpg.connect(
            self.url,
            timeout=CONNECT_SECONDS_MAX,
            command_timeout=STATEMENT_SECONDS_MAX,
            server_settings={"application_name": f"nodus-{role}"},
        )
        return connection

    async def reach(self) -> None:
        """Find out whether it answers."""
        await self.execute("SELECT 1")

    async def fetch(self, sql: str, *arguments: object) -> list[asyncpg.Record]:
        """The rows of one read."""
        with _translated():
            async with self.pool.acquire(timeout=WAIT_SECONDS_MAX) as connection:
                rows: list[asyncpg.Record] = await connection.fetch(sql, *arguments)
        return rows

    async def fetchrow(self, sql: str, *arguments: object) -> asyncpg.Record | None:
        """The first row of one read, or None."""
        with _translated():
            async with self.pool.acquire(timeout=WAIT_SECONDS_MAX) as connection:
                row: asyncpg.Record | None = await connection.fetchrow(sql, *arguments)
        return row

    async def fetchval(self, sql: str, *arguments: object) -> Any:  # noqa: ANN401 - the type is the column's
        """The first column of the first row of one read, or None."""
        with _translated():
            async with self.pool.acquire(timeout=WAIT_SECONDS_MAX) as connection:
                return await connection.fetchval(sql, *arguments)

    async def execute(self, sql: str, *arguments: object) -> str:
        """Run one statement outside the object store (bookkeeping rows that nobody watches); returns its status."""
        with _translated():
            async with self.pool.acquire(timeout=WAIT_SECONDS_MAX) as connection:
                status: str = await connection.execute(sql, *arguments)
        return status

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Connection]:
        """A connection inside a read-only transaction whose statements all see the same state."""
        with _translated():
            async with (
                self.pool.acquire(timeout=WAIT_SECONDS_MAX) as connection,
                connection.transaction(isolation="repeatable_read", readonly=True),
            ):
                yield connection  # type: ignore[misc]  # the pool's proxy of a connection


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except DRIVER_ERRORS as error:
        if is_passing(error):
            raise unavailable(error) from error
        raise


async def _reset(connection: Connection) -> None:
    # asyncpg's own reset costs each read a second round trip, for session state that nothing here leaves behind.
    if connection.is_in_transaction():
        await connection.reset()
