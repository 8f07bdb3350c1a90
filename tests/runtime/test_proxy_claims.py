"""Claims on their way through the socket: noticed, and answered there when the worker must leave."""

from __future__ import annotations

import asyncio
import json

import pytest

from runtime import proxy as proxy_module
from tests.fixtures.eventually import eventually
from tests.runtime.proxied import CLAIMS, IDLE_CLAIM, OK, Attempt, Upstream, content_length


async def hold_claims(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Hold every claim until the proxy hangs up; answer all else."""
    await reader.readexactly(content_length(head))
    if b"/claims" in head:
        await reader.readexactly(1)
    writer.write(OK)


async def test_an_idle_claim_is_answered_when_the_worker_must_leave(attempt: Attempt, upstream: Upstream) -> None:
    upstream.answer = hold_claims
    async with attempt.client() as client:
        claim = asyncio.create_task(client.post(CLAIMS, json=IDLE_CLAIM))
        await eventually(lambda: attempt.told == ["claimed"])
        attempt.proxy.release_claims()
        answer = await asyncio.wait_for(claim, 60)
        assert (answer.status_code, answer.json()) == (200, {})
        await eventually(lambda: upstream.gone == 1)
        assert (await client.get("/x")).text == "ok"


async def test_a_worker_that_polls_on_is_held_a_moment_and_then_released_again(
    attempt: Attempt, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy_module, "RELEASE_AGAIN_SECONDS", 0.2)
    upstream.answer = hold_claims
    attempt.proxy.release_claims()
    async with attempt.client() as client:
        begun = asyncio.get_running_loop().time()
        assert (await client.post(CLAIMS, json=IDLE_CLAIM)).json() == {}
        assert asyncio.get_running_loop().time() - begun >= 0.19


@pytest.mark.parametrize(
    "claim",
    [
        {**IDLE_CLAIM, "completed": [{"call": "a", "outcome": "Succeeded"}]},
        {**IDLE_CLAIM, "max": 0, "wait": "0s", "draining": True},
        {**IDLE_CLAIM, "wait": "0s", "running": ["a"]},
    ],
)
async def test_a_claim_that_reports_something_is_left_to_the_api(
    attempt: Attempt, upstream: Upstream, claim: dict[str, object]
) -> None:
    upstream.answer = hold_claims
    async with attempt.client() as client:
        posted = asyncio.create_task(client.post(CLAIMS, json=claim))
        await eventually(lambda: attempt.told == ["claimed"])
        attempt.proxy.release_claims()
        done, _ = await asyncio.wait({posted}, timeout=0.2)
        assert not done
        posted.cancel()


@pytest.mark.parametrize("results", [0, 3])
async def test_an_accepted_final_claim_is_noticed_however_large(attempt: Attempt, results: int) -> None:
    record = {"call": "a", "outcome": "Succeeded", "result": {"inline": "x" * 60_000}}
    final = {**IDLE_CLAIM, "completed": [record] * results, "max": 0, "wait": "0s", "draining": True}
    async with attempt.client() as client:
        await client.post(CLAIMS, json=IDLE_CLAIM)
        assert attempt.told == ["claimed"]
        await client.post(CLAIMS, content=json.dumps(final))
    assert attempt.told == ["claimed", "claimed", "final"]


async def test_a_refused_final_claim_is_not_the_end(attempt: Attempt, upstream: Upstream) -> None:
    async def refuse(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(content_length(head))
        writer.write(b"HTTP/1.1 503 Unavailable\r\ncontent-length: 0\r\n\r\n")

    upstream.answer = refuse
    async with attempt.client() as client:
        await client.post(CLAIMS, json={**IDLE_CLAIM, "draining": True})
    assert attempt.told == ["claimed"]
