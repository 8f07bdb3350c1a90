"""Workers that wait, confined and started, before anybody asks for one."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import dataclasses
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from runtime.environments import Environment
from runtime.host import Host, HostLimits
from runtime.plans import SidecarPlan, WorkerPlan
from runtime.process import grant_orders
from runtime.supervisor import Phase, WorkerReport, WorkerSupervisor
from runtime.templates import WORKER_START, worker_template
from runtime.variables import BASE_VARIABLES, WorkerIdentity
from tests.fixtures.eventually import eventually
from tests.runtime.conftest import LIMITS, OWN_MINOR, Log, kept_full
from tests.runtime.scripted_api import ScriptedApi

APP = "import nodus\napp = nodus.App('test')\n"
# What a user's module finds at its import: loaded modules, path, folder, variables, descriptors and threads.
INSPECTED = """
import json, os, sys, threading
print(json.dumps({
    "modules": sorted(sys.modules), "path": sys.path, "argv": sys.argv, "folder": os.getcwd(),
    "environ": dict(os.environ), "descriptors": len(os.listdir("/proc/self/fd")), "threads": threading.active_count(),
    "started_with": open("/proc/self/environ").read().split("\\0"), "locale": __import__("locale").setlocale(6),
}))
import nodus
app = nodus.App("test")
@app.function()
def target(x):
    return x * x
"""


@pytest.fixture
def host_limits(environment: Environment) -> HostLimits:
    """One warm worker; the environment it is made of is there before the host."""
    return dataclasses.replace(LIMITS, warm_workers_max=1)


@pytest.fixture
async def filled(host: Host, environment: Environment) -> AsyncIterator[Host]:
    """The host with its pool full, and being kept full."""
    async with kept_full(host, worker_template(environment, host.limits.scratch_bytes_max)):
        yield host


async def serve(host: Host, log: Log, api: ScriptedApi, **changes: Any) -> WorkerReport:
    """Run one worker until it has answered the call `one`, and let it go."""
    identity = WorkerIdentity(attempt="att_test", project="default", function="fn", concurrency=1)
    made = WorkerPlan(identity=identity, python=OWN_MINOR, token="nodusatt_test")
    phases: list[Phase] = []
    supervisor = WorkerSupervisor(host, dataclasses.replace(made, **changes), log, phases.append)
    task = asyncio.create_task(supervisor.run(host.attempt_directory("att_test")))
    try:
        await eventually(lambda: "one" in api.outcomes)
    finally:
        supervisor.drain(60)
        report = await task
        host.remove_directory("att_test")
    return report


def waiting_process(host: Host) -> psutil.Process:
    """The interpreter of the worker that waits."""
    [worker] = host.warm._waiting
    inside = psutil.Process(worker.process.pid).children(recursive=True)
    # Times are in ticks of the kernel, and a quick machine starts several processes in one.
    return max(inside, key=lambda found: (found.create_time(), len(found.parents())))


async def test_a_worker_that_waited_runs_the_attempt_and_another_takes_its_place(
    filled: Host, api: ScriptedApi, log: Log
) -> None:
    before = waiting_process(filled).pid
    api.set_code({"app.py": APP + "@app.function()\ndef target(x):\n    return x * x\n"})
    api.call("one", 3)
    report = await serve(filled, log, api)
    assert api.outcomes["one"]["outcome"] == "Succeeded"
    assert report.ending is not None
    assert (report.ending.exit_code, report.ready, report.problem) == (0, True, None)
    assert not psutil.pid_exists(before), "the worker that waited was the one that ran"
    await eventually(lambda: filled.warm.waiting == 1)
    assert waiting_process(filled).pid != before


async def inspected(host: Host, log: Log, api: ScriptedApi, **changes: Any) -> dict[str, Any]:
    api.set_code({"app.py": INSPECTED})
    api.outcomes.clear()
    api.call("one", 3)
    del log.chunks[:]
    await serve(host, log, api, **changes)
    assert api.outcomes["one"]["outcome"] == "Succeeded"
    told: dict[str, Any] = json.loads(log.text("stdout")[0])
    return told


async def test_user_code_cannot_tell_whether_its_worker_waited(filled: Host, api: ScriptedApi, log: Log) -> None:
    given = {"variables": [("MINE", "1"), ("HOME", "/tmp")], "directory": "deep/folder"}
    warm = await inspected(filled, log, api, **given)
    # Only workers of another kind wait for the second one.
    [wanted] = filled.warm._wanted
    filled.warm.expect(dataclasses.replace(wanted, spec=dataclasses.replace(wanted.spec, hostname="other")))
    await eventually(lambda: [worker.template.spec.hostname for worker in filled.warm._waiting] == ["other"])
    cold = await inspected(filled, log, api, **given)
    assert "started_with" in warm
    # The one difference: where the variables stand. Nothing of the user was there while it waited.
    assert "MINE=1" not in warm.pop("started_with")
    assert "MINE=1" in cold.pop("started_with")
    assert warm == cold


async def test_a_worker_with_sidecars_is_not_one_that_waited(filled: Host, api: ScriptedApi, log: Log) -> None:
    """Its network is made before it, and one that waits has a network already."""
    before = waiting_process(filled).pid
    api.set_code({"app.py": APP + "@app.function()\ndef target(x):\n    return x * x\n"})
    api.call("one", 3)
    await serve(filled, log, api, sidecars=[SidecarPlan(name="beside", command=["sleep", "600"])])
    assert api.outcomes["one"]["outcome"] == "Succeeded"
    assert waiting_process(filled).pid == before


@pytest.mark.parametrize(
    ("name", "value"), [("PYTHONHASHSEED", "7"), ("PYTHONPATH", "/opt/lib"), ("LC_ALL", "C"), ("PYTHONUTF8", "0")]
)
async def test_variables_for_the_interpreter_itself_are_obeyed(
    name: str, value: str, filled: Host, api: ScriptedApi, log: Log
) -> None:
    told = await inspected(filled, log, api, variables=[(name, value)])
    started_with = dict(field.split("=", 1) for field in told["started_with"] if field)
    assert started_with[name].startswith(value)
    assert told["environ"][name] == started_with[name]


async def test_nothing_of_anybody_is_in_a_worker_that_waits(filled: Host) -> None:
    process = waiting_process(filled)
    variables = process.environ()
    assert variables.items() >= dict(BASE_VARIABLES).items()
    assert not [name for name in variables if name.startswith("NODUS_")]
    assert not list(Path(f"/proc/{process.pid}/root/run/nodus").iterdir())
    assert os.geteuid() != 0 or process.uids().real >= 200_000


async def test_a_worker_that_died_while_it_waited_is_passed_over(filled: Host, api: ScriptedApi, log: Log) -> None:
    [worker] = filled.warm._waiting
    waiting_process(filled).kill()
    await eventually(lambda: not worker.process.alive)
    api.set_code({"app.py": APP + "@app.function()\ndef target(x):\n    return x * x\n"})
    api.call("one", 3)
    report = await serve(filled, log, api)
    assert report.ending is not None
    assert (report.ending.exit_code, report.problem) == (0, None)
    assert api.outcomes["one"]["outcome"] == "Succeeded"


async def test_its_limits_are_those_of_the_attempt(filled: Host, api: ScriptedApi, log: Log) -> None:
    api.set_code({"app.py": APP + "@app.function()\ndef target():\n    return len(bytearray(2 << 30))\n"})
    api.call("one")
    identity = WorkerIdentity(attempt="att_test", project="default", function="fn", concurrency=1)
    plan = WorkerPlan(identity=identity, python=OWN_MINOR, token="nodusatt_test", memory_bytes_max=200 << 20)
    supervisor = WorkerSupervisor(filled, plan, log, lambda phase: None)
    async with asyncio.timeout(60):
        report = await supervisor.run(filled.attempt_directory("att_test"))
    assert report.out_of_memory is True
    assert supervisor.warm_reuse is True


async def test_a_pool_that_ends_leaves_nothing(host: Host, environment: Environment, tmp_path: Path) -> None:
    keeping = asyncio.create_task(host.warm.run())
    host.warm.expect(worker_template(environment, host.limits.scratch_bytes_max))
    await eventually(lambda: host.warm.waiting == 1)
    process = waiting_process(host)
    keeping.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await keeping
    assert not process.is_running()
    assert list((tmp_path / "node" / "warm").iterdir()) == []


async def test_none_is_made_while_a_worker_starts_that_somebody_waits_for(host: Host, environment: Environment) -> None:
    host.warm.hold_back("a start")
    keeping = asyncio.create_task(host.warm.run())
    host.warm.expect(worker_template(environment, host.limits.scratch_bytes_max))
    await asyncio.sleep(0)
    assert host.warm.waiting == 0
    host.warm.let_go("a start")
    await eventually(lambda: host.warm.waiting == 1)
    keeping.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await keeping


def test_orders_hold_no_nul() -> None:
    with pytest.raises(ValueError, match="NUL"):
        grant_orders({"A": "x\0NODUS_API_KEY=y"}, "/workspace")


READ_AT_IMPORT = """
import json, os, runpy
read = set()
class Recording(type(os.environ)):
    def __getitem__(self, name):
        read.add(name)
        return super().__getitem__(name)
    def __iter__(self):
        read.add("everything")
        return super().__iter__()
    def __contains__(self, name):
        read.add(name)
        return super().__contains__(name)
os.environ.__class__ = Recording
import nodus._runtime.functions
print(json.dumps(sorted(read)))
"""


async def test_what_the_workers_modules_read_at_import_needs_a_new_interpreter(environment: Environment) -> None:
    process = await asyncio.create_subprocess_exec(
        environment.path / "bin" / "python", "-c", READ_AT_IMPORT, stdout=asyncio.subprocess.PIPE
    )
    told, _ = await process.communicate()
    read = json.loads(told)
    assert read, "nothing was recorded"
    assert [name for name in read if not name.startswith(for_a_new_interpreter())] == []


def for_a_new_interpreter() -> tuple[str, ...]:
    """The list in `worker_start.py`, which cannot be imported: it would become a worker."""
    for node in ast.parse(WORKER_START).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "FOR_A_NEW_INTERPRETER":
            parts = [part.value for part in ast.walk(node.value) if isinstance(part, ast.Constant)]
            return tuple(part.decode() for part in parts if isinstance(part, bytes))
    raise AssertionError("worker_start.py has no such list")
