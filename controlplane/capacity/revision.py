"""Which change of a Function needs new workers: the revision of its pool.

Workers that were started from an equal revision are interchangeable. The revision is a digest of the part of the spec
that a worker is made of; timeouts, retries and scaling are read per call and change nothing on a worker. A restart
that was asked for is a part of it too, so it rolls the pool like a change does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import orjson

from controlplane.machinery.kind import Document

ROLLING_FIELDS = (
    "code", "python", "image", "imageRef", "imagePullSecrets", "command", "args", "workingDir", "env", "secrets",
    "volumes", "connections", "sidecars", "initCommand", "network", "resources", "placement", "serviceAccountName",
)  # fmt: skip
"""The fields of a Function's spec that a worker is made of."""

ROLLING_REQUESTS = ("restart", "refresh-secrets")
"""Actions (`nodus.dev/<action>-requested-at`) that replace every worker."""

_DIGITS = 16


def pool_revision(function: Document) -> str:
    """The revision of the workers that the Function should have now; 16 hex digits."""
    spec = function["spec"]
    parts = [{name: spec[name] for name in ROLLING_FIELDS if name in spec}, requests(function)]
    return hashlib.sha256(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)).hexdigest()[:_DIGITS]


def requests(function: Document) -> Mapping[str, str]:
    """The newest request of each action that replaces workers, by action."""
    annotations = function["metadata"].get("annotations", {})
    asked = {action: annotations.get(f"nodus.dev/{action}-requested-at") for action in ROLLING_REQUESTS}
    return {action: time for action, time in asked.items() if time}
