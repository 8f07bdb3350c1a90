r"""Reading the few protobuf bodies that clients send, without generated code.

Go clients write the built-in kinds of Kubernetes, such as access reviews, as protobuf and do not fall back to JSON
(R-NEG-4): the bytes `k8s\0`, then an envelope that names the kind and carries its message. What a message means is told
by a `Shape`, so a kind costs one table; fields outside of it are passed over, as protobuf wants.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from controlplane.errors import ApiError, Reason
from controlplane.machinery.kind import Document

MAGIC = b"k8s\0"

Shape: TypeAlias = Mapping[int, "str | tuple[str, Shape]"]
"""Of each field number: its name when it is a string, its name and shape when it is a message."""

_ENVELOPE: Shape = {1: ("typeMeta", {1: "apiVersion", 2: "kind"})}
_ENVELOPE_RAW = 2
"""Number of the field that holds the object."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_SIZES = {_FIXED64: 8, _FIXED32: 4}
_VARINT_BYTES_MAX = 10
"""Of 64 bits at seven a byte."""


def decode_protobuf(content: bytes, shapes: Mapping[str, Shape]) -> Document:
    """The object in the envelope, with the fields of its kind's shape; 400 for bytes or a kind nobody here reads."""
    if not content.startswith(MAGIC):
        raise _unreadable("it does not begin with the bytes `k8s` and 0")
    envelope = content[len(MAGIC) :]
    kind = _read(envelope, _ENVELOPE).get("typeMeta", {})
    shape = shapes.get(kind.get("kind", ""))
    if shape is None:
        raise _unreadable(f"its kind must be one of {', '.join(shapes)}")
    message = b"".join(value for number, value in _fields(envelope) if number == _ENVELOPE_RAW)
    return {**kind, **_read(message, shape)}


def _read(message: bytes, shape: Shape) -> Document:
    found: Document = {}
    for number, value in _fields(message):
        match shape.get(number):
            case None:
                pass
            case (name, below):
                found[name] = {**found.get(name, {}), **_read(value, below)}
            case str(name):
                try:
                    found[name] = value.decode()
                except UnicodeDecodeError:
                    raise _unreadable(f"`{name}` must be text in UTF-8") from None
    return found


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """The fields that have a length, by number, in order; numbers and other fixed values are passed over."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == _VARINT:
            _, at = _varint(message, at)
            continue
        if wire_type == _BYTES:
            size, at = _varint(message, at)
        elif wire_type in _FIXED_SIZES:
            size = _FIXED_SIZES[wire_type]
        else:
            raise _unreadable(f"field {number} has the unknown wire type {wire_type}")
        if at + size > len(message):
            raise _unreadable(f"field {number} is cut off")
        if wire_type == _BYTES:
            yield number, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """A number, and where it ends."""
    value = 0
    for position, byte in enumerate(message[at : at + _VARINT_BYTES_MAX]):
        value |= (byte & 0x7F) << (7 * position)
        if byte < 0x80:
            return value, at + position + 1
    raise _unreadable("a number in it does not end")


def _unreadable(problem: str) -> ApiError:
    return ApiError(Reason.BAD_REQUEST, f"the protobuf body cannot be read: {problem}", fix="Send the object as JSON.")
