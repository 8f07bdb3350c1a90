"""Workers that are killed under their calls, in the whole system."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.fixtures.eventually import eventually
from tests.fixtures.system import APPS, OBJECTS, System

pytestmark = pytest.mark.e2e


@contextlib.contextmanager
def statuses_of(system: System, function: str) -> Iterator[list[dict[str, Any]]]:
    """Every status of a Function from now on."""
    seen: list[dict[str, Any]] = []
    query = {"watch": "true", "fieldSelector": f"metadata.name={function}", "timeoutSeconds": "200"}
    with system.http() as client, client.stream("GET", f"{OBJECTS}/functions", params=query) as stream:

        def read() -> None:
            with contextlib.suppress(httpx.HTTPError, httpx.StreamError):
                seen.extend(json.loads(line)["object"]["status"] for line in stream.iter_lines())

        reading = threading.Thread(target=read)
        reading.start()
        yield seen
        stream.close()
    reading.join(10)


SPAWN = "import nodus; print(nodus.Function.from_name('quirks', 'stamp').spawn(%s).name)"


@pytest.mark.case("C3")
async def test_a_call_whose_worker_is_killed_recovers_and_gives_its_place_to_the_next(system: System) -> None:
    system.nodus("deploy", str(APPS / "quirks" / "quirks.py"))
    first = system.python(SPAWN % 12).strip()

    def call(name: str) -> dict[str, Any]:
        [found] = [one for one in system.calls("quirks-stamp") if one["metadata"]["name"] == name]
        status: dict[str, Any] = found["status"]
        return status

    await eventually(lambda: call(first)["phase"] == "Running")
    attempt = call(first)["worker"]["attempt"]
    with statuses_of(system, "quirks-stamp") as statuses:
        system.worker("quirks-stamp").kill()
        second = system.python(SPAWN % 0.1).strip()
        await eventually(lambda: call(first)["recoveries"] == 1, within=90)
        for name in (first, second):
            await eventually(lambda name=name: call(name)["phase"] == "Succeeded", within=90)  # type: ignore[misc]
        await eventually(lambda: statuses and statuses[-1]["queue"] == {"queued": 0, "running": 0})
    assert call(first)["worker"]["attempt"] != attempt
    assert (call(first)["recoveries"], call(second)["recoveries"]) == (1, 0)
    alone = [
        status
        for status in statuses
        if status["queue"]["running"] and not (status["workers"]["ready"] + status["workers"]["draining"])
    ]
    assert alone == []
