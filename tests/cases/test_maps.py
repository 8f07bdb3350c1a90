"""Maps whose server is busy, whose answers are lost, and whose caller has gone."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import httpx
import pytest

from tests.fixtures.app import CALL, ServedApi
from tests.fixtures.calls import raised, said, succeeded
from tests.fixtures.gateway import gateway
from tests.fixtures.http_worker import start_worker
from tests.fixtures.system import APPS, System

MAP = """
import importlib, json, os
os.environ["NODUS_API_URL"] = {url!r}
import nodus
importlib.import_module("nodus.functions").MAP_BATCH = {batch}
echo = nodus.Function.from_name("quirks", "echo")
print(json.dumps(list(echo.map(range({count})))))
"""


REFUSALS_MIN = 2


@pytest.mark.e2e
@pytest.mark.timeout(400)
@pytest.mark.case("C20")
async def test_a_map_whose_server_is_busy_and_whose_answers_are_lost_runs_each_input_once(
    system: System, full: bool
) -> None:
    count, batch, busy_seconds = (3_000, 1_000, 60) if full else (300, 100, 3)
    await asyncio.to_thread(system.nodus, "deploy", str(APPS / "quirks" / "quirks.py"))
    before = {call["metadata"]["name"] for call in system.calls("quirks-echo")}
    address = httpx.URL(system.variables["NODUS_API_URL"])
    assert address.port is not None
    async with gateway(address.host, address.port) as front:
        batches, busy_until = 0, 0.0

        def is_batch(head: bytes) -> bool:
            return head.startswith(b"POST") and b"/calls " in head.split(b"\r\n", 1)[0]

        def refuses(head: bytes) -> bool:
            nonlocal batches, busy_until
            if not is_batch(head):
                return False
            batches += 1
            if batches == 2:
                busy_until = time.monotonic() + busy_seconds
            # However late the client asks again, it meets a busy server more than once.
            return batches > 1 and (time.monotonic() < busy_until or front.refused < REFUSALS_MIN)

        front.refuses = refuses
        front.loses_answer = lambda head: is_batch(head) and front.refused > 0 and front.lost < 1
        program = MAP.format(url=front.url, batch=batch, count=count)
        told = await asyncio.to_thread(system.python, program, timeout=380)
    assert json.loads(told) == list(range(count))
    assert front.refused >= REFUSALS_MIN
    assert front.lost == 1
    indexes = [
        call["spec"]["mapIndex"] for call in system.calls("quirks-echo") if call["metadata"]["name"] not in before
    ]
    assert sorted(indexes) == list(range(count))


@pytest.mark.case("C32")
async def test_one_delete_by_label_stops_a_map_whose_caller_has_gone(project: ServedApi) -> None:
    await project.function(scaling={"targetConcurrency": 3})
    items: list[dict[str, Any]] = [
        {"metadata": {"generateName": "m-"}, "spec": {**CALL, "mapId": "a" * 20, "mapIndex": index}}
        for index in range(1_000)
    ]
    body = {"apiVersion": "nodus.dev/v1", "kind": "FunctionCallList", "items": items}
    answer = await project.client.post(f"{project.path}/functions/f/calls", json=body, timeout=60)
    assert answer.status_code == 201, answer.text
    kept = "bystander"
    await project.create("functioncalls", {"metadata": {"name": kept}, "spec": {**CALL, "session": "another"}})
    worker = await start_worker(project, concurrency=3)
    given = {call["id"] for call in (await worker.claim(take=3))["calls"]}
    failed, running = sorted(given - {kept})
    await worker.claim(raised(failed), take=0)

    stopped = await project.client.delete(
        f"{project.path}/functioncalls", params={"labelSelector": f"nodus.dev/map={'a' * 20}"}, timeout=60
    )
    assert stopped.status_code == 200, stopped.text
    left = (await project.client.get(f"{project.path}/functioncalls")).json()["items"]
    assert {call["metadata"]["name"]: call["status"]["phase"] for call in left} == {
        running: "Cancelling", kept: "Running",
    }  # fmt: skip
    told = await worker.claim(take=3)
    assert (told["calls"], told["cancel"]) == ([], [running])
    # The body has surely stopped once its worker is gone.
    await worker.claim(succeeded(kept), said(running, "Cancelled"), take=0)
    await worker.exits()
    left = (await project.client.get(f"{project.path}/functioncalls")).json()["items"]
    assert [call["metadata"]["name"] for call in left] == [kept]
