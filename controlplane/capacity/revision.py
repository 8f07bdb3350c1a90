"""Which change of a Function needs new workers: the revision of its pool.

Workers that were started from an equal revision are interchangeable. The revision is a digest of the part of the spec
that a worker is made of; timeouts and retries are read per call and change nothing on a worker. Scaling makes no
version either: that workers of another `targetConcurrency` are replaced as well is for `capacity/pool.py` to know. A
restart that was asked for is a part of it too, so it rolls the pool like a change does. A Function names its Image by
name, and what the name stands for may change: the digest that it was pinned to is a part as well. While another one is
built, or could not be, that stays the last one, so workers go on until there is something to replace them with.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import orjson

from controlplane.images.use import ImageState, ImageUse
from controlplane.machinery.kind import Document

ROLLING_FIELDS = (
    "code", "python", "image", "imageRef", "imagePullSecrets", "command", "args", "workingDir", "env", "secrets",
    "volumes", "connections", "sidecars", "initCommand", "network", "resources", "placement", "serviceAccountName",
)  # fmt: skip
"""The fields of a Function's spec that a worker is made of."""

ROLLING_REQUESTS = ("restart", "refresh-secrets")
"""Actions (`nodus.dev/<action>-requested-at`) that replace every worker."""

_DIGITS = 16


def pool_revision(function: Document, image: ImageUse) -> str:
    """The revision of the workers that the Function should have now, given what its image is; 16 hex digits."""
    spec = function["spec"]
    parts: list[Mapping[str, Any]] = [{name: spec[name] for name in ROLLING_FIELDS if name in spec}, requests(function)]
    if "imageRef" in spec:
        parts.append(_pinned(function, image))
    return hashlib.sha256(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)).hexdigest()[:_DIGITS]


def _pinned(function: Document, image: ImageUse) -> Mapping[str, str]:
    """What the name of the Function's Image stands for: what it is now, else what it was when it was last ready."""
    if image.state is ImageState.READY:
        return {"image": image.digest or image.reference or ""}
    last = function.get("status", {}).get("image", {})
    return {"image": last.get("digest") or last.get("reference") or ""}


def requests(function: Document) -> Mapping[str, str]:
    """The newest request of each action that replaces workers, by action."""
    annotations = function["metadata"].get("annotations", {})
    asked = {action: annotations.get(f"nodus.dev/{action}-requested-at") for action in ROLLING_REQUESTS}
    return {action: time for action, time in asked.items() if time}
