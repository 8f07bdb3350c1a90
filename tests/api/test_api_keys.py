"""Keys that people make: shown once, within what their maker may, and ended by their delete."""

from __future__ import annotations

import secrets
from datetime import timedelta
from functools import partial
from typing import Any

import httpx
import orjson

from controlplane.clock import format_time
from tests.api.test_access import key
from tests.api.test_members import change, member
from tests.fixtures.app import ROOT, ServedApi
from tests.fixtures.eventually import eventually

KEYS = f"{ROOT}/apikeys"


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def create(api: ServedApi, headers: dict[str, str] | None = None, **spec: Any) -> httpx.Response:
    body = {"metadata": {"name": f"k-{secrets.token_hex(4)}"}, "spec": spec}
    return await api.client.post(KEYS, json=body, headers=headers)


async def made(api: ServedApi, headers: dict[str, str] | None = None, **spec: Any) -> tuple[str, dict[str, str]]:
    """Name and header of a new key."""
    answer = await create(api, headers, **spec)
    assert answer.status_code == 201, answer.text
    return answer.json()["metadata"]["name"], bearer(answer.json()["status"]["token"])


async def whoami(api: ServedApi, headers: dict[str, str]) -> dict[str, Any]:
    answer = await api.client.get("/auth/whoami", headers=headers)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


async def test_a_token_is_shown_by_its_create_alone_and_stored_nowhere(project: ServedApi) -> None:
    body: dict[str, Any] = {"metadata": {"name": f"k-{secrets.token_hex(4)}"}, "spec": {"scopes": ["apps:read"]}}
    path = f"{KEYS}/{body['metadata']['name']}"
    since = (await project.client.get(KEYS)).json()["metadata"]["resourceVersion"]
    keyed = {"Idempotency-Key": secrets.token_hex(8)}
    rehearsed = (await project.client.post(f"{KEYS}?dryRun=All", json=body, headers=keyed)).json()
    assert not {"token", "prefix"} & rehearsed["status"].keys()
    first = await project.client.post(KEYS, json=body, headers=keyed)
    token = first.json()["status"]["token"]
    assert first.json()["status"]["prefix"] == token[:12]
    # A lost answer can be had again under its Idempotency-Key, and by nobody else.
    repeated = await project.client.post(KEYS, json=body, headers=keyed)
    assert (repeated.status_code, repeated.json()) == (201, first.json())
    again = await project.client.post(KEYS, json=body)
    assert (again.status_code, "token" in again.json()["status"]) == (200, False)
    watched = await project.client.get(f"{KEYS}?watch=true&timeoutSeconds=1&resourceVersion={since}")
    shown = [await project.client.get(path), await project.client.get(KEYS), watched]
    assert all(body["metadata"]["name"] in answer.text and token not in answer.text for answer in shown)
    database = project.core.database
    for table in await database.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'"):
        found = await database.fetchval(
            f"SELECT count(*) FROM {table['tablename']} AS t "
            "WHERE position($1 IN t::text) > 0 OR position(encode(convert_to($1, 'UTF8'), 'hex') IN t::text) > 0",
            token,
        )
        assert found == 0, table["tablename"]
    assert (await whoami(project, bearer(token)))["scopes"] == ["apps:read"]


async def test_a_key_made_by_server_side_apply_shows_its_token_as_well(project: ServedApi) -> None:
    path = f"{KEYS}/k-{secrets.token_hex(4)}?fieldManager=ci"
    headers = {"Content-Type": "application/apply-patch+yaml"}
    answer = await project.client.patch(path, json={"spec": {"scopes": ["apps:read"]}}, headers=headers)
    assert answer.status_code == 201, answer.text
    assert (await whoami(project, bearer(answer.json()["status"]["token"])))["scopes"] == ["apps:read"]


async def test_a_deleted_key_ends_and_so_do_its_watches(project: ServedApi) -> None:
    name, headers = await made(project, scopes=["apps:read", "apikeys:write"])
    async with project.client.stream("GET", f"{project.path}/apps?watch=true", headers=headers) as stream:
        assert (await project.client.delete(f"{KEYS}/{name}", headers=headers)).status_code == 200
        events = [orjson.loads(line) async for line in stream.aiter_lines()]
    assert [event["object"]["code"] for event in events] == [401]

    async def is_unknown() -> bool:
        return (await project.client.get(f"{project.path}/apps", headers=headers)).status_code == 401

    await eventually(is_unknown)


async def test_no_key_does_more_than_its_maker(project: ServedApi) -> None:
    _, limited = await made(project, scopes=["apps:read", "apikeys:write"], projects=[project.project_name])
    refused = {
        "functions:read": await create(project, limited, scopes=["functions:read"]),
        "*": await create(project, limited, scopes=["*"]),
    }
    for scope, answer in refused.items():
        assert (answer.status_code, answer.json()["details"]["missingScope"]) == (403, scope), answer.text
    assert (await create(project, limited, scopes=["apps:read"], projects=["default"])).status_code == 403
    assert (await create(project, limited, member="admin")).status_code == 403
    _, child = await made(project, limited)
    told = await whoami(project, child)
    assert (told["scopes"], told["projects"]) == (["apikeys:write", "apps:read"], [project.project_name])
    _, viewer = await member(project, "Viewer")
    assert (await create(project, viewer)).status_code == 201
    assert (await create(project, viewer, scopes=["apps:write"])).status_code == 403


async def test_a_key_follows_the_role_of_its_owner_and_ends_with_them(project: ServedApi) -> None:
    name, theirs = await member(project, "Member")
    key_name, headers = await made(project, theirs)
    assert "apps:write" in (await whoami(project, headers))["scopes"]
    await change(project, name, "Viewer")

    async def writes_no_apps() -> bool:
        return "apps:write" not in (await whoami(project, headers))["scopes"]

    await eventually(writes_no_apps)
    await change(project, name, "Admin")
    await project.client.delete(f"{ROOT}/members/{name}")

    async def is_gone() -> bool:
        known = await project.client.get("/auth/whoami", headers=headers)
        listed = await project.client.get(f"{KEYS}/{key_name}")
        return (known.status_code, listed.status_code) == (401, 404)

    await eventually(is_gone)


async def test_keys_of_others_are_for_administrators(project: ServedApi) -> None:
    _, member_key = await member(project, "Member")
    _, admin = await member(project, "Admin")
    ada, _ = await member(project, "Member")
    owner, _ = await member(project, "Owner")
    name, _ = await made(project, admin, member=ada, scopes=["apps:read"])
    assert (await create(project, admin, member=owner)).status_code == 403
    _, reader = await made(project, admin, member=owner, scopes=["*:read"])
    assert (await whoami(project, reader))["role"] == "Owner"
    answer = await project.client.delete(f"{KEYS}/{name}", headers=member_key)
    assert (answer.status_code, answer.json()["details"]["missingScope"]) == (403, "members:write")
    assert (await project.client.delete(f"{KEYS}/{name}", headers=admin)).status_code == 200


async def test_a_key_of_one_project_does_not_learn_of_others_from_keys(project: ServedApi) -> None:
    limited = await key(project, ["*"], [project.project_name])
    name, _ = await made(project, projects=["default"])
    for path in (KEYS, f"{KEYS}?watch=true", f"{KEYS}/{name}", f"{KEYS}/{name}/status"):
        assert (await project.client.get(path, headers=limited)).status_code == 403
    assert (await project.client.delete(f"{KEYS}/{name}", headers=limited)).status_code == 403


async def test_what_makes_no_sense_is_refused_with_the_field(project: ServedApi) -> None:
    past = format_time(project.core.clock.now() - timedelta(hours=1))
    for spec, field in (
        ({"expirationTime": past}, "spec.expirationTime"),
        ({"scopes": ["Apps:read"]}, "spec.scopes[0]"),
        ({"member": "nobody-here"}, "spec.member"),
        ({"project": "default"}, "spec.serviceAccountName"),
        ({"serviceAccountName": "ci"}, "spec.project"),
        ({"project": "default", "serviceAccountName": "ci", "projects": ["other"]}, "spec.projects"),
    ):
        answer = await create(project, **spec)
        assert (answer.status_code, answer.json()["details"]["causes"][0]["field"]) == (422, field), answer.text
    name, _ = await made(project, scopes=["apps:read"])
    headers = {"Content-Type": "application/merge-patch+json"}
    changed = await project.client.patch(f"{KEYS}/{name}", json={"spec": {"scopes": ["*"]}}, headers=headers)
    assert (changed.status_code, changed.json()["reason"]) == (409, "FieldImmutable")


async def test_a_key_ends_when_it_said(project: ServedApi) -> None:
    name, headers = await made(project, expirationTime=format_time(project.core.clock.now() + timedelta(hours=1)))
    await whoami(project, headers)
    await project.core.database.execute("UPDATE tokens SET expires_at = now() WHERE name = $1", name)

    async def is_unknown() -> bool:
        return (await project.client.get("/auth/whoami", headers=headers)).status_code == 401

    await eventually(is_unknown)


async def test_a_finalizer_keeps_the_object_of_a_deleted_key_or_member_but_not_the_key(project: ServedApi) -> None:
    name, theirs = await member(project, "Member")
    key_name, headers = await made(project, theirs)
    _, other = await made(project, theirs)
    held = {"metadata": {"finalizers": ["example.com/hold"]}}

    async def is_ended(of: dict[str, str]) -> bool:
        return (await project.client.get("/auth/whoami", headers=of)).status_code == 401

    for path, of in ((f"{KEYS}/{key_name}", headers), (f"{ROOT}/members/{name}", other)):
        changed = await project.client.patch(path, json=held, headers={"Content-Type": "application/merge-patch+json"})
        assert changed.status_code == 200, changed.text
        assert "deletionTimestamp" in (await project.client.delete(path)).json()["metadata"]
        await eventually(partial(is_ended, of))
        assert (await project.client.get(path)).status_code == 200
    assert (await create(project, member=name)).status_code == 403
