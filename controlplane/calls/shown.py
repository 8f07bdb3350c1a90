"""Values as the views of calls and Functions show them, such as `calls/timeline.py` and `calls/function_charges.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controlplane.machinery.kind import API_VERSION
from controlplane.machinery.quantities import format_duration
from controlplane.store.contract import Document


def duration(seconds: float) -> str:
    """In milliseconds, which is as fine as anybody reads it; another process's clock may be a little ahead."""
    return format_duration(round(max(0.0, seconds), 3))


def set_fields(fields: Mapping[str, Any]) -> Document:
    """The fields that have a value: unset ones are absent on the wire."""
    return {name: value for name, value in fields.items() if value is not None}


_SHOWN = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")


def view(kind: str, document: Document, status: Document) -> Document:
    """An object that nobody stores, with the metadata of the one that it is about."""
    metadata = {name: document["metadata"][name] for name in _SHOWN if name in document["metadata"]}
    return {"kind": kind, "apiVersion": API_VERSION, "metadata": metadata, "status": status}
