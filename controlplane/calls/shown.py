"""Values as the views of a call show them (`calls/timeline.py`, `calls/wait_view.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controlplane.machinery.quantities import format_duration
from controlplane.store.contract import Document


def duration(seconds: float) -> str:
    """In milliseconds, which is as fine as anybody reads it; another process's clock may be a little ahead."""
    return format_duration(round(max(0.0, seconds), 3))


def set_fields(fields: Mapping[str, Any]) -> Document:
    """The fields that have a value: unset ones are absent on the wire."""
    return {name: value for name, value in fields.items() if value is not None}
