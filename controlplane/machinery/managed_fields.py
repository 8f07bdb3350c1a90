"""Who owns which fields of an object: `metadata.managedFields`, read, written and kept true.

Every client's write is recorded under its field manager: an update owns what it changed, an apply (`apply.py`) what it
asks for. What the server stamps (status, defaults, everything under `nodus.dev/`) has no manager, because no client
may change it. Kinds that are written all day (`Kind.owners_from_first_apply`) record nothing before somebody applies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

import orjson

from controlplane.clock import format_time, parse_time
from controlplane.errors import Cause, invalid
from controlplane.machinery import problems
from controlplane.machinery.fieldsets import FieldSet, Path, decoded, encoded, field_values, with_ancestors
from controlplane.machinery.kind import API_VERSION, Document, Kind
from controlplane.machinery.meta import CLIENT_FIELDS, is_reserved
from controlplane.machinery.shapes import shape_of

MANAGER_LENGTH_MAX = 128
"""Kubernetes' own limit."""
UPDATERS_MAX = 10
"""Managers of updates on one object; the oldest beyond that are recorded together, as Kubernetes does."""
APPLIERS_MAX = 50
"""Managers of applies on one object; each costs some hundred bytes in every version of it."""
OWNERS_BYTES_MAX = 256 << 10
"""All entries of one object. Appliers may own the same fields, so without it fifty of them could make an object fifty
times as large as a body may be."""
ANCIENT = "ancient-changes"
BEFORE_FIRST_APPLY = "before-first-apply"
"""Owns what an object had before anybody's ownership was recorded, so that a first apply asks before it changes it."""
STATUS = "status"
_FIELDS_TYPE = "FieldsV1"
_RESET: list[Document] = [{}]


class Operation(StrEnum):
    """How a manager wrote; the words of `managedFields`."""

    APPLY = "Apply"
    UPDATE = "Update"


@dataclass(frozen=True, slots=True, order=True)
class Manager:
    """One writer of an object. The same name may own some fields by apply and others by update."""

    name: str
    operation: Operation = Operation.UPDATE
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class Owned:
    """What a manager owns, and since when it is exactly this."""

    fields: FieldSet
    since: str


Managers = Mapping[Manager, Owned]


@dataclass(frozen=True, slots=True)
class Difference:
    """The ownable fields in which two versions of an object differ."""

    changed: FieldSet
    removed: FieldSet
    present: FieldSet
    """All that the new version has, with what they are in."""


def managed_fields(document: Document) -> list[Document]:
    """The entries that an object records; none is the same as an empty list."""
    entries: list[Document] = document["metadata"].get("managedFields", [])
    return entries


def with_managed_fields(document: Document, entries: list[Document]) -> Document:
    """A copy with these entries; metadata holds no empty list."""
    metadata = {name: value for name, value in document["metadata"].items() if name != "managedFields"}
    return {**document, "metadata": {**metadata, "managedFields": entries} if entries else metadata}


def managers_of(document: Document) -> Managers:
    """The managers that a stored object records."""
    return {
        Manager(entry["manager"], Operation(entry["operation"]), entry.get("subresource", "")): Owned(
            decoded(entry["fieldsV1"]), entry["time"]
        )
        for entry in managed_fields(document)
    }


def entries_of(managers: Managers) -> list[Document]:
    """`managedFields` in a stable order; who owns nothing is left out."""
    ordered = sorted(managers.items(), key=lambda item: (item[0].operation, item[1].since, item[0]))
    return [
        {
            "manager": manager.name,
            "operation": str(manager.operation),
            "apiVersion": API_VERSION,
            "time": owned.since,
            "fieldsType": _FIELDS_TYPE,
            "fieldsV1": encoded(owned.fields),
            **({"subresource": manager.subresource} if manager.subresource else {}),
        }
        for manager, owned in ordered
        if owned.fields
    ]


def ownable(kind: Kind, document: Document, subresource: str = "") -> dict[Path, Any]:
    """The fields of an object that clients may own, with their values; those of the status for its subresource."""
    if subresource == STATUS:
        return _below_the_top(field_values(shape_of(kind), {STATUS: document.get(STATUS, {})}))
    part = {name: value for name, value in document.items() if name not in ("apiVersion", "kind", "metadata", STATUS)}
    metadata = document.get("metadata")
    if isinstance(metadata, dict):
        part["metadata"] = {name: _of_clients(metadata[name]) for name in CLIENT_FIELDS if name in metadata}
    return _below_the_top(field_values(shape_of(kind), part))


def difference(kind: Kind, live: Document, new: Document, subresource: str) -> Difference:
    """What a write changes."""
    before, after = ownable(kind, live, subresource), ownable(kind, new, subresource)
    changed = frozenset(path for path, value in after.items() if path not in before or before[path] != value)
    return Difference(changed, frozenset(before.keys() - after.keys()), with_ancestors(after))


def first_owner(kind: Kind, sent: Document, created: Document, manager: Manager, now: datetime) -> list[Document]:
    """`managedFields` of a new object: its creator owns what it sent, and not what was added by default."""
    if manager.operation is Operation.UPDATE and kind.owners_from_first_apply:
        return []
    fields = ownable(kind, sent).keys() & with_ancestors(ownable(kind, created))
    return entries_of({manager: Owned(frozenset(fields), format_time(now))})


def after_update(
    kind: Kind, live: Document, wanted: Document, new: Document, manager: Manager, now: datetime
) -> list[Document]:
    """`managedFields` after an update: `manager` owns what it changed, and whoever owned that before no longer does.

    `wanted` is what the client asked for: it may replace the managers themselves, as kubectl does when it moves from
    client-side to server-side apply. Raises `Invalid` when those it names are malformed.
    """
    managers = _given(kind, live, wanted)
    if not managers and kind.owners_from_first_apply:
        return []
    changes = difference(kind, live, new, manager.subresource)
    if not changes.changed and not changes.removed:
        return entries_of(managers)
    kept = disowned(managers, changes.changed | changes.removed)
    before = managers.get(manager)
    fields = ((before.fields if before else frozenset()) | changes.changed) - changes.removed
    return entries_of(_bounded({**kept, manager: owned_since(before, fields, now)}))


def owners_after_removal(kind: Kind, live: Document, new: Document) -> list[Document]:
    """`managedFields` after the server itself took fields away: nobody owns what is gone."""
    if not managed_fields(live):
        return []
    return entries_of(disowned(managers_of(live), difference(kind, live, new, "").removed))


def checked_size(kind: Kind, name: str, entries: list[Document]) -> list[Document]:
    """The entries; `Invalid` when they are too large to be kept in every version of the object."""
    causes = _size_problems(entries)
    if causes:
        raise invalid(kind.plural, name, causes)
    return entries


def disowned(managers: Managers, fields: FieldSet) -> dict[Manager, Owned]:
    """The managers without these fields; the time of who loses nothing stays."""
    return {manager: Owned(owned.fields - fields, owned.since) for manager, owned in managers.items()}


def owned_since(before: Owned | None, fields: FieldSet, now: datetime) -> Owned:
    """What a manager owns now; a set that did not change keeps its time, so that repeating a write changes nothing."""
    return before if before is not None and before.fields == fields else Owned(fields, format_time(now))


def _below_the_top(fields: dict[Path, Any]) -> dict[Path, Any]:
    """The fields without metadata, spec and status themselves, which every object has."""
    return {path: value for path, value in fields.items() if len(path) > 1}


def _of_clients(value: Any) -> Any:  # noqa: ANN401 - JSON of any shape
    """The labels, annotations or finalizers that are not the server's."""
    if isinstance(value, dict):
        return {key: text for key, text in value.items() if not is_reserved(key)}
    if isinstance(value, list):
        return [item for item in value if not (isinstance(item, str) and is_reserved(item))]
    return value


def _given(kind: Kind, live: Document, wanted: Document) -> Managers:
    """The managers as the client wants them: absent and empty keep the present ones, one empty entry clears them."""
    metadata = wanted.get("metadata")
    given = metadata.get("managedFields") if isinstance(metadata, dict) else None
    if not given or given == managed_fields(live):
        return managers_of(live)
    if given == _RESET:
        return {}
    causes = _size_problems(given)
    found: dict[Manager, Owned] = {}
    if not isinstance(given, list):
        causes.append(Cause("metadata.managedFields", "must be a list", problems.TYPE_INVALID))
    elif len(given) > UPDATERS_MAX + APPLIERS_MAX:
        told = f"must have at most {UPDATERS_MAX + APPLIERS_MAX} items"
        causes.append(Cause("metadata.managedFields", told, problems.TOO_MANY))
    else:
        for index, entry in enumerate(given):
            try:
                manager, owned = _read(entry)
            except ValueError as error:
                causes.append(Cause(f"metadata.managedFields[{index}]", str(error)))
                continue
            if manager in found:
                told = "must not repeat manager, operation and subresource of an earlier item"
                causes.append(Cause(f"metadata.managedFields[{index}]", told, problems.DUPLICATE))
            found[manager] = owned
    if causes:
        raise invalid(kind.plural, live["metadata"]["name"], causes)
    return found


def _size_problems(entries: object) -> list[Cause]:
    if len(orjson.dumps(entries)) <= OWNERS_BYTES_MAX:
        return []
    told = f"must be at most {OWNERS_BYTES_MAX} bytes in all: fewer managers may apply this object, or fewer fields"
    return [Cause("metadata.managedFields", told, problems.TOO_LONG)]


def _read(entry: object) -> tuple[Manager, Owned]:
    """One entry as a client sends it; `ValueError` says what is wrong with it."""
    if not isinstance(entry, dict):
        raise ValueError("must be an object")
    for field, expected in (("apiVersion", API_VERSION), ("fieldsType", _FIELDS_TYPE)):
        if entry.get(field) != expected:
            raise ValueError(f'`{field}` must be "{expected}"')
    name, subresource, since = entry.get("manager", ""), entry.get("subresource", ""), entry.get("time", "")
    if not all(isinstance(text, str) and len(text) <= MANAGER_LENGTH_MAX for text in (name, subresource, since)):
        raise ValueError(f"`manager`, `subresource` and `time` must be at most {MANAGER_LENGTH_MAX} characters")
    try:
        operation = Operation(entry.get("operation", ""))
    except ValueError:
        raise ValueError("`operation` must be Apply or Update") from None
    try:
        since = format_time(parse_time(since))
    except ValueError:
        raise ValueError("`time` must be an RFC 3339 time") from None
    try:
        fields = decoded(entry.get("fieldsV1"))
    except ValueError as error:
        raise ValueError(f"`fieldsV1` is malformed: {error}") from None
    return Manager(name, operation, subresource), Owned(fields, since)


def _bounded(managers: Managers) -> Managers:
    """At most UPDATERS_MAX updaters: the oldest of them become one."""
    updaters: Sequence[Manager] = sorted(
        (manager for manager, owned in managers.items() if manager.operation is Operation.UPDATE and owned.fields),
        key=lambda manager: managers[manager].since,
    )
    surplus = len(updaters) - UPDATERS_MAX
    if surplus <= 0:
        return managers
    oldest = updaters[: surplus + 1]
    together = frozenset[Path]().union(*(managers[manager].fields for manager in oldest))
    kept = {manager: owned for manager, owned in managers.items() if manager not in oldest}
    return {**kept, Manager(ANCIENT): Owned(together, managers[oldest[-1]].since)}
