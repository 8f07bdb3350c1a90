"""What bodies may take of a process's memory while they come in, together and of one sender."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from api.buffered_bytes import BufferedBytes
from controlplane.errors import ApiError, Reason
from tests.api.test_claim_intake import half_posted, status_line
from tests.fixtures.app import PROJECT, Document, ServedApi, api_settings, client_of, serve
from tests.fixtures.eventually import eventually

OWNER_BYTES = 100_000


@pytest.fixture
async def small(database_url: str, tmp_path: Path) -> AsyncIterator[ServedApi]:
    """A server with little room for bodies."""
    async with serve(api_settings(database_url, tmp_path, bodies_buffered_bytes_max=4 * OWNER_BYTES)) as api:
        yield api


def filled(name: str, size: int) -> Document:
    return {"metadata": {"name": name, "annotations": {"filling": "x" * size}}, "spec": {}}


async def test_bodies_that_are_on_their_way_leave_room_for_other_senders(small: ServedApi) -> None:
    whole = httpx.Request("POST", "/", json=filled("first", 90_000)).content
    answers: list[httpx.Response] = []

    async def is_refused() -> bool:
        # Until the server has read what fills the room, such an App is made.
        answers.append(await small.client.post(f"{PROJECT}/apps", json=filled(f"a{len(answers)}", 20_000)))
        return answers[-1].status_code != 201

    async with half_posted(httpx.URL(f"{small.url}{PROJECT}/apps"), small.key, whole) as (reader, writer):
        await eventually(is_refused)
        refusal = answers[-1]
        assert (refusal.status_code, refusal.json()["reason"], refusal.headers["retry-after"]) == (
            429, "TooManyRequests", "1",
        )  # fmt: skip
        assert f"fill the {OWNER_BYTES} bytes" in refusal.json()["message"]
        async with client_of(small.url) as stranger:
            assert (await stranger.post("/auth/device/code", json={"client_id": "c"})).status_code == 200
        writer.write(whole[-1:])
        assert b" 201 " in await status_line(reader)
    assert (await small.client.post(f"{PROJECT}/apps", json=filled("last", 90_000))).status_code == 201


def test_the_room_is_shared_by_all_and_given_back() -> None:
    bodies = BufferedBytes("bodies", 10, owner_bytes_max=4)
    with contextlib.ExitStack() as held:
        for owner in ("a", "b"):
            held.enter_context(bodies.entry(owner))(4)
        with bodies.entry("a") as count, pytest.raises(ApiError) as refused:
            count(1)
        assert (refused.value.reason, "of one sender" in refused.value.message) == (Reason.TOO_MANY_REQUESTS, True)
        with bodies.entry("c") as count:
            count(2)
            with pytest.raises(ApiError, match="fill the 10 bytes"):
                count(1)
    with bodies.entry("a") as count:
        count(4)
