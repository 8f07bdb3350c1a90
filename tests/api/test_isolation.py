"""Two organisations, and two projects of one, on one server: neither sees, guesses or disturbs the other."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import httpx
import orjson
import pytest

from controlplane.identity.bootstrap import bootstrap
from controlplane.store.contract import Key
from controlplane.store.events import NORMAL, Happening, RecordEvent
from tests.api.test_access import key
from tests.fixtures.app import CALL, FUNCTION, ROOT, ServedApi
from tests.fixtures.eventually import WITHIN_SECONDS, eventually
from tests.fixtures.http_worker import start_worker

SECRET_VALUE = "a value that is long enough to be one"
OBJECTS: dict[str, dict[str, Any]] = {
    "apps": {"metadata": {"name": "theirs"}, "spec": {}},
    "functions": {"metadata": {"name": "theirs"}, "spec": FUNCTION},
    "functioncalls": {"metadata": {"name": "theirs"}, "spec": {**CALL, "function": "theirs"}},
    "images": {"metadata": {"name": "theirs"}, "spec": {"base": "nodus/python:3.11"}},
    "secrets": {"metadata": {"name": "theirs"}, "spec": {"stringData": {"K": SECRET_VALUE}}},
    "serviceaccounts": {"metadata": {"name": "theirs"}, "spec": {"scopes": ["apps:read"]}},
}
OF_ORGANISATION = ("projects", "members", "apikeys", "organizations")
MERGE = {"Content-Type": "application/merge-patch+json"}


@dataclass(frozen=True)
class Neighbours:
    """What one has made, and a client of the other's."""

    theirs: ServedApi
    other: httpx.AsyncClient
    same_org: bool

    def refused(self) -> int:
        """403 where the project is none of the credential's, 404 where it is not there at all."""
        return 403 if self.same_org else 404


@pytest.fixture(params=["another organisation", "another project"])
async def neighbours(project: ServedApi, request: pytest.FixtureRequest) -> AsyncIterator[Neighbours]:
    """An Owner elsewhere, and a project full of objects that they must not see."""
    same_org = request.param == "another project"
    if same_org:
        elsewhere = (await project.client.post(f"{ROOT}/projects", json={"metadata": {"generateName": "o-"}})).json()
        headers = await key(project, ["*"], [elsewhere["metadata"]["name"]])
    else:
        core, org = project.core, f"org-{secrets.token_hex(4)}"
        start = await bootstrap(core.writer, core.settings, core.clock, org)
        headers = {"Authorization": f"Bearer {start.token}"}
    for plural, body in OBJECTS.items():
        await project.create(plural, body)
    async with httpx.AsyncClient(
        base_url=project.url, headers=headers, trust_env=False, timeout=WITHIN_SECONDS
    ) as other:
        yield Neighbours(project, other, same_org)


async def test_objects_lists_and_counts_of_others_are_not_there(neighbours: Neighbours) -> None:
    theirs, other = neighbours.theirs, neighbours.other
    before = await theirs.row_count()
    for plural in OBJECTS:
        path = f"{theirs.path}/{plural}"
        answers = [
            await other.get(path),
            await other.get(f"{path}?watch=true"),
            await other.get(f"{path}/theirs"),
            await other.get(f"{path}/theirs/status"),
            await other.patch(f"{path}/theirs", json={"metadata": {"labels": {"a": "b"}}}, headers=MERGE),
            await other.put(f"{path}/theirs", json=OBJECTS[plural]),
            await other.delete(f"{path}/theirs"),
            await other.delete(path),
            await other.post(path, json={**OBJECTS[plural], "metadata": {"name": "mine"}}),
        ]
        assert {answer.status_code for answer in answers} == {neighbours.refused()}, plural
        everywhere = (await other.get(f"{ROOT}/{plural}?limit=1")).json()
        assert everywhere["items"] == []
        assert not {"continue", "remainingItemCount"} & everywhere["metadata"].keys()
    assert await theirs.row_count() == before
    told = await other.get(f"{theirs.path}/apps/absent"), await other.get(f"{theirs.path}-absent/apps/absent")
    hidden, absent = (answer.json() for answer in told)
    # Only the name that was asked for differs between what is hidden and what does not exist.
    assert hidden["message"].replace(theirs.project_name, "P") == absent["message"].replace(
        f"{theirs.project_name}-absent", "P"
    )


async def test_a_watch_of_everything_says_nothing_of_others(neighbours: Neighbours) -> None:
    theirs, other = neighbours.theirs, neighbours.other
    since = (await other.get(f"{ROOT}/apps")).json()["metadata"]["resourceVersion"]
    for plural in OBJECTS:
        patch = {"metadata": {"labels": {"changed": "now"}}}
        changed = await theirs.client.patch(f"{theirs.path}/{plural}/theirs", json=patch, headers=MERGE)
        assert changed.status_code == 200, changed.text

    async def seen(plural: str, query: str) -> tuple[str, str]:
        answer = await other.get(f"{ROOT}/{plural}?watch=true&timeoutSeconds=1{query}")
        assert answer.status_code == 200, answer.text
        return plural, answer.text

    queries = ("", f"&resourceVersion={since}", f"&resourceVersion={since}&allowWatchBookmarks=true")
    for plural, text in await asyncio.gather(*(seen(plural, query) for plural in OBJECTS for query in queries)):
        events = [orjson.loads(line) for line in text.splitlines()]
        assert [event for event in events if event["type"] != "BOOKMARK"] == [], plural
        assert "theirs" not in text


async def test_a_value_of_anothers_secret_is_no_secret_here(neighbours: Neighbours) -> None:
    other = neighbours.other
    mine = (await other.get("/auth/whoami")).json()["projects"][0]
    environment = [{"name": "K", "value": SECRET_VALUE}]
    for path, code in ((neighbours.theirs.path, 422), (f"{ROOT}/namespaces/{mine}", 201)):
        client = other if code == 201 else neighbours.theirs.client
        body = {"metadata": {"generateName": "f-"}, "spec": {**FUNCTION, "env": environment}}
        answer = await client.post(f"{path}/functions", json=body)
        assert answer.status_code == code, answer.text
        assert answer.json().get("reason") == ("SecretValueInEnv" if code == 422 else None)


async def test_what_an_organisation_holds_is_shown_to_no_other(neighbours: Neighbours) -> None:
    theirs, other = neighbours.theirs, neighbours.other
    about = Key("App", "default", theirs.project_name, "theirs")
    happening = Happening(key=about, uid="app_1", type=NORMAL, reason="Tested", message=theirs.project_name)
    event = await theirs.core.writer.write(RecordEvent(happening))
    for path in (f"{ROOT}/events", "/api/v1/events", "/api/v1/namespaces", f"{ROOT}/projects", "/auth/whoami"):
        answer = await other.get(path)
        assert answer.status_code == 200
        assert theirs.project_name not in answer.text, path
    assert (await other.get(f"{ROOT}/events/{event['metadata']['name']}")).status_code == 404
    if not neighbours.same_org:
        mine = {plural: (await theirs.client.get(f"{ROOT}/{plural}")).json()["items"] for plural in OF_ORGANISATION}
        for plural, items in mine.items():
            shown = {item["metadata"]["uid"] for item in (await other.get(f"{ROOT}/{plural}")).json()["items"]}
            assert not shown & {item["metadata"]["uid"] for item in items}, plural
            hidden = [
                item["metadata"]["name"] for item in items if item["metadata"]["name"] not in ("default", "admin")
            ]
            codes = {(await other.get(f"{ROOT}/{plural}/{name}")).status_code for name in hidden[:5]}
            assert codes <= {404}


async def test_a_continue_token_goes_on_with_no_other_list(neighbours: Neighbours) -> None:
    theirs, other = neighbours.theirs, neighbours.other
    for number in range(2):
        await theirs.create("apps", {"metadata": {"name": f"a{number}"}, "spec": {}})
    page = (await theirs.client.get(f"{ROOT}/apps?limit=1")).json()
    answer = await other.get(f"{ROOT}/apps", params={"limit": "1", "continue": page["metadata"]["continue"]})
    assert (answer.status_code, answer.json()["reason"]) == (400, "BadRequest")
    assert "theirs" not in answer.text


async def test_a_blob_known_by_its_digest_is_not_readable_and_must_be_uploaded_again(neighbours: Neighbours) -> None:
    theirs, other = neighbours.theirs, neighbours.other
    content = secrets.token_bytes(64)
    digest = (await theirs.upload(content)).removeprefix("sha256:")
    assert hashlib.sha256(content).hexdigest() == digest
    path = f"/blobs/v1/namespaces/{theirs.project_name}/blobs/{digest}"
    assert (await other.get(path)).status_code == neighbours.refused()
    mine = (await other.get("/auth/whoami")).json()["projects"][0]
    assert (await other.get(f"/blobs/v1/namespaces/{mine}/blobs/{digest}")).status_code == 404
    asked = {"sha256": digest, "size": 64, "contentType": "application/octet-stream"}
    assert (await other.post(f"/blobs/v1/namespaces/{mine}/uploads", json=asked)).json()["exists"] is False
    function = {"metadata": {"name": "f"}, "spec": {**FUNCTION, "source": {"blob": f"sha256:{digest}"}}}
    refused = await other.post(f"{ROOT}/namespaces/{mine}/functions", json=function)
    assert refused.status_code == 422, refused.text


async def test_logs_and_stories_of_calls_are_not_there(neighbours: Neighbours) -> None:
    theirs, other = neighbours.theirs, neighbours.other
    paths = [f"{theirs.path}/{plural}/theirs/log" for plural in ("apps", "functions", "functioncalls", "images")]
    paths += [f"{path}?follow=true" for path in paths]
    paths += [f"{theirs.path}/functioncalls/theirs/{view}" for view in ("wait", "timeline", "charges")]
    for path in paths:
        assert (await theirs.client.head(path.partition("?")[0])).status_code == 200
        assert (await other.get(path)).status_code == neighbours.refused(), path


async def test_an_idempotency_key_of_others_replays_nothing(neighbours: Neighbours) -> None:
    theirs, other = neighbours.theirs, neighbours.other
    # Both know the same path only where both have a project of one name.
    mine = (await other.get("/auth/whoami")).json()["projects"][0]
    keyed = {"Idempotency-Key": secrets.token_hex(8)}
    body = {"metadata": {"generateName": "a-"}, "spec": {}}
    path = f"{ROOT}/namespaces/{mine}/apps"
    first = (await theirs.client.post(path, json=body, headers=keyed)).json()
    second = (await other.post(path, json=body, headers=keyed)).json()
    assert first["metadata"]["uid"] != second["metadata"]["uid"]
    assert first["metadata"]["labels"] != second["metadata"]["labels"]


async def test_a_worker_of_others_claims_and_reports_nothing_here(neighbours: Neighbours) -> None:
    theirs, other = neighbours.theirs, neighbours.other
    worker = await start_worker(theirs, "theirs")
    [call] = (await worker.claim())["calls"]
    mine = (await other.get("/auth/whoami")).json()["projects"][0]
    await other.post(f"{ROOT}/namespaces/{mine}/functions", json={"metadata": {"name": "theirs"}, "spec": FUNCTION})
    elsewhere = replace(worker, api=replace(theirs, project_name=mine))
    body = {"completed": [], "running": [call["id"]], "max": 1, "wait": "0s", "draining": False}
    assert (await elsewhere.post(body)).status_code == 403
    running = await other.post(f"{theirs.path}/functions/theirs/claims", json=body)
    assert (running.status_code, running.json()["reason"]) == (403, "WorkerNotAllowed")


async def test_names_are_free_in_every_organisation(neighbours: Neighbours) -> None:
    theirs, other = neighbours.theirs, neighbours.other
    if neighbours.same_org:
        return
    named = {"metadata": {"name": theirs.project_name}}
    assert (await other.post(f"{ROOT}/projects", json=named)).status_code == 201

    async def is_empty() -> bool:
        listed = await other.get(f"{theirs.path}/apps")
        return listed.status_code == 200 and listed.json()["items"] == []

    await eventually(is_empty)
    assert (await other.post(f"{theirs.path}/apps", json=OBJECTS["apps"])).status_code == 201
    assert (await other.delete(f"{ROOT}/projects/{theirs.project_name}")).status_code == 200
    kept = (await theirs.client.get(f"{theirs.path}/apps/theirs")).json()
    assert "deletionTimestamp" not in kept["metadata"]
