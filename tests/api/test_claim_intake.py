"""What a hostile worker can make the API hold: one claim, of a size its calls explain, within one budget for all."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.claim_intake import ClaimIntake
from controlplane.errors import ApiError, Reason
from tests.fixtures.app import HELD, ServedApi, api_settings, serve
from tests.fixtures.eventually import WITHIN_SECONDS, eventually
from tests.fixtures.http_worker import HttpWorker, start_worker

TEXT_BYTES_MAX = 50_000
RESULT_BYTES_MAX = 87_384 + 1_024
BUDGET_BYTES = 200_000


@pytest.fixture
async def api(database_url: str, tmp_path: Path) -> AsyncIterator[ServedApi]:
    """A server with little room for claims."""
    settings = api_settings(
        database_url, tmp_path, claim_text_bytes_max=TEXT_BYTES_MAX, claims_buffered_bytes_max=BUDGET_BYTES,
        # No body that a test has sent by half is given up before the test is done with it.
        claim_body_seconds_max=2 * WITHIN_SECONDS,
    )  # fmt: skip
    async with serve(settings) as served:
        await served.function()
        yield served


@contextlib.asynccontextmanager
async def half_sent(
    worker: HttpWorker, body: bytes
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A claim of which everything but the last byte has been sent."""
    async with half_posted(httpx.URL(worker.api.url).join(worker.path), worker.token, body) as opened:
        yield opened


@contextlib.asynccontextmanager
async def half_posted(
    url: httpx.URL, token: str, body: bytes
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A POST of which everything but the last byte has been sent."""
    reader, writer = await asyncio.open_connection(url.host, url.port)
    head = f"POST {url.path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:-1])
    await writer.drain()
    try:
        yield reader, writer
    finally:
        writer.close()


async def status_line(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(WITHIN_SECONDS):
        return await reader.readline()


async def refused(worker: HttpWorker) -> httpx.Response:
    """The first answer to a claim that is not 200."""
    answers: list[httpx.Response] = []

    async def asked() -> bool:
        answers.append(await worker.post({}))
        return answers[-1].status_code != 200

    await eventually(asked)
    return answers[-1]


async def accepted(worker: HttpWorker) -> None:
    """Wait until a claim is answered with 200."""

    async def is_accepted() -> bool:
        return (await worker.post({})).status_code == 200

    await eventually(is_accepted)


async def test_a_second_claim_is_refused_while_the_first_is_still_being_read(api: ServedApi) -> None:
    worker, other = await start_worker(api), await start_worker(api)
    async with half_sent(worker, b'{"max":0}') as (reader, writer):
        answer = await refused(worker)
        assert (answer.status_code, answer.json()["reason"]) == (429, "TooManyRequests")
        assert answer.headers["retry-after"] == "1"
        assert (await other.post({})).status_code == 200
        writer.write(b"}")
        assert b" 200 " in await status_line(reader)
    assert (await worker.post({})).status_code == 200


async def test_a_claim_that_was_cut_off_in_its_body_makes_room_for_the_next(api: ServedApi) -> None:
    worker = await start_worker(api)
    async with half_sent(worker, b'{"max":0}'):
        await refused(worker)
    await accepted(worker)


async def test_a_newer_claim_takes_the_place_of_one_that_is_held(api: ServedApi) -> None:
    worker = await start_worker(api)
    held = asyncio.create_task(worker.claim(wait=HELD))
    await eventually(lambda: bool(api.core.waiting._held))
    await worker.claim(wait="0s")
    second = asyncio.create_task(worker.claim(wait=HELD))
    assert (await held)["calls"] == []
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)


async def test_a_body_that_never_ends_is_given_up(database_url: str, tmp_path: Path) -> None:
    async with serve(api_settings(database_url, tmp_path, claim_body_seconds_max=0.3)) as api:
        await api.function()
        worker = await start_worker(api)
        async with half_sent(worker, b'{"max":0}') as (reader, _):
            assert b" 504 " in await status_line(reader)
        # The body of this one may take as long on a busy machine.
        await accepted(worker)


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_a_claim_is_as_large_as_the_results_of_its_workers_calls(api: ServedApi, concurrency: int) -> None:
    worker = await start_worker(api, concurrency=concurrency)
    largest = TEXT_BYTES_MAX + concurrency * RESULT_BYTES_MAX
    headers = {"Authorization": f"Bearer {worker.token}"}
    for size, code in ((min(largest, BUDGET_BYTES), 200), (largest + 1, 413)):
        response = await api.client.post(worker.path, content=b"{}".ljust(size), headers=headers)
        assert response.status_code == code, response.text


@pytest.mark.parametrize("member", ["completed", "running"])
async def test_a_claim_tells_of_no_more_calls_than_its_worker_runs(api: ServedApi, member: str) -> None:
    worker = await start_worker(api, concurrency=2)
    assert (await worker.post({member: ["a"] * 2})).status_code == 200
    response = await worker.post({member: ["a"] * 3})
    assert (response.status_code, response.json()["reason"]) == (422, "Invalid")
    assert "at most 2 entries" in response.json()["message"]


async def test_claims_together_stay_within_the_budget(api: ServedApi) -> None:
    workers = [await start_worker(api) for _ in range(2)]
    large = b" " * (TEXT_BYTES_MAX + RESULT_BYTES_MAX)
    headers = {"Authorization": f"Bearer {workers[1].token}"}
    claims: Any = api.deps.subresources["functions", "claims", "POST"]
    async with half_sent(workers[0], large) as (reader, writer):
        # If the other claim were read at the same time, either might be the one that finds no room.
        await eventually(lambda: claims._intake._buffered._bytes == len(large) - 1)
        answer = await api.client.post(workers[1].path, content=large, headers=headers)
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
        writer.write(b" ")
        assert b" 200 " in await status_line(reader)
    assert (await api.client.post(workers[1].path, content=large, headers=headers)).status_code == 200


def test_the_intake_forgets_what_a_claim_took_however_it_ends() -> None:
    intake = ClaimIntake(bytes_max=10)
    for _ in range(3):
        with contextlib.suppress(ZeroDivisionError), intake.entry("att-1") as count:
            count(10)
            raise ZeroDivisionError
    with intake.entry("att-1") as count:
        count(10)
        with pytest.raises(ApiError) as refusal:
            count(1)
        assert refusal.value.reason is Reason.TOO_MANY_REQUESTS
