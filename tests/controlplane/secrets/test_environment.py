"""What a worker gets of Secrets, and what its error texts do not."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.errors import ApiError, Reason
from controlplane.secrets.environment import NoteSecretUse, SecretReader
from controlplane.secrets.sealing import SecretSealer
from controlplane.settings import Settings
from controlplane.store.contract import Key
from tests.fixtures.eventually import eventually
from tests.fixtures.plane import Plane


async def secret(plane: Plane, name: str, **data: str) -> dict[str, Any]:
    return await plane.create("Secret", {"metadata": {"name": name}, "spec": {"stringData": data}})


def reference(variable: str, name: str, key: str) -> dict[str, Any]:
    return {"name": variable, "valueFrom": {"secretKeyRef": {"name": name, "key": key}}}


async def test_later_sources_win_and_env_comes_last(plane: Plane) -> None:
    await secret(plane, "a", X="a", Y="a", Z="a")
    await secret(plane, "b", Y="b", Z="b")
    spec = {
        "secrets": [{"name": "a"}, {"name": "b"}],
        "env": [{"name": "Z", "value": "literal"}, reference("W", "a", "X"), {"name": "EMPTY"}],
    }
    environment = await plane.secrets.environment("default", "default", spec)
    assert environment.variables == {"X": "a", "Y": "b", "Z": "literal", "W": "a", "EMPTY": ""}
    assert [key.name for key in environment.secrets] == ["a", "b"]


async def test_a_function_without_secrets_needs_none(plane: Plane) -> None:
    environment = await plane.secrets.environment("default", "default", {"env": [{"name": "A", "value": "1"}]})
    assert environment.variables == {"A": "1"}
    assert environment.secrets == ()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"secrets": [{"name": "missing"}]}, 'secrets.nodus.dev "missing" not found'),
        ({"secrets": [{"name": "a", "version": 7}]}, "version 7"),
        ({"env": [reference("X", "a", "NOPE")]}, 'key "NOPE"'),
        ({"env": [reference("X", "missing", "A")]}, '"missing" not found'),
    ],
)
async def test_what_does_not_exist_is_named(plane: Plane, spec: dict[str, Any], message: str) -> None:
    await secret(plane, "a", A="1")
    with pytest.raises(ApiError, match=message) as refused:
        await plane.secrets.environment("default", "default", spec)
    assert refused.value.reason is Reason.NOT_FOUND


async def test_a_secret_of_another_project_does_not_exist(plane: Plane) -> None:
    await secret(plane, "a", A="1")
    with pytest.raises(ApiError):
        await plane.secrets.environment("default", "other", {"secrets": [{"name": "a"}]})


async def test_bytes_that_no_variable_can_hold_are_refused(plane: Plane) -> None:
    await plane.create("Secret", {"metadata": {"name": "a"}, "spec": {"data": {"A": "/w=="}}})
    await secret(plane, "b", A="x\0y")
    for name in ("a", "b"):
        with pytest.raises(ApiError, match="environment variable") as refused:
            await plane.secrets.environment("default", "default", {"secrets": [{"name": name}]})
        assert refused.value.reason is Reason.INVALID


async def test_with_another_secret_key_the_values_stay_closed(plane: Plane) -> None:
    await secret(plane, "a", A="1")
    other = SecretSealer(Settings(secret_key="77" * 32).secret_key)
    reader = SecretReader(plane.database, plane.core.cache, other)
    with pytest.raises(ApiError) as refused:
        await reader.environment("default", "default", {"secrets": [{"name": "a"}]})
    assert refused.value.reason is Reason.ENCRYPTION_FAILED


async def test_a_ciphertext_moved_to_another_version_stays_closed(plane: Plane) -> None:
    await secret(plane, "a", A="1")
    await plane.database.execute("UPDATE secret_versions SET version = 2")
    with pytest.raises(ApiError) as refused:
        await plane.secrets.environment("default", "default", {"secrets": [{"name": "a"}]})
    assert refused.value.reason is Reason.ENCRYPTION_FAILED


async def test_a_use_is_noted_once_in_a_while(plane: Plane) -> None:
    await secret(plane, "a", A="1")
    key = Key("Secret", "default", "default", "a")
    await plane.writer.write(NoteSecretUse([key, Key("Secret", "default", "default", "gone")]))
    noted = await plane.core.objects.get_document(key)
    assert noted is not None
    assert noted["status"]["lastUsedTime"].endswith("Z")
    await plane.writer.write(NoteSecretUse([key]))
    assert await plane.core.objects.get_document(key) == noted


async def test_values_of_every_kept_version_are_redacted(plane: Plane) -> None:
    await secret(plane, "a", TOKEN="first-value")
    function = await plane.create(
        "Function",
        {
            "metadata": {"name": "f"},
            "spec": {
                "code": {"module": "app", "qualname": "f"},
                "python": "3.11",
                "secrets": ["a"],
                "env": [reference("PASSWORD", "a", "TOKEN")],
            },
        },
    )
    uid = function["metadata"]["uid"]
    await eventually(lambda: plane.core.cache.by_uid(uid))
    redact = await plane.secrets.redactor(uid)
    assert redact("login with first-value failed") == "login with [redacted] failed"
    unknown = await plane.secrets.redactor("fn_unknown")
    assert unknown("first-value") == "first-value"
