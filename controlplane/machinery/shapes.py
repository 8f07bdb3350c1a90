"""The shape of a kind's objects, as far as it decides what one field is.

Server-side apply and the search for unknown fields walk documents along these trees. They are made from the schemas
that clients are served (`schemas.py`), so what `x-kubernetes-list-type` tells a client is what the server does:
`fieldsets.py` names, merges and removes fields, `unknown_fields.py` finds those that no schema has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from types import MappingProxyType

from controlplane.machinery.kind import Kind
from controlplane.machinery.model import LIST_MAP_KEYS, LIST_TYPE
from controlplane.machinery.schemas import PREFIX, SCHEMA_REFERENCE, Schema, schemas


class Form(Enum):
    """What one value is to those who share an object."""

    LEAF = "leaf"
    """One field, whatever is in it."""
    STRUCT = "struct"
    """Named fields, each with its own owner."""
    MAP = "map"
    """Keys of the users' choice, each with its own owner."""
    KEYED_LIST = "keyed list"
    """Items told apart by their `keys`, each with its own owner."""
    SET = "set"
    """Single values, each with its own owner."""
    ATOMIC_LIST = "atomic list"
    """One field; `item` still tells which fields its items have."""


@dataclass(frozen=True, slots=True)
class Shape:
    """One value: its form and what is below it."""

    form: Form
    fields: Mapping[str, Shape] = field(default_factory=lambda: MappingProxyType({}))
    item: Shape | None = None
    keys: tuple[str, ...] = ()


LEAF = Shape(Form.LEAF)
_LIST_FORMS = {"map": Form.KEYED_LIST, "set": Form.SET, "atomic": Form.ATOMIC_LIST}


@cache
def shape_of(kind: Kind) -> Shape:
    """The shape of the kind's objects."""
    found = schemas((kind,))
    return _shape(found[f"{PREFIX}{kind.kind}"], found)


def _shape(schema: Schema, found: Mapping[str, Schema]) -> Shape:
    for reference in (schema, *schema.get("allOf", ())):
        if "$ref" in reference:
            return _shape(found[reference["$ref"].removeprefix(SCHEMA_REFERENCE)], found)
    if "properties" in schema:
        fields = {name: _shape(below, found) for name, below in schema["properties"].items()}
        return Shape(Form.STRUCT, fields=MappingProxyType(fields))
    if isinstance(schema.get("additionalProperties"), dict):
        return Shape(Form.MAP, item=_shape(schema["additionalProperties"], found))
    if "items" in schema:
        return Shape(
            _LIST_FORMS[schema.get(LIST_TYPE, "atomic")],
            item=_shape(schema["items"], found),
            keys=tuple(schema.get(LIST_MAP_KEYS, ())),
        )
    return LEAF
