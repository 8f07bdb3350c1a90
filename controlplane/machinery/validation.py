"""From bytes to a canonical spec: decoding bodies, and telling every problem of a spec at once.

`decode_json` and `decode_yaml` refuse what other JSON readers would read differently. `validated_spec` gives the spec
that is stored: strictly typed, defaults filled in, values in canonical spelling. `documents.py` applies it to whole
objects.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, get_args

import orjson
import yaml
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from controlplane.errors import ApiError, Cause, Reason, invalid
from controlplane.machinery import problems
from controlplane.machinery.grammar import SENTENCES
from controlplane.machinery.kind import Document, Kind
from controlplane.machinery.model import ApiModel

DEPTH_MAX = 64
"""Nesting of a body; everything that walks documents may recurse this deep."""
CAUSES_MAX = 100
"""Causes in one answer; a body with more mistakes than that was made by a machine."""


def decode_json(content: bytes) -> Any:  # noqa: ANN401 - JSON of any shape
    """The JSON value in `content`; `BadRequest` for malformed text, NaN, lone surrogates or too deep nesting."""
    if not content.strip():
        raise _unreadable("it must not be empty")
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise _unreadable(f"it must be valid JSON: {error}") from None
    check_depth(value)
    return value


def decode_yaml(content: bytes, *, loader: type[JsonLikeLoader] | None = None) -> Any:  # noqa: ANN401 - any JSON
    """The value of a YAML document, which may hold only what JSON can; aliases are refused, and repeated keys unless
    `loader` has another way with them."""
    try:
        _check_yaml_events(content)
        value = yaml.load(content, Loader=loader or _StrictLoader)  # noqa: S506 - subclasses of the safe loader
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise _unreadable(f"it must be valid YAML: {' '.join(str(error).split())}") from None
    check_depth(value)
    try:
        orjson.dumps(value)
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise _unreadable(f"it must hold only what JSON can: {error}") from None
    return value


def decode_object(value: object) -> Document:
    """`value` if it is a JSON object; `BadRequest` otherwise."""
    if not isinstance(value, dict):
        raise _unreadable("it must be a JSON object")
    return value


def validated_spec(kind: Kind, raw: object, *, name: str = "") -> Document:
    """The canonical spec of `raw`: what is stored. Equal specs, however spelt, give equal results.

    Raises `Invalid` with one cause a problem, or `Unsupported` when a valid spec asks for what is not offered here.
    """
    spec, causes = judged_spec(kind, raw)
    if causes:
        raise invalid(kind.plural, name, causes)
    refuse_unoffered(kind, spec, name=name)
    return spec


def judged_spec(kind: Kind, raw: object) -> tuple[Document, list[Cause]]:
    """The canonical spec and no causes, or an empty spec and every problem found."""
    if kind.spec is None:
        return {}, []
    if raw is None:
        raw = {}
    if not isinstance(raw, dict):
        return {}, [Cause("spec", "must be an object", problems.TYPE_INVALID)]
    try:
        return kind.spec.canonical(without_nulls(raw)), []
    except ValidationError as error:
        return {}, list(causes_of(error, "spec", kind.spec))


def refuse_unoffered(kind: Kind, spec: Document, *, name: str = "", quotable: list[ApiError] | None = None) -> None:
    """`Unsupported` when the spec uses something the deployment does not offer; each use is a cause with advice.

    When all of it has a price all the same, the refusal goes to `quotable`, if that is given, and is not raised.
    """
    used = [entry for entry in kind.unoffered if entry.is_used(spec)]
    if not used:
        return
    causes = tuple(
        Cause(entry.field, f"is not offered by this deployment. {entry.advice}", problems.NOT_SUPPORTED)
        for entry in used
    )
    fields = ", ".join(f"`{entry.field}`" for entry in used)
    refusal = ApiError(
        Reason.UNSUPPORTED,
        f'{kind.plural}.nodus.dev "{name}" asks for what this deployment does not offer: {fields}',
        causes=causes,
        fix=used[0].advice if len(used) == 1 else "Change each field in `details.causes` as its message says.",
        subject=(kind.plural, name),
    )
    if quotable is None or not all(entry.has_price for entry in used):
        raise refusal
    quotable.append(refusal)


def causes_of(error: ValidationError, root: str, model: type[ApiModel]) -> Iterator[Cause]:
    """One cause for each problem of a failed validation, with the field's path on the wire."""
    for entry in error.errors(include_url=False, include_input=False)[:CAUSES_MAX]:
        path = _path(root, entry["loc"], model)
        if entry["type"] == problems.CUSTOM_TYPE:
            for found in entry["ctx"]["problems"]:
                yield Cause(path + found.path, found.message, found.reason)
        else:
            yield Cause(path, *_told(entry, model))


def without_nulls(value: Any) -> Any:  # noqa: ANN401 - JSON of any shape
    """A copy in which fields that are null are absent, as typed Kubernetes clients mean them."""
    if isinstance(value, dict):
        return {name: without_nulls(field) for name, field in value.items() if field is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


def _path(root: str, location: tuple[int | str, ...], model: type[ApiModel]) -> str:
    """The path of a field on the wire; pydantic names a missing one that has a default as Python does."""
    path = root
    current: type[ApiModel] | None = model
    for step in location:
        if isinstance(step, int):
            path += f"[{step}]"
        elif step != "[key]":
            field = _field(current, step)
            path += f".{field.alias if field else step}"
            current = _model_in(field.annotation) if field else None
    return path


def _field(model: type[ApiModel] | None, name: str) -> FieldInfo | None:
    """The field of a model with this name, that on the wire or that in Python."""
    if model is None:
        return None
    fields = model.model_fields
    return next((field for field in fields.values() if field.alias == name), None) or fields.get(name)


def _told(entry: ErrorDetails, model: type[ApiModel]) -> tuple[str, str]:
    """The message and reason of one of pydantic's own errors."""
    kind, context = entry["type"], entry.get("ctx", {})
    match kind:
        case "extra_forbidden":
            return _unknown_field(entry["loc"], model), problems.UNKNOWN
        case "missing":
            return "must be specified", problems.REQUIRED
        case "literal_error":
            return f"must be one of {_listed(context['expected'])}", problems.NOT_SUPPORTED
        case "string_too_long":
            return f"must be at most {context['max_length']} characters", problems.TOO_LONG
        case "string_too_short":
            return f"must be at least {context['min_length']} characters", problems.INVALID
        case "too_long":
            return f"must have at most {context['max_length']} items", problems.TOO_MANY
        case "too_short":
            return f"must have at least {context['min_length']} items", problems.INVALID
        case "string_pattern_mismatch":
            pattern = context["pattern"]
            return SENTENCES.get(pattern, f"must match the expression {pattern}"), problems.INVALID
        case "greater_than_equal":
            return f"must be greater than or equal to {context['ge']}", problems.INVALID
        case "less_than_equal":
            return f"must be less than or equal to {context['le']}", problems.INVALID
    return _TYPES.get(kind, f"is invalid: {entry['msg']}"), problems.TYPE_INVALID


_TYPES = {
    "string_type": "must be a string",
    "string_unicode": "must be valid Unicode",
    "int_type": "must be an integer",
    "int_from_float": "must be an integer",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
}


def _listed(expected: str) -> str:
    """Pydantic's `'A', 'B' or 'C'` with the literals in double quotes, as on the wire."""
    return expected.replace("'", '"')


def _unknown_field(location: tuple[int | str, ...], model: type[ApiModel]) -> str:
    """Says that the field is unknown, and which known one it resembles."""
    owner = _model_at(model, location[:-1])
    known = [field.alias or name for name, field in owner.model_fields.items()] if owner else []
    close = get_close_matches(str(location[-1]), known, n=1)
    return f"is not a known field; did you mean `{close[0]}`?" if close else "is not a known field"


def _model_at(model: type[ApiModel], location: tuple[int | str, ...]) -> type[ApiModel] | None:
    """The model that holds the object at `location` below an object of `model`."""
    current: type[ApiModel] | None = model
    for step in location:
        if isinstance(step, int) or current is None:
            continue
        field = _field(current, step)
        current = _model_in(field.annotation) if field else None
    return current


def _model_in(annotation: Any) -> type[ApiModel] | None:  # noqa: ANN401 - a type expression
    """The first model mentioned in a type expression such as `list[EnvVar] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, ApiModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _model_in(part))), None)


def check_depth(value: Any) -> None:  # noqa: ANN401 - JSON of any shape
    """`BadRequest` when objects and lists nest deeper than DEPTH_MAX."""
    level = [value]
    for _ in range(DEPTH_MAX + 1):
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
        if not below:
            return
        level = below
    raise _unreadable(f"it must not nest deeper than {DEPTH_MAX} levels")


def _check_yaml_events(content: bytes) -> None:
    """ValueError for what must not reach the loader: aliases, because nested ones make a short text stand for
    terabytes, and nesting that would exhaust the loader's stack."""
    depth = 0
    for event in yaml.parse(content, Loader=yaml.CSafeLoader):
        if getattr(event, "anchor", None):
            raise ValueError("anchors and aliases are not accepted")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEPTH_MAX + 1:
            raise ValueError(f"it must not nest deeper than {DEPTH_MAX} levels")


def _unreadable(problem: str) -> ApiError:
    return ApiError(Reason.BAD_REQUEST, f"the body of the request cannot be read: {problem}")


class JsonLikeLoader(yaml.CSafeLoader):
    """YAML without what JSON lacks, such as timestamps. Of a repeated key the last value counts, as in JSON."""


JsonLikeLoader.yaml_implicit_resolvers = {
    first: [(tag, expression) for tag, expression in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class _StrictLoader(JsonLikeLoader):
    """The same without repeated keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        mapping = super().construct_mapping(node, deep)
        if len(mapping) != len(node.value):
            raise ValueError(f"a key is repeated in the object that starts in line {node.start_mark.line + 1}")
        return mapping
