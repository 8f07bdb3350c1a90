"""A command before the worker, and one in place of it, as kubectl sets them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fixtures.eventually import eventually
from tests.fixtures.system import APPS, System

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

FUNCTION = "prepared-made"
CALL = 'import nodus; print(nodus.Function.from_name("prepared", "made").remote())'
SPAWN = 'import nodus; nodus.Function.from_name("prepared", "made").spawn()'


ASK = CALL.replace("made", "asked")
SERVE = "echo $WORD > word; exec python -m http.server --bind 127.0.0.1 8000"


async def patch(system: System, function: str = FUNCTION, **spec: Any) -> None:
    """Change the Function, and wait until no worker of before takes calls."""
    system.kubectl("patch", f"function/{function}", "--type=merge", "-p", json.dumps({"spec": spec}))

    def rolled() -> bool:
        [found] = system.objects("functions", fieldSelector=f"metadata.name={function}")
        seen = found["status"].get("observedGeneration") == found["metadata"]["generation"]
        return bool(seen and found["status"]["workers"]["ready"] == 0)

    await eventually(rolled, within=60)


async def test_commands_of_a_function_run_and_a_failed_one_is_told_with_its_output(system: System) -> None:
    system.nodus("deploy", str(APPS / "prepared" / "prepared.py"))
    try:
        await patch(system, initCommand={"command": ["sh", "-c", "echo made > made"]})
        assert system.python(CALL) == "made in the public worker\n"
        own = "STARTED_BY='a command' exec python -m nodus._worker"
        await patch(system, command=["sh", "-c"], args=[own])
        assert system.python(CALL) == "made in a command\n"
        await patch(system, initCommand={"command": ["sh", "-c", "echo broken >&2; exit 3"]})
        system.python(SPAWN)

        def told() -> str | None:
            message = system.objects("functions", fieldSelector=f"metadata.name={FUNCTION}")[0]["status"]["message"]
            return message if "init command" in message else None

        message = await eventually(told, within=120)
        assert "its init command exited with code 3\nbroken" in message
        failed = [a for a in system.objects("attempts") if a["status"].get("reason") == "StartFailed"]
        assert failed
        assert {attempt["status"]["message"] for attempt in failed} == {"its init command exited with code 3"}
    finally:
        system.delete_app("prepared")


async def test_a_call_asks_a_sidecar_and_the_end_of_one_is_told_by_name(system: System) -> None:
    system.nodus("deploy", str(APPS / "prepared" / "prepared.py"))
    try:
        beside = {"name": "web", "command": ["sh", "-c", SERVE], "env": [{"name": "WORD", "value": "hello"}]}
        await patch(system, "prepared-asked", sidecars=[beside])
        assert system.python(ASK) == "hello\n"
        logged = system.nodus("logs", "function/prepared-asked")
        assert "[web] 127.0.0.1" in logged
        assert "GET /word" in logged
        await patch(system, "prepared-asked", sidecars=[{**beside, "command": ["sh", "-c", "exit 3"]}])
        system.python(SPAWN.replace("made", "asked"))

        def told() -> str | None:
            [found] = system.objects("functions", fieldSelector="metadata.name=prepared-asked")
            message: str = found["status"]["message"]
            return message if "sidecar" in message else None

        assert "because its sidecar 'web' exited with code 3" in await eventually(told, within=120)
        failed = [a for a in system.objects("attempts") if "sidecar" in a["status"].get("message", "")]
        assert {attempt["status"]["reason"] for attempt in failed} == {"StartFailed"}
    finally:
        system.delete_app("prepared")
