"""Protobuf bodies as Go clients write them, and bytes that only look like it."""

from __future__ import annotations

from contextlib import suppress

import pytest
from google.protobuf.internal.encoder import _VarintBytes  # type: ignore[attr-defined]
from hypothesis import given
from hypothesis import strategies as st

from controlplane.errors import ApiError, Reason
from controlplane.machinery.protobuf import MAGIC, Shape, decode_protobuf

SHAPES: dict[str, Shape] = {"Question": {2: ("spec", {1: "namespace", 5: "resource"})}, "Other": {}}


def field(number: int, value: str | bytes) -> bytes:
    content = value.encode() if isinstance(value, str) else value
    written: bytes = _VarintBytes(number << 3 | 2) + _VarintBytes(len(content)) + content
    return written


def envelope(kind: str, message: bytes) -> bytes:
    return MAGIC + field(1, field(1, "example/v1") + field(2, kind)) + field(2, message) + field(3, "") + field(4, "")


def test_the_fields_of_a_message_are_named_by_its_shape() -> None:
    long = "x" * 300
    content = envelope("Question", field(1, b"") + field(2, field(1, "default") + field(5, long)))
    assert decode_protobuf(content, SHAPES) == {
        "apiVersion": "example/v1",
        "kind": "Question",
        "spec": {"namespace": "default", "resource": long},
    }


def test_fields_that_the_shape_does_not_have_are_passed_over() -> None:
    numbers = b"\x18\x96\x01" + b"\x21" + bytes(8) + b"\x2d" + bytes(4)
    content = envelope("Question", numbers + field(9, "later") + field(2, field(1, "default") + numbers[:3]))
    assert decode_protobuf(content, SHAPES)["spec"] == {"namespace": "default"}
    assert decode_protobuf(envelope("Other", field(2, b"\xff")), SHAPES)["kind"] == "Other"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        MAGIC,
        envelope("Unknown", b""),
        envelope("Question", b"\x12\x05ab"),
        envelope("Question", b"\x80" * 11),
        envelope("Question", b"\x0b"),
        envelope("Question", field(2, field(1, b"\xff"))),
    ],
)
def test_what_is_no_protobuf_of_a_known_kind_is_a_bad_request(content: bytes) -> None:
    with pytest.raises(ApiError) as raised:
        decode_protobuf(content, SHAPES)
    assert raised.value.reason is Reason.BAD_REQUEST


@given(st.binary(max_size=200))
def test_no_bytes_are_a_fault(message: bytes) -> None:
    for content in (MAGIC + message, envelope("Question", message)):
        with suppress(ApiError):
            assert decode_protobuf(content, SHAPES)["kind"] in SHAPES
