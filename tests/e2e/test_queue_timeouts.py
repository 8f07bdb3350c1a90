"""Calls that wait longer for a worker than their Function allows, as its users meet it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.eventually import eventually
from tests.fixtures.system import APPS, OBJECTS, System, installation

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

PATIENCE_SECONDS = 20
"""Enough for a cold start and for a look at calls that wait, however slow the machine, and less than what they wait
behind."""
PATIENCE = json.dumps({"spec": {"placement": {"queueTimeout": f"{PATIENCE_SECONDS}s"}}})
BUSY_SECONDS = 45
SPAWN = """
import json, nodus
function = nodus.Function.from_name("pool", "{function}")
print(json.dumps([function.spawn(argument).name for argument in {arguments}]))
"""
WAIT = """
import json, time, nodus
from nodus import errors
told = []
for name in {names}:
    try:
        told.append(nodus.FunctionCall.from_name(name).get(timeout=60))
    except errors.FunctionCallFailed as error:
        told.append([error.reason, str(error)])
print(json.dumps(told))
"""


@pytest.fixture
def narrow(tmp_path: Path) -> Iterator[System]:
    """A host with room for one worker, where calls that wait have no workflow, and two Functions of little patience."""
    with installation(tmp_path / "data", {"workers_max": "1", "open_workflows_max": "0"}) as system:
        system.start()
        system.nodus("deploy", str(APPS / "pool" / "pool.py"))
        for function in ("nap", "say"):
            system.kubectl("patch", f"function/pool-{function}", "--type=merge", "-p", PATIENCE)
        yield system


def spawn(system: System, function: str, *arguments: object) -> list[str]:
    names: list[str] = json.loads(system.python(SPAWN.format(function=function, arguments=list(arguments))))
    return names


def get(system: System, path: str) -> dict[str, Any]:
    with system.http() as client:
        found: dict[str, Any] = client.get(f"{OBJECTS}/functioncalls/{path}").json()["status"]
        return found


async def test_calls_that_get_no_worker_in_their_time_fail_for_want_of_capacity(narrow: System) -> None:
    """Behind a call that keeps the only worker of their Function, and of a Function that no host has room for."""
    [running] = spawn(narrow, "nap", BUSY_SECONDS)
    await eventually(lambda: get(narrow, running)["phase"] == "Running", within=120, every=0.2)
    waiting = [*spawn(narrow, "nap", 0, 0), *spawn(narrow, "say", "hello")]
    assert [get(narrow, f"{name}/wait")["engine"]["hasWorkflow"] for name in waiting] == [False] * len(waiting)
    for reason, message in json.loads(narrow.python(WAIT.format(names=waiting))):
        assert reason == "CapacityUnavailable"
        told = f"no worker took the call within {PATIENCE_SECONDS}s, the `placement.queueTimeout` of its Function"
        assert told in message
    for name in waiting:
        ended = get(narrow, name)
        assert (ended["phase"], ended["costUSD"], ended["retries"], ended["recoveries"]) == ("Failed", "0.00", 0, 0)
        assert "worker" not in ended
        assert [each["cause"] for each in get(narrow, f"{name}/timeline")["dispatches"]] == []
    # The one that runs is not meant, and a call that comes when there is room again is served.
    [attempt] = json.loads(narrow.python(WAIT.format(names=[running]), timeout=150))
    assert get(narrow, running)["worker"]["attempt"] == attempt
    [served] = spawn(narrow, "nap", 0)
    assert len(json.loads(narrow.python(WAIT.format(names=[served])))) == 1
    assert get(narrow, served)["phase"] == "Succeeded"
