"""The connection to PostgreSQL.

One pool a process for reads; the writer and the change feed hold connections of their own, because one must never
wait for a reader and the other listens. Queries are SQL text over asyncpg (docs/decisions/0002); tables are described
in `tables.py` and made by `migrations/`. Next: `writer.py` for writes, `objects.py` for reads.
"""

from __future__ import annotations

import asyncpg

CONNECT_SECONDS_MAX = 10.0
STATEMENT_SECONDS_MAX = 30.0


class Database:
    """Where the tables are: opens the pool of readers and single connections for the writer and the feed."""

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

    async def connect(self) -> asyncpg.Connection[asyncpg.Record]:
        """A connection outside the pool, owned by the caller."""
        connection: asyncpg.Connection[asyncpg.Record] = await asyncpg.connect(
            self.url, timeout=CONNECT_SECONDS_MAX, command_timeout=STATEMENT_SECONDS_MAX
        )
        return connection

    async def fetch(self, sql: str, *arguments: object) -> list[asyncpg.Record]:
        """Rows of one read."""
        rows: list[asyncpg.Record] = await self.pool.fetch(sql, *arguments)
        return rows

    async def execute(self, sql: str, *arguments: object) -> str:
        """Run one statement outside the object store (bookkeeping rows that nobody watches); returns its status."""
        status: str = await self.pool.execute(sql, *arguments)
        return status
