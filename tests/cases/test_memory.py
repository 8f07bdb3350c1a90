"""That memory does not grow with the calls that were, in any process of the whole system."""

from __future__ import annotations

import base64

import httpx
import psutil
import pytest

from tests.fixtures.eventually import eventually
from tests.fixtures.system import APPS, OBJECTS, System

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

BATCH = 500
SLACK_BYTES = 16 << 20
"""What an allocator keeps or returns as it likes."""
BYTES_A_CALL_MAX = 512


@pytest.fixture(scope="module")
def small(cases_system: System) -> System:
    """The system of the cases with the App `quirks` deployed."""
    cases_system.nodus("deploy", str(APPS / "quirks" / "quirks.py"))
    return cases_system


def create(client: httpx.Client, count: int) -> None:
    """Calls that do nothing, without waiting for them."""
    task = {"encoding": "JSON", "inline": base64.b64encode(b'{"args":[]}').decode()}
    item = {"metadata": {"generateName": "n-"}, "spec": {"function": "quirks-nothing", "input": task}}
    body = {"apiVersion": "nodus.dev/v1", "kind": "FunctionCallList", "items": [item] * count}
    answer = client.post(f"{OBJECTS}/functions/quirks-nothing/calls", json=body)
    assert answer.status_code == httpx.codes.CREATED, answer.text


def phase(client: httpx.Client) -> str:
    """Of the Function."""
    told: str = client.get(f"{OBJECTS}/functions/quirks-nothing").json()["status"]["phase"]
    return told


def all_ended(client: httpx.Client) -> bool:
    """Whether no call is left to run; the Function's own count of them may be a second old."""
    selector = "spec.function=quirks-nothing,status.phase!=Succeeded"
    answer = client.get(f"{OBJECTS}/functioncalls", params={"fieldSelector": selector, "limit": 1})
    assert answer.status_code == httpx.codes.OK, answer.text
    return not answer.json()["items"]


async def run(system: System, count: int) -> None:
    """Make so many calls and wait until they have ended."""
    with system.http() as client:
        for _ in range(count // BATCH):
            create(client, BATCH)
            await eventually(lambda: all_ended(client), within=300, every=0.2)


def residents(system: System) -> dict[str, int]:
    """Resident bytes of each process that calls go through."""
    processes: dict[str, psutil.Process] = {name: system.child(name) for name in ("api", "control", "node")}
    processes["worker"] = system.worker("quirks-nothing")
    return {name: process.memory_info().rss for name, process in processes.items()}


def assert_flat(before: dict[str, int], after: dict[str, int], calls: int) -> None:
    grown = {name: after[name] - before[name] for name in before}
    assert max(grown.values()) <= SLACK_BYTES + calls * BYTES_A_CALL_MAX, (grown, calls)


@pytest.mark.case("C31")
async def test_many_small_calls_leave_no_memory_behind(small: System, full: bool) -> None:
    warm, calls = (5_000, 15_000) if full else (BATCH, 2 * BATCH)
    await run(small, warm)
    before = residents(small)
    await run(small, calls)
    assert_flat(before, residents(small), calls)


@pytest.mark.case("C52")
async def test_a_burst_of_open_calls_and_a_long_run_leave_no_memory_behind(small: System, full: bool) -> None:
    burst, calls = (5_000, 95_000) if full else (2 * BATCH, BATCH)
    await run(small, BATCH)
    before = residents(small)
    patch = {"Content-Type": "application/merge-patch+json"}
    with small.http() as client:
        path = f"{OBJECTS}/functions/quirks-nothing"
        assert client.patch(path, json={"spec": {"state": "Stopped"}}, headers=patch).status_code == httpx.codes.OK
        await eventually(lambda: phase(client) == "Stopped", within=120)
        for _ in range(burst // BATCH):
            create(client, BATCH)
        assert client.patch(path, json={"spec": {"state": "Running"}}, headers=patch).status_code == httpx.codes.OK
        await eventually(lambda: all_ended(client), within=120 + burst, every=0.5)
    await run(small, calls)
    after = residents(small)
    # The worker is another process than before the stop.
    before["worker"] = after["worker"]
    assert_flat(before, after, burst + calls)
