"""Object metadata: what a client may write in it, what belongs to the server, and what is read out of it.

Clients own labels, annotations, finalizers and ownerReferences, except those under `nodus.dev/`, which the server
stamps and keeps. Everything else in metadata is the server's: what a client sends there is dropped. `documents.py`
uses this for whole objects.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeGuard

from pydantic import Field, ValidationError

from controlplane.clock import parse_time
from controlplane.errors import ApiError, Cause, Reason
from controlplane.machinery import problems
from controlplane.machinery.grammar import LABEL_VALUE_PATTERN, NAME_PATTERN, SENTENCES
from controlplane.machinery.kind import Document, Kind, Scope
from controlplane.machinery.model import ApiModel
from controlplane.machinery.validation import causes_of, without_nulls

RESERVED_PREFIX = "nodus.dev/"
"""Labels, annotations and finalizers of the server; `sdk.nodus.dev/…` belongs to clients."""
LAST_APPLIED = "nodus.dev/last-applied"
REQUEST_SUFFIX = "-requested-at"

LABELS_MAX = 64
"""Labels of the client; those that the server stamped come back in updates and do not count."""
ANNOTATIONS_BYTES_MAX = 256 << 10
"""Kubernetes' own limit, of all keys and values together."""
FINALIZERS_MAX = 32
"""More controllers than ever agree on a delete; each is kept with every version."""
OWNERS_MAX = 32
"""Each is an entry of an index, and is looked up when an owner goes."""

_NAME = re.compile(NAME_PATTERN)
_NAME_PREFIX = re.compile(r"[a-z0-9][-a-z0-9]*\Z")
_KEY = re.compile(
    r"(?=.{1,317}\Z)(?:(?=[^/]{1,253}/)[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*/)?"
    r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?\Z"
)
_LABEL_VALUE = re.compile(LABEL_VALUE_PATTERN)

CLIENT_FIELDS = ("labels", "annotations", "finalizers", "ownerReferences")
_KNOWN = frozenset(
    {
        *CLIENT_FIELDS,
        "name",
        "generateName",
        "namespace",
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "managedFields",
        "selfLink",
    }
)
"""Every field of ObjectMeta. Those that are not the client's own are dropped, or compared in `documents.py`."""


class OwnerReference(ApiModel):
    """An object that owns this one; when the last owner goes, this one goes too."""

    api_version: Literal["nodus.dev/v1"] = Field(description="API version of the owner: nodus.dev/v1.")
    kind: str = Field(min_length=1, max_length=63, description="Kind of the owner.")
    name: str = Field(min_length=1, max_length=253, description="Name of the owner.")
    uid: str = Field(min_length=1, max_length=64, description="Uid of the owner; another object of that name is none.")
    controller: bool | None = Field(default=None, description="Whether the owner manages this object; one owner may.")
    block_owner_deletion: bool | None = Field(
        default=None,
        description="Whether a foreground delete of the owner waits until this object is gone; it is deleted anyway.",
    )


class _Owners(ApiModel):
    owner_references: list[OwnerReference] = Field(max_length=OWNERS_MAX)


def metadata_for_create(kind: Kind, raw: object, project: str, causes: list[Cause]) -> Document:
    """The client's part of a new object's metadata: its name or generateName, namespace, labels and so on.

    Labels and annotations of the server are dropped: an object exported from one server can be created on another.
    Appends to `causes` what is wrong; raises `BadRequest` when the body contradicts the request's path.
    """
    raw = _object(raw, causes)
    if raw.get("resourceVersion"):
        raise ApiError(
            Reason.BAD_REQUEST, "`metadata.resourceVersion` must not be set on an object that is to be created"
        )
    check_namespace(kind, raw, project)
    metadata = _names(raw, causes)
    if kind.scope is Scope.PROJECT:
        metadata["namespace"] = project
    owned = _client_fields(raw, causes)
    for field in ("labels", "annotations"):
        if field in owned:
            kept = {key: value for key, value in owned.pop(field).items() if not is_reserved(key)}
            if kept:
                metadata[field] = kept
    if any(is_reserved(name) for name in owned.get("finalizers", ())):
        causes.append(_reserved("metadata.finalizers"))
    metadata.update(owned)
    return metadata


def metadata_for_update(stored: Document, raw: object, causes: list[Cause]) -> Document:
    """The stored metadata with the client's part replaced by what `raw` says; what the server owns stays.

    A label, annotation or finalizer of the server that `raw` leaves out is kept; one that it changes or adds is a
    cause.
    """
    raw = _object(raw, causes)
    metadata = {field: value for field, value in stored.items() if field not in CLIENT_FIELDS}
    owned = _client_fields(raw, causes)
    for field in ("labels", "annotations"):
        merged = _with_reserved(f"metadata.{field}", stored.get(field, {}), owned.pop(field, {}), causes)
        if merged:
            metadata[field] = merged
    finalizers = _finalizers(stored, owned.pop("finalizers", []), causes)
    if finalizers:
        metadata["finalizers"] = finalizers
    metadata.update(owned)
    return metadata


def check_namespace(kind: Kind, raw_metadata: Mapping[str, Any], project: str) -> None:
    """`BadRequest` when the body's namespace is not the one of the path (empty for kinds of the organisation)."""
    namespace = raw_metadata.get("namespace")
    if namespace and namespace != (project if kind.scope is Scope.PROJECT else ""):
        raise ApiError(
            Reason.BAD_REQUEST,
            "the namespace of the provided object does not match the namespace sent on the request",
            fix="Leave `metadata.namespace` out, or send the object to that project's path.",
        )


def is_reserved(key: str) -> bool:
    """Whether the key is the server's; the last applied manifest and requests for actions are the client's."""
    return key.startswith(RESERVED_PREFIX) and key != LAST_APPLIED and not key.endswith(REQUEST_SUFFIX)


def is_requested_at(key: str) -> bool:
    """Whether an annotation asks a controller for an action (`nodus.dev/restart-requested-at`)."""
    return key.startswith(RESERVED_PREFIX) and key.endswith(REQUEST_SUFFIX)


def select_fields(kind: Kind, document: Document) -> dict[str, str]:
    """The kind's selectable fields that are present in `document`, as the text selectors compare with."""
    found: dict[str, str] = {}
    for path, steps in kind.selectable_paths:
        value: object = document
        for step in steps:
            value = value.get(step) if isinstance(value, dict) else None
            if value is None:
                break
        if value is None or isinstance(value, (dict, list)):
            continue
        found[path] = str(value).lower() if isinstance(value, bool) else str(value)
    return found


def _object(raw: object, causes: list[Cause]) -> dict[str, Any]:
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        causes.append(Cause("metadata", "must be an object", problems.TYPE_INVALID))
        return {}
    if not raw.keys() <= _KNOWN:
        unknown = [field for field in raw if field not in _KNOWN]
        causes += [Cause(f"metadata.{field}", "is not a known field", problems.UNKNOWN) for field in unknown]
    return raw


def _names(raw: dict[str, Any], causes: list[Cause]) -> Document:
    name, prefix = raw.get("name"), raw.get("generateName")
    metadata: Document = {}
    if name:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            causes.append(Cause("metadata.name", SENTENCES[NAME_PATTERN]))
        metadata["name"] = name
    elif not prefix:
        causes.append(Cause("metadata.name", "must be specified, or `generateName` must be", problems.REQUIRED))
    if prefix:
        if not isinstance(prefix, str) or not _NAME_PREFIX.match(prefix):
            causes.append(
                Cause("metadata.generateName", "must be lower case letters, digits or '-', and must not start with '-'")
            )
        metadata["generateName"] = prefix
    return metadata


def _client_fields(raw: dict[str, Any], causes: list[Cause]) -> Document:
    """The valid ones of the client's fields, without empty ones."""
    found: Document = {}
    for field in CLIENT_FIELDS:
        value = raw.get(field)
        if not value:
            if value is not None and not isinstance(value, dict if field in ("labels", "annotations") else list):
                causes.append(Cause(f"metadata.{field}", "has the wrong type", problems.TYPE_INVALID))
            continue
        before = len(causes)
        valid = _CHECKS[field](value, causes)
        if len(causes) == before:
            found[field] = valid
    return found


def _labels(value: object, causes: list[Cause]) -> object:
    if not _is_text_map(value, "metadata.labels", causes):
        return value
    if sum(not is_reserved(key) for key in value) > LABELS_MAX:
        causes.append(Cause("metadata.labels", f"must have at most {LABELS_MAX} items", problems.TOO_MANY))
    for key, text in value.items():
        _check_key("metadata.labels", key, causes)
        if text and not _LABEL_VALUE.fullmatch(text):
            causes.append(Cause(f"metadata.labels[{key}]", f"may be empty, or {SENTENCES[LABEL_VALUE_PATTERN]}"))
    return value


def _annotations(value: object, causes: list[Cause]) -> object:
    if not _is_text_map(value, "metadata.annotations", causes):
        return value
    size = 0
    for key, text in value.items():
        _check_key("metadata.annotations", key, causes)
        size += len(key) + len(text.encode())
        if is_requested_at(key):
            try:
                parse_time(text)
            except ValueError:
                causes.append(Cause(f"metadata.annotations[{key}]", "must be an RFC 3339 time"))
    if size > ANNOTATIONS_BYTES_MAX:
        causes.append(
            Cause("metadata.annotations", f"must be at most {ANNOTATIONS_BYTES_MAX} bytes in all", problems.TOO_LONG)
        )
    return value


def _finalizer_names(value: object, causes: list[Cause]) -> object:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        causes.append(Cause("metadata.finalizers", "must be a list of strings", problems.TYPE_INVALID))
        return value
    if len(value) > FINALIZERS_MAX:
        causes.append(Cause("metadata.finalizers", f"must have at most {FINALIZERS_MAX} items", problems.TOO_MANY))
    for name in value:
        _check_key("metadata.finalizers", name, causes)
    return list(dict.fromkeys(value))


def _owner_references(value: object, causes: list[Cause]) -> object:
    try:
        owners = _Owners.model_validate({"ownerReferences": without_nulls(value)}).to_wire()["ownerReferences"]
    except ValidationError as error:
        causes += causes_of(error, "metadata", _Owners)
        return value
    if sum(owner.get("controller", False) for owner in owners) > 1:
        causes.append(Cause("metadata.ownerReferences", "may name at most one controller"))
    return owners


_CHECKS: dict[str, Callable[[object, list[Cause]], Any]] = {
    "labels": _labels,
    "annotations": _annotations,
    "finalizers": _finalizer_names,
    "ownerReferences": _owner_references,
}


def _is_text_map(value: object, path: str, causes: list[Cause]) -> TypeGuard[dict[str, str]]:
    if not isinstance(value, dict):
        causes.append(Cause(path, "must be an object", problems.TYPE_INVALID))
        return False
    wrong = [key for key, text in value.items() if not isinstance(text, str)]
    causes += [Cause(f"{path}[{key}]", "must be a string", problems.TYPE_INVALID) for key in wrong]
    return not wrong


def _check_key(path: str, key: str, causes: list[Cause]) -> None:
    if not _KEY.match(key):
        causes.append(
            Cause(
                path,
                f"{key[:80]!r} must be at most 63 letters, digits, '-', '_' or '.', with an optional DNS prefix",
            )
        )


def _with_reserved(path: str, stored: Mapping[str, str], new: Mapping[str, str], causes: list[Cause]) -> dict[str, str]:
    causes += [_reserved(f"{path}[{key}]") for key in new if is_reserved(key) and new[key] != stored.get(key)]
    return {**{key: text for key, text in stored.items() if is_reserved(key)}, **new}


def _finalizers(stored: Document, new: list[str], causes: list[Cause]) -> list[str]:
    """The new finalizers and those of the server that the client left out; none may join a deletion."""
    present: list[str] = stored.get("finalizers", [])
    added = [name for name in new if name not in present]
    if any(is_reserved(name) for name in added):
        causes.append(_reserved("metadata.finalizers"))
    elif added and "deletionTimestamp" in stored:
        causes.append(
            Cause(
                "metadata.finalizers",
                "may not be added to an object that is being deleted",
                problems.FORBIDDEN,
            )
        )
    return [*(name for name in present if is_reserved(name) and name not in new), *new]


def _reserved(path: str) -> Cause:
    return Cause(path, f"may not be changed: names under {RESERVED_PREFIX} belong to the server", problems.FORBIDDEN)
