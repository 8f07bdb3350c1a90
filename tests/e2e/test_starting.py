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

    await eventually(rolled, within=90)


def failed_starts(system: System, function: str) -> list[str]:
    """Why starts of the Function's workers failed."""
    attempts = [one["status"] for one in system.objects("attempts", labelSelector=f"nodus.dev/function={function}")]
    return [status["message"] for status in attempts if status.get("reason") == "StartFailed"]


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
            [found] = system.objects("functions", fieldSelector=f"metadata.name={FUNCTION}")
            message: str = found["status"].get("message", "")
            return message if "init command" in message else None

        message = await eventually(told, within=120)
        assert "its init command exited with code 3\nbroken" in message
        failed = failed_starts(system, FUNCTION)
        assert failed
        assert set(failed) == {"its init command exited with code 3"}
    finally:
        system.delete_app("prepared")


async def test_a_call_asks_a_sidecar_and_the_end_of_one_is_told_by_name(system: System) -> None:
    system.nodus("deploy", str(APPS / "prepared" / "prepared.py"))
    try:
        beside = {"name": "web", "command": ["sh", "-c", SERVE], "env": [{"name": "WORD", "value": "hello"}]}
        await patch(system, "prepared-asked", sidecars=[beside])
        assert system.python(ASK) == "hello\n"
        # Unlike those of the call, the lines of what runs beside it may come after its result.
        wanted = ("[web] 127.0.0.1", "GET /word")
        await eventually(lambda: all(words in system.nodus("logs", "function/prepared-asked") for words in wanted))
        await patch(system, "prepared-asked", sidecars=[{**beside, "command": ["sh", "-c", "exit 3"]}])
        system.python(SPAWN.replace("made", "asked"))

        def told() -> str | None:
            [found] = system.objects("functions", fieldSelector="metadata.name=prepared-asked")
            message: str = found["status"].get("message", "")
            return message if "sidecar" in message else None

        assert "because its sidecar 'web' exited with code 3" in await eventually(told, within=120)
        assert any("its sidecar 'web' exited with code 3" in why for why in failed_starts(system, "prepared-asked"))
    finally:
        system.delete_app("prepared")
