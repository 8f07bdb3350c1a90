"""`dryRun=All`: the answer of the real request, and nothing else."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import httpx
import orjson
import pytest

from tests.fixtures.app import CALL, FUNCTION, ServedApi

MERGE = {"Content-Type": "application/merge-patch+json"}
JSON_PATCH = {"Content-Type": "application/json-patch+json"}
APPLY = {"Content-Type": "application/apply-patch+yaml"}
ALL = {"dryRun": "All"}

CREATES: dict[str, dict[str, Any]] = {
    "apps": {"metadata": {"name": "new"}, "spec": {"description": "one"}},
    "functions": {"metadata": {"name": "new"}, "spec": FUNCTION},
    "functioncalls": {"metadata": {"name": "new"}, "spec": CALL},
    "secrets": {"metadata": {"name": "new"}, "spec": {"stringData": {"KEY": "value"}}},
    "images": {"metadata": {"name": "new"}, "spec": {"base": "nodus/python:3.11", "python": "3.11"}},
}
_OF_THE_WRITE = ("uid", "resourceVersion", "creationTimestamp")


def compared(document: dict[str, Any]) -> dict[str, Any]:
    """The object without what every write chooses anew: names, uids, and all of its times."""
    metadata = {name: value for name, value in document["metadata"].items() if name not in _OF_THE_WRITE}
    # They are in the order of their times.
    entries = sorted(metadata.get("managedFields", []), key=lambda entry: str(entry["manager"]))
    told = orjson.dumps({**document, "metadata": {**metadata, "managedFields": entries}})
    compared: dict[str, Any] = orjson.loads(re.sub(rb'"\d{4}-\d\d-\d\dT[\d:.]+Z"', b'""', told))
    return compared


async def revision(api: ServedApi) -> int:
    count: int = await api.core.database.fetchval("SELECT rv FROM meta WHERE id = 1")
    return count


@pytest.mark.parametrize("plural", CREATES)
async def test_a_rehearsed_create_answers_what_the_real_one_does(project: ServedApi, plural: str) -> None:
    await project.function()
    body, key = CREATES[plural], {"Idempotency-Key": f"{project.project_name}-{plural}"}
    before, rows = await revision(project), await project.row_count()
    rehearsed = await project.client.post(f"{project.path}/{plural}", json=body, params=ALL, headers=key)
    assert rehearsed.status_code == 200, rehearsed.text
    assert "resourceVersion" not in rehearsed.json()["metadata"]
    assert rehearsed.json()["metadata"]["uid"]
    assert (await revision(project), await project.row_count()) == (before, rows)
    keys = "SELECT count(*) FROM idempotency WHERE key = $1"
    assert await project.core.database.fetchval(keys, key["Idempotency-Key"]) == 0
    real = await project.client.post(f"{project.path}/{plural}", json=body, headers=key)
    assert real.status_code == 201, real.text
    expected, answered = compared(real.json()), compared(rehearsed.json())
    if plural == "functioncalls":
        # An ordinary create of a call keeps a part of its Function's estimate; the rest is in test_estimates.py.
        kept, estimated = expected["status"].pop("estimate", {}), answered["status"].pop("estimate")
        assert kept.keys() <= estimated.keys()
    assert answered == expected


async def test_a_rehearsed_create_is_refused_as_the_real_one_is(project: ServedApi) -> None:
    await project.function()
    for body in (
        {"metadata": {"name": "f"}, "spec": {**FUNCTION, "timeout": "7s"}},
        {"metadata": {"name": "g"}, "spec": {**FUNCTION, "secrets": ["missing"]}},
        {"metadata": {"name": "G"}, "spec": {}},
    ):
        answers = [
            await project.client.post(f"{project.path}/functions", json=body, params=params) for params in (ALL, {})
        ]
        assert answers[0].status_code == answers[1].status_code >= 400
        assert answers[0].json()["message"] == answers[1].json()["message"]
    same = await project.client.post(
        f"{project.path}/functions", json={"metadata": {"name": "f"}, "spec": FUNCTION}, params=ALL
    )
    rehearsed, stored = same.json(), (await project.client.get(f"{project.path}/functions/f")).json()
    assert rehearsed["status"]["estimate"].pop("validUntil") >= stored["status"]["estimate"].pop("validUntil")
    assert rehearsed == stored


@pytest.mark.parametrize(
    ("path", "headers", "body"),
    [
        ("functions/f", MERGE, {"spec": {"timeout": "7s"}}),
        ("functions/f", JSON_PATCH, [{"op": "replace", "path": "/spec/timeout", "value": "7s"}]),
        ("functions/f", APPLY, {"metadata": {"name": "f"}, "spec": {"timeout": "7s"}}),
        ("functions/f", None, {"spec": {**FUNCTION, "timeout": "7s"}}),
        ("functions/f/scale", MERGE, {"spec": {"replicas": 2}}),
        ("functioncalls/c", MERGE, {"spec": {"state": "Cancelled"}}),
        ("secrets/s", MERGE, {"spec": {"stringData": {"B": "y"}}}),
    ],
    ids=["merge patch", "JSON patch", "apply", "replace", "scale", "cancel", "secret"],
)
async def test_a_rehearsed_change_answers_what_the_real_one_does(
    project: ServedApi, path: str, headers: dict[str, str] | None, body: Any
) -> None:
    await project.function()
    await project.create("functioncalls", {"metadata": {"name": "c"}, "spec": CALL})
    await project.create("secrets", {"metadata": {"name": "s"}, "spec": {"stringData": {"A": "x"}}})

    async def send(**query: str) -> httpx.Response:
        params = {"fieldManager": "ci", **query}
        method = "PATCH" if headers else "PUT"
        return await project.client.request(method, f"{project.path}/{path}", json=body, headers=headers, params=params)

    stored = (await project.client.get(f"{project.path}/{path}")).json()
    before, rows = await revision(project), await project.row_count()
    versions = "SELECT count(*) FROM secret_versions"
    secrets = await project.core.database.fetchval(versions)
    rehearsed = await send(**ALL)
    assert rehearsed.status_code == 200, rehearsed.text
    assert rehearsed.json()["metadata"]["resourceVersion"] == stored["metadata"]["resourceVersion"]
    assert (await revision(project), await project.row_count()) == (before, rows)
    assert await project.core.database.fetchval(versions) == secrets
    assert (await project.client.get(f"{project.path}/{path}")).json() == stored
    real = (await send()).json()
    assert compared(rehearsed.json()) == compared(real)


async def test_a_rehearsed_delete_answers_what_the_real_one_does(project: ServedApi) -> None:
    await project.function()
    secret = await project.create("secrets", {"metadata": {"name": "s"}, "spec": {"stringData": {"A": "x"}}})
    held = await project.create("apps", {"metadata": {"name": "a", "finalizers": ["example.com/x"]}, "spec": {}})
    before, rows = await revision(project), await project.row_count()
    for plural, name in (("functions", "f"), ("secrets", "s"), ("apps", "a")):
        for params, body in ((ALL, None), ({}, {"dryRun": ["All"]})):
            answer = await project.client.request("DELETE", f"{project.path}/{plural}/{name}", params=params, json=body)
            assert answer.status_code == 200
            if plural == "secrets":
                assert answer.json()["details"]["uid"] == secret["metadata"]["uid"]
            else:
                assert answer.json()["metadata"]["deletionTimestamp"]
    for options, status in (({"uid": "other"}, 409), ({"resourceVersion": "1"}, 409)):
        answer = await project.client.request(
            "DELETE", f"{project.path}/secrets/s", json={"dryRun": ["All"], "preconditions": options}
        )
        assert answer.status_code == status
    assert (await project.client.delete(f"{project.path}/secrets/missing", params=ALL)).status_code == 404
    collection = await project.client.delete(f"{project.path}/secrets", params=ALL)
    assert collection.json()["details"]["count"] == 1
    assert (await revision(project), await project.row_count()) == (before, rows)
    assert (await project.client.get(f"{project.path}/apps/a")).json() == held


async def test_a_rehearsed_batch_stores_no_call(project: ServedApi) -> None:
    await project.function()
    items = [{"metadata": {"generateName": "c-"}, "spec": CALL} for _ in range(3)]
    body = {"apiVersion": "nodus.dev/v1", "kind": "FunctionCallList", "items": items}
    before, rows = await revision(project), await project.row_count()
    answer = await project.client.post(f"{project.path}/functions/f/calls", json=body, params=ALL)
    assert answer.status_code == 200, answer.text
    assert len({item["metadata"]["name"] for item in answer.json()["items"]}) == 3
    assert "resourceVersion" not in answer.json()["metadata"]
    assert (await revision(project), await project.row_count()) == (before, rows)


async def test_rehearsals_among_real_writes_take_no_revision(project: ServedApi) -> None:
    created = await project.function()

    async def label(number: int, **query: str) -> httpx.Response:
        body = {"metadata": {"labels": {f"l{number}": "x"}}}
        return await project.client.patch(f"{project.path}/functions/f", json=body, headers=MERGE, params=query)

    answers = await asyncio.gather(*(label(number, **(ALL if number % 2 else {})) for number in range(10)))
    assert [answer.status_code for answer in answers] == [200] * 10
    stored = (await project.client.get(f"{project.path}/functions/f")).json()
    assert {f"l{number}" for number in range(0, 10, 2)} == {
        name for name in stored["metadata"]["labels"] if name.startswith("l")
    }
    changes = await project.core.database.fetchval(
        "SELECT count(*) FROM changes WHERE uid = $1", created["metadata"]["uid"]
    )
    assert changes == 6
