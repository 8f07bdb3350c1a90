"""Fields that no schema knows and keys that are written twice: refused, warned about or ignored, as the client asks.

Without `fieldValidation` an unknown field is one of the causes of a 422, beside everything else that is wrong
(`documents.py`); that is what the public SDK and command line expect. A client that asks gets what Kubernetes gives:
Strict refuses the body with a 400, Warn takes it and names each field in a Warning header, Ignore takes it in silence.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Any

import yaml

from controlplane.errors import ApiError, Cause, Reason
from controlplane.machinery import problems
from controlplane.machinery.kind import Document
from controlplane.machinery.shapes import Form, Shape
from controlplane.machinery.validation import JsonLikeLoader, decode_json, decode_yaml

FINDINGS_MAX = 100
"""Fields told in one answer; a body with more of them was made for another API."""
WARNINGS_MAX = 32
"""Warnings of one answer: each is a header, and common clients read at most a hundred of those."""


class FieldValidation(Enum):
    """What to do about fields that mean nothing here; the words of the query parameter."""

    DEFAULT = ""
    STRICT = "Strict"
    WARN = "Warn"
    IGNORE = "Ignore"


class FieldCheck:
    """The check of one request: decode the body with it, then pass every document through `admit`."""

    def __init__(self, validation: FieldValidation) -> None:
        self._validation = validation
        self._repeated: list[str] = []
        self._unknown: list[str] = []

    @property
    def warnings(self) -> list[str]:
        """What the client should be warned about."""
        if self._validation is not FieldValidation.WARN:
            return []
        return _findings(self._unknown, self._repeated)[:WARNINGS_MAX]

    def apply(self, content: bytes) -> Any:  # noqa: ANN401 - JSON of any shape
        """The value of an apply's body, which is called YAML and mostly is JSON; not all of that is good YAML."""
        try:
            return self.json(content)
        except ApiError:
            return self.yaml(content)

    def json(self, content: bytes) -> Any:  # noqa: ANN401 - JSON of any shape
        """The JSON value, as `decode_json` has it."""
        value = decode_json(content)
        if self._validation in (FieldValidation.STRICT, FieldValidation.WARN):
            self._note_repeated(_repeated_in_json(content))
        return value

    def yaml(self, content: bytes) -> Any:  # noqa: ANN401 - JSON of any shape
        """The YAML value, as `decode_yaml` has it; repeated keys are refused unless the client asked for less."""
        if self._validation in (FieldValidation.DEFAULT, FieldValidation.STRICT):
            return decode_yaml(content)
        value = decode_yaml(content, loader=JsonLikeLoader)
        self._note_repeated(_repeated_in_yaml(yaml.compose(content, Loader=yaml.CSafeLoader), ""))
        return value

    def admit(self, shape: Callable[[], Shape], document: Document, path: str = "") -> Document:
        """The document without fields that `shape` does not have. Raises `BadRequest` for Strict when it has some.

        `path` is where the document is in the body. `status` is not looked at: outside its subresource it is ignored.
        The shape is only asked for when it is needed: the first one of a kind takes a while.
        """
        if self._validation is FieldValidation.DEFAULT:
            return document
        found: list[str] = []
        known = _known_part(shape(), document, path, found)
        # A change that lost a race is made again, and finds the same.
        self._unknown = list(dict.fromkeys([*self._unknown, *found]))[:FINDINGS_MAX]
        if self._validation is FieldValidation.STRICT and (self._unknown or self._repeated):
            raise _refusal(self._unknown, self._repeated)
        admitted: Document = known
        return admitted

    def _note_repeated(self, found: Iterator[str]) -> None:
        self._repeated = list(dict.fromkeys(path for _, path in zip(range(FINDINGS_MAX), found, strict=False)))


def _known_part(shape: Shape, value: Any, path: str, unknown: list[str]) -> Any:  # noqa: ANN401 - JSON of any shape
    """`value` without the fields that its shape does not have, whose paths are appended to `unknown`."""
    if shape.form is Form.STRUCT and isinstance(value, dict):
        known = {}
        for name, below in value.items():
            place = f"{path}.{name}" if path else name
            if name in shape.fields:
                known[name] = below if place == "status" else _known_part(shape.fields[name], below, place, unknown)
            else:
                unknown.append(place)
        return known
    if shape.item is not None and isinstance(value, dict) and shape.form is Form.MAP:
        item = shape.item
        return {key: _known_part(item, below, f"{path}.{key}", unknown) for key, below in value.items()}
    if shape.item is not None and isinstance(value, list):
        item = shape.item
        return [_known_part(item, below, f"{path}[{index}]", unknown) for index, below in enumerate(value)]
    return value


class _Pairs(dict[str, Any]):
    """An object as it was written, with the keys that it repeats."""

    repeated: Sequence[str] = ()


def _pairs(pairs: list[tuple[str, Any]]) -> _Pairs:
    found = _Pairs(pairs)
    if len(found) != len(pairs):
        found.repeated = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
    return found


def _repeated_in_json(content: bytes) -> Iterator[str]:
    """Paths of the keys that are written twice in JSON that was decoded before."""
    # Numbers stay text: only keys matter, and Python refuses to read very long ones.
    pairs = json.loads(content, object_pairs_hook=_pairs, parse_int=str, parse_float=str)
    yield from _repeated_below(pairs, "")


def _repeated_below(value: object, path: str) -> Iterator[str]:
    if isinstance(value, _Pairs):
        for name in value.repeated:
            yield f"{path}.{name}" if path else name
        for name, below in value.items():
            yield from _repeated_below(below, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for index, below in enumerate(value):
            yield from _repeated_below(below, f"{path}[{index}]")


def _repeated_in_yaml(node: yaml.Node | None, path: str) -> Iterator[str]:
    """Paths of the keys that are written twice in YAML that was decoded before."""
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, below in node.value:
            name = str(key.value)
            place = f"{path}.{name}" if path else name
            if name in seen:
                yield place
            seen.add(name)
            yield from _repeated_in_yaml(below, place)
    elif isinstance(node, yaml.SequenceNode):
        for index, below in enumerate(node.value):
            yield from _repeated_in_yaml(below, f"{path}[{index}]")


def _findings(unknown: Sequence[str], repeated: Sequence[str]) -> list[str]:
    return [f'unknown field "{path}"' for path in unknown] + [f'duplicate field "{path}"' for path in repeated]


def _refusal(unknown: Sequence[str], repeated: Sequence[str]) -> ApiError:
    """The 400 of Kubernetes' strict decoding, with a cause for each field."""
    causes = [Cause(path, "is not a known field", problems.UNKNOWN) for path in unknown]
    causes += [Cause(path, "must not be written twice", problems.DUPLICATE) for path in repeated]
    return ApiError(
        Reason.BAD_REQUEST,
        f"strict decoding error: {', '.join(_findings(unknown, repeated))}",
        causes=tuple(causes),
        fix="Correct or remove the fields in `details.causes`, or send `fieldValidation=Ignore` to have them dropped "
        "(kubectl: --validate=ignore).",
    )
