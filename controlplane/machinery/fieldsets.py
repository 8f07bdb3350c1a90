"""Sets of fields: which fields a document has, and merging and removing them one by one.

A field is a path of steps in the spelling of `fieldsV1`: `f:name` for a field or key, `k:{"name":"A"}` for the item of
a keyed list, `v:"x"` for a value of a set. Which of them a document has is decided by its shape (`shapes.py`), as
Kubernetes' structured merge does it: leaves and whole atomic values count, items and keys of the users' choice count
beside what is in them, and structs count only when they are empty. `managed_fields.py` says who owns which.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from controlplane.machinery.kind import Document
from controlplane.machinery.shapes import LEAF, Form, Shape

Step = str
Path = tuple[Step, ...]
FieldSet = frozenset[Path]

DEPTH_MAX = 64
"""Steps of one path; no document nests deeper (`validation.DEPTH_MAX`)."""
_MEMBER = "."
"""In `fieldsV1`: the field itself is in the set, and not only what is below it."""
_STEP = re.compile(r"f:.+|[kv]:(?P<json>.+)|i:[0-9]{1,9}", re.DOTALL)
_GONE: dict[Step, Any] = {"": None}
"""Marks a path that is removed; told apart by identity."""
_PRESENT = object()
"""The value of a field that counts by being there: an item or key with fields of its own."""


def field_values(shape: Shape, value: object) -> dict[Path, Any]:
    """Every field of `value`, with what it holds."""
    found: dict[Path, Any] = {}
    _collect(shape, value, (), found)
    return found


def with_ancestors(fields: Iterable[Path]) -> FieldSet:
    """The fields and everything that they are in."""
    return frozenset(path[:length] for path in fields for length in range(1, len(path) + 1))


def merged(shape: Shape, live: Any, wanted: Any) -> Any:  # noqa: ANN401 - JSON of any shape
    """`live` with every field that `wanted` has; neither is changed. New items of lists come last."""
    match shape.form:
        case Form.STRUCT | Form.MAP if isinstance(live, dict) and isinstance(wanted, dict):
            return live | {
                name: merged(_below(shape, name), live[name], value) if name in live else value
                for name, value in wanted.items()
            }
        case Form.KEYED_LIST | Form.SET:
            old, new = items_by_step(shape, live), items_by_step(shape, wanted)
            if old is None or new is None:
                return wanted
            item = shape.item or LEAF
            return list((old | {step: merged(item, old.get(step), value) for step, value in new.items()}).values())
        case _:
            return wanted


def without(shape: Shape, document: Document, fields: Iterable[Path]) -> Document:
    """A copy of the document without these fields; what is not there needs no removing."""
    root: dict[Step, Any] = {}
    for path in sorted(fields, key=len):
        node = root
        for step in path[:-1]:
            node = node.setdefault(step, {})
            if node is _GONE:
                break
        else:
            node[path[-1]] = _GONE
    result: Document = _without(shape, document, root)
    return result


def encoded(fields: Iterable[Path]) -> dict[str, Any]:
    """The set as `fieldsV1`."""
    root: dict[str, Any] = {}
    for path in sorted(fields):
        node = root
        for step in path:
            node = node.setdefault(step, {})
        node[_MEMBER] = {}
    return _without_lone_members(root)


def decoded(fields: object) -> FieldSet:
    """The set that `fieldsV1` tells; `ValueError` when it is none."""
    found: set[Path] = set()
    level: list[tuple[Path, object]] = [((), fields)]
    for _ in range(DEPTH_MAX + 1):
        below: list[tuple[Path, object]] = []
        for path, node in level:
            if not isinstance(node, dict):
                raise ValueError(f"{told(path) or 'it'} must be an object")
            if path and (not node or _MEMBER in node):
                found.add(path)
            below += [((*path, _canonical(step)), value) for step, value in node.items() if step != _MEMBER]
        if not below:
            return frozenset(found)
        level = below
    raise ValueError(f"it must not nest deeper than {DEPTH_MAX} levels")


def told(path: Path) -> str:
    """The path as messages of Kubernetes spell it: `.spec.env[name="A"].value`."""
    return "".join(_told(step) for step in path)


def items_by_step(shape: Shape, value: object) -> dict[Step, Any] | None:
    """The items of a keyed list or set by their steps, or None when they cannot be told apart.

    A single text stands for an item that has only its key, as in `secrets: ["hf"]`.
    """
    if not isinstance(value, list):
        return None
    found: dict[Step, Any] = {}
    for item in value:
        if shape.form is Form.SET:
            step = f"v:{_json(item)}"
        else:
            if isinstance(item, str) and len(shape.keys) == 1:
                item = {shape.keys[0]: item}
            if not isinstance(item, dict) or any(key not in item for key in shape.keys):
                return None
            step = f"k:{_json({key: item[key] for key in shape.keys})}"
        if step in found:
            return None
        found[step] = item
    return found


def _collect(shape: Shape, value: object, path: Path, found: dict[Path, Any]) -> None:
    match shape.form:
        case Form.STRUCT | Form.MAP if isinstance(value, dict):
            for name, below in value.items():
                step = (*path, f"f:{name}")
                _collect(_below(shape, name), below, step, found)
                if shape.form is Form.MAP or below == {}:
                    found.setdefault(step, _PRESENT if isinstance(below, (dict, list)) else below)
        case Form.KEYED_LIST | Form.SET:
            items = items_by_step(shape, value)
            if items is None:
                found[path] = value
                return
            for step_name, item in items.items():
                step = (*path, step_name)
                found[step] = _PRESENT
                if shape.form is Form.KEYED_LIST:
                    _collect(shape.item or LEAF, item, step, found)
        case _:
            found[path] = value


def _below(shape: Shape, name: str) -> Shape:
    """The shape of one field of a struct, or of one key of a map."""
    return shape.fields.get(name, LEAF) if shape.form is Form.STRUCT else shape.item or LEAF


def _without(shape: Shape, value: Any, gone: Mapping[Step, Any]) -> Any:  # noqa: ANN401 - JSON of any shape
    """`value` without what the tree of paths marks as gone; one walk, because lists may have hundreds of items."""
    if not gone:
        return value
    if isinstance(value, dict):
        return {
            name: _without(_below(shape, name), below, gone.get(f"f:{name}", {}))
            for name, below in value.items()
            if gone.get(f"f:{name}") is not _GONE
        }
    items = items_by_step(shape, value) if shape.form in (Form.KEYED_LIST, Form.SET) else None
    if items is None:
        return value
    kept = ((step, item) for step, item in items.items() if gone.get(step) is not _GONE)
    return [_without(shape.item or LEAF, item, gone.get(step, {})) for step, item in kept]


def _without_lone_members(node: dict[str, Any]) -> dict[str, Any]:
    """The tree in which a field that has nothing below it is an empty object, not one with a dot."""
    if node.keys() == {_MEMBER}:
        return {}
    return {step: below if step == _MEMBER else _without_lone_members(below) for step, below in node.items()}


def _canonical(step: object) -> Step:
    """A step in the one spelling that compares equal."""
    match = _STEP.fullmatch(step) if isinstance(step, str) else None
    if match is None:
        raise ValueError(f"{step!r} names no field")
    text = match["json"]
    if text is None:
        return match[0]
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        raise ValueError(f"{match[0]!r} must hold JSON after the colon") from None
    if match[0][0] == "k" and not isinstance(value, dict):
        raise ValueError(f"{match[0]!r} must hold the keys of an item after the colon")
    return f"{match[0][:2]}{_json(value)}"


def _told(step: Step) -> str:
    kind, text = step[0], step[2:]
    match kind:
        case "f":
            return f".{text}"
        case "k":
            keys: Mapping[str, object] = orjson.loads(text)
            return "[{}]".format(",".join(f"{key}={_json(value)}" for key, value in keys.items()))
        case "v":
            return f"[={text}]"
        case _:
            return f"[{text}]"


def _json(value: object) -> str:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
