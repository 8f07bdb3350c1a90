from __future__ import annotations

import base64
from typing import Any

import pytest

from controlplane.errors import ApiError, Reason
from controlplane.kinds.registry import KINDS
from controlplane.kinds.secret import KEYS_MAX, VALUES_BYTES_MAX, take_values, values_bytes
from controlplane.machinery.kind import Document
from controlplane.machinery.validation import judged_spec
from tests.fixtures.admission import ProjectInMemory, causes

SECRET = KINDS["Secret"]


def secret_body(**fields: Any) -> Document:
    return {"metadata": {"name": "hf", "labels": {"sdk.nodus.dev/app": "hello"}}, "spec": fields}


def encoded(value: bytes) -> str:
    return base64.b64encode(value).decode()


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("type", ["Opaque", "Registry"], ["opaque", ""]),
        ("data", [{}, {"A": ""}, {"_a1": "eA=="}, {"A" * 128: "eA=="}], [{"A": "x"}, {"A": 1}, ["A"]]),
        ("data", [{f"K{n}": "" for n in range(KEYS_MAX)}], [{f"K{n}": "" for n in range(KEYS_MAX + 1)}]),
        (
            "stringData",
            [{}, {"A": "é\0"}],
            [{"1A": "x"}, {"A-B": "x"}, {"": "x"}, {"A" * 129: "x"}, {"A": None, "B": 1}],
        ),
    ],
)
def test_each_field_takes_exactly_what_is_within_its_bounds(field: str, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        assert not judged_spec(SECRET, {field: value})[1], value
    for value in bad:
        _, found = judged_spec(SECRET, {field: value})
        assert found, value
        assert all(cause.field.startswith(f"spec.{field}") for cause in found)


async def test_values_are_taken_out_of_the_document(memory: ProjectInMemory) -> None:
    body = secret_body(data={"A": encoded(b"\x00\xff"), "B": encoded(b"data")}, stringData={"B": "text", "C": "é"})
    document = await memory.create("Secret", body)
    assert take_values(document) == {"A": b"\x00\xff", "B": b"text", "C": "é".encode()}
    assert document["spec"] == {"type": "Opaque"}
    assert take_values(document) is None


async def test_an_empty_map_of_values_is_a_version_without_keys(memory: ProjectInMemory) -> None:
    assert take_values(await memory.create("Secret", secret_body(stringData={}))) == {}


async def test_the_values_of_a_version_are_limited_as_a_whole(memory: ProjectInMemory) -> None:
    half = VALUES_BYTES_MAX // 2 - 1
    fits = secret_body(data={"A": encoded(b"x" * half)}, stringData={"B": "x" * half})
    values = take_values(await memory.create("Secret", fits))
    assert values is not None
    assert values_bytes(values) == VALUES_BYTES_MAX
    with pytest.raises(ApiError) as error:
        await memory.create("Secret", secret_body(data={"A": encoded(b"x" * half)}, stringData={"B": "x" * (half + 1)}))
    assert set(causes(error)) == {"spec.data"}
    with pytest.raises(ApiError) as error:
        await memory.patch("Secret", "hf", stringData={"B": "x" * VALUES_BYTES_MAX})
    assert set(causes(error)) == {"spec.data"}


async def test_a_registry_secret_needs_its_three_keys(memory: ProjectInMemory) -> None:
    with pytest.raises(ApiError) as error:
        await memory.create("Secret", secret_body(type="Registry", stringData={"username": "u"}))
    assert set(causes(error)) == {"spec.stringData.password", "spec.stringData.server"}
    values = {"username": "u", "password": "p", "server": "s"}
    assert await memory.create("Secret", secret_body(type="Registry", stringData=values))


async def test_the_type_of_a_secret_is_immutable(memory: ProjectInMemory) -> None:
    await memory.create("Secret", secret_body())
    with pytest.raises(ApiError) as error:
        await memory.patch("Secret", "hf", type="Registry")
    assert set(causes(error, Reason.FIELD_IMMUTABLE)) == {"spec.type"}


async def test_a_secret_goes_with_the_app_that_its_client_names(memory: ProjectInMemory) -> None:
    await memory.create("App", {"metadata": {"name": "hello"}, "spec": {}})
    document = await memory.create("Secret", secret_body())
    assert document["metadata"]["ownerReferences"][0]["uid"] == "app_hello"
    assert document["metadata"]["labels"]["nodus.dev/app"] == "hello"
    assert document["status"] == {"phase": "Ready", "keys": [], "version": 0, "versions": []}
