"""What becomes of a body that nobody can stop, with the public worker: after a cancel, and after a deadline."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from controlplane.settings import Settings
from tests.fixtures.eventually import eventually
from tests.fixtures.system import APPS, OBJECTS, System, installation

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

MERGE = {"Content-Type": "application/merge-patch+json"}
SPAWN = """
import nodus
print(nodus.Function.from_name("zombie", "{function}").spawn({argument}).name)
"""
CANCEL = """
import nodus
for name in {names}:
    nodus.FunctionCall.from_name(name).cancel()
"""


@pytest.fixture
def zombie(system: System) -> Iterator[System]:
    """The shared system with the App `zombie`."""
    system.nodus("deploy", str(APPS / "zombie" / "zombie.py"))
    yield system
    system.delete_app("zombie")


def spawn(system: System, function: str, argument: int) -> str:
    return system.python(SPAWN.format(function=function, argument=argument)).strip()


def status(system: System, name: str, plural: str = "functioncalls") -> dict[str, Any]:
    with system.http() as client:
        found: dict[str, Any] = client.get(f"{OBJECTS}/{plural}/{name}").json()["status"]
        return found


async def until(system: System, name: str, *phases: str) -> dict[str, Any]:
    """The status of a call once it is in one of these phases."""

    def there() -> dict[str, Any] | None:
        found = status(system, name)
        return found if found["phase"] in phases else None

    found: dict[str, Any] = await eventually(there, within=120, every=0.2)
    return found


def last_line_at(system: System, name: str) -> datetime:
    """When the call printed for the last time."""
    with system.http() as client:
        log = client.get(f"{OBJECTS}/functioncalls/{name}/log", params={"timestamps": "true"}).text
    return datetime.fromisoformat(log.strip().splitlines()[-1].split()[0][:26].rstrip("Z") + "+00:00")


@pytest.mark.case("C23")
async def test_a_cancelled_call_is_cancelling_until_its_thread_or_coroutine_is_gone(zombie: System) -> None:
    thread, coroutine = spawn(zombie, "tick", 400), spawn(zombie, "rest", 200)
    for name in (thread, coroutine):
        await until(zombie, name, "Running")
    zombie.python(CANCEL.format(names=[coroutine]))
    stopped = await until(zombie, coroutine, "Cancelled")
    assert stopped["reason"] == "Cancelled"
    # Its worker is as good as before.
    assert status(zombie, stopped["worker"]["attempt"], "attempts")["phase"] == "Running"
    with zombie.http() as client:
        path = f"{OBJECTS}/functioncalls/{thread}"
        answer = client.patch(path, json={"spec": {"state": "Cancelled"}}, headers=MERGE)
    assert answer.json()["status"]["phase"] == "Cancelling"
    beside = spawn(zombie, "tick", 1)
    ended = await until(zombie, thread, "Cancelled", "Failed", "Succeeded")
    assert ended["phase"] == "Cancelled"
    completed_at = datetime.fromisoformat(ended["completionTime"])
    # The node sends lines in the end; their clock is this one's, and the object tells whole seconds.
    assert last_line_at(zombie, thread) <= completed_at + timedelta(seconds=2)
    assert last_line_at(zombie, thread) >= completed_at - timedelta(seconds=60)
    worker = status(zombie, ended["worker"]["attempt"], "attempts")
    assert worker["phase"] in ("Succeeded", "Failed", "Cancelled")
    served = await until(zombie, beside, "Succeeded")
    assert served["worker"]["attempt"] != ended["worker"]["attempt"]


@pytest.mark.case("C14")
async def test_a_body_that_outlives_its_deadline_goes_with_its_worker_and_is_not_run_again(zombie: System) -> None:
    name = spawn(zombie, "late", 400)
    ended = await until(zombie, name, "Failed", "Succeeded", "Cancelled")
    assert (ended["reason"], ended["retries"], ended["recoveries"]) == ("DeadlineExceeded", 0, 0)
    ran = datetime.fromisoformat(ended["completionTime"]) - datetime.fromisoformat(ended["startTime"])
    # By the word of its worker: the server alone would have waited for longer.
    assert timedelta(seconds=9) <= ran <= timedelta(seconds=Settings().deadline_grace_seconds)
    beside = spawn(zombie, "late", 0)
    served = await until(zombie, beside, "Succeeded", "Failed")
    assert (served["phase"], served["worker"]["attempt"] != ended["worker"]["attempt"]) == ("Succeeded", True)

    def gone() -> dict[str, Any] | None:
        worker = status(zombie, ended["worker"]["attempt"], "attempts")
        return worker if worker["phase"] in ("Succeeded", "Failed", "Cancelled") else None

    worker = await eventually(gone, within=120, every=0.2)
    went_at = datetime.fromisoformat(worker["timings"]["finishedTime"])
    assert went_at - datetime.fromisoformat(ended["completionTime"]) <= timedelta(seconds=60)
    # Nothing of the body is left, and nobody began it again.
    lines = worker_lines(zombie, ended["worker"]["attempt"])
    assert lines == [f"tick {number}" for number in range(len(lines))]
    assert status(zombie, name) == ended


def worker_lines(system: System, attempt: str) -> list[str]:
    """All that a worker printed."""
    with system.http() as client:
        return client.get(f"{OBJECTS}/attempts/{attempt}/log").text.splitlines()


@pytest.fixture
def strict(tmp_path: Path) -> Iterator[System]:
    """A system that waits seconds, not a minute, for what a worker should have said by itself."""
    with installation(tmp_path / "data", {"deadline_grace_seconds": "4", "cancel_grace_seconds": "4"}) as system:
        system.start()
        system.nodus("deploy", str(APPS / "zombie" / "zombie.py"))
        yield system


@pytest.mark.case("blocked-loop")
async def test_a_coroutine_that_blocks_its_event_loop_is_ended_by_its_deadline_and_by_a_cancel(strict: System) -> None:
    overdue, cancelled = spawn(strict, "block", 600), spawn(strict, "block_long", 600)
    await until(strict, cancelled, "Running")
    strict.python(CANCEL.format(names=[cancelled]))
    late, stopped = [await until(strict, name, "Failed", "Succeeded", "Cancelled") for name in (overdue, cancelled)]
    assert (late["phase"], late["reason"], late["retries"], late["recoveries"]) == ("Failed", "DeadlineExceeded", 0, 0)
    assert (stopped["phase"], stopped["recoveries"]) == ("Cancelled", 0)
    ran = datetime.fromisoformat(late["completionTime"]) - datetime.fromisoformat(late["startTime"])
    assert ran >= timedelta(seconds=7)
    # The workers are gone with them, and others take what comes next.
    served = await until(strict, spawn(strict, "block", 0), "Succeeded", "Failed", "Cancelled")
    assert (served["phase"], served["worker"]["attempt"] != late["worker"]["attempt"]) == ("Succeeded", True)
