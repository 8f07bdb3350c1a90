"""Logs over HTTP: headers at once, lines as they come, queries as the public clients send them."""

from __future__ import annotations

import asyncio
import base64
import secrets
import uuid
from collections.abc import Sequence

import httpx
import pytest

from controlplane.identity.authenticator import Authenticator
from controlplane.identity.principal import Principal
from controlplane.identity.tokens import INSERT_API_KEY, TokenHasher, new_api_key
from tests.fixtures.app import ServedApi
from tests.fixtures.eventually import WITHIN_SECONDS, eventually
from tests.fixtures.plane import insert_attempt


@pytest.fixture
async def attempt(project: ServedApi) -> str:
    """A worker of the Function `f`."""
    function = await project.function()
    uid = f"att-{secrets.token_hex(8)}"
    await insert_attempt(
        project.core.database,
        uid,
        project=project.project_name,
        function="f",
        function_uid=function["metadata"]["uid"],
    )
    return uid


async def store(node: httpx.AsyncClient, attempt: str, seq: int, *texts: str) -> None:
    lines = [[seq * 1_000_000_000 + index, "stdout", text] for index, text in enumerate(texts)]
    answer = await node.post(f"/node/v1/attempts/{attempt}/logs", json={"chunks": [{"seq": seq, "lines": lines}]})
    assert answer.status_code == 204, answer.text


async def log(api: ServedApi, **query: str) -> httpx.Response:
    return await api.client.get(f"{api.path}/functions/f/log", params=query)


async def test_a_log_is_plain_text(project: ServedApi, node: httpx.AsyncClient, attempt: str) -> None:
    await store(node, attempt, 1, "one", "zwei ü", "three")
    answer = await log(project)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.content.decode() == "one\nzwei ü\nthree\n"
    assert (await log(project, tailLines="1")).text == "three\n"
    assert (await log(project, tailLines="2", timestamps="true")).text.splitlines()[1] == (
        "1970-01-01T00:00:01.000000002Z three"
    )
    assert (await log(project, sinceSeconds="60")).text == ""
    assert (await log(project, attempt="1")).text == answer.text
    assert (await log(project, follow="false", container="ignored")).text == answer.text


async def test_a_followed_log_begins_at_once_and_ends_with_its_function(
    project: ServedApi, node: httpx.AsyncClient, attempt: str
) -> None:
    async with asyncio.timeout(WITHIN_SECONDS):
        async with project.client.stream("GET", f"{project.path}/functions/f/log", params={"follow": "true"}) as stream:
            assert stream.status_code == 200
            lines = stream.aiter_lines()
            await store(node, attempt, 1, "first")
            assert await anext(lines) == "first"
            await store(node, attempt, 2, "second")
            assert await anext(lines) == "second"
            await project.core.database.execute("UPDATE attempts SET state = 'finished', finished_at = now()")
            await project.client.delete(f"{project.path}/functions/f")
            key = project.object_key("Function", "f")
            await project.deps.resources.deleter.release(key, "nodus.dev/workers")
            assert [line async for line in lines] == []


async def test_a_log_followed_with_basic_credentials_lasts_until_the_key_may_not_read_it(
    project: ServedApi, node: httpx.AsyncClient, attempt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.streams.RECHECK_SECONDS", 0.05)
    asked: list[bytes] = []
    look_up = Authenticator._look_up_all

    async def noted(self: Authenticator, hashes: Sequence[bytes]) -> dict[bytes, Principal | None]:
        asked.extend(hashes)
        return await look_up(self, hashes)

    monkeypatch.setattr(Authenticator, "_look_up_all", noted)
    database, token = project.core.database, new_api_key()
    hashed = TokenHasher(project.core.settings.secret_key).hash(token)
    await database.execute(
        INSERT_API_KEY, hashed, "default", str(uuid.uuid4()), "follower", ["functions:read"], ["*"],
        project.core.clock.now(), None, "Owner", None,
    )  # fmt: skip
    basic = {"Authorization": f"Basic {base64.b64encode(f'any:{token}'.encode()).decode()}"}
    path, follow = f"{project.path}/functions/f/log", {"follow": "true"}
    async with (
        asyncio.timeout(WITHIN_SECONDS),
        project.client.stream("GET", path, params=follow, headers=basic) as stream,
    ):
        lines = stream.aiter_lines()
        await eventually(lambda: asked.count(hashed) >= 4)
        await store(node, attempt, 1, "still here")
        assert await anext(lines) == "still here"
        await database.execute("UPDATE tokens SET scopes = '{apps:read}' WHERE hash = $1", hashed)
        assert [line async for line in lines] == []


async def test_a_client_that_goes_away_disturbs_nobody(
    project: ServedApi, node: httpx.AsyncClient, attempt: str
) -> None:
    async with project.client.stream("GET", f"{project.path}/functions/f/log", params={"follow": "true"}) as stream:
        await store(node, attempt, 1, "x")
        assert await anext(stream.aiter_lines()) == "x"
    await store(node, attempt, 2, "y")
    assert (await log(project)).text == "x\ny\n"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tailLines", "-1"),
        ("tailLines", "many"),
        ("tailLines", "1.5"),
        ("sinceSeconds", "²"),
        ("follow", "perhaps"),
        ("timestamps", "2"),
        ("attempt", "x" * 100),
    ],
)
async def test_a_query_that_cannot_be_read_is_a_bad_request(project: ServedApi, name: str, value: str) -> None:
    refused = await log(project, **{name: value})
    assert refused.status_code == 400
    assert refused.json()["reason"] == "BadRequest"
    assert name in refused.json()["message"]


@pytest.mark.parametrize("plural", ["functions", "functioncalls", "apps", "attempts"])
async def test_the_log_of_nothing_is_not_found(project: ServedApi, plural: str) -> None:
    for query in ({}, {"follow": "true"}):
        missing = await project.client.get(f"{project.path}/{plural}/missing/log", params=query)
        assert missing.status_code == 404
        assert missing.json()["reason"] == "NotFound"


async def test_a_flood_in_one_request_is_refused_as_too_large(
    project: ServedApi, node: httpx.AsyncClient, attempt: str
) -> None:
    lines = [[1, "stdout", "x" * 1_000_000] for _ in range(5)]
    refused = await node.post(f"/node/v1/attempts/{attempt}/logs", json={"chunks": [{"seq": 1, "lines": lines}]})
    assert refused.status_code == 413
