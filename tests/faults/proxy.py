"""A TCP proxy that fails as networks do: slow, cut, silent, refusing, or losing the answer to a request that arrived.

One stands before each server process for its clients, and one between each server process and each engine, so a fault
hits one link and no other.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

READ_BYTES = 1 << 16
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with no time: closing sends a reset, as a host that died would."""


@dataclass(eq=False)
class _Link:
    """One connection through the proxy."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    losing: int = 0
    """Requests whose answers are lost: the next thing that the server says is thrown away, and then the link is cut."""

    def reset(self) -> None:
        for writer in (self.client, self.server):
            raw = writer.get_extra_info("socket")
            if raw is not None:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            writer.transport.abort()


@dataclass
class Proxy:
    """Before host:port. Passes everything on until told otherwise; faults may be combined and are taken back."""

    target: tuple[str, int]
    port: int = 0
    delay_seconds: float = 0.0
    """Each piece of data waits for this long, in both directions."""
    refusing: bool = False
    """New connections are reset."""
    lose_answer: Callable[[bytes], int] | None = None
    """Asked about each piece that a client sends: to how many requests in it the answers are to be lost."""
    lost: int = 0
    """Answers that were lost."""
    _passing: asyncio.Event = field(default_factory=asyncio.Event)
    _answering: asyncio.Event = field(default_factory=asyncio.Event)
    _links: set[_Link] = field(default_factory=set)
    _serving: set[asyncio.Task[None]] = field(default_factory=set)
    _server: asyncio.Server | None = None

    async def open(self) -> None:
        """Listen on a free port of the loopback interface; the same port after a `close`."""
        self.heal()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Cut everything and stop listening."""
        if self._server is not None:
            self._server.close()
        self.heal()
        self.cut()
        for serving in list(self._serving):
            serving.cancel()

    def cut(self) -> int:
        """Reset every connection there is; how many."""
        links = list(self._links)
        for link in links:
            link.reset()
        return len(links)

    def refuse(self) -> None:
        """Reset every connection, and every new one."""
        self.refusing = True
        self.cut()

    def slow_down(self, seconds: float) -> None:
        """Delay everything by this much."""
        self.delay_seconds = seconds

    def go_silent(self) -> None:
        """Pass nothing on, and keep connections open: a host that vanished, a firewall that forgot."""
        self._passing.clear()

    def go_mute(self) -> None:
        """Pass requests on and keep every answer; `cut` loses them."""
        self._answering.clear()

    def heal(self) -> None:
        """Take back every fault; what waited is passed on."""
        self.delay_seconds = 0.0
        self.refusing = False
        self.lose_answer = None
        self._passing.set()
        self._answering.set()

    def lose_answers_to(self, pattern: bytes, times: int) -> None:
        """Lose the answers to the next requests that the pattern is found in; each match counts once, by its text."""
        seen: set[bytes] = set()

        def lose(sent: bytes) -> int:
            found = {match.group() for match in re.finditer(pattern, readable(sent))} - seen
            if len(seen) >= times:
                return 0
            seen.update(found)
            return len(found)

        self.lose_answer = lose

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(serving)
        serving.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refusing:
            writer.transport.abort()
            return
        try:
            server_reader, server_writer = await asyncio.open_connection(*self.target)
        except OSError:
            writer.transport.abort()
            return
        link = _Link(writer, server_writer)
        self._links.add(link)
        try:
            await asyncio.gather(self._requests(link, reader), self._answers(link, server_reader))
        except OSError:
            pass  # one end is gone, so the other goes too
        finally:
            self._links.discard(link)
            writer.transport.abort()
            server_writer.transport.abort()

    async def _requests(self, link: _Link, reader: asyncio.StreamReader) -> None:
        while sent := await reader.read(READ_BYTES):
            if self.lose_answer is not None:
                link.losing += self.lose_answer(sent)
            await self._hold()
            link.server.write(sent)
            await link.server.drain()
        if link.server.can_write_eof():
            link.server.write_eof()

    async def _answers(self, link: _Link, reader: asyncio.StreamReader) -> None:
        while answered := await reader.read(READ_BYTES):
            if link.losing:
                self.lost += link.losing
                link.reset()
                return
            await self._hold()
            await self._answering.wait()
            link.client.write(answered)
            await link.client.drain()
        if link.client.can_write_eof():
            link.client.write_eof()

    async def _hold(self) -> None:
        if self.delay_seconds:
            await asyncio.sleep(self.delay_seconds)
        await self._passing.wait()


def readable(sent: bytes) -> bytes:
    """What was sent, followed by what is compressed in it: clients of Temporal send gzip."""
    found = [sent]
    for start in re.finditer(rb"\x1f\x8b\x08", sent):
        with contextlib.suppress(zlib.error):
            found.append(zlib.decompressobj(31).decompress(sent[start.start() :]))
    return b"".join(found)
