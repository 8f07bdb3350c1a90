"""Secrets, payloads that are blobs, and the log of one call, as users of the public clients see them."""

from __future__ import annotations

import json
import re

import pytest

from tests.fixtures.eventually import eventually
from tests.fixtures.system import APPS, System

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def told(shared_system: System) -> list[str]:
    """What the run prints."""
    return shared_system.nodus("run", str(APPS / "vault" / "vault.py")).splitlines()


def test_a_worker_has_the_secret_and_the_caller_is_not_told_it(told: list[str]) -> None:
    assert "raised: cannot log in with [redacted]" in told
    assert "told: False" in told


def test_inputs_too_large_to_travel_inline_arrive(told: list[str]) -> None:
    assert told.count("padding: 200000") == 3


@pytest.mark.usefixtures("told")
async def test_the_log_of_a_call_is_its_own_lines(system: System) -> None:
    calls = [call for call in system.objects("functioncalls") if re.fullmatch("vault-.+-say", call["spec"]["function"])]
    names = [call["metadata"]["name"] for call in sorted(calls, key=lambda call: call["metadata"]["creationTimestamp"])]

    def logs() -> list[str]:
        return sorted(system.nodus("logs", f"functioncall/{name}") for name in names)

    await eventually(lambda: logs() == ["saying one\n", "saying three\n", "saying two\n"])


@pytest.mark.usefixtures("told")
def test_the_value_of_the_secret_is_in_no_object_and_no_log(system: System) -> None:
    for plural in ("functions", "functioncalls", "secrets", "apps", "attempts"):
        assert "open-sesame" not in str(system.objects(plural))
    assert "open-sesame" not in system.logs()


def test_the_log_of_a_call_is_there_as_soon_as_its_result(system: System) -> None:
    told = system.nodus("run", str(APPS / "echo" / "echo.py")).splitlines()
    # `run` shows what workers print as well.
    assert [line for line in told if line.startswith("log:")] == [
        "log: saying one",
        "log: saying two",
        "log: saying three",
    ]


async def test_workers_keep_the_values_they_began_with_until_they_are_asked_to_refresh(system: System) -> None:
    system.nodus("secret", "create", "rotated", "--from-literal", "WORD=first-word")
    system.nodus("deploy", str(APPS / "rotating" / "rotating.py"))
    call = "import nodus; print(nodus.Function.from_name('rotating', 'tell').remote())"
    assert system.python(call).strip() == "first-word"
    system.python("import nodus; nodus.Secret.create('rotated', {'WORD': 'second-word'})")
    assert system.python(call).strip() == "first-word"
    system.nodus("request", "refresh-secrets", "function/rotating-tell")
    await eventually(lambda: system.python(call).strip() == "second-word", within=90)

    def handled() -> bool:
        [function] = system.objects("functions", labelSelector="nodus.dev/app=rotating")
        asked = function["metadata"]["annotations"]["nodus.dev/refresh-secrets-requested-at"]
        return bool(function["status"].get("handledRequests", {}).get("refresh-secrets") == asked)

    await eventually(handled)
    # A pinned version stays, and a single key may come under another name.
    patch = {
        "spec": {
            "secrets": [{"name": "rotated", "version": 1}],
            "env": [{"name": "OTHER", "valueFrom": {"secretKeyRef": {"name": "rotated", "key": "WORD"}}}],
        }
    }
    system.kubectl("patch", "function", "rotating-tell", "--type=merge", "-p", json.dumps(patch))
    await eventually(lambda: system.python(call).strip() == "first-word", within=90)
    system.delete_app("rotating")
