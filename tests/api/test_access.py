"""What a limited key may do: scopes and projects decide, in every verb, list and watch."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import httpx
import orjson
import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Scope

from api.app import create_app
from api.deps import Deps
from controlplane.identity.tokens import INSERT_API_KEY, TokenHasher, new_api_key
from controlplane.ids import new_uid
from controlplane.kinds.roles import Role
from controlplane.store.contract import Key
from controlplane.store.events import NORMAL, Happening, RecordEvent
from tests.fixtures.app import FUNCTION, ROOT, ServedApi


async def key(
    project: ServedApi, scopes: Sequence[str], projects: Sequence[str], role: Role = Role.OWNER
) -> dict[str, str]:
    """The header of a new key with these scopes and projects, of somebody with this role."""
    token = new_api_key()
    hashed = TokenHasher(project.core.settings.secret_key).hash(token)
    await project.core.database.execute(
        INSERT_API_KEY, hashed, "default", str(uuid.uuid4()), "limited", list(scopes), list(projects),
        project.core.clock.now(), None, role, None,
    )  # fmt: skip
    return {"Authorization": f"Bearer {token}"}


async def test_a_scope_of_reads_does_not_write_and_one_of_writes_does_not_read(project: ServedApi) -> None:
    await project.function()
    path, body = f"{project.path}/functions", {"metadata": {"name": "g"}, "spec": FUNCTION}
    reader = await key(project, ["functions:read"], ["*"])
    writer = await key(project, ["functions:write"], ["*"])
    assert (await project.client.get(f"{path}/f", headers=reader)).status_code == 200
    assert (await project.client.post(path, json=body, headers=writer)).status_code == 201
    refused = [
        (await project.client.post(path, json=body, headers=reader), "functions:write"),
        (await project.client.delete(f"{path}/f", headers=reader), "functions:write"),
        (await project.client.get(path, headers=writer), "functions:read"),
        (await project.client.get(f"{path}/f/status", headers=writer), "functions:read"),
        (await project.client.get(f"{path}?watch=true", headers=writer), "functions:read"),
        (await project.client.post(f"{path}/f/calls", json={}, headers=writer), "functioncalls:write"),
        (await project.client.put(f"{path}/f/status", json={}, headers=reader), "functions:write"),
        (await project.client.patch(f"{path}/f/scale", json={}, headers=reader), "functions:write"),
    ]
    for answer, scope in refused:
        assert (answer.status_code, answer.json()["reason"]) == (403, "Forbidden")
        assert answer.json()["details"]["missingScope"] == scope


async def test_a_key_of_one_project_sees_nothing_of_another(project: ServedApi) -> None:
    await project.function()
    other = {"metadata": {"name": "elsewhere"}, "spec": FUNCTION}
    await project.client.post(f"{ROOT}/namespaces/default/functions", json=other)
    limited = await key(project, ["*"], [project.project_name])
    everywhere = (await project.client.get(f"{ROOT}/functions", headers=limited)).json()
    assert {item["metadata"]["namespace"] for item in everywhere["items"]} == {project.project_name}
    assert (await project.client.get(f"{ROOT}/namespaces/default/functions", headers=limited)).status_code == 403
    assert (await project.client.get("/auth/whoami", headers=limited)).json()["projects"] == [project.project_name]
    namespaces = (await project.client.get("/api/v1/namespaces", headers=limited)).json()["items"]
    assert [item["metadata"]["name"] for item in namespaces] == [project.project_name]


async def test_a_watch_over_all_projects_shows_only_those_of_the_key(project: ServedApi) -> None:
    limited = await key(project, ["*"], [project.project_name])
    since = (await project.client.get(f"{ROOT}/apps")).json()["metadata"]["resourceVersion"]
    query = {"watch": "true", "resourceVersion": since}
    async with project.client.stream("GET", f"{ROOT}/apps", params=query, headers=limited) as response:
        app = {"metadata": {"generateName": "a-"}, "spec": {}}
        await project.client.post(f"{ROOT}/namespaces/default/apps", json=app)
        await project.create("apps", app)
        event = httpx.Response(200, text=await anext(response.aiter_lines())).json()
    assert event["object"]["metadata"]["namespace"] == project.project_name


async def recorded_event(project: ServedApi, about: str) -> str:
    """The name of a new Event about an App of the project `about`."""
    key_of_app = Key("App", "default", about, "app")
    happening = Happening(key=key_of_app, uid=new_uid("app"), type=NORMAL, reason="Tested", message="it happened")
    event = await project.core.writer.write(RecordEvent(happening))
    name: str = event["metadata"]["name"]
    return name


async def test_a_key_of_one_project_reads_and_changes_no_other_project(project: ServedApi) -> None:
    limited = {**await key(project, ["*"], [project.project_name]), "Content-Type": "application/merge-patch+json"}
    patch = {"spec": {"description": "changed"}}
    for name, code in ((project.project_name, 200), ("default", 403), ("absent", 403)):
        path = f"{ROOT}/projects/{name}"
        answers = [
            await project.client.get(path, headers=limited),
            await project.client.get(f"{path}/status", headers=limited),
            await project.client.patch(path, json=patch, headers=limited),
        ]
        assert [answer.status_code for answer in answers] == [code] * 3
    assert (await project.client.delete(f"{ROOT}/projects/default", headers=limited)).status_code == 403
    stored = (await project.client.get(f"{ROOT}/projects/default")).json()
    assert "deletionTimestamp" not in stored["metadata"]
    assert "description" not in stored["spec"]


async def test_a_key_of_one_project_makes_no_other(project: ServedApi) -> None:
    limited = await key(project, ["*"], [project.project_name])
    for metadata in ({"name": "another"}, {"generateName": "another-"}, {"name": project.project_name}):
        answer = await project.client.post(f"{ROOT}/projects", json={"metadata": metadata}, headers=limited)
        assert (answer.status_code, answer.json()["reason"]) == (403, "Forbidden")
        assert "limited to projects" in answer.json()["message"]


async def test_a_key_of_one_project_does_not_make_it_by_applying(project: ServedApi) -> None:
    absent = f"{project.project_name}-2"
    limited = {**await key(project, ["*"], [absent]), "Content-Type": "application/apply-patch+yaml"}
    answer = await project.client.patch(f"{ROOT}/projects/{absent}?fieldManager=ci", json={}, headers=limited)
    assert (answer.status_code, answer.json()["reason"]) == (403, "Forbidden")
    assert (await project.client.get(f"{ROOT}/projects/{absent}")).status_code == 404


async def test_lists_of_projects_and_deletes_of_all_cover_only_those_of_the_key(project: ServedApi) -> None:
    limited = await key(project, ["*"], [project.project_name])
    for parameters in ({}, {"fieldSelector": "metadata.name!=x"}, {"limit": "1"}):
        page = (await project.client.get(f"{ROOT}/projects", params=parameters, headers=limited)).json()
        assert [item["metadata"]["name"] for item in page["items"]] == [project.project_name]
    assert (await project.client.delete(f"{ROOT}/projects", headers=limited)).status_code == 200
    everyone = (await project.client.get(f"{ROOT}/projects/default")).json()
    assert "deletionTimestamp" not in everyone["metadata"]


async def test_events_show_only_what_happened_in_the_projects_of_the_key(api: ServedApi) -> None:
    limited = await key(api, ["*"], ["default"])
    since = (await api.client.get(f"{ROOT}/events")).json()["metadata"]["resourceVersion"]
    theirs, mine = await recorded_event(api, "elsewhere"), await recorded_event(api, "default")
    listed = (await api.client.get(f"{ROOT}/events", headers=limited)).json()["items"]
    core = (await api.client.get("/api/v1/events", headers=limited)).json()["items"]
    assert [[event["metadata"]["name"] for event in events] for events in (listed, core)] == [[mine], [mine]]
    for name, code in ((mine, 200), (theirs, 404)):
        assert (await api.client.get(f"{ROOT}/events/{name}", headers=limited)).status_code == code
    for query in ({"resourceVersion": since}, {}):
        watch = {"watch": "true", "timeoutSeconds": "1", **query}
        answer = await api.client.get(f"{ROOT}/events", params=watch, headers=limited)
        seen = [orjson.loads(line)["object"]["metadata"]["name"] for line in answer.text.splitlines()]
        assert seen == [mine]


async def test_an_idempotency_key_of_one_caller_is_unknown_to_another(project: ServedApi) -> None:
    limited = await key(project, ["*"], ["*"])
    body, headers = {"metadata": {"generateName": "a-"}, "spec": {}}, {"Idempotency-Key": "same"}
    mine = await project.create("apps", body, headers=headers)
    theirs = await project.create("apps", body, headers={**headers, **limited})
    assert mine["metadata"]["uid"] != theirs["metadata"]["uid"]


async def _broken(_request: Request) -> Response:
    raise ValueError("a bug with a secret in its text")


async def test_a_bug_answers_a_status_that_tells_nothing_but_its_request_id(project: ServedApi) -> None:
    deps: Deps = project.deps.__class__(**{**project.deps.__dict__, "routes": [Route("/broken", _broken)]})
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    scope: Scope = {
        "type": "http",
        "method": "GET",
        "path": "/broken",
        "query_string": b"",
        "scheme": "http",
        "headers": [(b"authorization", f"Bearer {project.key}".encode()), (b"host", b"here")],
    }
    await create_app(deps)(scope, receive, send)
    body = httpx.Response(200, content=sent[1]["body"]).json()
    assert sent[0]["status"] == 500
    assert (body["kind"], body["reason"], body["docs"]) == (
        "Status",
        "InternalError",
        "http://here/docs/errors/InternalError",
    )
    assert "secret" not in sent[1]["body"].decode()
    assert body["requestId"].startswith("req_")


@pytest.mark.parametrize("scheme", ["bearer", "BEARER"])
async def test_the_scheme_of_a_credential_is_read_in_any_case(project: ServedApi, scheme: str) -> None:
    answer = await project.client.get("/auth/whoami", headers={"Authorization": f"{scheme} {project.key}"})
    assert answer.status_code == 200
