"""Objects as rows of text, and objects reduced to their metadata: the two forms that clients ask for by `Accept`.

`kubectl get` and `nodus get` print the cells as they come, so times are told as ages and amounts as text. Which columns
a kind has is in its row; the cells that many kinds share are made here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from enum import Enum
from typing import Any

from controlplane.clock import parse_time
from controlplane.errors import ApiError, Reason
from controlplane.machinery.kind import Column, Document, Kind

META_GROUP = "meta.k8s.io"
NOTHING = "<none>"

_MINUTE, _HOUR, _DAY, _YEAR = 60, 3_600, 86_400, 365 * 86_400


class Include(Enum):
    """What a row carries beside its cells; the words of the `includeObject` parameter."""

    NONE = "None"
    METADATA = "Metadata"
    OBJECT = "Object"


def parse_include(text: str) -> Include:
    """The `includeObject` parameter; empty means Metadata, other words are a `BadRequest`."""
    try:
        return Include(text or "Metadata")
    except ValueError:
        raise ApiError(Reason.BAD_REQUEST, "`includeObject` must be None, Metadata or Object") from None


def table(
    kind: Kind,
    documents: Iterable[Document],
    *,
    now: datetime,
    metadata: Mapping[str, Any],
    include: Include = Include.METADATA,
    version: str = "v1",
    definitions: bool = True,
) -> Document:
    """A Table of the objects, one row each.

    `metadata` is the list's, or the resourceVersion of a single object. Later events of a watch may leave the column
    definitions out: clients keep those of the first. `version` is that of `meta.k8s.io` the client asked for.
    """
    return {
        "kind": "Table",
        "apiVersion": f"{META_GROUP}/{version}",
        "metadata": dict(metadata),
        "columnDefinitions": [_definition(column) for column in kind.columns] if definitions else [],
        "rows": [_row(kind, document, now, include, version) for document in documents],
    }


def partial_metadata(document: Document, version: str = "v1") -> Document:
    """The object without spec and status."""
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": f"{META_GROUP}/{version}",
        "metadata": document["metadata"],
    }


def partial_metadata_list(
    documents: Iterable[Document], *, metadata: Mapping[str, Any], version: str = "v1"
) -> Document:
    """A list of objects without spec and status."""
    return {
        "kind": "PartialObjectMetadataList",
        "apiVersion": f"{META_GROUP}/{version}",
        "metadata": dict(metadata),
        "items": [partial_metadata(document, version) for document in documents],
    }


def human_duration(seconds: float) -> str:
    """A time span as kubectl writes it: two units while they matter, then one (`90s`, `5m30s`, `3h`, `2d4h`)."""
    total = max(int(seconds), 0)
    if total < 2 * _MINUTE:
        return f"{total}s"
    if total < 10 * _MINUTE:
        return _two_units(total, _MINUTE, "m", 1, "s")
    if total < 3 * _HOUR:
        return f"{total // _MINUTE}m"
    if total < 8 * _HOUR:
        return _two_units(total, _HOUR, "h", _MINUTE, "m")
    if total < 2 * _DAY:
        return f"{total // _HOUR}h"
    if total < 8 * _DAY:
        return _two_units(total, _DAY, "d", _HOUR, "h")
    if total < 2 * _YEAR:
        return f"{total // _DAY}d"
    if total < 8 * _YEAR:
        return _two_units(total, _YEAR, "y", _DAY, "d")
    return f"{total // _YEAR}y"


def _two_units(total: int, unit: int, letter: str, smaller_unit: int, smaller_letter: str) -> str:
    whole, rest = divmod(total, unit)
    rest //= smaller_unit
    return f"{whole}{letter}{rest}{smaller_letter}" if rest else f"{whole}{letter}"


def text_at(path: str, absent: str | int = NOTHING) -> Callable[[Document, datetime], str | int]:
    """The reader of a cell that shows the value at a dotted path, or `absent`; lists are joined with commas."""
    steps = path.split(".")

    def read(document: Document, now: datetime) -> str | int:
        value: object = document
        for step in steps:
            value = value.get(step) if isinstance(value, dict) else None
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, list):
            return ",".join(map(str, value)) or absent
        return value if isinstance(value, (str, int)) and value != "" else absent

    return read


def age_cell(document: Document, now: datetime) -> str | int:
    """How long ago the object was created."""
    return age_of(document["metadata"].get("creationTimestamp"), now)


def age_of(moment: str | None, now: datetime) -> str:
    """How long ago a moment of the wire was."""
    return human_duration((now - parse_time(moment)).total_seconds()) if moment else "<unknown>"


NAME_COLUMN = Column("Name", text_at("metadata.name"), "Name of the object, unique in its project.", format="name")
PHASE_COLUMN = Column("Phase", text_at("status.phase"), "Where the object is in its life.")
REASON_COLUMN = Column("Reason", text_at("status.reason", ""), "Why the object is in its phase, in one word.")
AGE_COLUMN = Column("Age", age_cell, "Time since the object was created.")


def _definition(column: Column) -> Document:
    return {
        "name": column.name,
        "type": column.type,
        "format": column.format,
        "description": column.description,
        "priority": column.priority,
    }


def _row(kind: Kind, document: Document, now: datetime, include: Include, version: str) -> Document:
    row: Document = {"cells": [column.read(document, now) for column in kind.columns]}
    if include is Include.METADATA:
        row["object"] = partial_metadata(document, version)
    elif include is Include.OBJECT:
        row["object"] = document
    return row
