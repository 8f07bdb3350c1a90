"""Logins by a page: codes work once and for minutes, only a person decides, and the key is that person's."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import secrets
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from api.login import DEVICE_GRANT
from controlplane.identity.logins import Approved, Logins
from controlplane.identity.principal import user_label
from controlplane.identity.tokens import TokenHasher
from tests.api.test_members import change, member
from tests.fixtures.app import ROOT, ServedApi, api_settings, client_of, serve
from tests.fixtures.auditing import events_about
from tests.fixtures.login_browser import Browser, Page


@pytest.fixture
def plain(project: ServedApi) -> httpx.AsyncClient:
    """A program without a credential."""
    return client_of(project.url)


async def begin(plain: httpx.AsyncClient) -> dict[str, Any]:
    answer = await plain.post("/auth/device/code", data={"client_id": "nodus-cli"})
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


async def ask(plain: httpx.AsyncClient, secret: str, key: str = "") -> httpx.Response:
    form = {"grant_type": DEVICE_GRANT, "device_code": secret}
    return await plain.post("/auth/device/token", data=form, headers={"Idempotency-Key": key or secrets.token_hex(8)})


async def consent(begun: dict[str, Any], credential: str) -> tuple[Browser, Page]:
    browser = Browser()
    page = await browser.open(begun["verification_uri_complete"])
    return browser, await browser.send(page, credential=credential)


def token_of(headers: dict[str, str]) -> str:
    return headers["Authorization"].removeprefix("Bearer ")


async def test_a_program_waits_in_the_words_of_the_standard(project: ServedApi, plain: httpx.AsyncClient) -> None:
    begun = await begin(plain)
    assert begun["verification_uri"] == f"{project.url}/auth/device"
    assert (begun["expires_in"], begun["interval"]) == (600, 5)
    first = await ask(plain, begun["device_code"])
    # However long this took on a busy machine, it was a moment ago.
    await project.core.database.execute("UPDATE logins SET polled_at = polled_at + interval '1 minute'")
    soon = await ask(plain, begun["device_code"])
    assert (first.status_code, first.json()["error"]) == (400, "authorization_pending")
    assert (soon.status_code, soon.json()["error"]) == (400, "slow_down")
    stored = await project.core.database.fetch("SELECT * FROM logins")
    assert begun["device_code"] not in str(stored)
    assert begun["user_code"].replace("-", "") not in str(stored)
    await project.core.database.execute("UPDATE logins SET expires_at = now() - interval '1 second'")
    assert (await ask(plain, begun["device_code"])).json()["error"] == "expired_token"
    assert (await ask(plain, "guessed")).json()["error"] == "invalid_grant"
    wrong = await plain.post("/auth/device/token", json={"grant_type": "password", "device_code": "x"})
    assert wrong.json()["error"] == "unsupported_grant_type"


async def test_a_key_is_given_once_and_to_one_request(project: ServedApi, plain: httpx.AsyncClient) -> None:
    name, headers = await member(project, "Member")
    begun = await begin(plain)
    browser, page = await consent(begun, token_of(headers))
    await browser.send(page, decision="approve", project__default=project.project_name)
    given = await ask(plain, begun["device_code"], "first")
    [key] = given.json()["keys"]
    assert (key["org"], key["orgName"], key["project"]) == ("default", "default", project.project_name)
    # The answer was lost: the same request gets it again, no other one does.
    assert (await ask(plain, begun["device_code"], "first")).json()["keys"] == [key]
    assert (await ask(plain, begun["device_code"], "second")).json()["error"] == "invalid_grant"
    mine = {"Authorization": f"Bearer {key['key']}"}
    whoami = (await project.client.get("/auth/whoami", headers=mine)).json()
    theirs = (await project.client.get("/auth/whoami", headers=headers)).json()
    assert {**whoami, "projects": []} == {**theirs, "projects": []}
    events = await events_about(project, kind="APIKey", name=key["name"])
    assert [(row["verb"], row["principal"], row["code"]) for row in events] == [
        ("login", user_label(whoami["user"]), 201)
    ]
    stored = (await project.client.get(f"{ROOT}/apikeys/{key['name']}")).json()
    assert stored["metadata"]["ownerReferences"][0]["name"] == name
    assert "nodus-cli" in stored["spec"]["description"]
    assert (await browser.send(page, decision="approve", project__default="default")).response.status_code == 404


async def test_a_process_that_dies_before_it_made_the_key_leaves_it_to_the_repetition(
    project: ServedApi, plain: httpx.AsyncClient
) -> None:
    begun = await begin(plain)
    browser, page = await consent(begun, project.key)
    await browser.send(page, decision="approve", project__default=project.project_name)
    core = project.core
    logins = Logins(core.database, core.settings, TokenHasher(core.settings.secret_key), core.clock)
    # All that such a process has done: the login is marked, and there is no key.
    assert isinstance(await logins.ask(begun["device_code"], "first"), Approved)
    assert (await ask(plain, begun["device_code"], "second")).json()["error"] == "invalid_grant"
    [key] = (await ask(plain, begun["device_code"], "first")).json()["keys"]
    whoami = await project.client.get("/auth/whoami", headers={"Authorization": f"Bearer {key['key']}"})
    assert whoami.status_code == 200


async def test_what_was_approved_is_bound_by_the_credential_and_by_what_its_owner_is_now(
    project: ServedApi, plain: httpx.AsyncClient
) -> None:
    name, headers = await member(project, "Admin")
    body = {
        "metadata": {"name": f"k-{secrets.token_hex(4)}"},
        "spec": {"scopes": ["*:read", "apps:write"], "projects": [project.project_name]},
    }
    small = (await project.client.post(f"{ROOT}/apikeys", json=body, headers=headers)).json()["status"]["token"]
    begun = await begin(plain)
    browser, page = await consent(begun, small)
    assert page.options == {"project.default": [project.project_name]}
    other = await browser.send(page, decision="approve", project__default="default")
    assert other.response.status_code == 400
    await browser.send(page, decision="approve")
    [key] = (await ask(plain, begun["device_code"])).json()["keys"]
    told = (await project.client.get("/auth/whoami", headers={"Authorization": f"Bearer {key['key']}"})).json()
    assert (set(told["scopes"]), told["projects"]) == ({"*:read", "apps:write"}, [project.project_name])

    demoted, gone = await begin(plain), await begin(plain)
    for login in (demoted, gone):
        browser, page = await consent(login, token_of(headers))
        await browser.send(page, decision="approve", project__default=project.project_name)
    assert (await change(project, name, "Viewer")).status_code == 200
    [key] = (await ask(plain, demoted["device_code"])).json()["keys"]
    told = (await project.client.get("/auth/whoami", headers={"Authorization": f"Bearer {key['key']}"})).json()
    assert (told["role"], "apps:write" in told["scopes"]) == ("Viewer", False)
    assert (await project.client.delete(f"{ROOT}/members/{name}")).status_code == 200
    assert (await ask(plain, gone["device_code"])).json()["error"] == "access_denied"


async def test_nobody_but_a_person_who_proves_it_sees_what_waits(project: ServedApi, plain: httpx.AsyncClient) -> None:
    begun = await begin(plain)
    node = project.core.settings.node_token.get_secret_value()
    for credential, status, said in (
        ("nodus_wrong", 401, "unknown, expired or revoked"),
        ("", 401, ""),
        ("é\u2603", 401, ""),
        (node, 403, "belongs to a program"),
    ):
        _, page = await consent(begun, credential)
        assert page.response.status_code == status, page.text
        assert said in page.text
        assert "Address" not in page.text
    browser = Browser()
    page = await browser.open(f"{project.url}/auth/device?user_code=%22%3E%3Cscript%3E")
    assert "<script" not in page.response.text
    assert page.fields["user_code"] == '"><script>'
    wrong = await browser.send(page, user_code="BBBB-BBBB", credential=project.key)
    assert (wrong.response.status_code, "no program waits" in wrong.text) == (404, True)
    headers = wrong.response.headers
    assert headers["cache-control"] == "no-store"
    for part in ("default-src 'none'", "form-action 'self'", "frame-ancestors 'none'"):
        assert part in headers["content-security-policy"]


async def test_a_decision_needs_the_ticket_of_its_own_page(project: ServedApi, plain: httpx.AsyncClient) -> None:
    begun = await begin(plain)
    browser, page = await consent(begun, project.key)
    ticket = page.fields["ticket"]
    forged = ("A" if ticket[0] != "A" else "B") + ticket[1:]
    for wrong in (forged, "", "é", ticket[:20]):
        refused = await browser.send(page, decision="approve", ticket=wrong)
        assert refused.response.status_code == 403, refused.text
    elsewhere = {"ticket": ticket, "decision": "approve"}
    assert (await browser.client.post(f"{project.url}/cli-auth", data=elsewhere)).status_code == 403
    crossed = await browser.client.post(
        f"{project.url}/auth/device", data=page.fields | {"decision": "approve"},
        headers={"Sec-Fetch-Site": "cross-site"},
    )  # fmt: skip
    assert crossed.status_code == 403
    assert (await ask(plain, begun["device_code"])).json()["error"] == "authorization_pending"
    assert "Denied" in (await browser.send(page, decision="deny")).text
    assert (await ask(plain, begun["device_code"])).json()["error"] == "access_denied"


async def test_a_code_for_the_browser_is_worth_nothing_without_its_verifier(
    project: ServedApi, plain: httpx.AsyncClient
) -> None:
    verifier = secrets.token_urlsafe(32)
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
    query = {"code_challenge": challenge, "port": "4711", "state": "s&t", "host": "Ada's laptop"}
    browser = Browser()

    async def approved() -> str:
        page = await browser.open(str(httpx.URL(f"{project.url}/cli-auth", params=query)))
        page = await browser.send(page, credential=project.key)
        assert "http://127.0.0.1:4711" in page.response.headers["content-security-policy"]
        back = await browser.send(page, decision="approve", project__default=project.project_name)
        target = urlsplit(back.response.headers["location"])
        assert (target.netloc, target.path) == ("127.0.0.1:4711", "/callback")
        assert parse_qs(target.query)["state"] == ["s&t"]
        return parse_qs(target.query)["code"][0]

    stolen = await approved()
    for code, proof in ((stolen, "guessed"), (stolen, verifier), ("guessed", verifier)):
        refused = await plain.post("/auth/cli-keys/redeem", json={"code": code, "codeVerifier": proof})
        assert (refused.status_code, refused.json()["reason"]) == (400, "BadRequest")
    assert (await ask(plain, await approved())).json()["error"] == "invalid_grant"
    redeemed = await plain.post("/auth/cli-keys/redeem", json={"code": await approved(), "codeVerifier": verifier})
    assert redeemed.json()["keys"][0]["name"].startswith("nodus-ada-s-laptop-")
    for port in ("0", "65536", "80@evil.example", "٣", ""):
        page = await browser.open(str(httpx.URL(f"{project.url}/cli-auth", params=query | {"port": port})))
        assert page.response.status_code == 400
    unwritable = query | {"credential": project.key, "code_challenge": f"{challenge}\0"}
    assert (await browser.client.post(f"{project.url}/cli-auth", data=unwritable)).status_code == 400
    query["host"] = "a\0\u202eb"
    page = Page(await browser.client.post(f"{project.url}/cli-auth", data=query | {"credential": project.key}))
    assert "a  b" in page.text
    back = await browser.send(page, decision="approve", project__default=project.project_name)
    assert back.response.status_code == 303, back.text


@pytest.mark.parametrize("client", ["a\0b", "a\u202eb", "a\nb"])
async def test_what_a_program_calls_itself_is_stored_and_shown_in_visible_letters(
    project: ServedApi, plain: httpx.AsyncClient, client: str
) -> None:
    answer = await plain.post("/auth/device/code", content=json.dumps({"client_id": client}))
    assert answer.status_code == 200, answer.text
    _, page = await consent(answer.json(), project.key)
    assert "a b (" in page.text


async def test_logins_are_bounded_shared_by_replicas_and_forgotten(database_url: str, tmp_path: Any) -> None:
    settings = api_settings(
        database_url,
        tmp_path,
        logins_open_per_address_max=2,
        login_poll_seconds=1,
        login_attempts_burst_max=5,
        login_attempts_per_second=0.1,
    )
    async with serve(settings) as one, serve(settings, one.key) as two:
        first = client_of(one.url)
        second = client_of(two.url)
        begun = await begin(first)
        await begin(second)
        full = await second.post("/auth/device/code", json={"client_id": "nodus-cli"})
        assert (full.status_code, full.json()["reason"]) == (429, "TooManyRequests")
        browser, page = await consent({"verification_uri_complete": f"{two.url}/auth/device"}, two.key)
        assert page.response.status_code == 404
        page = await browser.send(page, user_code=begun["user_code"].lower(), credential=two.key)
        await browser.send(page, decision="approve")
        answers = await asyncio.gather(*(ask(client, begun["device_code"]) for client in (first, second)))
        assert sorted("keys" in answer.json() for answer in answers) == [False, True]
        told: dict[str, Any] = {}
        for _ in range(500):  # a bucket fills meanwhile, by one in twelve seconds
            told = (await second.post("/auth/device/code", json={"client_id": "c"})).json()
            if "this address has made 5 requests" in told["message"]:
                break
        else:
            pytest.fail(f"no limit was met: {told}")
        await one.core.database.execute("UPDATE logins SET expires_at = expires_at - interval '1 hour'")
        await begin(first)
        assert await one.core.database.fetchval("SELECT count(*) FROM logins") == 1
