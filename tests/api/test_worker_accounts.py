"""Workers that act as a ServiceAccount: what their credential may do is what the account may, at any moment."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import Any

import httpx
import pytest

from tests.api.test_access import key
from tests.api.test_api_keys import bearer, whoami
from tests.api.test_permissions import Caller, differing
from tests.api.test_service_accounts import MERGE
from tests.fixtures.app import CALL, FUNCTION, NEW_CALL, ServedApi
from tests.fixtures.eventually import eventually
from tests.fixtures.http_worker import HttpWorker, start_worker


async def account(project: ServedApi, *scopes: str, name: str = "ci") -> str:
    await project.create("serviceaccounts", {"metadata": {"name": name}, "spec": {"scopes": list(scopes)}})
    return f"{project.path}/serviceaccounts/{name}"


async def leased(project: ServedApi, node: httpx.AsyncClient, function: str = "f") -> HttpWorker:
    """A worker of the Function with the token that its node was given."""
    worker = await start_worker(project, function)
    lease = await node.post(f"/node/v1/attempts/{worker.attempt}/lease", json={"epoch": 1})
    assert lease.status_code == 200, lease.text
    worker.token = lease.json()["token"]
    return worker


async def codes(project: ServedApi, worker: HttpWorker) -> dict[str, int]:
    """What the worker is answered: to what its work takes, and to what only an account may allow."""
    headers = bearer(worker.token)
    uploads = f"/blobs/v1/namespaces/{project.project_name}/uploads"
    blob = {"sha256": secrets.token_hex(32), "size": 1, "contentType": "application/octet-stream"}
    asked: dict[str, tuple[str, str, Any]] = {
        "self": ("GET", "/self", None),
        "claim": ("POST", worker.path, {"max": 0}),
        "function": ("GET", f"{project.path}/functions/f", None),
        "upload": ("POST", uploads, blob),
        "calls": ("GET", f"{project.path}/functioncalls", None),
        "call": ("POST", f"{project.path}/functioncalls", NEW_CALL),
        "secrets": ("GET", f"{project.path}/secrets", None),
        "scale": ("PATCH", f"{project.path}/functions/f/scale", {"spec": {"replicas": 0}}),
        "members": ("GET", "/apis/nodus.dev/v1/members", None),
    }
    found = {}
    for name, (method, path, body) in asked.items():
        kind = MERGE if method == "PATCH" else {}
        answer = await project.client.request(method, path, json=body, headers={**headers, **kind})
        found[name] = answer.status_code
    return found


WORK = {"self": 200, "claim": 200, "function": 200, "upload": 200}
NOTHING_ELSE = {"calls": 403, "call": 403, "secrets": 403, "scale": 403, "members": 403}


async def test_without_an_account_a_worker_has_what_every_worker_has(
    project: ServedApi, node: httpx.AsyncClient
) -> None:
    await project.function()
    assert await codes(project, await leased(project, node)) == WORK | NOTHING_ELSE | {"calls": 200, "call": 201}


@pytest.mark.parametrize(
    ("scopes", "allowed"),
    [
        ((), {}),
        (("secrets:read",), {"secrets": 200}),
        (("functioncalls:read",), {"calls": 200}),
        (("functioncalls:write", "functions:write"), {"call": 201, "scale": 200}),
        (("*:read",), {"calls": 200, "secrets": 200, "members": 200}),
    ],
)
async def test_a_worker_has_the_scopes_of_its_account_and_what_its_work_takes(
    project: ServedApi, node: httpx.AsyncClient, scopes: tuple[str, ...], allowed: dict[str, int]
) -> None:
    await account(project, *scopes)
    await project.function(serviceAccountName="ci")
    worker = await leased(project, node)
    assert await codes(project, worker) == WORK | NOTHING_ELSE | allowed
    told = await whoami(project, bearer(worker.token))
    assert (told["kind"], told["serviceAccount"]) == ("ServiceAccount", "ci")
    assert set(told["scopes"]) == {*scopes, "functions:read", "functions:claim"}
    assert told["projects"] == [project.project_name]


async def test_every_route_answers_a_worker_with_an_account_as_the_table_says(
    project: ServedApi, node: httpx.AsyncClient
) -> None:
    await account(project, "secrets:read", "functioncalls:write")
    await project.function(serviceAccountName="ci")
    worker = await leased(project, node)
    scopes = ("any", "worker", "functions:read", "secrets:read", "functioncalls:write", "blobs:read", "blobs:write")
    its_own = Caller(scopes=scopes, is_process=True)
    assert await differing(project, its_own, bearer(worker.token)) == []
    elsewhere = await project.client.post("/apis/nodus.dev/v1/projects", json={"metadata": {"generateName": "other-"}})
    other = replace(project, project_name=elsewhere.json()["metadata"]["name"])
    assert await differing(other, replace(its_own, projects=("its own",)), bearer(worker.token)) == []


async def test_an_account_that_may_do_everything_may_it_in_its_project_alone(
    project: ServedApi, node: httpx.AsyncClient
) -> None:
    await account(project, "*")
    await project.function(serviceAccountName="ci")
    await project.function("g")
    worker = await leased(project, node)
    headers = bearer(worker.token)
    elsewhere = "/apis/nodus.dev/v1/namespaces/default"
    assert (await project.client.get(f"{project.path}/secrets", headers=headers)).status_code == 200
    assert (await project.client.get(f"{elsewhere}/secrets", headers=headers)).status_code == 403
    other = await project.client.post(f"{project.path}/functions/g/claims", json={}, headers=headers)
    assert (other.status_code, other.json()["reason"]) == (403, "WorkerNotAllowed")
    project_of_its_own = {"metadata": {"generateName": "p-"}}
    assert (
        await project.client.post("/apis/nodus.dev/v1/projects", json=project_of_its_own, headers=headers)
    ).status_code == 403


async def test_a_change_and_the_end_of_the_account_reach_workers_that_run(
    project: ServedApi, node: httpx.AsyncClient
) -> None:
    path = await account(project, "secrets:read")
    await project.function(serviceAccountName="ci")
    await project.create("functioncalls", {"metadata": {"name": "c"}, "spec": CALL})
    worker = await leased(project, node)
    [call] = (await worker.claim())["calls"]

    async def code(plural: str) -> int:
        return (await project.client.get(f"{project.path}/{plural}", headers=bearer(worker.token))).status_code

    async def reads(**wanted: int) -> bool:
        return {plural: await code(plural) for plural in wanted} == wanted

    assert await reads(secrets=200, images=403)
    patch = {"spec": {"scopes": ["images:read"]}}
    assert (await project.client.patch(path, json=patch, headers=MERGE)).status_code == 200
    await eventually(lambda: reads(secrets=403, images=200))
    assert (await project.client.delete(path)).status_code == 200
    await eventually(lambda: reads(secrets=403, images=403))
    # The call that it runs is not lost: what the work takes stays.
    await worker.claim({"call": call["id"], "outcome": "Succeeded", "result": {"encoding": "JSON", "inline": "MQ=="}})
    ended = (await project.client.get(f"{project.path}/functioncalls/c")).json()
    assert ended["status"]["phase"] == "Succeeded"
    # Another account of the same name is another account, for workers that start from now on.
    await account(project, "images:read")
    assert await code("images") == 403
    assert await reads(secrets=403, functions=200)
    newer = await leased(project, node)
    assert (await project.client.get(f"{project.path}/images", headers=bearer(newer.token))).status_code == 200


async def test_no_worker_starts_as_an_account_that_is_not_there(project: ServedApi, node: httpx.AsyncClient) -> None:
    body = {"metadata": {"name": "f"}, "spec": {**FUNCTION, "serviceAccountName": "ci"}}
    refused = await project.client.post(f"{project.path}/functions", json=body)
    assert refused.status_code == 422
    [cause] = refused.json()["details"]["causes"]
    assert (cause["field"], cause["reason"]) == ("spec.serviceAccountName", "FieldValueNotFound")
    path = await account(project)
    await project.create("functions", body)
    worker = await start_worker(project)
    await project.client.delete(path)
    lease = await node.post(f"/node/v1/attempts/{worker.attempt}/lease", json={"epoch": 1})
    assert lease.status_code == 404
    assert 'serviceaccounts.nodus.dev "ci" not found' in lease.json()["message"]


async def test_nobody_lets_code_act_as_an_account_that_may_do_more(project: ServedApi) -> None:
    await account(project, "secrets:read", "members:write", name="strong")
    await account(project, "functions:read", name="weak")
    limited = {**await key(project, ["functions:read", "functions:write"], [project.project_name]), **MERGE}
    path = f"{project.path}/functions"
    new = {"metadata": {"name": "mine"}, "spec": {**FUNCTION, "serviceAccountName": "strong"}}
    refused = await project.client.post(path, json=new, headers={"Authorization": limited["Authorization"]})
    assert (refused.status_code, refused.json()["details"]["missingScope"]) == (403, "members:write")
    await project.function("theirs", serviceAccountName="strong")
    await project.function("open", serviceAccountName="weak")
    changes: list[tuple[str, dict[str, Any], int]] = [
        ("theirs", {"workingDir": "/srv"}, 403),
        ("theirs", {"code": {"module": "evil"}}, 403),
        ("theirs", {"state": "Stopped"}, 200),
        ("theirs", {"scaling": {"maxWorkers": 2}}, 200),
        ("theirs", {"serviceAccountName": None, "workingDir": "/srv"}, 200),
        ("open", {"serviceAccountName": "strong"}, 403),
        ("open", {"workingDir": "/srv"}, 200),
    ]
    for name, change, code in changes:
        answer = await project.client.patch(f"{path}/{name}", json={"spec": change}, headers=limited)
        assert answer.status_code == code, (name, change, answer.text)
