"""The quirks of the public SDK and worker, through the whole system."""

from __future__ import annotations

import itertools
import json
import statistics
from typing import Any

import pytest
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError

from tests.fixtures.eventually import eventually
from tests.fixtures.system import APPS, OBJECTS, System

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def quirks(shared_system: System) -> System:
    """The shared system with the App `quirks` deployed."""
    shared_system.nodus("deploy", str(APPS / "quirks" / "quirks.py"))
    return shared_system


def call(system: System, name: str) -> dict[str, Any]:
    """A FunctionCall as it is stored."""
    with system.http() as client:
        found: dict[str, Any] = client.get(f"/apis/nodus.dev/v1/namespaces/default/functioncalls/{name}").json()
    return found


RAISE = """
import json, nodus
fail = nodus.Function.from_name("quirks", "%s")
calls = {how: fail.spawn(how) for how in %r}
told = {}
for how, call in calls.items():
    try:
        call.get(timeout=300)
    except BaseException as error:
        told[how] = [call.name, type(error).__name__, str(error)]
print(json.dumps(told))
"""

RAISED = {
    "http": "urllib.error.HTTPError",
    "two": "quirks.TwoArgumentsError",
    "absent": "only_here.Absent",
    "timeout": "TimeoutError",
    "cancelled": "asyncio.exceptions.CancelledError",
    "lock": "quirks.LockedError",
    "stop": "RuntimeError",
    "interrupt": "KeyboardInterrupt",
    "speechless": "quirks.SpeechlessError",
}
"""What each of them is reported as, whatever the caller can make of it."""
WORDS = {"stop": "StopIteration", "speechless": "cannot be read"}
"""What else is told of those that arrive as something else."""


@pytest.mark.case("C35")
@pytest.mark.parametrize("function", ["fail", "fail_later"])
def test_exceptions_that_are_hard_to_carry_keep_type_message_and_traceback(quirks: System, function: str) -> None:
    told = json.loads(quirks.python(RAISE % (function, [*RAISED, "http"]), timeout=350))
    for how, type_name in RAISED.items():
        status = call(quirks, told[how][0])["status"]
        assert (status["phase"], status["reason"]) == ("Failed", "RemoteError"), (how, status)
        assert (status["error"]["type"], status["recoveries"]) == (type_name, 0), how
        assert status["error"]["message"]
        assert type_name.split(".")[-1] in status["error"]["traceback"]
        assert WORDS.get(how, "") in status["error"]["traceback"] + status["error"]["message"], how
    assert told["two"][1] == "RemoteError"
    assert "seven" in told["two"][2]


CHAIN = """
import nodus, traceback
try:
    nodus.Function.from_name("quirks", "chain").remote()
except nodus.errors.RemoteError as error:
    traceback.print_exception(error, file=__import__("sys").stdout)
"""


@pytest.mark.case("C36")
def test_cause_and_traceback_reach_a_caller_that_cannot_import_the_exception(quirks: System) -> None:
    told = quirks.python(CHAIN)
    assert "KeyError: 'the cause'" in told
    assert "only_here.Absent: the effect" in told
    assert "direct cause" in told
    assert told.count("in chain") == 2


STAMPS = """
import json, nodus
stamp = nodus.Function.from_name("quirks", "stamp")
print(json.dumps(list(stamp.map([0.05] * %d))))
"""


@pytest.mark.case("C44")
def test_a_worker_that_became_free_begins_the_next_call_at_once(quirks: System, full: bool) -> None:
    stamps = sorted(json.loads(quirks.python(STAMPS % (200 if full else 50), timeout=300)))
    gaps = [begin - end for (_, end), (begin, _) in itertools.pairwise(stamps)]
    # A poll of any kind would cost the median; the tail is that of a machine that many tests share.
    assert statistics.median(gaps) < 0.4
    if full:
        assert statistics.quantiles(gaps, n=20)[-1] < 0.1


MAPS = """
import json, time, threading, nodus
echo = nodus.Function.from_name("quirks", "echo")
echo.remote(0)
told = {"sizes": {}}
for size in %r:
    began = time.monotonic()
    right = list(echo.map(range(size))) == list(range(size))
    told["sizes"][size] = [right, time.monotonic() - began]

def broken():
    yield from range(5)
    raise LookupError("at five")

try:
    list(echo.map(broken()))
except LookupError as error:
    told["broken"] = str(error)

both = {}
threads = [threading.Thread(target=lambda n=n: both.setdefault(n, list(echo.map(range(n, n + 40))))) for n in (0, 100)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(200)
told["both"] = both == {n: list(range(n, n + 40)) for n in (0, 100)}
print(json.dumps(told))
"""
BATCH = 1_000
"""Calls that the SDK creates with one request."""


@pytest.mark.case("C30")
def test_maps_of_every_size_end(quirks: System, full: bool) -> None:
    sizes = [0, 1, BATCH - 1, BATCH, BATCH + 1, 2 * BATCH + 1] if full else [0, 1, BATCH + 1]
    told = json.loads(quirks.python(MAPS % sizes, timeout=1_500 if full else 350))
    assert {int(size): right for size, (right, _) in told["sizes"].items()} == dict.fromkeys(sizes, True)
    # One that waited for anything would wait for as long as the client does.
    assert told["sizes"]["0"][1] < 30
    assert (told["broken"], told["both"]) == ("at five", True)


@pytest.mark.case("C30")
def test_a_map_inside_a_call_ends(quirks: System) -> None:
    program = "import nodus; print(nodus.Function.from_name('quirks', 'nested').remote(5))"
    assert quirks.python(program).strip() == "[0, 1, 2, 3, 4]"


SIZES = """
import hashlib, json, time, nodus
echo = nodus.Function.from_name("quirks", "echo")
told = {}
for size in %r:
    began = time.monotonic()
    value = bytes(range(256)) * (size // 256) + b"x" * (size %% 256)
    call = echo.spawn(value)
    told[size] = [call.get(timeout=120) == value, time.monotonic() - began, call.name]
print(json.dumps(told))
"""
KIB, MIB = 1 << 10, 1 << 20


@pytest.mark.case("C33")
async def test_payloads_of_every_size_arrive_and_none_enters_the_engine(quirks: System, full: bool) -> None:
    borders = [64 * KIB, 2 * MIB] if not full else [64 * KIB, 256 * KIB, 2 * MIB, 4 * MIB]
    sizes = [0, *(border + step for border in borders for step in (-1, 0, 1)), *([100 * MIB] if full else [])]
    told = json.loads(quirks.python(SIZES % sizes, timeout=350))
    for size, (right, seconds, _) in told.items():
        assert right, size
        assert seconds < 30, size
    uids = [call(quirks, name)["metadata"]["uid"] for _, _, name in told.values()]
    for uid in uids:
        history = await eventually(lambda uid=uid: engine_history(quirks, uid))  # type: ignore[misc]
        assert len(history) < 16 * KIB


async def engine_history(system: System, uid: str) -> str:
    """All that the engine keeps of a call, once its workflow has ended."""
    try:
        client = await Client.connect(f"127.0.0.1:{system.ports['temporal']}")
        handle = client.get_workflow_handle(f"call/{uid}")
        if (await handle.describe()).status is not WorkflowExecutionStatus.COMPLETED:
            return ""
        return (await handle.fetch_history()).to_json()
    except (RPCError, RuntimeError):
        return ""  # its workflow has not been started yet, or no connection was made in time


CROWD = """
import nodus
crowd = nodus.Function.from_name("quirks", "crowd")
print(sum(result is None for result in crowd.map([8] * %d)))
"""


@pytest.mark.case("C43")
def test_as_many_calls_as_a_worker_is_given_run_at_once(quirks: System, full: bool) -> None:
    # One that waited for a thread inside its worker would end at its deadline of 16 s.
    calls = 64 if full else 16
    assert int(quirks.python(CROWD % calls, timeout=300)) == calls


CANCELS = """
import json, time, nodus
stamp = nodus.Function.from_name("quirks", "stamp")
for number in range({cancels}):
    call = stamp.spawn(0.2)
    while call.status() == "Queued":
        time.sleep(0.01)
    time.sleep(0.15 + 0.1 * number / {cancels})
    call.cancel()
print(json.dumps(len(list(stamp.map([0.01] * {calls})))))
"""


@pytest.mark.case("C28")
async def test_cancels_around_the_end_of_calls_leave_a_pool_that_works(quirks: System, full: bool) -> None:
    cancels, calls = (500, 200) if full else (6, 20)
    told = quirks.python(CANCELS.format(cancels=cancels, calls=calls), timeout=3_000 if full else 250)
    assert json.loads(told) == calls

    def at_rest() -> bool:
        with quirks.http() as client:
            seen = client.get(f"{OBJECTS}/functions/quirks-stamp").json()["status"]
        return (seen["workers"]["busy"], seen["queue"]) == (0, {"queued": 0, "running": 0})

    await eventually(at_rest)
