"""How often one credential may ask: each class of requests by itself, and workers' claims whatever else is asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.rates import Allowance, Rates
from controlplane.edge_settings import EdgeSettings
from controlplane.identity.bootstrap import issue_admin_key
from controlplane.identity.principal import Principal, PrincipalKind
from controlplane.identity.tokens import new_api_key
from tests.fixtures.app import FUNCTION, PROJECT, ServedApi, api_settings, serve
from tests.fixtures.auditing import events_about
from tests.fixtures.http_worker import start_worker
from tests.fixtures.principals import WORKER, user

HARDLY_EVER = 0.001
"""Requests a second: within a test a bucket that is empty stays so."""
GET = {"method": "GET", "path": "/x", "query_string": b""}


class Clock:
    def __init__(self) -> None:
        self.seconds = 1_000.0

    def __call__(self) -> float:
        return self.seconds


def take(rates: Rates, credential: bytes = b"a", caller: Principal | None = None, **scope: Any) -> Allowance:
    allowance = rates.take(credential, caller or user("*"), {**GET, **scope})
    assert allowance is not None
    return allowance


def test_a_bucket_gives_what_it_holds_at_once_and_then_what_comes_in() -> None:
    clock = Clock()
    rates = Rates(EdgeSettings(rate_read_per_second=2, rate_read_burst_max=5), clock)
    assert [take(rates).remaining for _ in range(5)] == [4, 3, 2, 1, 0]
    refused = take(rates)
    assert not refused.allowed
    assert refused.refusal().retry_after_seconds == 1
    assert dict(refused.headers())[b"ratelimit-reset"] == b"3"
    clock.seconds += 1
    assert [take(rates).allowed for _ in range(3)] == [True, True, False]
    clock.seconds += 60
    assert [take(rates).remaining for _ in range(2)] == [4, 3]


def test_who_waits_as_long_as_told_is_served() -> None:
    clock = Clock()
    rates = Rates(EdgeSettings(rate_read_per_second=0.3, rate_read_burst_max=1), clock)
    take(rates)
    told = take(rates).refusal().retry_after_seconds
    assert told == 4
    clock.seconds += told
    assert take(rates).allowed


def test_the_number_of_buckets_is_bounded() -> None:
    rates = Rates(EdgeSettings(rate_read_per_second=1, rate_read_burst_max=1, rate_buckets_max=2), Clock())
    assert [take(rates, credential).allowed for credential in (b"a", b"b", b"c")] == [True] * 3
    assert [take(rates, credential).allowed for credential in (b"c", b"b", b"a")] == [False, False, True]


@pytest.mark.parametrize(
    ("caller", "scope", "named"),
    [
        (user("*"), {}, "read"),
        (user("*"), {"method": "HEAD"}, "read"),
        (user("*"), {"method": "DELETE"}, "write"),
        (user("*"), {"query_string": b"watch=true"}, "watch"),
        (user("*"), {"query_string": b"tailLines=1&follow=1"}, "watch"),
        (WORKER, {"method": "POST", "path": "/a/claims"}, "claim"),
        (user("*"), {"method": "POST", "path": "/a/claims"}, "write"),
        (WORKER, {"method": "POST", "path": "/a/functioncalls"}, "write"),
    ],
)
def test_the_first_line_of_a_request_tells_its_class(caller: Principal, scope: dict[str, Any], named: str) -> None:
    only = {f"rate_{name}_per_second": 0 for name in ("read", "write", "watch", "claim") if name != named}
    rates = Rates(EdgeSettings(**only), Clock())  # type: ignore[arg-type]
    assert take(rates, caller=caller, **scope).refusal().details == {"rate": named}


def test_nodes_are_not_counted() -> None:
    node = Principal(kind=PrincipalKind.NODE, org="", id="node", label="node", scopes=frozenset())
    assert Rates(EdgeSettings()).take(b"a", node, GET) is None


@pytest.fixture
async def slow(database_url: str, tmp_path: Path) -> AsyncIterator[ServedApi]:
    settings = api_settings(
        database_url, tmp_path, rate_write_per_second=HARDLY_EVER, rate_write_burst_max=3,
        rate_watch_per_second=HARDLY_EVER, rate_watch_burst_max=1,
    )  # fmt: skip
    async with serve(settings) as api:
        yield api


def headers(answer: httpx.Response) -> tuple[str | None, ...]:
    return tuple(answer.headers.get(f"RateLimit-{name}") for name in ("Limit", "Remaining"))


async def test_one_class_of_one_credential_is_refused_and_nothing_else(slow: ServedApi) -> None:
    await slow.function()
    worker = await start_worker(slow)
    body = {"metadata": {"generateName": "g-"}, "spec": FUNCTION}
    answers = [await slow.client.post(f"{PROJECT}/functions", json=body) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [201, 201, 429]
    assert [headers(answer) for answer in answers] == [("3", "1"), ("3", "0"), ("3", "0")]
    refusal = answers[-1]
    assert (refusal.json()["reason"], refusal.json()["details"]["rate"]) == ("TooManyRequests", "write")
    assert int(refusal.headers["Retry-After"]) > 1
    [event] = await events_about(slow, code=429)
    assert (event["kind"], event["verb"], event["reason"]) == ("Function", "create", "TooManyRequests")
    async with slow.watch("functions"):
        second = await slow.client.get(f"{PROJECT}/functions", params={"watch": "true"})
        assert (second.status_code, second.json()["details"]["rate"]) == (429, "watch")
    read = await slow.client.get(f"{PROJECT}/functions")
    assert (read.status_code, len(read.json()["items"])) == (200, 3)
    other = await issue_admin_key(slow.core.writer, slow.core.database, slow.core.settings)
    answer = await slow.client.post(f"{PROJECT}/functions", json=body, headers={"Authorization": f"Bearer {other}"})
    assert answer.status_code == 201
    for _ in range(5):
        await worker.claim()


async def test_a_credential_has_one_bucket_however_it_is_written(slow: ServedApi) -> None:
    body = {"metadata": {"generateName": "g-"}, "spec": FUNCTION}
    written = [f"Bearer {slow.key}", f"bearer {slow.key}", f"BEARER   {slow.key}", f"Bearer {slow.key}\xa0"]
    codes = []
    for value in written:
        headers = {b"Authorization": value.encode("latin-1")}
        codes.append((await slow.client.post(f"{PROJECT}/functions", json=body, headers=headers)).status_code)
    assert codes == [201, 201, 201, 429]


async def test_a_worker_that_writes_too_much_still_claims(slow: ServedApi) -> None:
    await slow.function()
    worker = await start_worker(slow)
    token = {"Authorization": f"Bearer {worker.token}"}
    uploads = f"/blobs/v1/namespaces/{slow.project_name}/uploads"
    answers = [await slow.client.post(uploads, json={}, headers=token) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [422, 422, 422, 429]
    for _ in range(5):
        await worker.claim()


async def test_an_address_that_guesses_is_refused_and_keys_in_use_are_not(database_url: str, tmp_path: Path) -> None:
    settings = api_settings(
        database_url, tmp_path, guess_per_second=HARDLY_EVER, guess_burst_max=3, token_cache_seconds=0.0
    )
    async with serve(settings) as api:

        async def code(token: str) -> int:
            answer = await api.client.get("/auth/whoami", headers={"Authorization": f"Bearer {token}"})
            return answer.status_code

        # Good keys are no guesses, however many there are.
        core = api.core
        good = [await issue_admin_key(core.writer, core.database, core.settings) for _ in range(5)]
        assert [await code(token) for token in good] == [200] * 5
        first = await issue_admin_key(core.writer, core.database, core.settings)
        assert await asyncio.gather(*(code(first) for _ in range(20))) == [200] * 20
        assert [await code(new_api_key()) for _ in range(4)] == [401, 401, 401, 429]
        assert [await code(token) for token in good] == [200] * 5
        another = await issue_admin_key(core.writer, core.database, core.settings)
        answer = await api.client.get("/auth/whoami", headers={"Authorization": f"Bearer {another}"})
        assert (answer.status_code, answer.json()["reason"]) == (429, "TooManyRequests")
        assert int(answer.headers["Retry-After"]) > 1
        assert (await api.client.get("/healthz")).status_code == 200


async def test_what_needs_no_credential_has_no_rate(slow: ServedApi) -> None:
    assert headers(await slow.client.get("/healthz")) == (None, None)
