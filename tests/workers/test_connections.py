"""Connections that are left unfinished, are too large or too many: each has an end, and the client learns why."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import orjson
import pytest

from controlplane.clock import SystemClock
from tests.fixtures.app import PROJECT, ROOT, Document, api_settings
from tests.fixtures.eventually import WITHIN_SECONDS, eventually
from tests.fixtures.postgres import fresh_database
from tests.fixtures.replicas import Replica, replicas
from tests.fixtures.wire import checked_client
from workers.engines.child import free_port
from workers.engines.postgres import EmbeddedPostgres
from workers.tls import ensure_tls

HEAD_BYTES_MAX = 4_096
CONNECTIONS_MAX = 20
HASTY_SECONDS = 2
HANDSHAKE_SECONDS_OF_UVICORN = 60
"""What it gives a handshake when it is not told."""
HEAD = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"


Served = tuple[Replica, str]
"""A process and the key of an administrator."""


@contextlib.asynccontextmanager
async def serving(postgres: EmbeddedPostgres, folder: Path, **limits: int) -> AsyncIterator[Served]:
    """A process on both of its ports, with these limits."""
    files = ensure_tls(folder / "tls", SystemClock())
    tls = {"https_port": free_port(), "tls_certificate": files.certificate, "tls_key": files.key}
    async with fresh_database(postgres) as url:
        settings = api_settings(url, folder, **limits, **tls)
        async with replicas(folder, settings, [url]) as (key, [replica]):
            yield replica, key


@pytest.fixture(scope="module")
async def hasty(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    """One that waits for nobody, for what does not come in time."""
    limits = {"http_head_seconds_max": HASTY_SECONDS, "body_seconds_max": HASTY_SECONDS}
    sizes = {"http_head_bytes_max": HEAD_BYTES_MAX}
    async with serving(postgres, tmp_path_factory.mktemp("hasty"), **limits, **sizes) as made:
        yield made


@pytest.fixture(scope="module")
async def served(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    """One that has time, for whatever else is sent: a test that stands still for a moment is no slow client."""
    limits = {"http_head_bytes_max": HEAD_BYTES_MAX, "http_connections_max": CONNECTIONS_MAX}
    async with serving(postgres, tmp_path_factory.mktemp("patient"), **limits) as made:
        yield made


class Connection:
    """A bare connection to the process."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    def send(self, content: bytes) -> None:
        self.writer.write(content)

    async def head(self) -> bytes:
        """The head of the next answer."""
        async with asyncio.timeout(WITHIN_SECONDS):
            return await self._reader.readuntil(b"\r\n\r\n")

    async def rest(self) -> bytes:
        """What comes until the server closes the connection, or resets it since there is more to read for it."""
        answer = b""
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(WITHIN_SECONDS):
                # Piece by piece: a reset would take along what was kept for the end.
                while piece := await self._reader.read(65_536):
                    answer += piece
        return answer

    async def refusal(self) -> Document:
        """The Status with which the server closes the connection."""
        head, _, body = (await self.rest()).partition(b"\r\n\r\n")
        status: Document = orjson.loads(body)
        assert head.startswith(b"HTTP/1.1 %d " % status["code"])
        assert status["requestId"].encode() in head
        assert status["docs"].endswith(f"/docs/errors/{status['reason']}")
        return status


@pytest.fixture
async def connection(served: Served) -> AsyncIterator[Connection]:
    opened = await connect(served[0])
    yield opened
    opened.writer.close()


@pytest.fixture
async def unfinished(hasty: Served) -> AsyncIterator[Connection]:
    """A connection to the one that waits for nobody."""
    opened = await connect(hasty[0])
    yield opened
    opened.writer.close()


async def connect(replica: Replica) -> Connection:
    return Connection(*await asyncio.open_connection("127.0.0.1", replica.port))


async def connect_securely(replica: Replica) -> Connection:
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    return Connection(*await asyncio.open_connection("127.0.0.1", https_port(replica), ssl=trusting))


def https_port(replica: Replica) -> int:
    return int(replica.environment["NODUS_SERVER_HTTPS_PORT"])


async def test_a_connection_that_says_nothing_is_closed(unfinished: Connection) -> None:
    assert await unfinished.rest() == b""


async def test_a_handshake_that_does_not_come_ends_its_connection(hasty: Served) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", https_port(hasty[0]))
    async with asyncio.timeout(HANDSHAKE_SECONDS_OF_UVICORN / 2):
        assert await reader.read() == b""
    writer.close()


async def test_an_unfinished_head_is_refused_after_its_time(unfinished: Connection) -> None:
    unfinished.send(HEAD)
    refusal = await unfinished.refusal()
    assert (refusal["reason"], refusal["message"]) == (
        "BadRequest",
        f"the head of the request did not come within {HASTY_SECONDS} s",
    )


async def test_a_head_that_trickles_in_has_no_longer(unfinished: Connection) -> None:
    unfinished.send(HEAD)
    trickling = asyncio.create_task(trickle(unfinished, b"X: y\r\n"))
    assert (await unfinished.refusal())["reason"] == "BadRequest"
    trickling.cancel()


async def test_a_connection_kept_by_line_ends_alone_is_closed(unfinished: Connection) -> None:
    unfinished.send(HEAD + b"\r\n")
    assert b" 200 " in await unfinished.head()
    trickling = asyncio.create_task(trickle(unfinished, b"\r\n"))
    await unfinished.rest()
    trickling.cancel()


async def test_a_second_request_of_a_connection_is_served(connection: Connection) -> None:
    for _ in range(3):
        connection.send(HEAD)
        connection.send(b"\r\n")
        assert b" 200 " in await connection.head()


async def test_a_body_may_be_larger_than_a_head_and_an_answer_take_longer(hasty: Served) -> None:
    replica, key = hasty
    headers = {"Authorization": f"Bearer {key}"}
    body = {"metadata": {"name": "a", "annotations": {"filling": "x" * 50 * HEAD_BYTES_MAX}}, "spec": {}}
    async with checked_client(base_url=replica.url, headers=headers, timeout=60) as client:
        assert (await client.post(f"{PROJECT}/apps", json=body)).status_code == 201
        watched = await client.get(
            f"{PROJECT}/apps", params={"watch": "true", "timeoutSeconds": str(HASTY_SECONDS + 1)}
        )
        assert watched.status_code == 200


@pytest.mark.parametrize(
    "content",
    [
        HEAD + b"X: " + b"y" * HEAD_BYTES_MAX + b"\r\n\r\n",
        HEAD + b"X: y\r\n" * HEAD_BYTES_MAX + b"\r\n",
        HEAD + b"X: " + b"y" * 2 * HEAD_BYTES_MAX,
        b"GET /" + b"x" * HEAD_BYTES_MAX + b" HTTP/1.1\r\n\r\n",
        b"GET /" + b"x" * 2 * HEAD_BYTES_MAX,
    ],
    ids=["a header", "many headers", "an endless header", "a URL", "an endless URL"],
)
async def test_a_head_that_is_too_large_is_refused(connection: Connection, content: bytes) -> None:
    connection.send(content)
    refusal = await connection.refusal()
    assert refusal["reason"] == "BadRequest"
    assert f"at most {HEAD_BYTES_MAX} bytes" in refusal["message"]


async def test_bytes_that_are_no_request_are_refused(connection: Connection) -> None:
    connection.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
    refusal = await connection.refusal()
    assert (refusal["reason"], refusal["message"]) == ("BadRequest", "the bytes of the request are not HTTP/1.1")


async def test_a_body_that_does_not_come_is_given_up_and_its_connection_ends(
    hasty: Served, unfinished: Connection
) -> None:
    lines = (
        f"POST {PROJECT}/apps HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {hasty[1]}\r\nContent-Length: 1000000\r\n"
    )
    unfinished.send(lines.encode() + b"\r\n{")
    assert b" 504 " in await unfinished.head()
    trickling = asyncio.create_task(trickle(unfinished, b" "))
    assert f"did not come within {HASTY_SECONDS} s".encode() in await unfinished.rest()
    trickling.cancel()


async def test_a_body_that_nobody_reads_does_not_keep_a_connection(unfinished: Connection) -> None:
    unfinished.send(b"POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
    assert b" 405 " in await unfinished.head()
    trickling = asyncio.create_task(trickle(unfinished, b" "))
    await unfinished.rest()
    trickling.cancel()


async def test_connections_beyond_the_limit_are_refused_until_others_end(served: Served) -> None:
    replica, key = served
    watch = f"GET {PROJECT}/apps?watch=true HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n\r\n".encode()
    # Both ports together: a process has so many descriptors, however clients come.
    opened = []
    for number in range(CONNECTIONS_MAX):
        opened.append(await (connect, connect_securely)[number % 2](replica))
        opened[-1].send(watch)
        await opened[-1].head()
    for another in (connect, connect_securely):
        refusal = await (await another(replica)).refusal()
        assert (refusal["reason"], refusal["details"]["retryAfterSeconds"]) == ("Unavailable", 1)
    for one in opened:
        one.writer.close()
    async with checked_client(base_url=replica.url) as client:

        async def is_served() -> bool:
            return (await client.get("/healthz")).status_code == httpx.codes.OK

        await eventually(is_served)


async def trickle(connection: Connection, content: bytes) -> None:
    """Send a little again and again."""
    while not connection.writer.is_closing():
        connection.send(content)
        await asyncio.sleep(0.1)


async def test_nobody_chooses_the_address_that_a_request_comes_from(served: Served) -> None:
    replica, key = served
    headers = {"Authorization": f"Bearer {key}", "X-Forwarded-For": "192.0.2.7"}
    async with checked_client(base_url=replica.url, headers=headers, timeout=60) as client:
        body = {"metadata": {"name": "from-here"}, "spec": {}}
        assert (await client.post(f"{PROJECT}/apps", json=body)).status_code == 201
        query = {"fieldSelector": "object.kind=App,object.name=from-here"}
        [event] = (await client.get(f"{ROOT}/auditevents", params=query)).json()["items"]
    assert event["sourceAddress"] == "127.0.0.1"
