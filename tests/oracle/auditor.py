"""The auditor keeps every change there was: a trigger copies each into a table that nobody compacts.

The copy is part of the writer's transaction, so it has exactly what was committed, and is read with a query of its own.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

import asyncpg
import orjson

from controlplane.clock import SystemClock
from controlplane.kinds.registry import KINDS
from controlplane.settings import Settings
from controlplane.store.compaction import compact
from controlplane.store.database import Database
from tests.oracle.history import Log, Logged, canonical

if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]

_COPY = """
CREATE TABLE audited AS SELECT rv, type, kind, project, name, doc FROM changes;
CREATE UNIQUE INDEX ON audited (rv);
CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO audited SELECT rv, type, kind, project, name, doc FROM written;
    RETURN NULL;
END $$;
CREATE TRIGGER audit AFTER INSERT ON changes REFERENCING NEW TABLE AS written
    FOR EACH STATEMENT EXECUTE FUNCTION audit()
"""
_ROWS = "SELECT rv, type, kind, project, name, doc FROM audited WHERE rv > $1 ORDER BY rv LIMIT 1000"
REACH_SECONDS_MAX = 60.0


class Auditor:
    """Keeps the whole log, and compacts the server's."""

    def __init__(self, database: Database, settings: Settings, connection: Connection) -> None:
        self._database = database
        self._settings = settings
        self._connection = connection
        self._reading = asyncio.Lock()
        self.log = Log()

    async def start(self) -> None:
        """Begin to copy, before anybody writes."""
        await self._connection.execute(_COPY)

    async def reach(self, rv: int) -> None:
        """Read on until the revision is in the log."""
        async with asyncio.timeout(REACH_SECONDS_MAX):
            while self.log.last_rv < rv:
                await self.read()

    async def read(self) -> int:
        """Read everything there is; the last revision."""
        async with self._reading:
            while rows := await self._connection.fetch(_ROWS, self.log.last_rv):
                for row in rows:
                    document = canonical(orjson.loads(row["doc"]))
                    name = row["project"], row["name"]
                    self.log.append(Logged(row["rv"], row["type"], KINDS[row["kind"]].plural, name, document))
                assert not self.log.problems, self.log.problems
        return self.log.last_rv

    async def compact(self, age_seconds: float) -> int:
        """Forget changes older than `age_seconds`, as the retention does with those of a day; the compaction point."""
        retained = timedelta(hours=self._settings.change_retention_hours)
        later = SystemClock().now() + retained - timedelta(seconds=age_seconds)
        while (done := await compact(self._database, self._settings, later)).more:
            pass
        return done.compacted_rv

    async def compacted_rv(self) -> int:
        """The revision from which watches may resume."""
        async with self._reading:
            rv: int = await self._connection.fetchval("SELECT compacted_rv FROM compaction WHERE id = 1")
        return rv
