"""The scale of an object: the `autoscaling/v1` view that `kubectl scale` and autoscalers read and write.

Which kinds have one, and which of their fields it shows, is said in the table of kinds (`Kind.scale`). Writing a scale
is a change of the one field of the object's spec, admitted like any other.
"""

from __future__ import annotations

from typing import Any

from controlplane.errors import ApiError, Cause, Reason, invalid
from controlplane.machinery import problems
from controlplane.machinery.documents import value_at
from controlplane.machinery.kind import SCALE_API_VERSION, SCALE_KIND, Document, Kind

_SHOWN = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")


def scale_of(kind: Kind, document: Document) -> Document:
    """The Scale that shows an object."""
    assert kind.scale is not None, f"{kind.plural} have no scale"
    metadata = {name: document["metadata"][name] for name in _SHOWN if name in document["metadata"]}
    return {
        "kind": SCALE_KIND,
        "apiVersion": SCALE_API_VERSION,
        "metadata": metadata,
        "spec": {"replicas": value_at(document, kind.scale.wanted)},
        "status": {"replicas": value_at(document, kind.scale.observed) or 0},
    }


def scaled(kind: Kind, document: Document, scale: Document) -> Document:
    """The object with the replicas that `scale` asks for, and with its name, uid and version to be compared.

    Raises `BadRequest` for what is no Scale and `Invalid` for replicas that are no count; a count that does not fit the
    object is admission's to refuse.
    """
    assert kind.scale is not None, f"{kind.plural} have no scale"
    for field, expected in (("apiVersion", SCALE_API_VERSION), ("kind", SCALE_KIND)):
        if scale.get(field, expected) != expected:
            raise ApiError(Reason.BAD_REQUEST, f"`{field}` must be {expected!r}, not {scale[field]!r}")
    spec, metadata = scale.get("spec"), scale.get("metadata")
    replicas = spec.get("replicas", 0) if isinstance(spec, dict) else None
    if not isinstance(replicas, int) or isinstance(replicas, bool):
        cause = Cause("spec.replicas", "must be an integer", problems.TYPE_INVALID)
        raise invalid(kind.plural, document["metadata"]["name"], [cause])
    named = {name: metadata[name] for name in _SHOWN if metadata.get(name)} if isinstance(metadata, dict) else {}
    held = {**document, "metadata": {**document["metadata"], **named}}
    changed: Document = _with(held, kind.scale.wanted.split("."), replicas)
    return changed


def _with(value: Any, steps: list[str], new: int) -> Any:  # noqa: ANN401 - JSON of any shape
    if not steps:
        return new
    below = value if isinstance(value, dict) else {}
    return {**below, steps[0]: _with(below.get(steps[0]), steps[1:], new)}
