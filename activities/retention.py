"""Forgetting: finished calls, attempts, events, logs, credentials, blobs and the change log, each after its time.

Part of the sweeper. Every chore works in bounded pieces and goes on while there is more, so it keeps up with whatever
the server can run. It rests after each piece for as long as that took: when the machine is busy, pieces take longer and
so do the rests, and what somebody waits for has at least half of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import groupby
from operator import attrgetter

from activities.chores import Chore
from controlplane.blobs.service import BlobStore
from controlplane.blobs.signing import BlobAddress
from controlplane.capacity.rows import WorkerQueries
from controlplane.clock import Clock
from controlplane.errors import ApiError, Reason
from controlplane.identity.logins import Logins
from controlplane.identity.tokens import TokenHasher, purge_tokens
from controlplane.kinds.image import blobs_of
from controlplane.kinds.references import digest_of
from controlplane.logs.rows import remove_old_chunks
from controlplane.resources import DeleteOptions
from controlplane.resources.deletion import Deleter
from controlplane.secrets.held import release_versions
from controlplane.secrets.resealing import reseal
from controlplane.secrets.sealing import SecretSealer
from controlplane.settings import Settings
from controlplane.store.cache import ObjectCache
from controlplane.store.compaction import compact
from controlplane.store.contract import Key
from controlplane.store.database import Database
from controlplane.store.garbage import BEGINNING, UNCHANGED, Garbage

PER_TURN = 200
WALK_CHANGES = 2_000
"""Old changes looked at in one query; most of them are of calls that were deleted within the last day."""
REST_SECONDS_MIN = 0.02
UPLOAD_LEFTOVER_HOURS = 24
TOKEN_HOURS = 24
LOOK_AGAIN = timedelta(days=1)
"""After this much a blob that something referred to is judged anew; the most that it outlives its last call by."""
"""A worker that was fenced is told so for this long; afterwards its token is as good as unknown."""


class Retention:
    """The chores, over one database."""

    def __init__(
        self,
        *,
        database: Database,
        cache: ObjectCache,
        deleter: Deleter,
        blobs: BlobStore,
        sealer: SecretSealer,
        settings: Settings,
        clock: Clock,
    ) -> None:
        self._database = database
        self._cache = cache
        self._deleter = deleter
        self._blobs = blobs
        self._sealer = sealer
        self._settings = settings
        self._clock = clock
        self._logins = Logins(database, settings, TokenHasher(settings.secret_key), clock)
        self._garbage = Garbage(database)
        self._workers = WorkerQueries(database)
        self._walked = dict.fromkeys(UNCHANGED, BEGINNING)
        """How far the walks through old changes have come; another process begins anew and finds the same."""
        self.chores = (
            Chore("forget old changes", 60.0, self.compact_changes),
            Chore("forget ended calls", 60.0, self.forget_calls),
            Chore("forget ended attempts", 60.0, self.forget_attempts),
            Chore("forget old log lines", 60.0, self.forget_logs),
            Chore("forget old events", 300.0, self.forget_events),
            Chore("forget ended credentials", 600.0, self.forget_tokens),
            Chore("forget secrets of ended workers", 600.0, self.forget_secrets),
            Chore("forget older keys of secrets", 3_600.0, self.forget_older_keys),
            Chore("forget unused blobs", 3_600.0, self.forget_blobs),
        )

    async def compact_changes(self) -> None:
        """Move the point from which watches may resume, and drop idempotency keys."""
        pace = _Pace()
        while (await compact(self._database, self._settings, self._clock.now())).more:
            await pace.rest()

    async def forget_calls(self) -> None:
        """Delete calls that ended `call_retention_days` ago."""
        await self._forget("FunctionCall", self._retained_since)

    async def forget_events(self) -> None:
        """Delete events as old as the change log."""
        await self._forget("Event", self._clock.now() - timedelta(hours=self._settings.change_retention_hours))

    async def forget_attempts(self) -> None:
        """Delete the objects and rows of workers that ended as long ago as the oldest call that is kept."""
        pace, more = _Pace(), True
        while more:
            rows = await self._workers.ended_before(self._retained_since, PER_TURN)
            await self._delete([row.key for row in rows])
            await self._workers.forget([row.uid for row in rows])
            more = len(rows) == PER_TURN
            await pace.rest()

    async def forget_logs(self) -> None:
        """Drop log lines that arrived as long ago as the oldest call that is kept ended."""
        pace = _Pace()
        while await remove_old_chunks(self._database, self._retained_since):
            await pace.rest()

    async def forget_tokens(self) -> None:
        """Drop credentials that ended a day ago, and logins that nobody finished."""
        pace = _Pace()
        while await purge_tokens(self._database, self._clock.now() - timedelta(hours=TOKEN_HOURS)):
            await pace.rest()
        while await self._logins.forget():
            await pace.rest()

    async def forget_secrets(self) -> None:
        """Drop values of Secrets that only workers which ended a day ago had: their last words were told by now."""
        await release_versions(self._database, self._clock.now() - timedelta(hours=TOKEN_HOURS))

    async def forget_older_keys(self) -> None:
        """Seal with the newest key what an older one sealed, so that the older one is not needed any more."""
        await reseal(self._database, self._sealer)

    async def forget_blobs(self) -> None:
        """Delete blobs that nobody used for as long as calls are kept and nothing refers to, and orphaned bytes."""
        before = self._retained_since
        await self._blobs.sweep_leftovers(self._clock.now() - timedelta(hours=UPLOAD_LEFTOVER_HOURS))
        orphaned_before = self._clock.now() - timedelta(hours=self._settings.blob_orphan_hours)
        pace, more = _Pace(), True
        while await self._blobs.sweep_orphans(orphaned_before, PER_TURN):
            await pace.rest()
        while more:
            idle = await self._blobs.idle(before, PER_TURN)
            await self._forget_idle(idle, before)
            more = len(idle) == PER_TURN
            await pace.rest()

    async def _forget_idle(self, idle: Sequence[BlobAddress], before: datetime) -> None:
        """Delete these blobs, or look again at those that something still refers to after `LOOK_AGAIN`."""
        of_project = attrgetter("org", "project")
        for (org, project), blobs in groupby(sorted(idle, key=of_project), key=of_project):
            candidates = {blob.digest: blob for blob in blobs}
            kept = self._named_by_code(org, project)
            kept |= await self._garbage.blobs_of_calls(org, project, sorted(candidates.keys() - kept))
            for digest, blob in candidates.items():
                if digest in kept:
                    # What refers to it may go tomorrow, and the blob then has no more time of its own.
                    await self._blobs.touch(blob, before + LOOK_AGAIN)
                else:
                    await self._blobs.remove_idle(blob, before)

    def _named_by_code(self, org: str, project: str) -> set[str]:
        """Digests that Apps and Functions of the project take their code from, and Images what they copy."""
        named: set[str] = set()
        for kind, field in (("App", "source"), ("Function", "code")):
            for key, document in self._cache.of_kind(kind):
                if (key.org, key.project) == (org, project):
                    named.add(document["spec"].get(field, {}).get("blob", "").removeprefix("sha256:"))
        for key, document in self._cache.of_kind("Image"):
            if (key.org, key.project) == (org, project):
                named.update(digest_of(reference) for _, reference in blobs_of(document["spec"]))
        return named

    @property
    def _retained_since(self) -> datetime:
        return self._clock.now() - timedelta(days=self._settings.call_retention_days)

    async def _forget(self, kind: str, before: datetime) -> None:
        pace, more = _Pace(), True
        while more:
            walk = await self._garbage.unchanged(kind, before, self._walked[kind], WALK_CHANGES)
            for first in range(0, len(walk.found), PER_TURN):
                await self._deleter.forget(walk.found[first : first + PER_TURN])
                await pace.rest()
            # Last, so that a fault in between repeats the piece.
            self._walked[kind] = walk.seen_upto
            more = walk.more
            await pace.rest()

    async def _delete(self, keys: Sequence[Key]) -> None:
        await asyncio.gather(*(self._delete_one(key) for key in keys))

    async def _delete_one(self, key: Key) -> None:
        try:
            await self._deleter.delete(key, DeleteOptions())
        except ApiError as error:
            if error.reason is not Reason.NOT_FOUND:
                raise


class _Pace:
    """Rests between the pieces of a chore, each time for as long as the piece before took."""

    def __init__(self) -> None:
        self._since = asyncio.get_running_loop().time()

    async def rest(self) -> None:
        """Leave the machine to others for a while."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(REST_SECONDS_MIN, loop.time() - self._since))
        self._since = loop.time()
