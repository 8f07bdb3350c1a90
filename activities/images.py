"""Starts the builds of Images that wait for one, and writes down how builds end.

`ImageKeeper` is the loop: it runs beside the autoscaler under the same election, looks at every Image in memory and
makes sure that each one that is Pending has a workflow; the workflow's id makes a second start harmless, and a look
every few seconds finds what a lost message or a lost Temporal database left behind. `ImageActivities` is the
workflow's last step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import structlog
from temporalio import activity

from activities.build_image_contract import SETTLE_IMAGE, SUPERSEDED, ImageBuildInput, SettleImageInput
from activities.engine import Engine, EngineUnavailableError
from activities.waking import woken
from controlplane.capacity.rows import WorkerQueries
from controlplane.images.builds import READY, BuildEnd, BuildReference, SettleBuild
from controlplane.settings import Settings
from controlplane.store.cache import ObjectCache
from controlplane.store.changes import ChangeFeed
from controlplane.store.contract import Change, Key
from controlplane.store.database import Database
from controlplane.store.writer import Writer

log = structlog.get_logger(__name__)

RESYNC_SECONDS = 5.0
AGAIN = "`nodus request restart image/{name}` builds it again."


class ImageKeeper:
    """The loop."""

    def __init__(self, *, feed: ChangeFeed, cache: ObjectCache, engine: Engine, settings: Settings) -> None:
        self._cache = cache
        self._engine = engine
        self._settings = settings
        self._wake = asyncio.Event()
        feed.add_listener(self._changed)

    async def run(self) -> None:
        """Start what waits, whenever an Image has changed and every few seconds, until cancelled."""
        while True:
            for key, document in self._cache.of_kind("Image"):
                if document["status"].get("phase") == "Pending" and "deletionTimestamp" not in document["metadata"]:
                    await self._start(key, document["metadata"]["uid"], document["metadata"]["generation"])
            await woken(self._wake, RESYNC_SECONDS)

    def _changed(self, changes: Sequence[Change]) -> None:
        # A stage that is shown needs nothing done; a phase that begins may.
        if any(
            change.key.kind == "Image" and change.fields.get("status.phase") == "Pending" and _is_news(change)
            for change in changes
        ):
            self._wake.set()

    async def _start(self, key: Key, uid: str, generation: int) -> None:
        build = ImageBuildInput(
            image_uid=uid,
            org=key.org,
            project=key.project,
            name=key.name,
            generation=generation,
            node=self._settings.node_name,
            seconds_max=self._settings.image_build_seconds_max,
        )
        try:
            await self._engine.start_image_build(build)
        except EngineUnavailableError as error:
            log.warning("a build waits for the engine", image=key.name, told=str(error))


class ImageActivities:
    """Activities of `ImageBuildWorkflow` that touch SQL; the other one is the node's."""

    def __init__(self, database: Database, writer: Writer) -> None:
        self._workers = WorkerQueries(database)
        self._writer = writer

    @activity.defn(name=SETTLE_IMAGE)
    async def settle_image(self, settlement: SettleImageInput) -> None:
        """Write the end of a build into its Image, unless nobody waits for it any more."""
        built = settlement.built
        if built.outcome == SUPERSEDED:
            return
        key = Key("Image", settlement.org, settlement.project, settlement.name)
        message = built.message
        if built.outcome != READY:
            printed = await self._workers.last_output(built.log) if built.log else ""
            message = "\n".join(filter(None, [f"{message}. {AGAIN.format(name=settlement.name)}", printed]))
        end = BuildEnd(
            reason=built.outcome,
            message=message,
            key=built.key,
            digest=built.digest,
            size_bytes=built.size_bytes,
            cached=built.cached,
        )
        build = BuildReference(key, settlement.image_uid, settlement.generation)
        if await self._writer.write(SettleBuild(build, end)):
            log.info("image settled", image=key.name, outcome=built.outcome, cached=built.cached)

    @property
    def all(self) -> Sequence[Callable[..., Any]]:
        """What a worker registers."""
        return [self.settle_image]


def _is_news(change: Change) -> bool:
    return change.previous_fields is None or change.previous_fields.get("status.phase") != "Pending"
