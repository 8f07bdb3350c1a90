"""The base of every model on the wire: names in camelCase, unknown fields refused, types taken literally.

`ApiModel` is used by the specs and statuses of kinds and by small bodies beside them. Errors that it finds are turned
into causes by `validation.py`; schemas for clients are made from it by `openapi.py`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

LIST_TYPE = "x-kubernetes-list-type"
"""Of a list in a schema: `map` and `set` have items with owners of their own; without it the list is one field."""
LIST_MAP_KEYS = "x-kubernetes-list-map-keys"
"""Of a list of type `map`: the fields that tell its items apart."""

_ACRONYMS = {"usd": "USD", "url": "URL", "urls": "URLs"}
"""Words that keep their capitals inside a name (`maxCostUSD`); "id" does not (`mapId`)."""


@lru_cache(maxsize=1024)
def wire_name(name: str) -> str:
    """The name on the wire of a Python field: `max_cost_usd` becomes `maxCostUSD`, `copy_` becomes `copy`."""
    first, *rest = name.rstrip("_").split("_")
    return first + "".join(_ACRONYMS.get(word, word.capitalize()) for word in rest)


def list_map(*keys: str) -> Any:  # noqa: ANN401 - as pydantic's Field, which it stands for
    """Marks a list whose items are told apart by these fields, so that several appliers can share it."""
    return Field(json_schema_extra={LIST_TYPE: "map", LIST_MAP_KEYS: [*keys]})


class ApiModel(BaseModel):
    """A JSON object of the API. Values are not coerced: `"5"` is no integer and `1` is no boolean."""

    model_config = ConfigDict(
        alias_generator=wire_name,
        serialize_by_alias=True,
        validate_by_alias=True,
        validate_by_name=False,
        extra="forbid",
        strict=True,
        # Bodies hold payloads and secrets; they must not appear in logs by way of an error's text.
        hide_input_in_errors=True,
    )

    def to_wire(self) -> dict[str, Any]:
        """The JSON object, without the fields that are unset."""
        return self.model_dump(exclude_none=True)

    @classmethod
    def canonical(cls, raw: dict[str, Any]) -> dict[str, Any]:
        """`raw` validated, with defaults filled in and values in their canonical spelling.

        Raises pydantic's ValidationError; `validation.py` knows what to do with it.
        """
        return cls.model_validate(raw).to_wire()
