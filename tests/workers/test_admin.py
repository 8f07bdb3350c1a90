"""The operator's commands about organisations, members and keys, beside a server that runs."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr
from typer.testing import CliRunner

from activities.credentials_keeper import CredentialsKeeper
from controlplane.identity.authenticator import Authenticator
from controlplane.identity.bootstrap import issue_admin_key
from controlplane.identity.principal import Principal
from controlplane.identity.tokens import new_api_key
from controlplane.settings import Settings
from controlplane.store.contract import Key
from tests.fixtures.app import ROOT, ServedApi, api_settings, serve
from tests.fixtures.commands import run_workers
from tests.fixtures.eventually import eventually
from workers.admin import app
from workers.initialise import initialise
from workers.wiring import open_core


@pytest.fixture
def api(api: ServedApi, monkeypatch: pytest.MonkeyPatch) -> ServedApi:
    """A server, with its settings in the environment as its operator has them."""
    settings = api.core.settings
    monkeypatch.setenv("NODUS_SERVER_DATABASE_URL", settings.database_url)
    monkeypatch.setenv("NODUS_SERVER_DATA_DIR", str(settings.data_dir))
    monkeypatch.setenv("NODUS_SERVER_SECRET_KEY", settings.secret_key.get_secret_value())
    return api


async def admin(api: ServedApi, line: str) -> tuple[int, str]:
    """Exit code and output; in a thread, since the command has an event loop of its own, and starts sooner there."""
    result = await asyncio.to_thread(CliRunner().invoke, app, line.split())
    return result.exit_code, result.output


async def told(api: ServedApi, line: str) -> str:
    code, output = await admin(api, line)
    assert code == 0, output
    return output


async def key(api: ServedApi, line: str) -> dict[str, str]:
    """The header of the key that a command tells."""
    found = re.search(r"NODUS_API_KEY=(\S+)", await told(api, line))
    assert found is not None
    return {"Authorization": f"Bearer {found[1]}"}


async def whoami(api: ServedApi, headers: dict[str, str]) -> httpx.Response:
    return await api.client.get("/auth/whoami", headers=headers)


async def test_an_operator_makes_an_organisation_and_looks_after_its_members_and_keys(api: ServedApi) -> None:
    owner = await key(api, "create-org acme")

    async def is_complete() -> bool:
        told: dict[str, Any] = (await whoami(api, owner)).json()
        return (told["org"], told["role"], told["projects"]) == ("acme", "Owner", ["default"])

    await eventually(is_complete)
    code, output = await admin(api, "create-org acme")
    assert (code, "exists already" in output) == (2, True)
    assert (await told(api, "orgs")).split() == ["Organisation", "acme", "default"]
    assert "ada Viewer" in await told(api, "create-member ada --role Viewer --org acme")
    ada = await key(api, "create-key laptop --member ada --org acme --expires 24h")
    assert "apps:write" not in (await whoami(api, ada)).json()["scopes"]
    await told(api, "set-role ada Admin --org acme")

    async def is_admin() -> bool:
        return bool((await whoami(api, ada)).json()["role"] == "Admin")

    await eventually(is_admin)
    assert re.search(r"^ada +Admin ", await told(api, "members --org acme"), re.MULTILINE)
    assert re.search(r"^laptop +nodus_\S{6} +\* +\* +2", await told(api, "keys --org acme"), re.MULTILINE)
    await told(api, "revoke-key laptop --org acme")

    async def is_unknown() -> bool:
        return (await whoami(api, ada)).status_code == 401

    await eventually(is_unknown)
    apps = f"{ROOT}/namespaces/default/apps"
    await api.client.post(apps, json={"metadata": {"name": "a"}, "spec": {}})
    assert (await api.client.get(apps, headers=owner)).json()["items"] == []


async def test_what_cannot_be_done_is_told_with_what_would_help(api: ServedApi) -> None:
    for line, code, words in (
        ("create-org Acme", 2, "lower case"),
        ("keys --org nowhere", 2, "admin orgs"),
        ("create-key k --member nobody", 1, "there is no Member"),
        ("set-role admin Viewer", 1, "fix: Give another Member the role Owner first"),
        ("create-key k --expires soon", 2, "duration"),
        ("delete-org default --yes", 2, "own organisation"),
        ("delete-org nowhere --yes", 2, "there is no organisation"),
    ):
        found, output = await admin(api, line)
        assert (found, words in " ".join(output.split())) == (code, True), output


HELD = {"metadata": {"name": "held", "finalizers": ["example.com/hold"]}, "spec": {}}
TABLES = ("objects", "tokens", "credential_owners", "quotas", "blobs", "blob_usage", "spending_limits")


async def left(api: ServedApi, org: str) -> dict[str, int]:
    """What there is of an organisation, by table."""
    counted = {
        table: await api.core.database.fetchval(f"SELECT count(*) FROM {table} WHERE org = $1", org) for table in TABLES
    }
    return {table: count for table, count in counted.items() if count}


async def test_an_organisation_goes_with_everything_in_it_and_its_name_is_not_given_away(api: ServedApi) -> None:
    headers = await key(api, "create-org acme")
    async with httpx.AsyncClient(base_url=api.url, headers=headers, trust_env=False, timeout=60) as client:
        acme = replace(api, client=client)
        await acme.create("apps", HELD)
        await acme.upload(b"theirs")
        objects: dict[str, Any] = {
            "projects": {"metadata": {"name": "more"}},
            "members": {"metadata": {"name": "ada"}, "spec": {"role": "Owner"}},
            "invites": {"metadata": {"name": "bob"}, "spec": {"email": "bob@example.com", "role": "Member"}},
            "budgets": {"metadata": {"name": "few"}, "spec": {"limitUSD": "5"}},
        }
        for plural, body in objects.items():
            answer = await client.post(f"{ROOT}/{plural}", json=body)
            assert answer.status_code == 201, answer.text
        before = await left(api, "acme")
        code, output = await admin(api, "delete-org acme")
        assert (code, "add --yes" in output, await left(api, "acme")) == (1, True, before), output
        # A run that is cut short has ended the keys, and the next one goes on.
        code, output = await admin(api, "delete-org acme --yes --wait 0s")
        assert (code, "App default/held" in output) == (1, True), output

        async def is_unknown() -> bool:
            return (await client.get("/auth/whoami")).status_code == 401

        await eventually(is_unknown)
    await api.core.resources.deleter.release(Key("App", "acme", "default", "held"), "example.com/hold")
    assert "acme is deleted" in await told(api, "delete-org acme --yes")
    assert await left(api, "acme") == {}
    code, output = await admin(api, "create-org acme")
    assert (code, "was of an organisation that was deleted" in " ".join(output.split())) == (2, True), output


async def shows_the_operators_key_and_does_not_delete_it(database_url: str, data_dir: Path, token: str) -> None:
    settings = api_settings(database_url, data_dir).model_copy(update={"secret_key": SecretStr("5c" * 32)})
    keys = f"{ROOT}/apikeys"
    async with serve(settings, key=token) as api:
        [only] = (await api.client.get(keys)).json()["items"]
        assert (only["metadata"]["name"], only["status"]["prefix"]) == ("operator", token[:12])
        assert only["status"]["user"] == (await api.client.get("/auth/whoami")).json()["user"]
        refused = await api.client.delete(f"{keys}/operator")
        assert (refused.status_code, refused.json()["reason"]) == (409, "Conflict")
        assert "kept by the operator of this server" in refused.json()["message"]
        assert "operator_key_file" in refused.json()["fix"]
        assert (await api.client.get("/auth/whoami")).status_code == 200


async def test_the_first_key_is_listed_and_ends_with_its_object(api: ServedApi) -> None:
    keys = f"{ROOT}/apikeys"
    [first] = (await api.client.get(keys)).json()["items"]
    assert (first["metadata"]["name"], first["status"]["prefix"]) == ("admin", api.key[:12])
    uses = CredentialsKeeper(api.core.database, api.core.writer, api.core.clock)

    async def is_used() -> bool:
        await uses.show_uses()
        return "lastUsedTime" in (await api.client.get(f"{keys}/admin")).json()["status"]

    await eventually(is_used)
    assert re.search(rf"^admin +{api.key[:12]} +\* +\* +never +20\S+ +20", await told(api, "keys"), re.MULTILINE)
    issued = await issue_admin_key(api.core.writer, api.core.database, api.core.settings)
    listed = [item["status"]["prefix"] for item in (await api.client.get(keys)).json()["items"]]
    assert listed == [api.key[:12], issued[:12]]
    other = {"Authorization": f"Bearer {issued}"}
    assert (await api.client.delete(f"{keys}/admin", headers=other)).status_code == 200

    async def is_unknown() -> bool:
        return (await api.client.get("/auth/whoami")).status_code == 401

    await eventually(is_unknown)
    assert (await whoami(api, other)).status_code == 200


async def test_an_operators_key_of_a_file_or_the_environment_is_the_administrators(
    database_url: str, tmp_path: Path
) -> None:
    file, first, second = tmp_path / "key", new_api_key(), new_api_key()
    file.write_text(f"{first}\n")
    settings = Settings(database_url=database_url, data_dir=tmp_path, secret_key="5c" * 32, token_cache_seconds=0.0)
    same = {"secret_key": "5c" * 32, "data_dir": str(tmp_path)}

    async def principal(token: str) -> Principal | None:
        async with open_core(settings) as core:
            authenticate, header = Authenticator(core.database, settings, core.clock), f"Bearer {token}".encode()
            return (await authenticate.look_again([header]))[header]

    code, output = await run_workers(database_url, "init", operator_key_file=str(file), **same)
    # Nothing is told: whoever keeps the key knows it.
    assert (code, "NODUS_API_KEY" in output) == (0, False), output
    assert await initialise(settings, None, first) is None
    known = await principal(first)
    assert known is not None
    assert known.role == "Owner"
    assert await initialise(settings, None, second) is None
    assert (await principal(first), await principal(second)) == (None, known)
    await shows_the_operators_key_and_does_not_delete_it(database_url, tmp_path, second)
    code, output = await run_workers(database_url, "init", operator_key="short", **same)
    assert (code, "openssl rand" in output) == (2, True)
