"""Cancels of calls whose worker a command of the Function starts: nothing in it hears of a cancel but its claims."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fixtures.eventually import eventually
from tests.fixtures.system import APPS, OBJECTS, System

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

BOUND_SECONDS = 5.0
COMMAND = json.dumps({"spec": {"command": ["python", "-m", "nodus._worker"]}})
SPAWN = """
import nodus
function = nodus.Function.from_name("commanded", "{function}")
print(*(function.spawn(seconds).name for seconds in {lengths}))
"""
CANCEL = """
import json, threading, time, nodus

late_seconds = 0.0

def watch():
    # By how much this process itself is late: no promise is measured by that.
    global late_seconds
    while True:
        at = time.monotonic()
        time.sleep(0.02)
        late_seconds += max(0.0, time.monotonic() - at - 0.03)

threading.Thread(target=watch, daemon=True).start()
ends = []
for name in {names}:
    call = nodus.FunctionCall.from_name(name)
    asked_at = time.monotonic() - late_seconds
    call.cancel()
    try:
        call.get(timeout=60)
    except nodus.errors.FunctionCallFailed as error:
        ends.append([error.reason, time.monotonic() - late_seconds - asked_at])
print(json.dumps(ends))
"""


@pytest.fixture(scope="module")
def commanded(shared_system: System) -> Iterator[System]:
    """The shared system with the App `commanded`, whose workers are plain public ones."""
    shared_system.nodus("deploy", str(APPS / "commanded" / "commanded.py"))
    for function in ("coroutine", "coroutines", "thread"):
        shared_system.kubectl("patch", f"function/commanded-{function}", "--type=merge", "-p", COMMAND)
    yield shared_system
    shared_system.delete_app("commanded")


def spawn(system: System, function: str, *lengths: float) -> list[str]:
    return system.python(SPAWN.format(function=function, lengths=list(lengths))).split()


def status(system: System, name: str) -> dict[str, Any]:
    with system.http() as client:
        found: dict[str, Any] = client.get(f"{OBJECTS}/functioncalls/{name}").json()["status"]
        return found


async def until(system: System, name: str, *phases: str) -> dict[str, Any]:
    await eventually(lambda: status(system, name)["phase"] in phases, within=120, every=0.1)
    return status(system, name)


@pytest.mark.parametrize("function", ["coroutine", "thread"])
async def test_a_running_call_and_one_that_waits_behind_it_end_in_time(commanded: System, function: str) -> None:
    running, waiting = spawn(commanded, function, 200, 200)
    await until(commanded, running, "Running")
    ends = json.loads(commanded.python(CANCEL.format(names=[waiting, running])))
    assert [reason for reason, _ in ends] == ["Cancelled", "Cancelled"]
    assert max(seconds for _, seconds in ends) < BOUND_SECONDS, ends
    # Its worker went with it, and the next one serves.
    [after] = spawn(commanded, function, 0)
    served = await until(commanded, after, "Succeeded", "Failed")
    assert served["phase"] == "Succeeded"
    assert served["worker"]["attempt"] != status(commanded, running)["worker"]["attempt"]


async def test_the_neighbour_of_a_cancelled_call_goes_on_and_is_not_run_again(commanded: System) -> None:
    beside, cancelled = spawn(commanded, "coroutines", 20, 200)
    for name in (beside, cancelled):
        await until(commanded, name, "Running")
    commanded.python(CANCEL.format(names=[cancelled]))
    assert (await until(commanded, cancelled, "Cancelled", "Failed"))["phase"] == "Cancelled"
    ended = await until(commanded, beside, "Succeeded", "Failed")
    assert (ended["phase"], ended["recoveries"]) == ("Succeeded", 0)
