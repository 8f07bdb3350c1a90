"""What no death may cost: calls, results, keys."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError

from tests.fixtures.eventually import eventually
from tests.fixtures.system import APPS, OBJECTS, ROOT, System

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

SPAWN = """
import nodus
nap = nodus.Function.from_name("slow", "nap")
for index in range({count}):
    print(nap.spawn(index, {first_seconds} if index < {workers} else {seconds}).name)
"""
WORKERS = 4
"""Of the Function; `max_workers` in the file."""
SEEN_SECONDS = 30
"""Calls that take this long still run when all of them have been spawned and looked at, however slow the machine."""
COLLECT = """
import json, nodus
print(json.dumps([nodus.FunctionCall.from_name(name).get(timeout=120) for name in {names}]))
"""


@pytest.fixture
def slow(own_system: System) -> System:
    """A system of the test's own with the App `slow` deployed and its first worker started once."""
    own_system.start()
    own_system.nodus("deploy", str(APPS / "slow" / "slow.py"))
    own_system.python("import nodus; nodus.Function.from_name('slow', 'nap').remote(0, 0)")
    return own_system


def spawn(system: System, count: int, seconds: float, first_seconds: float | None = None) -> list[str]:
    """Start calls; the first, as many as the Function has workers, may take longer."""
    first = seconds if first_seconds is None else first_seconds
    return system.python(SPAWN.format(count=count, seconds=seconds, first_seconds=first, workers=WORKERS)).split()


def collect(system: System, names: list[str]) -> list[int]:
    results: list[int] = json.loads(system.python(COLLECT.format(names=names), timeout=300))
    return results


def phases(system: System, names: list[str]) -> dict[str, int]:
    counted: dict[str, int] = {}
    for call in system.calls("slow-nap"):
        if call["metadata"]["name"] in names:
            phase = call["status"]["phase"]
            counted[phase] = counted.get(phase, 0) + 1
    return counted


@contextlib.contextmanager
def ends_seen(system: System) -> Iterator[dict[str, int]]:
    """Count, from the change log, how often each call reached a final phase since now."""
    with system.http() as client:
        rv = client.get(f"{OBJECTS}/functioncalls", params={"limit": 1}).json()["metadata"]["resourceVersion"]
    ends: dict[str, int] = {}
    yield ends
    was_final: set[str] = set()
    query = {"watch": "true", "resourceVersion": rv, "timeoutSeconds": "3"}
    with system.http() as client, client.stream("GET", f"{OBJECTS}/functioncalls", params=query) as stream:
        for line in stream.iter_lines():
            event: dict[str, Any] = json.loads(line)
            name = event["object"]["metadata"]["name"]
            final = event["object"]["status"]["phase"] in ("Succeeded", "Failed", "Cancelled")
            if final and name not in was_final:
                ends[name] = ends.get(name, 0) + 1
            (was_final.add if final else was_final.discard)(name)


async def test_a_kill_of_everything_loses_no_call_and_ends_each_once(slow: System) -> None:
    with ends_seen(slow) as ends:
        names = spawn(slow, 24, 2, first_seconds=SEEN_SECONDS)
        await eventually(lambda: phases(slow, names) == {"Running": WORKERS, "Queued": 24 - WORKERS})
        slow.kill_everything()
        slow.start()
        assert collect(slow, names) == list(range(24))
    assert phases(slow, names) == {"Succeeded": 24}
    assert {name: ends.get(name) for name in names} == dict.fromkeys(names, 1)


async def test_a_kill_of_the_supervisors_process_group_is_the_same(slow: System) -> None:
    names = spawn(slow, 6, 3, first_seconds=SEEN_SECONDS)
    await eventually(lambda: phases(slow, names).get("Running") == WORKERS)
    slow.process.kill()
    slow.process.wait()
    slow.start()
    assert collect(slow, names) == list(range(6))


async def test_without_temporals_database_no_call_is_lost(slow: System) -> None:
    names = spawn(slow, 12, 2, first_seconds=SEEN_SECONDS)
    await eventually(lambda: phases(slow, names).get("Running") == WORKERS)
    finals = ("Succeeded", "Failed", "Cancelled")
    ended = {call["metadata"]["name"] for call in slow.calls("slow-nap") if call["status"]["phase"] in finals}
    slow.kill_everything()
    shutil.rmtree(slow.data_dir / "temporal")
    slow.start()
    assert collect(slow, names) == list(range(12))
    # What had ended may have told its workflow in the database that is gone; four calls at least had not.
    await eventually(lambda: workflows_closed(slow, [name for name in names if name not in ended][-4:]), within=90)


async def workflows_closed(system: System, names: list[str]) -> bool:
    """Whether every call's workflow exists and has completed."""
    uids = [call["metadata"]["uid"] for call in system.calls("slow-nap") if call["metadata"]["name"] in names]
    try:
        client = await Client.connect(f"127.0.0.1:{system.ports['temporal']}")
        found = await asyncio.gather(*(client.get_workflow_handle(f"call/{uid}").describe() for uid in uids))
    except (RPCError, RuntimeError):  # the second from a connection that was not made in time
        return False
    return all(one.status is WorkflowExecutionStatus.COMPLETED for one in found)


async def test_while_temporal_hangs_calls_are_made_run_and_answered(slow: System) -> None:
    engine = slow.child("temporal")
    engine.send_signal(signal.SIGSTOP)
    try:
        names = spawn(slow, 3, 0.1)
        assert collect(slow, names) == [0, 1, 2]
    finally:
        engine.send_signal(signal.SIGCONT)
    await eventually(lambda: workflows_closed(slow, names), within=90)


@pytest.mark.parametrize("victim", ["api", "control", "node", "temporal", "postgres"])
async def test_any_process_may_be_killed_and_the_system_serves_on(system: System, victim: str) -> None:
    killed = system.child(victim)
    killed.kill()
    await eventually(lambda: system.is_replaced(victim, killed.pid))
    assert "hello, world" in system.nodus("run", str(ROOT / "examples" / "hello.py"), cwd=ROOT, timeout=240)


async def test_a_clean_stop_ends_everything_and_a_start_goes_on_with_the_same_key(slow: System) -> None:
    names = spawn(slow, 2, 0.1)
    assert collect(slow, names) == [0, 1]
    before = slow.variables
    processes = psutil.Process(slow.process.pid).children(recursive=True)
    assert slow.stop() == 0
    assert psutil.wait_procs(processes, timeout=60)[1] == []
    slow.start("--example", str(APPS / "slow" / "linger.py"))
    assert slow.variables == before
    assert phases(slow, names) == {"Succeeded": 2}
    assert slow.python("import nodus; print(nodus.Function.from_name('slow', 'nap').remote(5, 0))").strip() == "5"
    # The example that was begun with it goes with it, to the last process that its command started.
    await eventually(lambda: "lingering" in slow.output)
    processes = psutil.Process(slow.process.pid).children(recursive=True)
    assert slow.stop() == 0
    assert psutil.wait_procs(processes, timeout=60)[1] == []


async def test_a_second_system_on_the_same_folder_is_refused_and_one_on_another_runs_beside_it(
    system: System, own_system: System
) -> None:
    refused = subprocess.run(
        [sys.executable, "-m", "workers", "up", "--data-dir", str(system.data_dir)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert refused.returncode == 1
    assert "another nodus-server runs on" in refused.stdout
    own_system.start()
    assert not set(own_system.ports.values()) & set(system.ports.values())
    for one in (system, own_system):
        assert "hello, world" in one.nodus("run", str(ROOT / "examples" / "hello.py"), cwd=ROOT, timeout=240)
