"""The node's side of an image's build: fetch its steps, build it, say what came of it.

Joins the words of `build_image_contract.py` to `runtime/image_builder.py`. What the steps print goes to the API while
they run; a second try of the activity has a log of its own behind the first one's. `collect_images` is the loop that
takes images away which no Function names any more.
"""

from __future__ import annotations

import asyncio
import secrets
from asyncio import FIRST_COMPLETED
from pathlib import Path

import structlog
from temporalio import activity

from activities.build_image_contract import BUILD_IMAGE, READY, SUPERSEDED, BuildImageInput, ImageBuilt
from activities.node_api import ApiRefusedError, ApiUnavailableError, ImagePlan, NodeApi
from runtime.host import Host
from runtime.image_builder import ImageBuilder, ImageFailedError, Stage
from runtime.image_steps import steps_of
from runtime.logs import Chunk

HEARTBEAT_SECONDS = 5.0
WANTED_SECONDS = 10.0
"""Between two looks whether a build is still wanted; one that is not goes on for so long."""

log = structlog.get_logger(__name__)


class BuildImageActivities:
    """The activity of one node."""

    def __init__(self, builder: ImageBuilder, api: NodeApi, blob_bytes_max: int) -> None:
        self._builder = builder
        self._api = api
        self._blob_bytes_max = blob_bytes_max

    @activity.defn(name=BUILD_IMAGE)
    async def build_image(self, given: BuildImageInput) -> ImageBuilt:
        """Build one image; see the contract."""
        try:
            plan = await self._api.image_plan(given.image_uid, given.generation)
        except ApiRefusedError as error:
            return ImageBuilt(outcome=SUPERSEDED, message=str(error))
        building = asyncio.create_task(self._build(given, plan))
        watching = asyncio.create_task(self._unwanted(given))
        try:
            while not building.done() and not watching.done():
                activity.heartbeat()
                await asyncio.wait((building, watching), timeout=HEARTBEAT_SECONDS, return_when=FIRST_COMPLETED)
        finally:
            for task in (building, watching):
                task.cancel()
            await asyncio.gather(building, watching, return_exceptions=True)
        return watching.result() if building.cancelled() else building.result()

    async def _unwanted(self, given: BuildImageInput) -> ImageBuilt:
        """Returns when nobody waits for the build any more, because its Image was deleted or changed."""
        while True:
            await asyncio.sleep(WANTED_SECONDS)
            try:
                await self._api.image_plan(given.image_uid, given.generation)
            except ApiRefusedError as error:
                return ImageBuilt(outcome=SUPERSEDED, message=str(error))
            except ApiUnavailableError as error:
                log.info("whether a build is still wanted is not known", image=given.image_uid, problem=str(error))

    async def _build(self, given: BuildImageInput, plan: ImagePlan) -> ImageBuilt:
        name = f"{given.image_uid}.{secrets.token_hex(4)}"

        async def sink(chunk: Chunk) -> None:
            await self._api.store_build_log(name, chunk)

        async def fetch(reference: str, path: Path) -> None:
            await self._api.fetch_blob(plan.blobs[reference], reference, path, self._blob_bytes_max)

        telling: set[asyncio.Task[None]] = set()

        def tell(stage: Stage) -> None:
            task = asyncio.create_task(self._tell(given, stage))
            telling.add(task)
            task.add_done_callback(telling.discard)

        try:
            built = await self._builder.build(plan.python, steps_of(plan.spec), fetch, sink, tell)
        except ImageFailedError as error:
            return ImageBuilt(outcome=error.reason, message=str(error), log=name)
        finally:
            await asyncio.gather(*telling, return_exceptions=True)
        return ImageBuilt(
            outcome=READY,
            key=built.key,
            digest=built.digest,
            size_bytes=built.size_bytes,
            cached=built.cached,
            log=name,
        )

    async def _tell(self, given: BuildImageInput, stage: Stage) -> None:
        """Show the stage; one that cannot be told is overtaken by the next."""
        try:
            await self._api.report_stage(given.image_uid, given.generation, stage.value)
        except (ApiUnavailableError, ApiRefusedError) as error:
            log.info("a stage was not told", image=given.image_uid, stage=stage.value, problem=str(error))


async def collect_images(host: Host, api: NodeApi, *, every_seconds: float, idle_seconds: float) -> None:
    """Remove images that no Function names and none has used for so long, again and again until cancelled."""
    while True:
        await asyncio.sleep(every_seconds)
        try:
            kept = await api.named_images(host.images.keys())
        except (ApiUnavailableError, ApiRefusedError) as error:
            log.info("images are not collected now", problem=str(error))
            continue
        host.warm.forget_images(kept)
        removed = await host.images.collect(kept, idle_seconds)
        if removed:
            log.info("images removed", keys=removed)
