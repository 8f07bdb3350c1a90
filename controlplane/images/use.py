"""What an Image means for a Function that names one: its workers can start, must wait, or never will.

A Function that names an image of the catalog depends on no Image. Everything here is a look at two documents.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from controlplane.store.cache import ObjectCache
from controlplane.store.contract import Document, Key


class ImageState(Enum):
    """Whether workers can be started from it."""

    READY = "Ready"
    PENDING = "Pending"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageUse:
    """The image of a Function. `reason` and `message` tell why no worker can start, if none can; `environment` is the
    name that the node has built it under, None for an image of the catalog."""

    state: ImageState = ImageState.READY
    reason: str = ""
    message: str = ""
    reference: str | None = None
    digest: str | None = None
    environment: str | None = None


CATALOG = ImageUse()
"""Nothing to wait for: every node can make it."""


def image_key(function_key: Key, function: Document) -> Key | None:
    """The Image that a Function names, or None."""
    name = function["spec"].get("imageRef")
    return Key("Image", function_key.org, function_key.project, name) if name is not None else None


def image_use(function_key: Key, function: Document, cache: ObjectCache) -> ImageUse:
    """What the Function's image allows now."""
    key = image_key(function_key, function)
    if key is None:
        return CATALOG
    image = cache.get(key)
    if image is None or "deletionTimestamp" in image["metadata"]:
        told = f'the Image "{key.name}" was deleted; create it again, or name another one in spec.imageRef'
        return ImageUse(state=ImageState.FAILED, reason="ImageNotFound", message=told)
    return use_of(image)


def concerned_functions(key: Key, cache: ObjectCache) -> list[Key]:
    """The Functions that a change of this Function or Image concerns: itself, or all that name it."""
    if key.kind == "Function":
        return [key]
    return [function for function, document in cache.of_kind("Function") if image_key(function, document) == key]


def use_of(image: Document) -> ImageUse:
    """What an Image allows its Functions."""
    name, status = image["metadata"]["name"], image["status"]
    match status.get("phase"):
        case "Ready":
            return ImageUse(
                reference=status.get("reference"), digest=status.get("digest"), environment=status.get("specHash")
            )
        case "Failed":
            told = f'the Image "{name}" could not be built: {status.get("message", status.get("reason", ""))}'
            return ImageUse(state=ImageState.FAILED, reason="ImageBuildFailed", message=told)
        case _:
            stage = status.get("progress", {}).get("stage", "Queued")
            told = f'the Image "{name}" is being built ({stage}); `nodus logs image/{name} -f` shows it'
            return ImageUse(state=ImageState.PENDING, reason="ImagePending", message=told)
