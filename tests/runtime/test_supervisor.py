"""One real worker, from its environment to its end."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from activities.run_worker import worker_exit
from activities.run_worker_contract import PLATFORM_AWAY
from runtime import uids
from runtime.host import Host
from runtime.plans import WorkerPlan
from runtime.supervisor import Phase, WorkerReport, WorkerSupervisor
from runtime.variables import WorkerIdentity
from tests.fixtures.eventually import eventually
from tests.runtime.conftest import OWN_MINOR, Log
from tests.runtime.scripted_api import PASS_GATE, ScriptedApi

APP = """
import nodus
app = nodus.App("test")
"""


def plan(**changes: Any) -> WorkerPlan:
    identity = WorkerIdentity(attempt="att_test", project="default", function="fn", concurrency=1)
    return dataclasses.replace(WorkerPlan(identity=identity, python=OWN_MINOR, token="nodusatt_test"), **changes)


@dataclasses.dataclass
class Running:
    supervisor: WorkerSupervisor
    phases: list[Phase]
    task: asyncio.Task[WorkerReport]

    async def report(self, within: float = 60) -> WorkerReport:
        async with asyncio.timeout(within):
            return await self.task


Start = Callable[..., Running]


@contextlib.asynccontextmanager
async def starting(host: Host, log: Log) -> AsyncIterator[Start]:
    """Start workers of `plan(**changes)` on a host; whatever is left at the end is killed."""
    started: list[Running] = []

    def begin(**changes: Any) -> Running:
        phases: list[Phase] = []
        chosen = plan(**changes)
        supervisor = WorkerSupervisor(host, chosen, log, phases.append)
        directory = host.attempt_directory(chosen.identity.attempt)
        running = Running(supervisor, phases, asyncio.create_task(supervisor.run(directory)))
        started.append(running)
        return running

    yield begin
    for running in started:
        running.supervisor.kill("the test is over")
    await asyncio.gather(*(running.task for running in started), return_exceptions=True)


@pytest.fixture
async def start(host: Host, log: Log) -> AsyncIterator[Start]:
    async with starting(host, log) as begin:
        yield begin


async def ready(api: ScriptedApi) -> None:
    await eventually(lambda: api.held == 1)


async def test_the_public_worker_runs_calls_and_reports_their_results(api: ScriptedApi, start: Start, log: Log) -> None:
    api.set_code({"app.py": APP + "@app.function()\ndef target(x):\n    print('got', x)\n    return x * x\n"})
    api.call("one", 3)
    running = start()
    await eventually(lambda: "one" in api.outcomes)
    assert api.outcomes["one"]["outcome"] == "Succeeded"
    await eventually(lambda: log.text("stdout") == ["got 3"])
    await ready(api)
    assert running.phases == [Phase.PREPARING, Phase.STARTING, Phase.READY]


@pytest.mark.parametrize("minor", ["3.10", "3.12", "3.13"])
async def test_a_worker_runs_on_the_minor_it_was_asked_for(
    minor: str, api: ScriptedApi, start: Start, log: Log
) -> None:
    source = "@app.function()\ndef target():\n    import sys\n    print(sys.version.split()[0])\n"
    api.set_code({"app.py": APP + source})
    api.call("one")
    start(python=minor)
    await eventually(lambda: "one" in api.outcomes)
    assert api.outcomes["one"]["outcome"] == "Succeeded"
    await eventually(lambda: log.text("stdout") and log.text("stdout")[0].startswith(f"{minor}."))


@pytest.mark.case("C43")
async def test_as_many_synchronous_calls_run_at_once_as_the_worker_takes(api: ScriptedApi, start: Start) -> None:
    """More than asyncio has threads on any host: none waits in the worker while its deadline passes."""
    source = "import threading\nall_here = threading.Barrier(40, timeout=60)\n"
    api.set_code({"app.py": APP + source + "@app.function()\ndef target(n):\n    all_here.wait()\n    return n\n"})
    names = [f"call-{number}" for number in range(40)]
    for name in names:
        api.call(name, 1)
    start(identity=WorkerIdentity(attempt="att_test", project="default", function="fn", concurrency=40))
    await eventually(lambda: len(api.outcomes) == 40, within=90)
    assert {api.outcomes[name]["outcome"] for name in names} == {"Succeeded"}


STOPPABLE = """
import asyncio
@app.function()
async def target(how, name):
    try:
        if how == "thread":
            await asyncio.to_thread(pass_gate, name)
        else:
            print("begun", flush=True)
            await asyncio.sleep(600)
    finally:
        if how == "cleans up":
            await asyncio.sleep(0.5)
"""


async def test_a_coroutine_is_stopped_at_once_and_its_threads_are_waited_for(
    api: ScriptedApi, start: Start, log: Log
) -> None:
    api.set_code({"app.py": APP + PASS_GATE + STOPPABLE})
    api.call("plain", "coroutine", "plain")
    api.call("cleaner", "cleans up", "cleaner")
    api.call("threaded", "thread", "threaded")
    api.call("beside", "thread", "beside")
    start(identity=WorkerIdentity(attempt="att_test", project="default", function="fn", concurrency=4))
    # Whatever is asked to stop has begun: one that has not is stopped otherwise.
    await eventually(lambda: len(api.at_gate) == 2 and log.text("stdout") == ["begun"] * 2)
    api.cancels |= {"plain", "cleaner", "threaded"}
    await eventually(lambda: {"plain", "cleaner", "threaded"} <= api.outcomes.keys())
    assert {api.outcomes[name]["outcome"] for name in api.cancels} == {"Cancelled"}
    await eventually(lambda: sorted(api.stopped) == ["cleaner", "plain"])
    api.gate.set()
    await eventually(lambda: "threaded" in api.stopped and "beside" in api.outcomes)
    assert api.outcomes["beside"]["outcome"] == "Succeeded"
    assert sorted(api.stopped) == ["cleaner", "plain", "threaded"]


async def test_a_thread_is_told_to_have_stopped_when_it_has_and_not_before(
    api: ScriptedApi, start: Start, log: Log
) -> None:
    source = "@app.function()\ndef target():\n    pass_gate('one')\n    print('passed', flush=True)\n"
    api.set_code({"app.py": APP + PASS_GATE + source})
    api.call("one")
    start()
    await eventually(lambda: api.at_gate == ["one"])
    api.cancels.add("one")
    await eventually(lambda: "one" in api.outcomes)
    assert (api.outcomes["one"]["outcome"], api.stopped, log.text("stdout")) == ("Cancelled", [], [])
    api.gate.set()
    await eventually(lambda: api.stopped == ["one"])
    await eventually(lambda: log.text("stdout") == ["passed"])


async def test_the_workers_folder_is_first_on_its_path_as_with_python_m(api: ScriptedApi, start: Start) -> None:
    source = (
        "import os, sys\n@app.function()\ndef target():\n    assert os.getcwd() in sys.path and '' not in sys.path\n"
    )
    api.set_code({"app.py": APP + source + "    assert sys.modules['__main__'].__spec__.name == 'nodus._worker'\n"})
    api.call("one")
    start()
    await eventually(lambda: "one" in api.outcomes)
    assert api.outcomes["one"]["outcome"] == "Succeeded", api.outcomes["one"]


async def test_a_result_of_a_megabyte_goes_out_by_a_signed_url_on_loopback(api: ScriptedApi, start: Start) -> None:
    api.set_code({"app.py": APP + "@app.function()\ndef target():\n    return b'x' * 1_000_000\n"})
    api.call("one")
    start()
    await eventually(lambda: "one" in api.outcomes)
    reference = api.outcomes["one"]["result"]["blob"]
    assert len(api.blobs[reference.removeprefix("sha256:")]) > 1_000_000
    assert any(path.startswith("/blobs/v1/data/") for path in api.paths)


async def test_modules_named_like_the_servers_packages_are_the_users(api: ScriptedApi, start: Start, log: Log) -> None:
    names = ("api", "workers", "workflows", "activities", "controlplane", "runtime", "tests")
    files = {f"{name}.py": f"WHOSE = 'the user {name}'\n" for name in names}
    source = (
        f"import {', '.join(names)}\n"
        f"@app.function()\ndef target():\n    return print(*[m.WHOSE for m in ({', '.join(names)})], sep=';')\n"
    )
    api.set_code({"app.py": APP + source, **files})
    api.call("one")
    start()
    await eventually(lambda: "one" in api.outcomes)
    await eventually(lambda: log.text("stdout") == [";".join(f"the user {name}" for name in names)])


async def test_the_worker_never_holds_a_credential(api: ScriptedApi, start: Start, log: Log) -> None:
    source = "@app.function()\ndef target():\n    import os\n    print(sorted(os.environ.items()))\n"
    api.set_code({"app.py": APP + source})
    api.call("one")
    start(variables=[("SECRET", "s3cret"), ("NODUS_API_KEY", "nodus_x"), ("NODUS_PROJECT", "other")])
    await eventually(lambda: "one" in api.outcomes)
    await eventually(lambda: log.text("stdout"))
    told = log.text("stdout")[0]
    assert "nodusatt_test" not in told
    assert "nodus_x" not in told
    assert "('SECRET', 's3cret')" in told
    assert "('NODUS_PROJECT', 'default')" in told
    assert any("NODUS_API_KEY" in line for line in log.text("stderr"))


async def test_an_idle_worker_that_is_drained_leaves_at_once(api: ScriptedApi, start: Start) -> None:
    api.set_code({"app.py": APP + "@app.function()\ndef target():\n    pass\n"})
    running = start()
    await ready(api)
    asked_at = time.monotonic()
    running.supervisor.drain(None)
    report = await running.report()
    assert time.monotonic() - asked_at < 20
    assert report.ending is not None
    assert report.ending.exit_code == 0
    assert (report.asked, report.ready, report.problem) == (True, True, None)
    assert api.claims[-1]["draining"] is True


async def test_a_drained_worker_finishes_the_call_it_runs(api: ScriptedApi, start: Start, log: Log) -> None:
    source = "import time\n@app.function()\ndef target():\n    print('begun')\n    time.sleep(1.5)\n    return 7\n"
    api.set_code({"app.py": APP + source})
    api.call("one")
    running = start()
    await eventually(lambda: log.text("stdout") == ["begun"])
    running.supervisor.drain(None)
    report = await running.report()
    assert report.ending is not None
    assert report.ending.exit_code == 0
    assert api.outcomes["one"]["outcome"] == "Succeeded"


async def test_a_drain_with_a_bound_ends_in_a_kill(api: ScriptedApi, start: Start, log: Log) -> None:
    source = "import time\n@app.function()\ndef target():\n    print('begun')\n    time.sleep(600)\n"
    api.set_code({"app.py": APP + source})
    api.call("one")
    running = start()
    await eventually(lambda: log.text("stdout") == ["begun"])
    running.supervisor.drain(0.5)
    report = await running.report()
    assert report.ending is not None
    assert report.ending.signal == 9
    assert report.problem is not None
    assert "0.5 s after it was asked to" in report.problem


async def test_a_thread_that_outlives_the_final_claim_is_killed(api: ScriptedApi, start: Start, host: Host) -> None:
    host.limits = dataclasses.replace(host.limits, exit_seconds_max=0.5)
    source = "import threading, time\n@app.function()\ndef target():\n    pass\n"
    source += "threading.Thread(target=time.sleep, args=(600,)).start()\n"
    api.set_code({"app.py": APP + source})
    running = start()
    await ready(api)
    running.supervisor.drain(None)
    report = await running.report()
    assert report.ending is not None
    assert report.ending.signal == 9
    assert report.problem is not None
    assert "final claim" in report.problem


async def test_a_worker_whose_code_does_not_import_says_why_in_its_log(
    api: ScriptedApi, start: Start, log: Log
) -> None:
    api.set_code({"app.py": "raise LookupError('no such model')\n"})
    report = await start().report()
    assert report.ending is not None
    assert (report.ending.exit_code, report.ready, report.problem) == (1, False, None)
    assert any("LookupError: no such model" in line for line in log.text("stderr"))


async def test_a_worker_that_does_not_claim_in_time_is_killed(api: ScriptedApi, start: Start, host: Host) -> None:
    host.limits = dataclasses.replace(host.limits, start_seconds_max=0.3)
    api.set_code({"app.py": "import time\ntime.sleep(600)\n"})
    report = await start().report()
    assert report.ending is not None
    assert report.ending.signal == 9
    assert report.problem is not None
    assert "not claimed within 0.3 s" in report.problem


async def test_a_worker_that_eats_its_memory_is_reported_as_out_of_memory(
    api: ScriptedApi, start: Start, host: Host
) -> None:
    assert "memory" in host.cgroups.limits
    api.set_code({"app.py": APP + "@app.function()\ndef target():\n    return len(bytearray(2 << 30))\n"})
    api.call("one")
    report = await start(memory_bytes_max=200 << 20).report()
    assert report.ending is not None
    assert report.ending.signal == 9
    assert report.out_of_memory is True


async def test_a_minor_this_host_lacks_is_named_in_the_report_and_the_log(start: Start, log: Log) -> None:
    report = await start(python="3.77").report()
    assert report.ending is None
    assert report.problem is not None
    assert "Python 3.77 is not on this node: it has " in report.problem
    assert log.text("stderr") == [f"nodus: {report.problem}"]


async def test_a_node_that_has_no_room_for_a_worker_says_what_is_missing(start: Start, host: Host, log: Log) -> None:
    """In words of the system and without a path of the host; it is no fault of the Function."""
    (host.attempt_directory("att_test") / "run").touch()
    report = await start().report()
    assert report.problem == "this node could not prepare the worker: File exists"
    assert log.text("stderr") == [f"nodus: {report.problem}"]
    assert worker_exit(report).outcome == PLATFORM_AWAY


async def test_a_node_that_is_out_of_users_says_so(start: Start, monkeypatch: pytest.MonkeyPatch, host: Host) -> None:
    if not host.own_uids:
        pytest.skip("workers share the node's user")
    monkeypatch.setattr(uids, "UIDS_MAX", 0)
    report = await start().report()
    assert report.problem is not None
    assert "all 0 user ids for workers are in use on this host" in report.problem


async def test_a_worker_that_is_drained_before_it_exists_never_starts(start: Start) -> None:
    running = start()
    running.supervisor.drain(None)
    report = await running.report()
    assert report.ending is None
    assert report.asked is True


async def test_a_torn_down_supervisor_takes_its_worker_along(
    api: ScriptedApi, start: Start, host: Host, log: Log
) -> None:
    source = "@app.function()\ndef target():\n    import os\n    print(open('/proc/self/cgroup').read())\n"
    api.set_code({"app.py": APP + source})
    before = children_of(os.getpid(), "bwrap")
    running = start()
    await ready(api)
    running.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running.task
    assert set(children_of(os.getpid(), "bwrap")) <= set(before)


def children_of(parent: int, name: str) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            facts = dict(line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line)
            if facts["PPid"] == str(parent) and facts["Name"] == name:
                found.append(int(facts["Pid"]))
    return found
