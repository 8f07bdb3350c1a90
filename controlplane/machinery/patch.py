"""Merge patches (RFC 7386) and JSON patches (RFC 6902) of whole objects.

Both give a new document and leave the old one as it was; `documents.py` judges what comes out. Strategic merge is not
offered: it needs merge keys that custom kinds do not have, and clients fall back to a merge patch on the 415.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import orjson

from controlplane.errors import ApiError, Cause, Reason
from controlplane.machinery import problems
from controlplane.machinery.kind import Document
from controlplane.machinery.validation import check_depth

OPERATIONS_MAX = 1_000
"""Each may walk and copy the whole document."""
COPIED_BYTES_MAX = 1 << 20
"""Without it a few dozen `copy` operations, each doubling the document, would fill the memory."""

_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")
_ESCAPES = re.compile(r"~[^01]|~\Z")


def merge_patch(document: Document, patch: object) -> Document:
    """`document` with a merge patch applied: null removes, objects merge, everything else replaces.

    Raises `BadRequest` when the patch is no object; RFC 7386 would let it replace the whole document.
    """
    if not isinstance(patch, dict):
        raise ApiError(Reason.BAD_REQUEST, "the body of a merge patch must be a JSON object")
    merged = _merged(document, patch)
    assert isinstance(merged, dict)
    return merged


def _merged(target: object, patch: object) -> object:
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = _merged(result.get(name), value)
    return result


def json_patch(document: Document, operations: object) -> Document:
    """`document` with the operations applied in order, all or none.

    Raises `BadRequest` for a malformed patch, `Invalid` when a `test` does not hold or a path does not fit the document
    and `RequestEntityTooLarge` beyond the limits above.
    """
    if not isinstance(operations, list):
        raise ApiError(Reason.BAD_REQUEST, "the body of a JSON patch must be a list of operations")
    if len(operations) > OPERATIONS_MAX:
        raise ApiError(Reason.REQUEST_ENTITY_TOO_LARGE, f"a JSON patch may have at most {OPERATIONS_MAX} operations")
    # Operations change a private copy in place; the stored document may be shared.
    patcher = _Patcher(orjson.loads(orjson.dumps(document)))
    for position, operation in enumerate(operations):
        patcher.run(position, operation)
    result = patcher.root
    if not isinstance(result, dict):
        raise ApiError(Reason.INVALID, "the patched object must be a JSON object")
    check_depth(result)
    return result


class _Patcher:
    """One document while operations change it."""

    def __init__(self, root: Any) -> None:  # noqa: ANN401 - JSON of any shape
        self.root = root
        self._copied_bytes = 0
        self._position = 0
        self._run: dict[str, Callable[[dict[str, Any]], None]] = {
            "add": lambda operation: self._add(self._path(operation), self._value(operation)),
            "remove": lambda operation: self._remove(self._path(operation)),
            "replace": self._replace,
            "move": self._move,
            "copy": self._copy,
            "test": self._test,
        }

    def run(self, position: int, operation: object) -> None:
        self._position = position
        if not isinstance(operation, dict):
            raise self._malformed("must be an object")
        run = self._run.get(operation["op"]) if isinstance(operation.get("op"), str) else None
        if run is None:
            raise self._malformed('`op` must be one of "add", "remove", "replace", "move", "copy", "test"')
        run(operation)

    def _replace(self, operation: dict[str, Any]) -> None:
        path, value = self._path(operation), self._value(operation)
        if not path:
            self.root = value
            return
        holder, step = self._holder(path)
        self._get(path)
        holder[self._existing(holder, step)] = value

    def _move(self, operation: dict[str, Any]) -> None:
        source, path = self._path(operation, "from"), self._path(operation)
        if path[: len(source)] == source and path != source:
            raise self._refused("a value must not be moved into itself")
        value = self._get(source)
        if path != source:
            self._remove(source)
            self._add(path, value)

    def _copy(self, operation: dict[str, Any]) -> None:
        path = self._path(operation)
        source = self._get(self._path(operation, "from"))
        check_depth(source)
        content = orjson.dumps(source)
        self._copied_bytes += len(content)
        if self._copied_bytes > COPIED_BYTES_MAX:
            raise ApiError(
                Reason.REQUEST_ENTITY_TOO_LARGE, f"a JSON patch may copy at most {COPIED_BYTES_MAX} bytes in all"
            )
        self._add(path, orjson.loads(content))

    def _test(self, operation: dict[str, Any]) -> None:
        path, expected = self._path(operation), self._value(operation)
        if not _equal(self._get(path), expected):
            # 422 as Kubernetes has it: a 409 would make clients repeat the same patch (R-PATCH-1).
            raise self._refused(f'the test failed, because "{operation["path"]}" is different')

    def _add(self, path: list[str], value: object) -> None:
        if not path:
            self.root = value
            return
        holder, step = self._holder(path)
        if isinstance(holder, list):
            index = len(holder) if step == "-" else self._index(step)
            if index > len(holder):
                raise self._refused(f"the list has only {len(holder)} items")
            holder.insert(index, value)
        else:
            holder[step] = value

    def _remove(self, path: list[str]) -> None:
        if not path:
            raise self._refused("the whole object must not be removed")
        holder, step = self._holder(path)
        del holder[self._existing(holder, step)]

    def _get(self, path: list[str]) -> Any:  # noqa: ANN401 - JSON of any shape
        value = self.root
        for step in path:
            value = value[self._existing(value, step)]
        return value

    def _holder(self, path: list[str]) -> tuple[Any, str]:
        """The object or list that the last step of a path is taken in, and that step."""
        holder = self._get(path[:-1])
        if not isinstance(holder, (dict, list)):
            raise self._refused(f'"{path[-1]}" cannot be below a value that is neither an object nor a list')
        return holder, path[-1]

    def _existing(self, holder: Any, step: str) -> Any:  # noqa: ANN401 - JSON of any shape
        """The key or index that `step` means in `holder`, where it must exist."""
        if isinstance(holder, dict) and step in holder:
            return step
        if isinstance(holder, list) and step != "-" and (index := self._index(step)) < len(holder):
            return index
        raise self._refused(f'there is nothing at "{step}"')

    def _index(self, step: str) -> int:
        if not _INDEX.fullmatch(step):
            raise self._refused(f'"{step}" is no index of a list')
        return int(step)

    def _path(self, operation: dict[str, Any], field: str = "path") -> list[str]:
        pointer = operation.get(field)
        if not isinstance(pointer, str) or (pointer and not pointer.startswith("/")) or _ESCAPES.search(pointer):
            raise self._malformed(f'`{field}` must be a JSON pointer such as "/spec/state"')
        return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]

    def _value(self, operation: dict[str, Any]) -> object:
        if "value" not in operation:
            raise self._malformed("`value` must be given")
        return operation["value"]

    def _malformed(self, problem: str) -> ApiError:
        return ApiError(Reason.BAD_REQUEST, f"operation {self._position} of the JSON patch: {problem}")

    def _refused(self, problem: str) -> ApiError:
        message = f"operation {self._position} of the JSON patch cannot be applied: {problem}"
        return ApiError(Reason.INVALID, message, causes=(Cause(f"[{self._position}]", problem, problems.INVALID),))


def _equal(left: object, right: object) -> bool:
    """Equality of JSON values: unlike Python's, `true` is not 1."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_equal(value, right[name]) for name, value in left.items())
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_equal, left, right))
    return left == right
