"""The socket of an attempt: what reaches the API, what comes back, and what is answered in between."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from runtime.proxy import CONNECTIONS_MAX
from runtime.upstream import ApiPool
from tests.fixtures.eventually import eventually
from tests.runtime.proxied import CLAIMS, IDLE_CLAIM, OK, Attempt, Upstream, attempt_to, content_length


async def test_requests_speak_in_the_attempts_name_whatever_the_worker_claims_to_be(
    attempt: Attempt, upstream: Upstream
) -> None:
    forged = {
        "Authorization": "Bearer nodus_admin",
        "Host": "elsewhere",
        "Nodus-Org": "other",
        "X-Forwarded-For": "10.0.0.1",
        "Forwarded": "for=10.0.0.1",
        "X-Remote-User": "admin",
        "Idempotency-Key": "kept",
    }
    async with attempt.client() as client:
        assert (await client.get("/self?x=%2F&y", headers=forged)).text == "ok"
    head = upstream.heads[0].decode()
    assert head.startswith("GET /self?x=%2F&y HTTP/1.1\r\n")
    assert "authorization: Bearer nodusatt_secret\r\n" in head
    assert f"host: {upstream.url.removeprefix('http://')}\r\n" in head
    assert "Idempotency-Key: kept\r\n" in head
    for hidden in ("nodus_admin", "elsewhere", "other", "10.0.0.1", "X-Remote-User"):
        assert hidden not in head


async def test_one_connection_serves_many_requests_on_both_sides(attempt: Attempt, upstream: Upstream) -> None:
    async with attempt.client() as client:
        for _ in range(5):
            assert (await client.post(CLAIMS, json=IDLE_CLAIM)).text == "ok"
    assert upstream.connections == 1
    assert len(upstream.heads) == 5


async def test_bodies_stream_both_ways_without_being_held(attempt: Attempt, upstream: Upstream) -> None:
    size = 8 << 20

    async def echo(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        length = content_length(head)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % length)
        while length:
            piece = await reader.read(min(length, 65_536))
            length -= len(piece)
            writer.write(piece)
            await writer.drain()

    upstream.answer = echo
    sent = os.urandom(size)
    async with attempt.client() as client:
        answer = await client.put("/blobs/v1/data/x", content=sent)
    assert answer.content == sent


async def test_a_chunked_body_arrives_chunked(attempt: Attempt, upstream: Upstream) -> None:
    received: list[bytes] = []

    async def dechunk(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while size := int(await reader.readline(), 16):
            received.append((await reader.readexactly(size + 2))[:-2])
        await reader.readline()
        writer.write(OK)

    async def pieces() -> AsyncIterator[bytes]:
        for piece in (b"a" * 10, b"b" * 100_000):
            yield piece

    upstream.answer = dechunk
    async with attempt.client() as client:
        assert (await client.put("/x", content=pieces())).text == "ok"
    assert b"".join(received) == b"a" * 10 + b"b" * 100_000
    assert b"content-length" not in upstream.heads[0].lower()


async def test_an_answer_to_head_does_not_wait_for_a_body(attempt: Attempt, upstream: Upstream) -> None:
    async def head_only(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")

    upstream.answer = head_only
    async with attempt.client() as client:
        for _ in range(2):
            assert (await client.head("/x")).headers["content-length"] == "1000"


async def test_an_interim_answer_is_not_the_end_of_one(attempt: Attempt, upstream: Upstream) -> None:
    async def interim(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n" + OK)

    upstream.answer = interim
    async with attempt.client() as client:
        for _ in range(2):
            assert (await client.get("/x")).text == "ok"


async def test_an_answer_that_ends_with_its_connection_is_passed_whole(attempt: Attempt, upstream: Upstream) -> None:
    async def until_close(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nall of it")
        writer.close()

    upstream.answer = until_close
    async with attempt.client() as client:
        assert (await client.get("/x")).text == "all of it"


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"POST /x HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nGET /y HTTP/1.1\r\n\r\n",
        b"POST /x HTTP/1.1\r\ncontent-length: 3\r\ncontent-length: 5\r\n\r\nabcde",
        b"GET /x HTTP/1.1\r\na: b\rc: d\r\n\r\n",
        b"GET /x HTTP/1.1\r\nbad name: x\r\n\r\n",
        b"GET http://elsewhere/x HTTP/1.1\r\n\r\n",
        b"GET /x HTTP/1.0\r\n\r\n",
        b"GET / HTTP/1.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
        b"CONNECT elsewhere:443 HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
        b"GET / HTTP/1.1\r\nx: " + b"a" * 70_000,
    ],
)
async def test_framing_tricks_end_at_the_proxy(attempt: Attempt, upstream: Upstream, request_bytes: bytes) -> None:
    answer = await attempt.raw(request_bytes)
    assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 431"))
    assert not any(head.startswith(b"GET /y") for head in upstream.heads)
    assert len(upstream.heads) <= 1


async def test_a_pipelined_second_request_never_reaches_the_api(attempt: Attempt, upstream: Upstream) -> None:
    await attempt.raw(b"GET /first HTTP/1.1\r\n\r\nGET /second HTTP/1.1\r\n\r\n")
    assert not any(b"/second" in head for head in upstream.heads)


async def test_volumes_are_answered_here(attempt: Attempt, upstream: Upstream) -> None:
    async with attempt.client() as client:
        answer = await client.post("/_nodus/v1/volumes/data/commit")
    assert answer.status_code == 404
    assert answer.json()["kind"] == "Status"
    assert upstream.heads == []


async def test_an_api_that_is_away_is_a_503_to_be_repeated(tmp_path: Path) -> None:
    with socket.socket() as held:
        # Bound and not listening: nobody answers there, and nobody else gets the port.
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        async with attempt_to(url, tmp_path) as attempt, attempt.client() as client:
            for _ in range(3):
                answer = await client.post(CLAIMS, json=IDLE_CLAIM)
                assert answer.status_code == 503
                assert answer.headers["retry-after"] == "1"
                assert answer.json()["reason"] == "Unavailable"


async def test_an_api_that_dies_before_it_answers_is_a_503(attempt: Attempt, upstream: Upstream) -> None:
    async def die(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    upstream.answer = die
    async with attempt.client() as client:
        assert (await client.get("/x")).status_code == 503


async def test_whether_the_api_is_away_is_known_from_its_last_answer(attempt: Attempt, upstream: Upstream) -> None:
    answers = [b"503 Unavailable", b"500 Internal", b"502 Bad", b"404 Not"]

    async def answer(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 %b\r\ncontent-length: 0\r\n\r\n" % answers.pop(0))

    upstream.answer = answer
    away = []
    async with attempt.client() as client:
        while answers:
            await client.get("/x")
            away.append(attempt.proxy.api_away)
    assert away == [True, False, True, False]


async def test_an_answer_that_breaks_off_is_not_passed_for_whole(attempt: Attempt, upstream: Upstream) -> None:
    async def break_off(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")
        await writer.drain()
        writer.close()

    upstream.answer = break_off
    async with attempt.client() as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get("/x")


async def test_an_early_answer_to_an_unfinished_upload_leaves_no_connection_out_of_step(
    attempt: Attempt, upstream: Upstream
) -> None:
    async def refuse(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno" if b"PUT" in head else OK)

    upstream.answer = refuse
    answer = await attempt.raw(b"PUT /x HTTP/1.1\r\ncontent-length: 1000000\r\n\r\n" + b"z" * 1000)
    assert answer.startswith(b"HTTP/1.1 413")
    async with attempt.client() as client:
        assert (await client.get("/y")).text == "ok"
    assert upstream.heads[-1].startswith(b"GET /y")
    assert upstream.connections == 2


async def test_a_worker_that_leaves_ends_its_request_at_the_api(attempt: Attempt, upstream: Upstream) -> None:
    async def hold(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(content_length(head))
        await reader.readexactly(1)

    upstream.answer = hold
    async with attempt.client() as client:
        claiming = asyncio.create_task(client.post(CLAIMS, json=IDLE_CLAIM))
        await eventually(lambda: upstream.heads)
        claiming.cancel()
        await asyncio.wait({claiming})
    await eventually(lambda: upstream.gone == 1)


async def test_a_worker_cannot_open_more_than_its_share_of_connections(attempt: Attempt) -> None:
    held = [await asyncio.open_unix_connection(str(attempt.socket)) for _ in range(CONNECTIONS_MAX)]
    assert b"HTTP/1.1 503" in await attempt.raw(b"")
    for _, writer in held:
        writer.close()
    async with attempt.client() as client:
        await eventually(lambda: client_works(client))


async def client_works(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("/x")).status_code == 200
    except httpx.TransportError:
        return False


async def test_the_socket_is_for_its_owner_only_and_its_folder_may_be_deep(upstream: Upstream, tmp_path: Path) -> None:
    directory = tmp_path.joinpath(*["a-long-folder-name"] * 8)
    directory.mkdir(parents=True)
    async with attempt_to(upstream.url, directory) as attempt:
        assert len(str(attempt.socket)) > 107
        assert attempt.socket.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("url", ["ftp://host", "http://", "http://host/path", "host:80"])
def test_an_api_url_must_be_an_origin(url: str) -> None:
    with pytest.raises(ValueError, match="origin"):
        ApiPool(url)
