"""New versions of a Function under its calls, in the whole system: good ones, quick ones, and one that cannot start."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from controlplane.clock import parse_time
from tests.fixtures.eventually import eventually
from tests.fixtures.system import System

pytestmark = pytest.mark.e2e

APP = """
import os, time
import nodus

app = nodus.App("rolled")
{line}

@app.function(timeout="120s", min_workers=1, max_workers=2, scaledown_window="20m")
def version(seconds):
    # A line for each time that a body runs, and the version that it began on.
    print("began", os.environ["NODUS_ATTEMPT"], flush=True)
    time.sleep(seconds)
    return "{version}"
"""
BROKEN = 'if "NODUS_FUNCTION" in os.environ:\n    import no_such_module'

SPAWN = """
import json, nodus
version = nodus.Function.from_name("rolled", "version")
print(json.dumps([version.spawn({seconds}).name for _ in range({count})]))
"""
COLLECT = """
import json, nodus
print(json.dumps([nodus.FunctionCall.from_name(name).get(timeout=240) for name in {names}]))
"""


@pytest.fixture
def deploy(system: System, tmp_path: Path) -> Callable[..., None]:
    """Deploy a version of the App."""

    def deployed(version: str, line: str = "") -> None:
        (tmp_path / "rolled.py").write_text(APP.format(version=version, line=line))
        system.nodus("deploy", str(tmp_path / "rolled.py"), cwd=tmp_path)

    return deployed


def spawn(system: System, count: int, seconds: float) -> list[str]:
    names: list[str] = json.loads(system.python(SPAWN.format(count=count, seconds=seconds)))
    return names


def collect(system: System, names: list[str]) -> list[str]:
    told: list[str] = json.loads(system.python(COLLECT.format(names=names), timeout=250))
    return told


def function(system: System) -> dict[str, Any]:
    [found] = [one for one in system.objects("functions") if one["metadata"]["name"] == "rolled-version"]
    return found


def ready(system: System) -> tuple[str, str]:
    """Status and reason of the Function's Ready condition."""
    conditions = function(system)["status"]["conditions"]
    [found] = [condition for condition in conditions if condition["type"] == "Ready"]
    return found["status"], found["reason"]


def versions_served(system: System) -> dict[str, tuple[datetime, datetime | None]]:
    """By worker, from when and until when it took calls."""
    served = {}
    for attempt in system.objects("attempts", labelSelector="nodus.dev/function=rolled-version"):
        timings = attempt["status"]["timings"]
        if "registeredTime" in timings:
            gone = parse_time(timings["finishedTime"]) if "finishedTime" in timings else None
            served[attempt["metadata"]["name"]] = (parse_time(timings["registeredTime"]), gone)
    return served


@pytest.mark.case("C54")
async def test_calls_that_run_while_versions_come_and_one_is_broken_are_each_run_once_on_one_of_them(
    system: System, deploy: Callable[..., None], full: bool
) -> None:
    count, seconds = (100, 5) if full else (20, 1.5)
    deploy("a1")
    assert collect(system, spawn(system, 1, 0)) == ["a1"]
    names = spawn(system, count, seconds)
    deployed = {"a1": datetime.fromtimestamp(0, UTC)}
    for version, line in (("a2", ""), ("broken", BROKEN), ("a3", ""), ("a4", "")):
        deployed[version] = datetime.now(UTC)
        deploy(version, line)
        if version == "broken":
            await eventually(lambda: ready(system) == ("False", "StartupFailed"), within=90)
    told = dict(zip(names, collect(system, names), strict=True))
    assert set(told.values()) <= set(deployed) - {"broken"}

    calls = {call["metadata"]["name"]: call for call in system.calls("rolled-version")}
    served = versions_served(system)
    ran_on: dict[str, set[str]] = {}
    for name, version in told.items():
        status = calls[name]["status"]
        assert (status["phase"], status["recoveries"], status["retries"]) == ("Succeeded", 0, 0)
        worker = status["worker"]["attempt"]
        ran_on.setdefault(worker, set()).add(version)
        began, (ready_at, gone) = parse_time(status["startTime"]), served[worker]
        # It began while its worker served, and on nothing that was not there yet: times are told in whole seconds.
        second = timedelta(seconds=1)
        assert ready_at - second <= began <= (gone or began) + second
        assert deployed[version] - second <= began
    assert all(len(versions) == 1 for versions in ran_on.values()), ran_on
    # Once the last version alone serves, nothing begins on another.
    await eventually(lambda: ready(system) == ("True", "WorkersReady"))
    await eventually(lambda: collect(system, spawn(system, 2, 0)) == ["a4"] * 2)
    # The bodies of the calls, those of the first one and of the last look: each wrote its line once.
    log = system.nodus("logs", "function/rolled-version")
    bodies = Counter(line.split("began ")[1].split()[0] for line in log.splitlines() if "began att-" in line)
    held = Counter(call["status"]["worker"]["attempt"] for call in system.calls("rolled-version"))
    assert bodies == held


@pytest.mark.case("C54")
async def test_quick_versions_end_no_call_and_a_broken_one_leaves_the_old_workers_at_work(
    system: System, deploy: Callable[..., None], full: bool
) -> None:
    count, seconds = (16, 20) if full else (8, 2)
    deploy("v1")
    await eventually(lambda: collect(system, spawn(system, 1, 0)) == ["v1"])
    names = spawn(system, count, seconds)
    for version in ("v2", "v3", "v4"):
        deploy(version)
    told = collect(system, names)
    assert set(told) <= {"v1", "v2", "v3", "v4"}
    calls = [call for call in system.calls("rolled-version") if call["metadata"]["name"] in names]
    assert {(call["status"]["phase"], call["status"]["recoveries"]) for call in calls} == {("Succeeded", 0)}
    await eventually(lambda: collect(system, spawn(system, 1, 0)) == ["v4"])

    deploy("v5", BROKEN)
    await eventually(lambda: ready(system) == ("False", "StartupFailed"), within=90)
    assert collect(system, spawn(system, 3, 0)) == ["v4"] * 3
    assert "before its first claim" in str(function(system)["status"]["conditions"])

    deploy("v6")
    await eventually(lambda: collect(system, spawn(system, 1, 0)) == ["v6"], within=90)
    await eventually(lambda: ready(system) == ("True", "WorkersReady"))
