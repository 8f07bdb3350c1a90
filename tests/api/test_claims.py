"""Claims over HTTP: who may claim, what is refused and how, and a call from POST to result."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from typing import Any

import httpx
import pytest

from controlplane.machinery.quantities import format_money
from tests.fixtures.app import CALL, HELD, PICKLE, ServedApi
from tests.fixtures.calls import succeeded
from tests.fixtures.eventually import eventually
from tests.fixtures.http_worker import HttpWorker, start_worker

MERGE = {"Content-Type": "application/merge-patch+json"}


@pytest.fixture
def api(project: ServedApi) -> ServedApi:
    """The shared server, with an empty project for the test."""
    return project


async def call(api: ServedApi, **spec: Any) -> str:
    created = await api.create(
        "functioncalls", {"metadata": {"generateName": "c-"}, "spec": {**CALL, **spec}},
        headers={"Idempotency-Key": secrets.token_hex(8)},
    )  # fmt: skip
    name: str = created["metadata"]["name"]
    return name


async def status(api: ServedApi, name: str) -> dict[str, Any]:
    read: dict[str, Any] = (await api.client.get(f"{api.path}/functioncalls/{name}")).json()["status"]
    return read


async def test_a_call_goes_from_its_post_to_a_held_claim_and_back_to_a_watch(api: ServedApi) -> None:
    await api.function()
    worker = await start_worker(api)
    held = asyncio.create_task(worker.claim(wait=HELD))
    await eventually(lambda: any(want.claimant.attempt == worker.attempt for want in all_held(api)))
    name = await call(api)
    answer = await held
    [given] = answer["calls"]
    assert (given["id"], given["input"]) == (name, {"encoding": "Pickle", "inline": PICKLE})
    assert given["deadline"].endswith("Z")
    revision = (await api.client.get(f"{api.path}/functioncalls/{name}")).json()["metadata"]["resourceVersion"]
    async with api.watch("functioncalls", resourceVersion=revision, fieldSelector=f"metadata.name={name}") as events:
        await worker.claim(succeeded(name), take=0)
        [event] = await events.take(1)
    ended = event["object"]["status"]
    [charge] = (await api.client.get(f"{api.path}/functioncalls/{name}/charges")).json()["status"]["charges"]
    assert (ended["phase"], ended["costUSD"]) == ("Succeeded", format_money(10 * charge["seconds"]))
    assert ended["result"]["sha256"] == hashlib.sha256(b"value").hexdigest()


def all_held(api: ServedApi) -> list[Any]:
    return [want for wants in api.core.waiting._held.values() for want in wants]


async def test_an_empty_body_and_an_empty_object_are_claims_that_want_nothing(api: ServedApi) -> None:
    await api.function()
    worker = await start_worker(api)
    headers = {"Authorization": f"Bearer {worker.token}"}
    for content in (b"", b"{}"):
        response = await api.client.post(f"{api.path}/functions/f/claims", content=content, headers=headers)
        assert (response.status_code, response.json()) == (200, {"calls": [], "cancel": []})


@pytest.mark.parametrize(
    ("body", "code", "reason"),
    [
        (b"nonsense", 400, "BadRequest"),
        (b"[]", 400, "BadRequest"),
        (b'{"completed":{}}', 422, "Invalid"),
        (b'{"running":"x"}', 422, "Invalid"),
        (b'{"max":"1"}', 422, "Invalid"),
        (b'{"wait":"soon"}', 422, "Invalid"),
    ],
)
async def test_an_envelope_that_cannot_be_read_is_refused(api: ServedApi, body: bytes, code: int, reason: str) -> None:
    await api.function()
    worker = await start_worker(api)
    headers = {"Authorization": f"Bearer {worker.token}"}
    response = await api.client.post(f"{api.path}/functions/f/claims", content=body, headers=headers)
    assert (response.status_code, response.json()["reason"]) == (code, reason)


async def test_a_bad_record_is_no_reason_to_refuse_a_claim(api: ServedApi) -> None:
    await api.function()
    worker = await start_worker(api)
    name = await call(api)
    await worker.claim()
    absent = {"encoding": "Pickle", "blob": f"sha256:{'0' * 64}"}
    await worker.claim({"call": name, "outcome": "Succeeded", "result": absent}, take=0)
    ended = await status(api, name)
    assert (ended["phase"], ended["reason"]) == ("Failed", "PayloadMissing")


async def test_a_result_in_a_blob_is_kept_by_reference(api: ServedApi) -> None:
    await api.function()
    worker = await start_worker(api)
    name = await call(api)
    await worker.claim()
    reference = await api.upload(b"large" * 50_000)
    await worker.claim({"call": name, "outcome": "Succeeded", "result": {"encoding": "Pickle", "blob": reference}})
    ended = await status(api, name)
    assert ended["result"] == {"encoding": "Pickle", "blob": reference, "sha256": reference.removeprefix("sha256:")}


async def test_the_runtime_of_a_worker_hears_of_a_cancel_and_tells_that_the_call_has_stopped(api: ServedApi) -> None:
    await api.function()
    worker = await start_worker(api)
    name = await call(api)
    await worker.claim()
    heard = asyncio.create_task(cancels(worker, wait=HELD))
    await api.client.patch(f"{api.path}/functioncalls/{name}", json={"spec": {"state": "Cancelled"}}, headers=MERGE)
    assert (await heard).json() == {"cancel": [name]}
    assert (await cancels(worker, wait=HELD)).json() == {"cancel": [name]}
    assert (await cancels(worker, wait="0.05s", stopping=[name])).json() == {"cancel": []}
    await worker.claim({"call": name, "outcome": "Cancelled"}, take=0)
    assert (await status(api, name))["phase"] == "Cancelling"
    assert (await cancels(worker, stopped=["no-such-call"])).json() == {"cancel": []}
    assert (await status(api, name))["phase"] == "Cancelling"
    assert (await cancels(worker, stopped=[name])).json() == {"cancel": []}
    assert (await status(api, name))["phase"] == "Cancelled"


async def test_a_runtime_asks_once_at_a_time_and_only_for_its_own_worker(api: ServedApi) -> None:
    await api.function()
    await api.function("g")
    worker, stranger = await start_worker(api), await start_worker(api, "g")
    first = asyncio.create_task(cancels(worker, wait=HELD))
    second = asyncio.create_task(cancels(worker, wait=HELD))
    done, left = await asyncio.wait({first, second}, return_when=asyncio.FIRST_COMPLETED)
    assert [answer.result().json() for answer in done] == [{"cancel": []}]
    for task in left:
        task.cancel()
    foreign = await api.client.post(
        f"{api.path}/functions/f/cancels", json={}, headers={"Authorization": f"Bearer {stranger.token}"}
    )
    assert (foreign.status_code, foreign.json()["reason"]) == (403, "WorkerNotAllowed")
    assert (await api.client.post(f"{api.path}/functions/f/cancels", json={})).status_code == 403


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ([], 400),
        ({"stopped": "x"}, 422),
        ({"stopping": ["a", "b"]}, 422),
        ({"wait": 3}, 422),
        ({"x": "y" * 2_000}, 413),
    ],
)
async def test_a_word_that_cannot_be_read_is_refused(api: ServedApi, body: Any, code: int) -> None:
    await api.function()
    worker = await start_worker(api)
    headers = {"Authorization": f"Bearer {worker.token}"}
    response = await api.client.post(f"{api.path}/functions/f/cancels", json=body, headers=headers)
    assert response.status_code == code


async def cancels(worker: HttpWorker, wait: str = "0s", **body: Any) -> httpx.Response:
    """What the runtime around the worker asks and tells."""
    path = worker.path.replace("/claims", "/cancels")
    headers = {"Authorization": f"Bearer {worker.token}"}
    return await worker.api.client.post(path, json={"wait": wait, **body}, headers=headers)


async def test_secret_values_do_not_come_back_in_errors(api: ServedApi) -> None:
    await api.create("secrets", {"metadata": {"name": "token"}, "spec": {"stringData": {"T": "correct-horse"}}})
    await api.function(secrets=["token"])
    worker = await start_worker(api)
    name = await call(api)
    await worker.claim()
    error = {"type": "ValueError", "message": "no: correct-horse", "traceback": "t = 'correct-horse'"}
    await worker.claim({"call": name, "outcome": "RemoteError", "error": error}, take=0)
    ended = await status(api, name)
    assert ended["reason"] == "RemoteError"
    assert "correct-horse" not in str(ended)


async def test_only_the_functions_own_workers_may_claim(api: ServedApi) -> None:
    await api.function("f")
    await api.function("g")
    worker = await start_worker(api, "f")
    for function, token in (("g", worker.token), ("f", api.key)):
        response = await api.client.post(
            f"{api.path}/functions/{function}/claims", json={}, headers={"Authorization": f"Bearer {token}"}
        )
        assert (response.status_code, response.json()["reason"]) == (403, "WorkerNotAllowed")
    response = await api.client.post(f"{api.path}/functions/f/claims", headers={"Authorization": "Bearer nodusatt_x"})
    assert response.status_code == 401


async def test_a_worker_that_was_replaced_gets_404(api: ServedApi) -> None:
    await api.function()
    worker = await start_worker(api)
    await worker.claim()
    await api.core.database.execute("UPDATE attempts SET finished_at = now() WHERE uid = $1", worker.attempt)
    response = await worker.post({"max": 1})
    assert (response.status_code, response.json()["reason"]) == (404, "NotFound")


async def test_a_held_claim_ends_when_its_client_goes_away(api: ServedApi) -> None:
    await api.function()
    worker = await start_worker(api)
    held = asyncio.create_task(worker.claim(wait=HELD))
    await eventually(lambda: any(want.claimant.attempt == worker.attempt for want in all_held(api)))
    held.cancel()
    await asyncio.gather(held, return_exceptions=True)
    await eventually(lambda: not any(want.claimant.attempt == worker.attempt for want in all_held(api)))
    name = await call(api)
    assert [given["id"] for given in (await worker.claim())["calls"]] == [name]


async def test_an_idle_claim_is_held_and_a_draining_worker_is_not_made_to_ask_in_a_loop(api: ServedApi) -> None:
    await api.function()
    worker = await start_worker(api)
    began = time.monotonic()
    assert (await worker.claim(wait="0.4s"))["calls"] == []
    assert time.monotonic() - began >= 0.4
    await api.core.database.execute("UPDATE attempts SET draining = true WHERE uid = $1", worker.attempt)
    name = await call(api)
    began = time.monotonic()
    assert (await worker.claim(wait="0.4s"))["calls"] == []
    assert time.monotonic() - began >= 0.4
    assert (await status(api, name))["phase"] == "Queued"


async def test_a_worker_that_is_to_leave_is_not_held_for_its_whole_wait(api: ServedApi) -> None:
    """A worker does not wake from a long poll when it is signalled; calls that it let go would wait with it."""
    await api.function()
    worker = await start_worker(api)
    await worker.claim()
    await api.core.database.execute("UPDATE attempts SET draining = true WHERE uid = $1", worker.attempt)
    began = time.monotonic()
    assert (await worker.claim(wait=HELD))["calls"] == []
    assert time.monotonic() - began >= 1.0


async def test_deleting_a_running_call_tells_its_worker_and_ends_as_cancelled(api: ServedApi) -> None:
    await api.function()
    worker = await start_worker(api)
    name = await call(api)
    await worker.claim()
    async with api.watch("functioncalls", fieldSelector=f"metadata.name={name}") as events:
        await events.next()
        assert (await api.client.delete(f"{api.path}/functioncalls/{name}")).status_code == 200
        assert (await worker.claim(take=0))["cancel"] == [name]
        await worker.claim({"call": name, "outcome": "Cancelled"}, take=0)
        seen = [(event["type"], event["object"]["status"]["phase"]) for event in await events.take(2)]
        assert seen == [("MODIFIED", "Cancelling")] * 2
        await worker.exits()
        seen = [(event["type"], event["object"]["status"]["phase"]) for event in await events.take(2)]
    assert seen == [("MODIFIED", "Cancelled"), ("DELETED", "Cancelled")]


async def test_a_cancel_of_an_ended_call_answers_200_and_changes_nothing(api: ServedApi) -> None:
    await api.function()
    worker = await start_worker(api)
    name = await call(api)
    await worker.claim()
    await worker.claim(succeeded(name), take=0)
    before = (await api.client.get(f"{api.path}/functioncalls/{name}")).json()
    response = await api.client.patch(
        f"{api.path}/functioncalls/{name}", json={"spec": {"state": "Cancelled"}},
        headers={"Content-Type": "application/merge-patch+json"},
    )  # fmt: skip
    assert (response.status_code, response.json()) == (200, before)


async def test_a_batch_of_a_thousand_calls_is_created_at_once_and_taken_in_order(api: ServedApi) -> None:
    await api.function()
    items = [
        {"metadata": {"generateName": "m-"}, "spec": {**CALL, "mapId": "a" * 20, "mapIndex": n}} for n in range(1_000)
    ]
    response = await api.client.post(
        f"{api.path}/functions/f/calls",
        json={"apiVersion": "nodus.dev/v1", "kind": "FunctionCallList", "items": items},
    )
    assert response.status_code == 201
    names = [item["metadata"]["name"] for item in response.json()["items"]]
    worker = await start_worker(api)
    given = await worker.claim(take=3)
    assert [each["id"] for each in given["calls"]] == names[:3]


async def test_a_rehearsed_call_is_given_to_no_worker(api: ServedApi) -> None:
    await api.function()
    worker = await start_worker(api)
    waiting = asyncio.create_task(worker.claim(wait=HELD))
    body = {"metadata": {"name": "rehearsed"}, "spec": CALL}
    for _ in range(3):
        rehearsed = await api.client.post(f"{api.path}/functioncalls?dryRun=All", json=body)
        assert rehearsed.status_code == 200, rehearsed.text
    name = await call(api)
    assert [given["id"] for given in (await waiting)["calls"]] == [name]
