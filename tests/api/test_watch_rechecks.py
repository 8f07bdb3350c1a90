"""Watches whose caller is judged again while they are open (R-WATCH-11)."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import orjson
import pytest

from controlplane.identity.authenticator import Authenticator
from controlplane.identity.principal import Principal
from controlplane.machinery.kind import Verb
from tests.fixtures.app import ROOT, EventStream, ServedApi, api_settings, serve
from tests.fixtures.eventually import eventually


@pytest.fixture
async def rechecked(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[ServedApi, EventStream]]:
    """A server that asks again at every opportunity, and a watch of it that was opened with HTTP Basic."""
    monkeypatch.setattr("api.streams.RECHECK_SECONDS", 0.05)
    async with serve(api_settings(database_url, tmp_path, token_cache_seconds=0.0, basic_auth=True)) as api:
        basic = base64.b64encode(f"any:{api.key}".encode()).decode()
        api.client.headers["Authorization"] = f"Basic {basic}"
        since = (await api.client.get(f"{ROOT}/apps")).json()["metadata"]["resourceVersion"]
        async with api.watch("apps", resourceVersion=since) as events:
            yield api, events


def counted_rechecks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with each look at what the credentials of open streams are now."""
    asked: list[int] = []
    look_up = Authenticator._look_up_all

    async def counted(self: Authenticator, hashes: Sequence[bytes]) -> dict[bytes, Principal | None]:
        asked.append(len(hashes))
        return await look_up(self, hashes)

    monkeypatch.setattr(Authenticator, "_look_up_all", counted)
    return asked


async def test_a_watch_opened_with_basic_credentials_goes_on_after_a_recheck(
    rechecked: tuple[ServedApi, EventStream], monkeypatch: pytest.MonkeyPatch
) -> None:
    api, events = rechecked
    asked = counted_rechecks(monkeypatch)
    await eventually(lambda: len(asked) >= 3)
    await api.create("apps", {"metadata": {"name": "still-there"}, "spec": {}})
    assert (await events.next())["object"]["metadata"]["name"] == "still-there"


@pytest.mark.parametrize(
    ("withdrawn", "code", "reason"),
    [
        ("revoked_at = now()", 401, "Unauthorized"),
        ("expires_at = now() - interval '1 s'", 401, "Unauthorized"),
        ("scopes = '{functions:read}'", 403, "Forbidden"),
        ("projects = '{elsewhere}'", 403, "Forbidden"),
    ],
)
async def test_a_watch_ends_with_the_refusal_it_would_now_meet(
    rechecked: tuple[ServedApi, EventStream], withdrawn: str, code: int, reason: str
) -> None:
    api, events = rechecked
    await api.core.database.execute(f"UPDATE tokens SET {withdrawn}")
    [last] = await events.rest()
    assert last["type"] == "ERROR"
    assert (last["object"]["kind"], last["object"]["code"], last["object"]["reason"]) == ("Status", code, reason)


async def test_a_watch_over_all_projects_ends_when_its_key_loses_one(
    rechecked: tuple[ServedApi, EventStream],
) -> None:
    api, _ = rechecked
    for path in ("apps", "projects"):
        await api.core.database.execute("UPDATE tokens SET projects = '{default,elsewhere}'")
        async with api.client.stream("GET", f"{ROOT}/{path}", params={"watch": "true"}) as response:
            await api.core.database.execute("UPDATE tokens SET projects = '{default}'")
            last = [orjson.loads(line) async for line in response.aiter_lines()][-1]
        assert (last["type"], last["object"]["code"]) == ("ERROR", 403)


async def test_a_key_of_one_project_goes_on_watching_what_belongs_to_its_organisation(
    rechecked: tuple[ServedApi, EventStream], monkeypatch: pytest.MonkeyPatch
) -> None:
    api, _ = rechecked
    asked = counted_rechecks(monkeypatch)
    kinds = [kind for kind in api.deps.kinds.values() if Verb.WATCH in kind.verbs and not kind.project_field]
    watched = [kind.plural for kind in kinds if Verb.LIST not in kind.verbs_of_all_projects]
    assert {"offerings", "members", "invites", "sshkeys", "organizations"} <= set(watched)
    await api.core.database.execute("UPDATE tokens SET projects = '{default}'")
    query = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": "2"}

    async def last_of(plural: str) -> str:
        async with api.client.stream("GET", f"{ROOT}/{plural}", params=query) as response:
            before = len(asked)
            await eventually(lambda: len(asked) >= before + 3)
            lines = [orjson.loads(line) async for line in response.aiter_lines()]
        return f"{plural} {lines[-1]['type']}"

    assert await asyncio.gather(*map(last_of, watched)) == [f"{plural} BOOKMARK" for plural in watched]


async def test_a_watch_that_only_keys_of_all_projects_may_open_ends_with_the_last_of_them(
    rechecked: tuple[ServedApi, EventStream],
) -> None:
    api, _ = rechecked
    async with api.client.stream("GET", f"{ROOT}/apikeys", params={"watch": "true"}) as response:
        await api.core.database.execute("UPDATE tokens SET projects = '{default}'")
        last = [orjson.loads(line) async for line in response.aiter_lines()][-1]
    assert (last["type"], last["object"]["code"]) == ("ERROR", 403)
