"""Tokens of an identity provider: whom they stand for, and why each bad one is refused."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from controlplane.identity.bootstrap import bootstrap
from controlplane.identity.tokens import new_api_key
from controlplane.oidc_settings import OidcSettings
from tests.api.test_logins import ask, begin, consent
from tests.fixtures.app import ROOT, ServedApi, api_settings, client_of, serve
from tests.fixtures.eventually import eventually
from tests.fixtures.issuer import Issuer, issuer

MEMBERS = f"{ROOT}/members"


@pytest.fixture
def provider() -> Any:
    with issuer() as served:
        yield served


@pytest.fixture
async def oidc(database_url: str, tmp_path: Path, provider: Issuer) -> AsyncIterator[ServedApi]:
    """A server that takes tokens of the provider, and a Member whom they name."""
    settings = api_settings(database_url, tmp_path, **provider.settings, oidc_refetch_seconds_min=0.05)
    async with serve(settings) as served:
        await invite(served, "ada", email="Ada@Example.com", role="Member")
        yield served


async def invite(api: ServedApi, name: str, **spec: Any) -> None:
    made = await api.client.post(MEMBERS, json={"metadata": {"name": name}, "spec": spec})
    assert made.status_code == 201, made.text


def bearer(token: str, **more: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}", **more}


async def test_a_token_stands_for_the_member_whom_it_names(oidc: ServedApi, provider: Issuer) -> None:
    headers = bearer(provider.token())
    told = (await oidc.client.get("/auth/whoami", headers=headers)).json()
    ada = (await oidc.client.get(f"{MEMBERS}/ada")).json()
    assert (told["user"], told["role"], told["email"]) == (ada["status"]["user"], "Member", "ada@example.com")
    app = {"metadata": {"name": "a"}, "spec": {}}
    made = await oidc.client.post(f"{oidc.path}/apps", json=app, headers=headers)
    assert made.status_code == 201
    refused = await oidc.client.post(MEMBERS, json={"metadata": {"name": "x"}, "spec": {}}, headers=headers)
    assert (refused.status_code, refused.json()["details"]["missingScope"]) == (403, "members:write")
    for verb, resource, allowed in (("create", "apps", True), ("create", "members", False), ("list", "members", True)):
        review = {"spec": {"resourceAttributes": {"verb": verb, "group": "nodus.dev", "resource": resource}}}
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        answer = (await oidc.client.post(path, json=review, headers=headers)).json()
        assert answer["status"]["allowed"] is allowed
    path, own_token = "/apis/authentication.k8s.io/v1/tokenreviews", headers["Authorization"].removeprefix("Bearer ")
    asked: dict[str, Any] = {"spec": {"token": own_token}}
    own = await oidc.client.post(path, json=asked, headers=headers)
    assert own.json()["status"]["user"]["uid"] == ada["status"]["user"]
    assert provider.asked == {"/.well-known/openid-configuration": 1, "/keys": 1}


def _unsigned(provider: Issuer) -> str:
    return f"{_encoded(json.dumps({'alg': 'none', 'kid': 'first'}).encode())}.{provider.token().split('.')[1]}."


def _signed_with_the_public_key(provider: Issuer) -> str:
    """The classic confusion: the key that everybody knows, taken for a shared secret. Signed by hand, since no library
    does it any more."""
    public = provider.keys["first"].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    signed = f"{_encoded(json.dumps({'alg': 'HS256', 'kid': 'first'}).encode())}.{provider.token().split('.')[1]}"
    return f"{signed}.{_encoded(hmac.digest(public, signed.encode(), hashlib.sha256))}"


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def _signature_of_another(provider: Issuer) -> str:
    good, other = provider.token(), provider.token(email="admin@example.com")
    return f"{good.rpartition('.')[0]}.{other.rpartition('.')[2]}"


WRONG: dict[str, tuple[Callable[[Issuer], str], str]] = {
    "issuer": (lambda at: at.token(iss="https://evil.example"), 'issued by "https://evil.example"'),
    "audience": (lambda at: at.token(aud="another"), "its `aud` does not name this server"),
    "no audience": (lambda at: at.token(aud=None), "it has no claim `aud`"),
    "unsigned": (_unsigned, 'signed with "none", and RS256, ES256 are taken'),
    "public key as secret": (_signed_with_the_public_key, 'signed with "HS256"'),
    "signature": (_signature_of_another, "its signature is wrong"),
    "expired": (lambda at: at.token(exp=1_700_000_000), "it expired at 2023-11-14T22:13:20Z"),
    "no end": (lambda at: at.token(exp=None), "it has no claim `exp`"),
    "end that is no time": (lambda at: at.token(exp=1e300), "its `exp` is no time"),
    "not before": (lambda at: at.token(nbf=4_000_000_000), "not valid before 2096-10-02T07:06:40Z"),
    "key": (lambda at: at.token(kid="made-up"), 'has no key "made-up" for RS256'),
    "no name": (lambda at: at.token(email=None), "it has no claim `email`"),
    "address that nobody checked": (lambda at: at.token(email_verified=False), "does not vouch"),
    "nonsense": (lambda _: "a.b.c", "no signed token that can be read"),
}


@pytest.mark.parametrize("what", WRONG)
async def test_a_bad_token_is_refused_with_what_is_wrong(
    oidc: ServedApi, provider: Issuer, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    make, said = WRONG[what]
    token = make(provider)
    answer = await oidc.client.get("/auth/whoami", headers=bearer(token))
    told = answer.json()
    assert (answer.status_code, told["reason"]) == (401, "Unauthorized"), told
    assert said in told["message"]
    assert told["message"].startswith("the token is not taken: ")
    assert token not in answer.text + caplog.text


async def test_clocks_may_differ_a_little(oidc: ServedApi, provider: Issuer) -> None:
    now = int(time.time())
    token = provider.token(exp=now - 5, nbf=now + 20)
    assert (await oidc.client.get("/auth/whoami", headers=bearer(token))).status_code == 200


async def test_a_stranger_is_told_that_they_are_nobody_here(oidc: ServedApi, provider: Issuer) -> None:
    answer = await oidc.client.get("/auth/whoami", headers=bearer(provider.token(email="eve@example.com")))
    assert (answer.status_code, answer.json()["reason"]) == (403, "Forbidden")
    assert '"eve@example.com" is no Member here' in answer.json()["message"]
    await invite(oidc, "twin", login="ada@example.com")
    answer = await oidc.client.get("/auth/whoami", headers=bearer(provider.token(), **{"Nodus-Org": "default"}))
    assert (answer.status_code, "several Members" in answer.json()["message"]) == (403, True)


async def test_a_member_of_several_organisations_names_the_one_that_is_meant(oidc: ServedApi, provider: Issuer) -> None:
    core = oidc.core
    await bootstrap(core.writer, core.settings, core.clock, "other")
    update = "UPDATE credential_owners SET login = 'ada@example.com' WHERE org = 'other'"
    await core.database.execute(update)
    token = provider.token()
    answer = await oidc.client.get("/auth/whoami", headers=bearer(token))
    assert (answer.status_code, "several organisations: default, other" in answer.json()["message"]) == (403, True)
    for org, role in (("default", "Member"), ("other", "Owner")):
        told = (await oidc.client.get("/auth/whoami", headers=bearer(token, **{"Nodus-Org": org}))).json()
        assert (told["org"], told["role"]) == (org, role)
    # A login gives a key of each organisation that the person leaves chosen.
    plain = client_of(oidc.url)
    begun = await begin(plain)
    browser, page = await consent(begun, token)
    assert page.options == {"project.default": ["default"], "project.other": ["default"]}
    page.fields["org"] = ["default", "other"]  # type: ignore[assignment]  # two boxes of one name
    await browser.send(page, decision="approve")
    keys = (await ask(plain, begun["device_code"])).json()["keys"]
    assert [key["org"] for key in keys] == ["default", "other"]
    for key in keys:
        told = (await oidc.client.get("/auth/whoami", headers=bearer(key["key"]))).json()
        assert told["org"] == key["org"]
    answer = await oidc.client.get("/auth/whoami", headers=bearer(token, **{"Nodus-Org": "third"}))
    assert (answer.status_code, 'the organisation "third"' in answer.json()["message"]) == (403, True)


async def test_keys_rotate_are_asked_for_seldom_and_outlive_a_provider_that_is_down(
    oidc: ServedApi, provider: Issuer
) -> None:
    async def code(token: str) -> int:
        return (await oidc.client.get("/auth/whoami", headers=bearer(token))).status_code

    provider.is_down = True
    answer = await oidc.client.get("/auth/whoami", headers=bearer(provider.token()))
    assert (answer.status_code, answer.json()["reason"]) == (503, "Unavailable")
    assert "the identity provider does not answer" in answer.json()["message"]
    assert int(answer.headers["retry-after"]) >= 1
    provider.is_down = False

    async def works() -> bool:
        return await code(provider.token()) == 200

    await eventually(works)
    old = provider.token()
    provider.is_down = True
    assert await code(provider.token(sub="another")) == 200
    provider.is_down = False
    provider.rotate("second", elliptic=True)
    await eventually(works)

    async def is_refused() -> bool:
        return await code(old) == 401

    await eventually(is_refused)
    provider.configuration = {"issuer": "https://evil.example"}
    provider.rotate("third")
    assert await code(provider.token()) == 401


async def test_made_up_keys_do_not_make_the_provider_busy(database_url: str, tmp_path: Path, provider: Issuer) -> None:
    settings = api_settings(database_url, tmp_path, **provider.settings, oidc_refetch_seconds_min=3_600)
    async with serve(settings) as api:
        for number in range(20):
            token = provider.token(kid=f"made-up-{number}")
            assert (await api.client.get("/auth/whoami", headers=bearer(token))).status_code == 401
        assert provider.asked["/keys"] == 1


async def test_a_provider_that_is_away_keeps_no_key_good(oidc: ServedApi, provider: Issuer) -> None:
    """All open streams are looked after together, and each credential for itself."""
    provider.is_down = True
    key, token, unknown = (f"Bearer {each}".encode() for each in (oidc.key, provider.token(), new_api_key()))
    found = await oidc.deps.authenticate.look_again([token, key, unknown])  # type: ignore[attr-defined]
    assert found.keys() == {key, unknown}
    assert (found[key].role, found[unknown]) == ("Owner", None)


async def test_a_watch_ends_with_its_token(database_url: str, tmp_path: Path, provider: Issuer) -> None:
    settings = api_settings(database_url, tmp_path, **provider.settings, oidc_skew_seconds=0)
    async with serve(settings) as api:
        await invite(api, "ada", email="ada@example.com")
        events: list[Any] = []
        headers: dict[str, str] = {}
        for seconds in (3, 15, 75):  # a busy machine may not have opened the watch before the token ends
            headers = bearer(provider.token(exp=int(time.time()) + seconds))
            async with api.client.stream("GET", f"{ROOT}/apps?watch=true", headers=headers, timeout=120) as stream:
                if stream.status_code == 200:
                    events = [orjson.loads(line) async for line in stream.aiter_lines()]
                    break
        assert (events[-1]["type"], events[-1]["object"]["code"]) == ("ERROR", 401)
        assert (await api.client.get("/auth/whoami", headers=headers)).status_code == 401


async def test_groups_bound_what_a_member_may_and_names_have_a_prefix(
    database_url: str, tmp_path: Path, provider: Issuer
) -> None:
    settings = api_settings(
        database_url, tmp_path, **provider.settings, oidc_member_claim="sub",
        oidc_member_prefix="corp:", oidc_groups_claim="groups", oidc_roles={"readers": "Viewer", "makers": "Admin"},
    )  # fmt: skip
    async with serve(settings) as api:
        await invite(api, "ada", login="corp:A1", role="Member", projects=["default"])
        for groups, scope, allowed in (
            (["makers"], "apps:write", True),
            (["makers"], "members:write", False),
            (["readers", "others"], "apps:write", False),
            ("readers", "*:read", True),
        ):
            headers = bearer(provider.token(sub="A1", groups=groups))
            told = (await api.client.get("/auth/whoami", headers=headers)).json()
            assert (scope in told["scopes"]) is allowed
            assert told["projects"] == ["default"]
        for nothing in ([], None, ["others"], {"readers": 1}):
            headers = bearer(provider.token(sub="A1", groups=nothing))
            told = (await api.client.get("/auth/whoami", headers=headers)).json()
            assert told["scopes"] == []
        assert (await api.client.get("/auth/whoami", headers=bearer(provider.token(sub="a1")))).status_code == 403


@pytest.mark.parametrize("algorithms", [("none",), ("HS256",), ("RS256", "HS512"), ()])
def test_signatures_that_prove_nothing_cannot_be_configured(algorithms: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="must be some of"):
        OidcSettings(oidc_algorithms=algorithms)


def test_a_provider_whom_anybody_could_play_cannot_be_configured() -> None:
    with pytest.raises(ValueError, match="must be an https URL"):
        OidcSettings(oidc_issuer="http://login.example.com")
