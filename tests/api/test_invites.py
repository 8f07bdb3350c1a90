"""Invites: who was invited becomes a Member once, as what the invite says, and nobody invites somebody mightier."""

from __future__ import annotations

import asyncio
import secrets
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx

from controlplane.clock import format_time
from controlplane.identity.bootstrap import bootstrap
from tests.api.test_logins import ask, begin, consent
from tests.api.test_members import MEMBERS, MERGE, member
from tests.fixtures.app import ROOT, ServedApi, api_settings, client_of, serve
from tests.fixtures.eventually import eventually
from tests.fixtures.issuer import issuer

INVITES = f"{ROOT}/invites"


def invite(email: str = "", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": f"i-{secrets.token_hex(4)}"},
        "spec": {"email": email or f"{secrets.token_hex(4)}@example.com", **spec},
    }


async def test_an_invite_makes_one_member_and_their_first_key(project: ServedApi) -> None:
    plain = client_of(project.url)
    name = project.project_name
    body, repeated = invite(role="Viewer", projects=[name]), {"Idempotency-Key": secrets.token_hex(8)}
    made = await project.client.post(INVITES, json=body, headers=repeated)
    assert made.status_code == 201, made.text
    told = made.json()
    token, path = told["status"]["token"], f"{INVITES}/{told['metadata']['name']}"
    assert (await project.client.post(INVITES, json=body, headers=repeated)).json()["status"]["token"] == token
    shown = (await project.client.get(path)).json()
    assert shown["status"]["phase"] == "Pending"
    assert token not in str(shown)
    assert token.startswith(shown["status"]["prefix"])
    # It opens nothing by itself.
    direct = await project.client.get("/auth/whoami", headers={"Authorization": f"Bearer {token}"})
    assert direct.status_code == 401

    begun, late = await begin(plain), await begin(plain)
    browser, page = await consent(begun, token)
    late_browser, late_page = await consent(late, token)
    assert "Approved" in (await browser.send(page, decision="approve")).text
    [key] = (await ask(plain, begun["device_code"])).json()["keys"]
    whoami = await project.client.get("/auth/whoami", headers={"Authorization": f"Bearer {key['key']}"})
    assert (whoami.json()["role"], whoami.json()["projects"]) == ("Viewer", [name])
    status = (await project.client.get(path)).json()["status"]
    joined = (await project.client.get(f"{MEMBERS}/{status['member']}")).json()
    assert (status["phase"], joined["status"]["user"]) == ("Accepted", whoami.json()["user"])
    assert joined["spec"] == {"email": body["spec"]["email"], "role": "Viewer", "projects": [name]}

    assert (await late_browser.send(late_page, decision="approve")).response.status_code == 403
    _, page = await consent(late, token)
    assert (page.response.status_code, "used or revoked" in page.text) == (401, True)


async def test_an_invite_ends_with_its_time_and_when_it_is_deleted(project: ServedApi) -> None:
    plain = client_of(project.url)
    begun = await begin(plain)
    revoked = (await project.client.post(INVITES, json=invite())).json()
    expired = (await project.client.post(INVITES, json=invite())).json()
    _, page = await consent(begun, revoked["status"]["token"])
    assert page.response.status_code == 200
    assert (await project.client.delete(f"{INVITES}/{revoked['metadata']['name']}")).status_code == 200
    past = "UPDATE tokens SET expires_at = now() - interval '1 second' WHERE uid = $1"
    await project.core.database.execute(past, expired["metadata"]["uid"])
    for ended in (revoked, expired):
        _, page = await consent(begun, ended["status"]["token"])
        assert page.response.status_code == 401
    now = project.core.clock.now()
    for wrong in (now - timedelta(hours=1), now + timedelta(days=31)):
        answer = await project.client.post(INVITES, json=invite(expirationTime=format_time(wrong)))
        assert (answer.status_code, answer.json()["details"]["causes"][0]["field"]) == (422, "spec.expirationTime")


async def test_nobody_invites_somebody_mightier_than_themselves(project: ServedApi) -> None:
    _, admin = await member(project, "Admin")
    _, plain = await member(project, "Member")
    assert (await project.client.post(INVITES, json=invite(role="Owner"), headers=admin)).status_code == 403
    assert (await project.client.post(INVITES, json=invite(role="Viewer"), headers=plain)).status_code == 403
    assert (await project.client.post(INVITES, json=invite(role="Admin"), headers=admin)).status_code == 201
    owner = (await project.client.post(INVITES, json=invite(role="Owner"))).json()["metadata"]["name"]
    assert (await project.client.delete(f"{INVITES}/{owner}", headers=admin)).status_code == 403


async def test_somebody_invited_becomes_a_member_by_signing_in(database_url: str, tmp_path: Path) -> None:
    with issuer() as provider:
        settings = api_settings(database_url, tmp_path, **provider.settings, oidc_member_claim="sub")
        async with serve(settings) as api:
            body = invite("Ada@Example.com", role="Admin")
            assert (await api.client.post(INVITES, json=body)).status_code == 201

            async def whoami(**claims: Any) -> httpx.Response:
                headers = {"Authorization": f"Bearer {provider.token(sub='A1', **claims)}"}
                return await api.client.get("/auth/whoami", headers=headers)

            assert (await whoami(email="eve@example.com")).status_code == 403
            assert (await whoami(email_verified=False)).status_code == 403
            assert (await whoami(email_verified=None)).status_code == 403
            told = (await whoami(email="ada@EXAMPLE.com")).json()
            assert (told["role"], told["email"]) == ("Admin", "ada@example.com")
            # From now on it is the provider's own name that counts.
            assert (await whoami(email="new@example.com")).json()["user"] == told["user"]
            spec = (await api.client.get(f"{MEMBERS}/ada")).json()["spec"]
            assert spec == {"email": "ada@example.com", "login": "A1", "role": "Admin"}
            # Whoever is a Member here joins another organisation by a request for it.
            acme = await bootstrap(api.core.writer, api.core.settings, api.core.clock, "acme")
            owner = {"Authorization": f"Bearer {acme.token}"}
            named = {
                "Authorization": f"Bearer {provider.token(sub='A1', email='ada@example.com')}",
                "Nodus-Org": "acme",
            }
            assert (await api.client.get("/auth/whoami", headers=named)).status_code == 403
            body = invite("ada@example.com", role="Viewer")
            assert (await api.client.post(INVITES, json=body, headers=owner)).status_code == 201
            joined = (await api.client.get("/auth/whoami", headers=named)).json()
            assert (joined["org"], joined["role"]) == ("acme", "Viewer")


async def test_strangers_are_let_in_by_their_groups_if_the_operator_says_so(database_url: str, tmp_path: Path) -> None:
    with issuer() as provider:
        settings = api_settings(
            database_url, tmp_path, **provider.settings, oidc_new_members=True,
            oidc_groups_claim="groups", oidc_roles={"ops": "Admin", "all": "Viewer", "heads": "Owner"},
        )  # fmt: skip
        async with serve(settings) as api:

            async def whoami(name: str, *groups: str) -> httpx.Response:
                token = provider.token(email=f"{name}@example.com", groups=list(groups))
                return await api.client.get("/auth/whoami", headers={"Authorization": f"Bearer {token}"})

            assert (await whoami("eve", "others")).status_code == 403
            # Many first requests at once make one Member.
            asked = await asyncio.gather(*(whoami("ada", "all", "ops") for _ in range(8)))
            assert {(answer.status_code, answer.json()["role"]) for answer in asked} == {(200, "Admin")}
            assert len({answer.json()["user"] for answer in asked}) == 1
            assert [
                (await whoami(name, group)).json()["role"] for name, group in (("bob", "all"), ("cy", "heads"))
            ] == [
                "Viewer",
                "Owner",
            ]
            names = {item["metadata"]["name"] for item in (await api.client.get(MEMBERS)).json()["items"]}
            assert names == {"admin", "ada", "bob", "cy"}


async def test_projects_of_a_member_bound_all_that_they_come_with(project: ServedApi) -> None:
    name, headers = await member(project, "Member")

    async def projects() -> list[str]:
        told: list[str] = (await project.client.get("/auth/whoami", headers=headers)).json()["projects"]
        return told

    assert {"default", project.project_name} <= set(await projects())
    change = {"spec": {"projects": [project.project_name]}}
    changed = await project.client.patch(f"{MEMBERS}/{name}", json=change, headers=MERGE)
    assert changed.status_code == 200, changed.text

    async def is_bound() -> bool:
        return await projects() == [project.project_name]

    await eventually(is_bound)
    app = {"metadata": {"generateName": "a-"}, "spec": {}}
    for where, code in ((project.project_name, 201), ("default", 403)):
        answer = await project.client.post(f"{ROOT}/namespaces/{where}/apps", json=app, headers=headers)
        assert answer.status_code == code
    key = {"metadata": {"generateName": "k-"}, "spec": {"projects": ["default"]}}
    assert (await project.client.post(f"{ROOT}/apikeys", json=key, headers=headers)).status_code == 403
