"""Members: their role bounds their keys at once, nobody makes somebody mightier, and an Owner stays."""

from __future__ import annotations

import secrets
from typing import Any

import httpx
import orjson

from controlplane.identity.tokens import INSERT_API_KEY, TokenHasher, new_api_key
from tests.fixtures.app import ROOT, ServedApi
from tests.fixtures.eventually import eventually

MEMBERS = f"{ROOT}/members"
MERGE = {"Content-Type": "application/merge-patch+json"}


async def member(api: ServedApi, role: str, name: str = "") -> tuple[str, dict[str, str]]:
    """The name of a new Member with this role, and the header of a key of theirs."""
    name = name or f"m-{secrets.token_hex(4)}"
    made = await api.client.post(MEMBERS, json={"metadata": {"name": name}, "spec": {"role": role}})
    assert made.status_code == 201, made.text
    document, token = made.json(), new_api_key()
    await api.core.database.execute(
        INSERT_API_KEY, TokenHasher(api.core.settings.secret_key).hash(token), "default", document["status"]["user"],
        "key", ["*"], ["*"], api.core.clock.now(), None, None, document["metadata"]["uid"],
    )  # fmt: skip
    return name, {"Authorization": f"Bearer {token}"}


async def change(api: ServedApi, name: str, role: str, headers: dict[str, str] | None = None) -> httpx.Response:
    body: Any = {"spec": {"role": role}}
    return await api.client.patch(f"{MEMBERS}/{name}", json=body, headers={**(headers or {}), **MERGE})


async def test_whoami_tells_the_role_and_what_it_leaves_of_a_key(api: ServedApi) -> None:
    for role, scopes in (("Viewer", {"*:read", "apikeys:write", "sshkeys:write"}), ("Owner", {"*"})):
        _, headers = await member(api, role)
        told = (await api.client.get("/auth/whoami", headers=headers)).json()
        assert (told["role"], set(told["scopes"])) == (role, scopes)
    first = (await api.client.get(f"{MEMBERS}/admin")).json()
    told = (await api.client.get("/auth/whoami")).json()
    assert (told["user"], told["role"], told["orgName"]) == (first["status"]["user"], "Owner", "default")


async def test_a_changed_role_reaches_the_keys_there_are_and_their_open_watches(api: ServedApi) -> None:
    name, headers = await member(api, "Admin")
    path = f"{ROOT}/namespaces/default/apps"
    app = {"metadata": {"generateName": "a-"}, "spec": {}}
    assert (await api.client.post(path, json=app, headers=headers)).status_code == 201
    async with api.client.stream("GET", f"{path}?watch=true", headers=headers, timeout=60) as stream:
        assert (await change(api, name, "Viewer")).status_code == 200

        async def is_refused() -> bool:
            return (await api.client.post(path, json=app, headers=headers)).status_code == 403

        await eventually(is_refused)
        # A Viewer may still watch; somebody who is gone may not.
        assert (await api.client.delete(f"{MEMBERS}/{name}")).status_code == 200
        events = [orjson.loads(line) async for line in stream.aiter_lines()]
    assert (events[-1]["type"], events[-1]["object"]["code"]) == ("ERROR", 401)

    async def is_unknown() -> bool:
        return (await api.client.get(path, headers=headers)).status_code == 401

    await eventually(is_unknown)


async def test_nobody_makes_somebody_mightier_than_themselves(api: ServedApi) -> None:
    name, admin = await member(api, "Admin")
    owner, _ = await member(api, "Owner")
    body = {"metadata": {"name": "rogue"}, "spec": {"role": "Owner"}}
    refused = [
        await api.client.post(MEMBERS, json=body, headers=admin),
        await change(api, name, "Owner", admin),
        await change(api, owner, "Viewer", admin),
        await api.client.delete(f"{MEMBERS}/{owner}", headers=admin),
    ]
    for answer in refused:
        assert (answer.status_code, answer.json()["details"]["missingScope"]) == (403, "*"), answer.text
    body = {"metadata": {"name": "colleague"}, "spec": {"role": "Admin"}}
    assert (await api.client.post(MEMBERS, json=body, headers=admin)).status_code == 201
    assert (await change(api, "colleague", "Viewer", admin)).status_code == 200


async def test_nobody_hands_a_mightier_member_to_another_person(api: ServedApi) -> None:
    name, _ = await member(api, "Admin")
    owner = (await api.client.get("/auth/whoami")).json()["user"]
    now, few = api.core.clock.now(), new_api_key()
    await api.core.database.execute(
        INSERT_API_KEY, TokenHasher(api.core.settings.secret_key).hash(few), "default", owner, "few",
        ["members:write", "members:read"], ["*"], now, None, "Owner", None,
    )  # fmt: skip
    headers = {"Authorization": f"Bearer {few}", **MERGE}
    for spec in ({"login": "mallory"}, {"email": "mallory@example.com"}, {"projects": ["default"]}):
        answer = await api.client.patch(f"{MEMBERS}/{name}", json={"spec": spec}, headers=headers)
        assert (answer.status_code, answer.json()["reason"]) == (403, "Forbidden"), answer.text
        assert (await api.client.patch(f"{MEMBERS}/{name}", json={"spec": spec}, headers=MERGE)).status_code == 200
    named = {"spec": {"displayName": "Ada"}}
    assert (await api.client.patch(f"{MEMBERS}/{name}", json=named, headers=headers)).status_code == 200


async def test_an_organisation_keeps_an_owner(api: ServedApi) -> None:
    for answer in (await change(api, "admin", "Admin"), await api.client.delete(f"{MEMBERS}/admin")):
        assert (answer.status_code, answer.json()["reason"]) == (409, "Conflict")
    name, second = await member(api, "Owner")
    assert (await change(api, "admin", "Admin", second)).status_code == 200
    assert (await api.client.delete(f"{MEMBERS}/{name}", headers=second)).status_code == 409
    assert (await change(api, "admin", "Owner", second)).status_code == 200
    assert (await api.client.delete(f"{MEMBERS}/{name}", headers=second)).status_code == 200


async def test_an_organisation_shows_itself_and_its_owners_name_it(api: ServedApi) -> None:
    _, admin = await member(api, "Admin")
    path, body = f"{ROOT}/organizations/default", {"spec": {"displayName": "Acme"}}
    assert (await api.client.patch(path, json=body, headers={**admin, **MERGE})).status_code == 403
    assert (await api.client.patch(path, json=body, headers=MERGE)).json()["spec"]["displayName"] == "Acme"
    listed = (await api.client.get(f"{ROOT}/organizations", headers=admin)).json()["items"]
    assert [item["metadata"]["name"] for item in listed] == ["default"]
    assert (await api.client.post(f"{ROOT}/organizations", json={"metadata": {"name": "b"}})).status_code == 405
