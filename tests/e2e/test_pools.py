"""Pools of the whole system as users meet them: windows, the command line's verbs, and what a large pool leaves."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.fixtures.eventually import eventually
from tests.fixtures.system import APPS, System

pytestmark = pytest.mark.e2e

FULL_LONG_SECONDS = 60
CI_LONG_SECONDS = 8

ONE = """
import json, nodus
print(nodus.Function.from_name("pool", "{function}").remote({argument!r}))
"""

# A user's program that calls again about when its last calls' workers are about to go: a little before the window has
# passed, just then, and a little after.
AROUND_THE_WINDOW = """
import json, time, nodus
nap = nodus.Function.from_name("pool", "nap")
names = []
for round in range({rounds}):
    calls = [nap.spawn(0) for _ in range({calls})]
    for call in calls:
        call.get(timeout=60)
    names += [call.name for call in calls]
    time.sleep({window} + (round % 9 - 4) / 4)
print(json.dumps(names))
"""


@pytest.fixture(scope="module")
def pool(shared_system: System) -> System:
    """The shared system with the App `pool` deployed."""
    shared_system.nodus("deploy", str(APPS / "pool" / "pool.py"))
    return shared_system


def call(system: System, function: str, argument: object, timeout: float = 120) -> str:
    return system.python(ONE.format(function=function, argument=argument), timeout=timeout).strip()


def function(system: System, name: str) -> dict[str, Any]:
    [found] = [one for one in system.objects("functions") if one["metadata"]["name"] == name]
    return found


def attempts(system: System, name: str) -> dict[str, dict[str, Any]]:
    """The Attempts of a Function by name."""
    found = system.objects("attempts", labelSelector=f"nodus.dev/function={name}")
    return {one["metadata"]["name"]: one for one in found}


@pytest.mark.case("C38")
def test_a_call_that_outlasts_the_window_many_times_keeps_its_worker(pool: System, full: bool) -> None:
    seconds = FULL_LONG_SECONDS if full else CI_LONG_SECONDS
    worker = call(pool, "nap", seconds, timeout=seconds + 60)
    [found] = [one for one in pool.calls("pool-nap") if one["status"]["worker"]["attempt"] == worker]
    assert (found["status"]["phase"], found["status"]["recoveries"], found["status"]["retries"]) == ("Succeeded", 0, 0)


@pytest.mark.case("C38")
def test_calls_that_come_as_the_window_ends_all_succeed_at_their_first_dispatch(pool: System, full: bool) -> None:
    rounds, calls = (20, 10) if full else (9, 4)
    names = json.loads(
        pool.python(AROUND_THE_WINDOW.format(rounds=rounds, calls=calls, window=2), timeout=rounds * 15 + 60)
    )
    told = {one["metadata"]["name"]: one["status"] for one in pool.calls("pool-nap")}
    assert len(names) == rounds * calls
    assert {(told[name]["phase"], told[name]["recoveries"], told[name]["retries"]) for name in names} == {
        ("Succeeded", 0, 0)
    }


async def test_stop_lets_the_workers_go_while_calls_queue_and_start_runs_them(pool: System) -> None:
    worker = call(pool, "say", "before")
    pool.nodus("stop", "function/pool-say")
    await eventually(lambda: function(pool, "pool-say")["status"]["phase"] == "Stopped")
    stopped = function(pool, "pool-say")["status"]
    assert stopped["workers"] == {"ready": 0, "busy": 0, "idle": 0, "starting": 0, "draining": 0}
    ended = attempts(pool, "pool-say")[worker]["status"]
    assert (ended["phase"], ended["reason"]) == ("Cancelled", "Stopped")

    queued = pool.python('import nodus; print(nodus.Function.from_name("pool", "say").spawn("later").name)').strip()
    await eventually(lambda: function(pool, "pool-say")["status"]["queue"]["queued"] == 1)
    assert "Stopped" in pool.nodus("describe", "function/pool-say")
    pool.nodus("start", "function/pool-say")
    got = pool.python(f"import nodus; print(nodus.FunctionCall.from_name({queued!r}).get(timeout=120))").strip()
    assert got != worker
    await eventually(lambda: function(pool, "pool-say")["status"]["phase"] == "Running")


async def test_a_restart_replaces_the_workers_and_is_acknowledged(pool: System) -> None:
    before = call(pool, "say", "old")
    pool.nodus("rollout", "restart", "function/pool-say")
    asked = function(pool, "pool-say")["metadata"]["annotations"]["nodus.dev/restart-requested-at"]
    await eventually(lambda: function(pool, "pool-say")["status"].get("handledRequests", {}).get("restart") == asked)
    await eventually(lambda: "finishedTime" in attempts(pool, "pool-say")[before]["status"]["timings"])
    assert call(pool, "say", "new") != before
    old = attempts(pool, "pool-say")[before]
    assert (old["status"]["phase"], old["status"]["reason"]) == ("Cancelled", "Released")


def test_attempts_are_listed_and_described(pool: System) -> None:
    worker = call(pool, "say", "shown")
    assert worker in pool.nodus("get", "attempts", "-l", "nodus.dev/function=pool-say")
    told = pool.nodus("describe", f"attempt/{worker}")
    assert "Running" in told
    assert "Running" in pool.nodus("describe", "function/pool-say")


async def test_a_followed_log_shows_lines_as_they_are_printed(pool: System) -> None:
    call(pool, "say", "earlier")
    with followed(pool, "function/pool-say") as log:
        call(pool, "say", "while somebody looks")
        await eventually(lambda: "said while somebody looks" in log())


async def test_a_worker_that_outgrows_its_memory_is_told_apart_from_one_that_exits(pool: System) -> None:
    assert call(pool, "eat", 1 << 20) == str(1 << 20)
    name = pool.python('import nodus; print(nodus.Function.from_name("pool", "eat").spawn(2 << 30).name)').strip()

    def ended() -> list[dict[str, Any]]:
        found = [one["status"] for one in attempts(pool, "pool-eat").values()]
        return [one for one in found if one["phase"] == "Failed"]

    [first, *_] = await eventually(ended, within=120)
    assert (first["reason"], first["signal"], "exitCode" in first) == ("OutOfMemory", 9, False)
    assert "more memory than" in first["message"]
    assert first["guarantees"]["memory"] == "hard"
    pool.nodus("cancel", f"functioncall/{name}")


@contextmanager
def followed(system: System, what: str) -> Iterator[Any]:
    """`nodus logs -f`, and what it has printed so far."""
    output = system.data_dir.with_suffix(".followed")
    with output.open("wb") as sink:
        process = subprocess.Popen(
            ["nodus", "logs", "-f", what], env=system.environment, stdout=sink, stderr=subprocess.STDOUT
        )
    try:
        yield output.read_text
        assert process.poll() is None, output.read_text()
    finally:
        process.kill()
        process.wait()
