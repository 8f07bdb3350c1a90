"""What goes wrong during a run, each fault by a real seam: signals, a proxy, the database's own functions."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable

import asyncpg

from controlplane.errors import ApiError
from controlplane.store.sql import WRITERS_LOCK
from tests.fixtures.eventually import eventually
from tests.oracle.proxy import NotificationProxy
from tests.oracle.storm import Storm

ROLES = ("feed", "notifier", "writer", "reader")
"""What the server's connections call themselves in pg_stat_activity, after `nodus-`."""
RETAINED_SECONDS = 1.0
COMPACTION_SECONDS = 1.0
OLD_SNAPSHOT_SECONDS = 5.0
_LOCKS = (
    f"SELECT pg_advisory_xact_lock({WRITERS_LOCK})",
    # The rows are taken between two batches: one that deletes several of them and we could wait for each other.
    f"SELECT pg_advisory_lock({WRITERS_LOCK}); SELECT 1 FROM objects FOR KEY SHARE; "
    f"SELECT pg_advisory_unlock({WRITERS_LOCK})",
)
_TERMINATE = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = $1
"""


class Faults:
    """One after the other, in random order, until the storm is over."""

    def __init__(self, storm: Storm, database_url: str, proxy: NotificationProxy) -> None:
        self._storm = storm
        self._chance = storm.chance("faults")
        self._url = database_url
        self._proxy = proxy
        self.kinds: dict[str, Callable[[random.Random], Awaitable[None]]] = {
            "processes killed": self._kill,
            "processes frozen": self._freeze,
            "connections terminated": self._terminate,
            "notifications lost": self._mute,
            "connections held and cut": self._hold,
            "old snapshots": self._old_snapshot,
            "writers locked out": self._lock_out,
        }

    async def run(self, seconds: float) -> None:
        """Each kind of fault at least once, then until `seconds` are over."""
        clock = asyncio.get_running_loop().time
        ends_at = clock() + seconds
        first_round = True
        while first_round or clock() < ends_at:
            for kind in self._chance.sample(list(self.kinds), len(self.kinds)):
                if self._storm.failures or not (first_round or clock() < ends_at):
                    return
                await self.kinds[kind](self._chance)
                self._storm.counts[kind] += 1
            first_round = False

    async def compact(self) -> None:
        """Forget all but the last moments, again and again."""
        while not self._storm.over.is_set():
            # Its connection is a reader's, and may have been terminated as one.
            with contextlib.suppress(ApiError):
                await self._storm.auditor.compact(RETAINED_SECONDS)
                self._storm.counts["compactions"] += 1
            await self._storm.pause(COMPACTION_SECONDS)

    async def _kill(self, chance: random.Random) -> None:
        replica = chance.choice(self._storm.replicas)
        await replica.kill()
        await replica.start()

    async def _freeze(self, chance: random.Random) -> None:
        """Long enough for the log to be compacted beyond what it had read."""
        replica = chance.choice(self._storm.replicas)
        replica.freeze()
        await asyncio.sleep(RETAINED_SECONDS + COMPACTION_SECONDS + chance.random())
        replica.thaw()

    async def _terminate(self, chance: random.Random) -> None:
        connection = await asyncpg.connect(self._url)
        try:
            await connection.fetchval(_TERMINATE, f"nodus-{chance.choice(ROLES)}")
        finally:
            await connection.close()

    async def _mute(self, chance: random.Random) -> None:
        """Until one got lost at least: a listener that was just cut off comes back only after a while."""
        lost = self._proxy.lost
        self._proxy.mute = True
        await asyncio.sleep(chance.uniform(1, 3))
        await eventually(lambda: self._storm.failures or self._proxy.lost > lost)
        self._proxy.mute = False

    async def _hold(self, chance: random.Random) -> None:
        self._proxy.flowing.clear()
        await asyncio.sleep(chance.uniform(0.5, 3))
        self._proxy.cut()
        self._proxy.flowing.set()

    async def _old_snapshot(self, _chance: random.Random) -> None:
        """A reader that looks at the state of five seconds ago, so nothing written since can be vacuumed."""
        await self._in_transaction("SELECT count(*) FROM changes", OLD_SNAPSHOT_SECONDS, isolation="repeatable_read")

    async def _lock_out(self, chance: random.Random) -> None:
        """Somebody who holds what every writer, or every delete, waits for."""
        await self._in_transaction(chance.choice(_LOCKS), chance.uniform(0.5, 2))

    async def _in_transaction(self, statement: str, seconds: float, isolation: str = "read_committed") -> None:
        connection = await asyncpg.connect(self._url)
        try:
            async with connection.transaction(isolation=isolation):  # type: ignore[arg-type]  # a Literal
                await connection.execute(statement)
                await asyncio.sleep(seconds)
        finally:
            await connection.close()
