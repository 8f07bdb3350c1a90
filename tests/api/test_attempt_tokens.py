"""What a worker's credential reaches: its project, the calls of its own Function, and nothing else.

The walk over every route is in `test_permissions.py`; here are objects that exist, and what another worker's token does
to them.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from typing import Any

import pytest

from controlplane.identity.tokens import TokenHasher, mint_attempt_token
from tests.fixtures.app import CALL, FUNCTION, ROOT, ServedApi
from tests.fixtures.http_worker import HttpWorker, start_worker

OBJECTS: dict[str, dict[str, Any]] = {
    "apps": {"metadata": {"name": "x"}, "spec": {}},
    "images": {"metadata": {"name": "x"}, "spec": {"base": "nodus/python:3.11"}},
    "secrets": {"metadata": {"name": "x"}, "spec": {"stringData": {"K": "a value that is long enough"}}},
    "serviceaccounts": {"metadata": {"name": "x"}, "spec": {"scopes": ["apps:read"]}},
    "functions": {"metadata": {"name": "other"}, "spec": FUNCTION},
    "functioncalls": {"metadata": {"name": "x"}, "spec": {**CALL, "function": "other"}},
}
ALLOWED = {
    "functions": {"GET"},
    "functioncalls": {"GET", "POST", "PATCH", "DELETE"},
    "apps": {"GET"},
    "images": set[str](),
    "secrets": set[str](),
    "serviceaccounts": set[str](),
}
MERGE = {"Content-Type": "application/merge-patch+json"}


def header(worker: HttpWorker) -> dict[str, str]:
    return {"Authorization": f"Bearer {worker.token}"}


@pytest.fixture
async def worker(project: ServedApi) -> HttpWorker:
    """A worker of `f` in a project with an object of each kind."""
    await project.function()
    for plural, body in OBJECTS.items():
        await project.create(plural, body)
    return await start_worker(project)


@pytest.mark.parametrize("plural", OBJECTS)
async def test_objects_that_exist_are_its_own_by_the_same_table(
    project: ServedApi, worker: HttpWorker, plural: str
) -> None:
    path, body = f"{project.path}/{plural}", OBJECTS[plural]
    one, new = f"{path}/{body['metadata']['name']}", {**body, "metadata": {"generateName": "n-"}}
    label = {"metadata": {"labels": {"a": "b"}}}
    before = await project.row_count()
    requests: list[tuple[str, str, Any]] = [
        ("GET", path, None),
        ("GET", one, None),
        ("GET", f"{one}/status", None),
        ("POST", path, new),
        ("PATCH", one, label),
        ("DELETE", one, None),
    ]
    for method, where, sent in requests:
        kind = MERGE if method == "PATCH" else {}
        answer = await project.client.request(method, where, json=sent, headers={**header(worker), **kind})
        expected = {200, 201} if method in ALLOWED[plural] else {403}
        assert answer.status_code in expected, (method, where, answer.text)
        if answer.status_code == 403:
            # A refusal tells the scope that is missing, not what is there.
            access = "read" if method == "GET" else "write"
            assert answer.json()["details"]["missingScope"] == f"{plural}:{access}"
    if len(ALLOWED[plural]) < 2:
        assert await project.row_count() == before


@pytest.mark.parametrize("subresource", ["claims", "cancels"])
async def test_a_worker_of_another_function_claims_and_hears_nothing(
    project: ServedApi, worker: HttpWorker, subresource: str
) -> None:
    for name in ("other", "absent"):
        path = f"{project.path}/functions/{name}/{subresource}"
        answer = await project.client.post(path, json={}, headers=header(worker))
        assert (answer.status_code, answer.json()["reason"]) == (403, "WorkerNotAllowed")
    queued = (await project.client.get(f"{project.path}/functioncalls/x")).json()
    assert queued["status"]["phase"] == "Queued"


async def test_it_is_itself_and_makes_no_other_credential(project: ServedApi, worker: HttpWorker) -> None:
    told = (await project.client.get("/self", headers=header(worker))).json()
    assert (told["name"], told["project"], told["attempt"]) == ("f", project.project_name, worker.attempt)
    key = {"metadata": {"generateName": "k-"}, "spec": {"scopes": ["functions:read"]}}
    asked: list[tuple[str, Any]] = [
        (f"{ROOT}/apikeys", key),
        (f"{project.path}/serviceaccounts/x/tokens", {}),
        (f"{ROOT}/members", {"metadata": {"name": "m"}, "spec": {"role": "Viewer"}}),
    ]
    for path, body in asked:
        answer = await project.client.post(path, json=body, headers=header(worker))
        assert answer.status_code == 403, (path, answer.text)


async def test_a_worker_that_is_leased_again_has_one_token_and_the_old_one_is_unknown(
    project: ServedApi, worker: HttpWorker
) -> None:
    core = project.core
    await core.database.execute("UPDATE attempts SET epoch = 2 WHERE uid = $1", worker.attempt)
    hasher = TokenHasher(core.settings.secret_key)
    minted = await mint_attempt_token(core.database, hasher, attempt=worker.attempt, epoch=2, now=core.clock.now())
    assert minted is not None
    for path, method in ((worker.path, "POST"), ("/self", "GET"), (f"{project.path}/functions/f", "GET")):
        old = await project.client.request(method, path, headers=header(worker))
        assert (old.status_code, old.json()["reason"]) == (401, "Unauthorized"), path
        new = await project.client.request(method, path, headers={"Authorization": f"Bearer {minted[0]}"})
        assert new.status_code == 200, new.text


async def test_a_log_that_a_worker_follows_ends_with_its_attempt(
    project: ServedApi, worker: HttpWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.streams.RECHECK_SECONDS", 0.05)
    path, follow = f"{project.path}/functions/f/log", {"follow": "true"}
    # Another attempt keeps the log going, so only the end of the credential can end the stream.
    await start_worker(project)
    async with (
        asyncio.timeout(60),
        project.client.stream("GET", path, params=follow, headers=header(worker)) as stream,
    ):
        assert stream.status_code == 200
        await project.core.database.execute("UPDATE attempts SET finished_at = now() WHERE uid = $1", worker.attempt)
        assert [line async for line in stream.aiter_lines()] == []


async def test_an_idempotency_key_of_one_worker_replays_nothing_to_another(
    project: ServedApi, worker: HttpWorker
) -> None:
    keyed = {"Idempotency-Key": secrets.token_hex(8)}
    body = {"metadata": {"generateName": "c-"}, "spec": {**CALL, "function": "f"}}
    workers = [worker, worker, await start_worker(project)]
    made = [
        (await project.client.post(f"{project.path}/functioncalls", json=body, headers={**header(one), **keyed})).json()
        for one in workers
    ]
    first, again, other = (one["metadata"]["uid"] for one in made)
    assert first == again != other


async def test_blobs_of_its_project_are_its_own_and_those_of_another_are_not(
    project: ServedApi, worker: HttpWorker
) -> None:
    content = secrets.token_bytes(64)
    digest = hashlib.sha256(content).hexdigest()
    asked = {"sha256": digest, "size": 64, "contentType": "application/octet-stream"}
    await project.upload(content)
    headers = header(worker)
    mine = await project.client.get(
        f"/blobs/v1/namespaces/{project.project_name}/blobs/{digest}", headers=headers, follow_redirects=False
    )
    assert mine.status_code in (200, 302, 303, 307), mine.text
    elsewhere = (await project.client.post(f"{ROOT}/projects", json={"metadata": {"generateName": "o-"}})).json()
    theirs = f"/blobs/v1/namespaces/{elsewhere['metadata']['name']}"
    assert (await project.client.get(f"{theirs}/blobs/{digest}", headers=headers)).status_code == 403
    assert (await project.client.post(f"{theirs}/uploads", json=asked, headers=headers)).status_code == 403
