"""Whole objects: from a decoded body to the document that is admitted, with every problem of it at once.

A create gives the client's part of the new object; `controlplane/resources` stamps uid, times and revision and the
kind's strategy adds status and labels. An update gives the complete new document, judged against the stored one: what
the server owns is kept, immutable fields are compared, and the generation grows when the spec did.
"""

from __future__ import annotations

from typing import Any

from controlplane.errors import ApiError, Cause, Reason, invalid, told
from controlplane.machinery import problems
from controlplane.machinery.kind import API_VERSION, Document, Kind
from controlplane.machinery.meta import check_namespace, metadata_for_create, metadata_for_update
from controlplane.machinery.validation import judged_spec, refuse_unoffered

_KNOWN = frozenset({"apiVersion", "kind", "metadata", "spec", "status"})
_ABSENT = object()


def document_for_create(
    kind: Kind, body: Document, *, project: str, quotable: list[ApiError] | None = None
) -> Document:
    """The canonical apiVersion, kind, metadata and spec of a body that asks for a new object; `status` is ignored.

    `project` is that of the path, "" for kinds of the organisation. Raises `BadRequest` when the body is another kind's
    or belongs elsewhere, `Invalid` with all causes, or `Unsupported`.
    """
    check_type(kind, body)
    causes: list[Cause] = []
    metadata = metadata_for_create(kind, body.get("metadata"), project, causes)
    spec, found = judged_spec(kind, body.get("spec"))
    causes += found
    _note_unknown(body, causes)
    name = metadata.get("name") or metadata.get("generateName") or ""
    if causes:
        raise invalid(kind.plural, str(name), causes)
    refuse_unoffered(kind, spec, name=name, quotable=quotable)
    return {"apiVersion": API_VERSION, "kind": kind.kind, "metadata": metadata, "spec": spec}


def document_for_update(kind: Kind, stored: Document, body: Document) -> Document:
    """The whole new document that `body` makes of `stored`; it equals `stored` when nothing changes.

    The optimistic lock (`metadata.resourceVersion` in the body) is the caller's to check. Raises `BadRequest` for
    another name, kind or namespace, `Conflict` for another uid, `Invalid`, `Unsupported` or `FieldImmutable`.
    """
    check_type(kind, body)
    check_identity(kind, stored["metadata"], body.get("metadata"))
    causes: list[Cause] = []
    metadata = metadata_for_update(stored["metadata"], body.get("metadata"), causes)
    spec, found = judged_spec(kind, _with_kept_fields(kind, stored.get("spec", {}), body.get("spec")))
    causes += found
    _note_unknown(body, causes)
    name = metadata["name"]
    if causes:
        raise invalid(kind.plural, name, causes)
    refuse_unoffered(kind, spec, name=name)
    new = {**stored, "metadata": metadata, "spec": spec}
    check_immutable(kind, stored, new)
    if _without_quiet_fields(kind, stored.get("spec", {})) != _without_quiet_fields(kind, spec):
        metadata["generation"] = metadata.get("generation", 1) + 1
    return new


def check_type(kind: Kind, body: Document) -> None:
    """`BadRequest` when the body says it is of another kind or API version than the path."""
    for field, expected in (("apiVersion", API_VERSION), ("kind", kind.kind)):
        given = body.get(field)
        if given is not None and given != expected:
            raise ApiError(
                Reason.BAD_REQUEST,
                f"`{field}` of the provided object is {given!r}, which does not match the expected {expected!r}",
            )


def check_immutable(kind: Kind, stored: Document, new: Document) -> None:
    """`FieldImmutable` when a field that no update may change has changed; causes and `details.diff` name them."""
    changed = [path for path in kind.immutable_fields if value_at(stored, path) != value_at(new, path)]
    if changed:
        raise immutable(kind, new["metadata"]["name"], [Cause(path, "is immutable") for path in changed])


def immutable(kind: Kind, name: str, causes: list[Cause]) -> ApiError:
    """The 409 for fields that may not be changed, or not in this way."""
    return ApiError(
        Reason.FIELD_IMMUTABLE,
        f'{kind.plural}.nodus.dev "{name}" cannot be changed: {told(causes)}',
        causes=tuple(causes),
        details={"diff": [cause.field for cause in causes]},
        subject=(kind.plural, name),
    )


def value_at(document: Document, path: str) -> Any:  # noqa: ANN401 - JSON of any shape
    """The value at a dotted path, or None where there is none."""
    value = _at(document, path.split("."))
    return None if value is _ABSENT else value


def _at(value: Any, steps: list[str]) -> Any:  # noqa: ANN401 - JSON of any shape
    for step in steps:
        if not isinstance(value, dict) or step not in value:
            return _ABSENT
        value = value[step]
    return value


def check_identity(kind: Kind, stored: Document, raw: object) -> None:
    """`BadRequest` or `Conflict` when the body's metadata names another object than the path."""
    if not isinstance(raw, dict):
        return
    name, uid = raw.get("name"), raw.get("uid")
    if name and name != stored["name"]:
        raise ApiError(
            Reason.BAD_REQUEST,
            f"the name of the object ({name}) does not match the name on the URL ({stored['name']})",
        )
    check_namespace(kind, raw, stored.get("namespace", ""))
    if uid and uid != stored["uid"]:
        raise ApiError(
            Reason.CONFLICT,
            f'the precondition failed: `metadata.uid` of {kind.plural}.nodus.dev "{stored["name"]}" is '
            f'"{stored["uid"]}", not "{uid}"',
            subject=(kind.plural, stored["name"]),
        )


def _with_kept_fields(kind: Kind, stored_spec: Document, raw: object) -> object:
    """`raw` with the immutable fields that it leaves out as they are stored, since leaving out is not changing."""
    spec = {} if raw is None else raw
    if not isinstance(spec, dict):
        return raw
    for path in kind.immutable_fields:
        steps = path.split(".")[1:]
        value = _at(stored_spec, steps)
        if value is not _ABSENT and _at(spec, steps) in (_ABSENT, None):
            spec = _with(spec, steps, value)
    return spec


def _without_quiet_fields(kind: Kind, spec: Document) -> Document:
    """What of a spec makes a generation."""
    quiet = {path.removeprefix("spec.") for path in kind.quiet_fields}
    return {field: value for field, value in spec.items() if field not in quiet}


def _with(document: Document, steps: list[str], value: object) -> Document:
    first, *rest = steps
    below = document.get(first)
    return {**document, first: _with(below if isinstance(below, dict) else {}, rest, value) if rest else value}


def _note_unknown(body: Document, causes: list[Cause]) -> None:
    if not body.keys() <= _KNOWN:
        unknown = [field for field in body if field not in _KNOWN]
        causes += [Cause(field, "is not a known field", problems.UNKNOWN) for field in unknown]
