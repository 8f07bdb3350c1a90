"""Cancels of running calls, with the public SDK and the public worker: how soon they end, and whom they leave alone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fixtures.eventually import eventually
from tests.fixtures.system import APPS, OBJECTS, System

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

BOUND_SECONDS = 5.0
FUNCTIONS = ("coroutine", "coroutines", "thread", "threads")

CANCEL_AT_RANDOM = """
import asyncio, json, random, time
import nodus

LENGTHS = [0.05, 0.3, 1.0, 3.0, 30.0]
rng = random.Random({seed})
ends = []

class Late:
    # By how much this process itself is late: no promise is measured by that.
    seconds = 0.0
    async def watch(self):
        while True:
            at = time.monotonic()
            await asyncio.sleep(0.02)
            self.seconds += max(0.0, time.monotonic() - at - 0.03)

late = Late()

async def one(function, number):
    call = await function.spawn.aio(LENGTHS[number % len(LENGTHS)])
    await asyncio.sleep(rng.uniform(0, 0.3))
    asked_at = time.monotonic() - late.seconds
    await call.cancel.aio()
    try:
        await call.get.aio()
        end = "Succeeded"
    except nodus.errors.FunctionCallFailed as error:
        end = error.reason
    ends.append((call.name, end, round(time.monotonic() - late.seconds - asked_at, 3)))

async def main():
    watching = asyncio.create_task(late.watch())
    functions = [nodus.Function.from_name("stopped", name) for name in {functions}]
    await asyncio.gather(*(function.remote.aio(0.0) for function in functions))
    for first in range(0, {count}, {wave}):
        await asyncio.gather(*(one(each, first + n) for each in functions for n in range({wave})))
    watching.cancel()

asyncio.run(main())
print(json.dumps(ends))
"""
SPAWN = """
import nodus
function = nodus.Function.from_name("{app}", "{function}")
print(*(function.spawn(seconds).name for seconds in {lengths}))
"""
CANCEL = """
import nodus
nodus.FunctionCall.from_name("{name}").cancel()
"""


@pytest.fixture(scope="module")
def stopped(shared_system: System) -> Iterator[System]:
    """The shared system with the App `stopped`."""
    shared_system.nodus("deploy", str(APPS / "stopped" / "stopped.py"))
    yield shared_system
    shared_system.delete_app("stopped")


def spawn(system: System, function: str, *lengths: float, app: str = "stopped") -> list[str]:
    return system.python(SPAWN.format(app=app, function=function, lengths=list(lengths))).split()


def call(system: System, name: str) -> dict[str, Any]:
    with system.http() as client:
        found: dict[str, Any] = client.get(f"{OBJECTS}/functioncalls/{name}").json()["status"]
        return found


async def until(system: System, name: str, *phases: str) -> None:
    await eventually(lambda: call(system, name)["phase"] in phases, within=120, every=0.05)


@pytest.mark.case("C24")
def test_a_thousand_calls_cancelled_while_they_start_end_within_five_seconds(stopped: System, full: bool) -> None:
    # As many at once as a small machine carries without being late itself.
    count, wave = (252, 4) if full else (12, 3)
    program = CANCEL_AT_RANDOM.format(seed=24, functions=FUNCTIONS, count=count, wave=wave)
    ends = json.loads(stopped.python(program, timeout=800).splitlines()[-1])
    assert len(ends) == count * len(FUNCTIONS)
    assert {end for _, end, _ in ends} <= {"Cancelled", "Succeeded"}
    assert [end for end in ends if end[2] > BOUND_SECONDS] == []


async def test_a_cancelled_coroutine_leaves_its_worker_and_its_neighbours_alone(stopped: System) -> None:
    beside, cancelled = spawn(stopped, "coroutines", 30, 200)
    for name in (beside, cancelled):
        await until(stopped, name, "Running")
    stopped.python(CANCEL.format(name=cancelled))
    await until(stopped, cancelled, "Cancelled")
    assert call(stopped, beside)["phase"] == "Running"
    [again] = spawn(stopped, "coroutines", 0)
    await until(stopped, again, "Succeeded")
    await until(stopped, beside, "Succeeded", "Failed")
    ends = [call(stopped, name) for name in (beside, cancelled, again)]
    assert [end["phase"] for end in ends] == ["Succeeded", "Cancelled", "Succeeded"]


async def test_a_thread_that_goes_on_ends_with_its_worker_after_its_neighbours_have_finished(stopped: System) -> None:
    """The one case that takes longer than 5 s: nobody can stop the thread, and what runs beside it is not harmed."""
    beside, cancelled = spawn(stopped, "waits_in_thread", 30, 200)
    for name in (beside, cancelled):
        await until(stopped, name, "Running")
    stopped.python(CANCEL.format(name=cancelled))
    await until(stopped, beside, "Succeeded", "Failed", "Recovering")
    assert (call(stopped, beside)["phase"], call(stopped, beside)["recoveries"]) == ("Succeeded", 0)
    assert call(stopped, cancelled)["phase"] in ("Cancelling", "Cancelled")
    await until(stopped, cancelled, "Cancelled")


WAIT = """
import nodus
try:
    nodus.FunctionCall.from_name("{name}").get(timeout=60)
except nodus.errors.FunctionCallFailed as error:
    print(error.reason)
"""


async def test_deleting_a_call_a_function_or_an_app_ends_what_runs_and_what_waits(stopped: System) -> None:
    stopped.nodus("deploy", str(APPS / "doomed" / "doomed.py"))
    names = {function: spawn(stopped, function, 200, 200, 200, app="doomed") for function in ("first", "second")}
    for runs, *_ in names.values():
        await until(stopped, runs, "Running")
    runs, waits, last = names["first"]
    waiter = subprocess.Popen(
        [sys.executable, "-c", WAIT.format(name=runs)], env=stopped.environment, stdout=subprocess.PIPE, text=True
    )
    stopped.kubectl("delete", "functioncall", waits, "--timeout=60s")
    stopped.kubectl("delete", "functioncall", runs, "--timeout=60s")
    # Whether it was still there when the waiter began to look, or not, it ends.
    assert waiter.communicate(timeout=60)[0].strip() in ("Cancelled", "")
    for name in (runs, waits):
        assert "not found" in stopped.run("kubectl", "get", "functioncall", name, check=False).stderr
    await until(stopped, last, "Running")
    stopped.kubectl("delete", "function", "doomed-first", "--timeout=60s")
    stopped.kubectl("delete", "app", "doomed", "--timeout=60s")
    for name in (last, *names["second"]):
        # An App is gone before its Functions, which end their calls.
        await until(stopped, name, "Failed", "Cancelled", "Succeeded")
        end = call(stopped, name)
        assert (end["phase"], end["reason"]) == ("Failed", "FunctionDeleted")

    def workers() -> set[str]:
        return {
            attempt["status"]["phase"]
            for attempt in stopped.objects("attempts")
            if attempt["metadata"]["labels"].get("nodus.dev/app") == "doomed"
        }

    await eventually(lambda: workers() <= {"Cancelled", "Succeeded", "Failed"})
