"""Idempotency-Key: one request, however often it arrives."""

from __future__ import annotations

import asyncio

import pytest

from controlplane.store.finalizers import WORKERS
from tests.fixtures.app import CALL, ServedApi
from tests.fixtures.eventually import eventually

BODY = {"metadata": {"generateName": "f-"}, "spec": CALL}


async def test_twenty_requests_at_once_with_one_key_create_one_object(project: ServedApi) -> None:
    await project.function()
    path, headers = f"{project.path}/functioncalls", {"Idempotency-Key": "k"}
    async with project.core.database.pool.acquire() as blocker, blocker.transaction():
        # Whichever comes first cannot commit, so it is there whenever the others come.
        await blocker.execute("SELECT FROM meta FOR UPDATE")
        asked = [asyncio.create_task(project.client.post(path, json=BODY, headers=headers)) for _ in range(20)]
        await eventually(lambda: sum(task.done() for task in asked) >= 19)
        busy = [task.result() for task in asked if task.done()]
    answers = await asyncio.gather(*asked)
    assert [answer.status_code for answer in busy] == [409] * 19
    assert {answer.json()["reason"] for answer in busy} == {"RequestInProgress"}
    assert {answer.headers["retry-after"] for answer in busy} == {"1"}
    [created] = [answer for answer in answers if answer.status_code == 201]
    again = await project.client.post(path, json=BODY, headers=headers)
    assert (again.status_code, again.content) == (201, created.content)
    assert len((await project.client.get(path)).json()["items"]) == 1


async def test_a_repeated_request_gets_the_first_answer(project: ServedApi) -> None:
    await project.function()
    first = await project.client.post(f"{project.path}/functioncalls", json=BODY, headers={"Idempotency-Key": "k"})
    name = first.json()["metadata"]["name"]
    await project.client.delete(f"{project.path}/functioncalls/{name}")
    again = await project.client.post(f"{project.path}/functioncalls", json=BODY, headers={"Idempotency-Key": "k"})
    assert (again.status_code, again.content) == (201, first.content)


async def test_a_repeated_batch_gets_the_first_answer(project: ServedApi) -> None:
    await project.function()
    body = {"kind": "FunctionCallList", "items": [BODY] * 40}
    path = f"{project.path}/functions/f/calls"
    first = await project.client.post(path, json=body, headers={"Idempotency-Key": "k"})
    again = await project.client.post(path, json=body, headers={"Idempotency-Key": "k"})
    assert first.status_code == again.status_code == 201
    assert again.content == first.content
    assert len((await project.client.get(f"{project.path}/functioncalls")).json()["items"]) == 40


async def test_a_repeated_batch_gets_the_first_answer_when_its_function_is_going_and_when_it_is_gone(
    project: ServedApi,
) -> None:
    await project.function()
    body = {"kind": "FunctionCallList", "items": [BODY] * 3}
    path, headers = f"{project.path}/functions/f/calls", {"Idempotency-Key": "k"}
    first = await project.client.post(path, json=body, headers=headers)
    await project.client.delete(f"{project.path}/functions/f")
    refused = await project.client.post(path, json=body)
    assert (refused.status_code, refused.json()["reason"]) == (404, "FunctionNotFound")
    going = await project.client.post(path, json=body, headers=headers)
    await project.deps.resources.deleter.release(project.object_key("Function", "f"), WORKERS)
    assert (await project.client.get(f"{project.path}/functions/f")).status_code == 404
    gone = await project.client.post(path, json=body, headers=headers)
    assert [going.status_code, gone.status_code] == [201, 201]
    assert going.content == gone.content == first.content


async def test_the_first_answer_to_a_batch_holds_when_it_was_a_refusal(project: ServedApi) -> None:
    body = {"kind": "FunctionCallList", "items": [BODY]}
    path, headers = f"{project.path}/functions/f/calls", {"Idempotency-Key": "k"}
    first = await project.client.post(path, json=body, headers=headers)
    await project.function()
    again = await project.client.post(path, json=body, headers=headers)
    assert first.status_code == again.status_code == 404
    assert {**again.json(), "requestId": ""} == {**first.json(), "requestId": ""}


@pytest.mark.parametrize("name", ["no%01name", "no%2Fname", "n%C3%B6"])
async def test_a_refusal_is_kept_for_whatever_path_it_was(project: ServedApi, name: str) -> None:
    body = {"kind": "FunctionCallList", "items": [BODY]}
    path, headers = f"{project.path}/functions/{name}/calls", {"Idempotency-Key": "k"}
    answers = [await project.client.post(path, json=body, headers=headers) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [404, 404, 404]


async def test_a_key_used_for_another_request_is_refused(project: ServedApi) -> None:
    await project.function()
    path, headers = f"{project.path}/functioncalls", {"Idempotency-Key": "k"}
    await project.client.post(path, json=BODY, headers=headers)
    other = {"metadata": {"generateName": "f-"}, "spec": {**CALL, "session": "s"}}
    answer = await project.client.post(path, json=other, headers=headers)
    assert (answer.status_code, answer.json()["reason"]) == (409, "IdempotencyKeyReused")


async def test_a_key_counts_for_one_method_path_and_query(project: ServedApi) -> None:
    await project.function()
    headers = {"Idempotency-Key": "k"}
    first = await project.client.post(f"{project.path}/functioncalls", json=BODY, headers=headers)
    second = await project.client.post(f"{project.path}/functioncalls?fieldManager=x", json=BODY, headers=headers)
    assert first.json()["metadata"]["uid"] != second.json()["metadata"]["uid"]


async def test_the_first_answer_holds_when_it_was_a_refusal(project: ServedApi) -> None:
    path, headers = f"{project.path}/functioncalls", {"Idempotency-Key": "k"}
    first = await project.client.post(path, json=BODY, headers=headers)
    assert (first.status_code, first.json()["reason"]) == (404, "FunctionNotFound")
    await project.function()
    again = await project.client.post(path, json=BODY, headers=headers)
    assert again.status_code == 404
    assert {**again.json(), "requestId": ""} == {**first.json(), "requestId": ""}
    assert (await project.client.post(path, json=BODY, headers={"Idempotency-Key": "l"})).status_code == 201


async def test_the_first_answer_holds_when_the_request_would_be_refused_now(project: ServedApi) -> None:
    await project.function()
    path, headers = f"{project.path}/functioncalls", {"Idempotency-Key": "k"}
    first = await project.client.post(path, json=BODY, headers=headers)
    await project.client.delete(f"{project.path}/functions/f")
    assert (await project.client.post(path, json=BODY)).status_code == 404
    again = await project.client.post(path, json=BODY, headers=headers)
    assert (again.status_code, again.content) == (201, first.content)


async def test_a_named_create_is_replayed_with_its_status(project: ServedApi) -> None:
    body, headers = {"metadata": {"name": "a"}, "spec": {}}, {"Idempotency-Key": "k"}
    answers = [await project.client.post(f"{project.path}/apps", json=body, headers=headers) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 201]
    assert (await project.client.post(f"{project.path}/apps", json=body)).status_code == 200


@pytest.mark.parametrize(("key", "status"), [("k" * 255, 201), ("k" * 256, 400), ("", 400)])
async def test_a_key_has_at_most_255_characters(project: ServedApi, key: str, status: int) -> None:
    body = {"metadata": {"generateName": "a-"}, "spec": {}}
    answer = await project.client.post(f"{project.path}/apps", json=body, headers={"Idempotency-Key": key})
    assert answer.status_code == status
