"""A worker's socket with a bare server behind it, for the tests of `runtime/proxy.py`."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path

import httpx

from runtime.proxy import AttemptProxy, ClaimEvents
from runtime.upstream import ApiPool

CLAIMS = "/apis/nodus.dev/v1/namespaces/default/functions/fn/claims"
IDLE_CLAIM = {"completed": [], "running": [], "max": 1, "wait": "30s", "draining": False}
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"

Answer = Callable[[bytes, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclasses.dataclass
class Upstream:
    """A bare server: it keeps the heads it was sent and leaves the rest to `answer`."""

    heads: list[bytes] = dataclasses.field(default_factory=list)
    connections: int = 0
    gone: int = 0
    answer: Answer | None = None
    url: str = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.heads.append(head)
                if self.answer is not None:
                    await self.answer(head, reader, writer)
                else:
                    await reader.readexactly(content_length(head))
                    writer.write(OK)
        self.gone += 1
        writer.close()


def content_length(head: bytes) -> int:
    lines = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return int(lines[0].split(b":")[1]) if lines else 0


@dataclasses.dataclass
class Attempt:
    """A proxy, where it listens, and what it told of claims."""

    proxy: AttemptProxy
    socket: Path
    told: list[str]

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[httpx.AsyncClient]:
        transport = httpx.AsyncHTTPTransport(uds=str(self.socket))
        async with httpx.AsyncClient(transport=transport, base_url="http://nodus", timeout=60) as client:
            yield client

    async def raw(self, request: bytes) -> bytes:
        """Send bytes as they are and read until the proxy closes."""
        return await answer_to([request], self.socket)


async def answer_to(pieces: Iterable[bytes], path: Path, *, apart_seconds: float = 0, finish: bool = False) -> bytes:
    """What a server at this socket says to these pieces until it closes; `finish` tells it that no more will come.

    It may close before it has read all of them. The kernel tells that by a reset behind what was answered, or refuses
    the next piece, and streams of asyncio would lose the answer with it.
    """
    loop, answer = asyncio.get_running_loop(), b""

    async def send() -> None:
        with contextlib.suppress(OSError):
            for piece in pieces:
                await loop.sock_sendall(connection, piece)
                await asyncio.sleep(apart_seconds)
            if finish:
                connection.shutdown(socket.SHUT_WR)

    with socket.socket(socket.AF_UNIX) as connection:
        connection.setblocking(False)
        await loop.sock_connect(connection, str(path))
        sending = asyncio.create_task(send())
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(60):
                while piece := await loop.sock_recv(connection, 65_536):
                    answer += piece
        sending.cancel()
        await asyncio.wait({sending})
    return answer


@contextlib.asynccontextmanager
async def attempt_to(url: str, directory: Path) -> AsyncIterator[Attempt]:
    told: list[str] = []
    events = ClaimEvents(claimed=lambda: told.append("claimed"), final=lambda: told.append("final"))
    pool = ApiPool(url)
    made = AttemptProxy(pool, "nodusatt_secret", events)
    await made.listen(directory, None)
    yield Attempt(made, directory / "api.sock", told)
    made.close()
    pool.close()
