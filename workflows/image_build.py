"""One build of an image: let the node build it, then write down what came of it.

A fault of the image (a package that does not exist, a command that fails, too much time) is an answer of the node and
final. Everything else, such as a node that dies or an index that is away for a moment, is tried again with growing
pauses; the node finds what an earlier try has finished. When no try succeeds, the Image says so and can be asked for
again.
"""

from __future__ import annotations

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError

from activities.build_image_contract import (
    BUILD_IMAGE,
    BUILDER_LOST,
    SETTLE_IMAGE,
    BuildImageInput,
    ImageBuildInput,
    ImageBuilt,
    SettleImageInput,
)
from activities.run_worker_contract import node_task_queue
from workflows.journal import Journal

A_FEW_TIMES = RetryPolicy(
    initial_interval=timedelta(seconds=2), maximum_interval=timedelta(seconds=60), maximum_attempts=5
)
UNTIL_WRITTEN = RetryPolicy(initial_interval=timedelta(milliseconds=500), maximum_interval=timedelta(seconds=30))

NODE_SILENT_MAX = timedelta(seconds=30)
"""Six missed heartbeats, as for a worker."""
WAIT_MAX = timedelta(hours=24)
"""How long a build may wait for its node, and for its turn on it, in all."""
MARGIN = timedelta(minutes=5)
"""The node ends a build in time by itself; this ends one whose node does not."""
WRITE_MAX = timedelta(seconds=30)
SETTLE_MAX = timedelta(days=7)


@workflow.defn
class ImageBuildWorkflow:
    """The build of one generation of an Image; its id is `image/<uid>/<generation>`. Returns the outcome."""

    def __init__(self) -> None:
        self._journal = Journal("waiting for its node")

    @workflow.run
    async def run(self, image: ImageBuildInput) -> str:
        """Build and settle."""
        self._journal.enter(f"building on {image.node}")
        try:
            built: ImageBuilt = await workflow.execute_activity(
                BUILD_IMAGE,
                BuildImageInput(image_uid=image.image_uid, generation=image.generation),
                result_type=ImageBuilt,
                task_queue=node_task_queue(image.node),
                start_to_close_timeout=WAIT_MAX + timedelta(seconds=image.seconds_max) + MARGIN,
                schedule_to_close_timeout=2 * WAIT_MAX,
                heartbeat_timeout=NODE_SILENT_MAX,
                retry_policy=A_FEW_TIMES,
            )
        except ActivityError as error:
            told = f"the node could not finish the build ({type(error.cause).__name__}), also not when it tried again"
            built = ImageBuilt(outcome=BUILDER_LOST, message=told)
        self._journal.enter(f"settling: {built.outcome}")
        await workflow.execute_activity(
            SETTLE_IMAGE,
            SettleImageInput(
                image_uid=image.image_uid,
                org=image.org,
                project=image.project,
                name=image.name,
                generation=image.generation,
                built=built,
            ),
            start_to_close_timeout=WRITE_MAX,
            schedule_to_close_timeout=SETTLE_MAX,
            retry_policy=UNTIL_WRITTEN,
        )
        self._journal.enter(f"ended: {built.outcome}")
        return built.outcome
