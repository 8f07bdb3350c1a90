"""Keeps the status of Apps true: how many members, how many take work, which one failed.

Woken by changes of Apps and Functions, all of which this process has in memory, so a look costs no query. It runs
beside the autoscaler, under the same election.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from activities.waking import woken
from controlplane.apps.members import Members, WriteAppStatus, app_of, count_members
from controlplane.errors import ApiError
from controlplane.store.cache import ObjectCache
from controlplane.store.changes import ChangeFeed
from controlplane.store.contract import Change, Document, Key
from controlplane.store.writer import Writer

log = structlog.get_logger(__name__)

PAUSE_SECONDS = 0.5
"""A deploy changes many members one after the other; one write tells the sum."""
RESYNC_SECONDS = 30.0


class AppKeeper:
    """The loop."""

    def __init__(self, *, writer: Writer, feed: ChangeFeed, cache: ObjectCache) -> None:
        self._writer = writer
        self._cache = cache
        self._wake = asyncio.Event()
        feed.add_listener(self._changed)

    async def run(self) -> None:
        """Recount whenever something changed, until cancelled."""
        while True:
            await self._recount()
            await asyncio.sleep(PAUSE_SECONDS)
            await woken(self._wake, RESYNC_SECONDS)

    def _changed(self, changes: Sequence[Change]) -> None:
        if any(change.key.kind in ("App", "Function") for change in changes):
            self._wake.set()

    async def _recount(self) -> None:
        functions: dict[Key, list[Document]] = {}
        for key, document in self._cache.of_kind("Function"):
            name = app_of(document)
            if name is not None:
                functions.setdefault(Key("App", key.org, key.project, name), []).append(document)
        for key, app in self._cache.of_kind("App"):
            members = count_members(functions.get(key, ()))
            if "deletionTimestamp" in app["metadata"] or _says(app, members):
                continue
            try:
                await self._writer.write(WriteAppStatus(key, members))
            except ApiError as error:
                log.warning("an App's status could not be written", app=key.name, told=error.message)


def _says(app: Document, members: Members) -> bool:
    """Whether the status tells these members already; the mutation would find out too, at the price of a commit."""
    told = app["status"].get("members", {})
    phase = "Failed" if members.failed else "Pending" if members.waiting else "Ready"
    return (told.get("functions"), told.get("ready"), app["status"].get("phase")) == (
        members.functions,
        members.ready,
        phase,
    )
