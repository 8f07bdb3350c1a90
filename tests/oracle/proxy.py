"""Between one API process and PostgreSQL: a proxy that loses notifications, or holds everything back and then cuts.

It reads just enough of PostgreSQL's protocol to tell messages apart: a type, then a length that counts itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

NOTIFICATION = ord("A")
NO_ENCRYPTION = b"N"
"""The answer to a client that asks for TLS: one byte, before any message."""
_HEADER_BYTES = 5


@dataclass
class NotificationProxy:
    """Passes everything on, but for what it was told to do."""

    target: tuple[str, int]
    port: int = 0
    mute: bool = False
    """Whether notifications get lost."""
    lost: int = 0
    """How many did."""
    flowing: asyncio.Event = field(default_factory=asyncio.Event)
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection(*self.target)
        except OSError:
            writer.close()
            return
        self._writers |= {writer, upstream_writer}
        answers = asyncio.create_task(self._answers(upstream_reader, writer))
        try:
            while received := await reader.read(1 << 16):
                await self.flowing.wait()
                upstream_writer.write(received)
                await upstream_writer.drain()
        except ConnectionError:
            pass  # one end is gone, so the other goes too
        finally:
            answers.cancel()
            self._writers -= {writer, upstream_writer}
            writer.close()
            upstream_writer.close()

    def cut(self) -> None:
        """Break every connection."""
        for writer in self._writers:
            writer.transport.abort()

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pending = b""
        began = False
        try:
            while received := await reader.read(1 << 16):
                await self.flowing.wait()
                pending += received
                if not began and pending[:1] == NO_ENCRYPTION:
                    writer.write(NO_ENCRYPTION)
                    pending = pending[1:]
                began = True
                passed, pending = self._passed(pending)
                writer.write(passed)
                await writer.drain()
        except ConnectionError:
            pass  # the client left
        writer.close()

    def _passed(self, pending: bytes) -> tuple[bytes, bytes]:
        """The whole messages that go on, and the rest that is not whole yet."""
        passed = bytearray()
        at = 0
        while len(pending) - at >= _HEADER_BYTES:
            end = at + 1 + int.from_bytes(pending[at + 1 : at + _HEADER_BYTES])
            if end > len(pending):
                break
            if self.mute and pending[at] == NOTIFICATION:
                self.lost += 1
            else:
                passed += pending[at:end]
            at = end
        return bytes(passed), pending[at:]


@asynccontextmanager
async def notification_proxy(host: str, port: int) -> AsyncIterator[NotificationProxy]:
    """A proxy before host:port on a free port of the loopback interface."""
    proxy = NotificationProxy((host, port))
    proxy.flowing.set()
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        proxy.cut()
        server.close()
