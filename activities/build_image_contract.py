"""What the engine and a node say to each other about the build of one image.

The workflow (`workflows/image_build.py`) schedules BUILD_IMAGE on the node's own queue (`activities/build_image.py`)
and SETTLE_IMAGE on the control queue (`activities/images.py`). Only words live here, so workflow code can import it.
Nothing that a user wrote travels: the node fetches the steps from the API, and what they print goes to the build log.
"""

from __future__ import annotations

from dataclasses import dataclass

IMAGE_BUILD_WORKFLOW = "ImageBuildWorkflow"

BUILD_IMAGE = "build_image"
"""Activity: make sure that the node has the image. Input `BuildImageInput`, result `ImageBuilt`.

It heartbeats every few seconds. A fault of the image is a result; the activity raises only for what may pass when it
is tried again, and finds what an earlier try has finished. A cancellation ends the build.
"""

SETTLE_IMAGE = "settle_image"
"""Activity: write what came of a build. Input `SettleImageInput`; idempotent."""

READY = "Ready"
SUPERSEDED = "Superseded"
"""Nobody waits for this build any more: the Image was changed, deleted or settled meanwhile."""
BUILDER_LOST = "BuilderLost"
"""Said by the workflow, never by a node: the node could not finish the build, however often it tried."""


@dataclass(frozen=True, kw_only=True)
class BuildImageInput:
    """Which generation of which Image to build."""

    image_uid: str
    generation: int


@dataclass(frozen=True, kw_only=True)
class ImageBuilt:
    """What came of a build.

    `outcome` is READY, SUPERSEDED, BUILDER_LOST or the protocol's word for a fault of the image. `message` is the
    node's own sentence. `log` is the name under which the node stored what the build printed.
    """

    outcome: str
    message: str = ""
    key: str = ""
    digest: str = ""
    size_bytes: int = 0
    cached: bool = False
    log: str = ""


@dataclass(frozen=True, kw_only=True)
class ImageBuildInput:
    """Input of the workflow: what to build, where, and how long one try may take."""

    image_uid: str
    org: str
    project: str
    name: str
    generation: int
    node: str
    seconds_max: float


@dataclass(frozen=True, kw_only=True)
class SettleImageInput:
    """Which build ended and how."""

    image_uid: str
    org: str
    project: str
    name: str
    generation: int
    built: ImageBuilt
