"""The one way out of an image build: a CONNECT proxy to the package index, on a unix socket.

A build runs in an empty network. Its package steps find this socket where a worker finds the API's, and their
loopback port joined to it (`init.py`); the other steps find nothing. The proxy opens connections to the hosts the
operator has listed and to no other, on the port of https; the connection is encrypted between uv and the index.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from runtime import sandbox
from runtime.unix_sockets import bind_socket

HTTPS_PORT = 443
CONNECTIONS_MAX = 64
HEAD_BYTES_MAX = 8_192
HEAD_SECONDS_MAX = 10.0
CONNECT_SECONDS_MAX = 20.0
IDLE_SECONDS_MAX = 120.0
_CHUNK_BYTES = 65_536
_REQUEST = re.compile(rb"CONNECT ([A-Za-z0-9.-]{1,253}):([0-9]{1,5}) HTTP/1\.[01]\r\n")

Refused = Callable[[str], None]


class IndexProxy:
    """The way out of one build. `refused` is called with each host that was asked for in vain, once."""

    def __init__(self, hosts: Iterable[str], refused: Refused) -> None:
        self._hosts = frozenset(host.lower() for host in hosts)
        self._refused = refused
        self._told: set[str] = set()
        self._open = 0
        self._server: asyncio.Server | None = None

    async def listen(self, directory: Path, owner: int | None) -> None:
        """Listen in `directory` where a worker finds the API, for the build's user alone."""
        listener = bind_socket(directory, sandbox.API_SOCKET.name, owner)
        self._server = await asyncio.start_unix_server(self._serve, sock=listener, limit=HEAD_BYTES_MAX)

    def close(self) -> None:
        """Take no more connections; those that are open end with the build's processes."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open > CONNECTIONS_MAX:
                _refuse(writer, "503 Service Unavailable", "the build has too many connections to the index")
                return
            await self._join(reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # uv tells its user that the connection broke
        finally:
            self._open -= 1
            writer.close()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(HEAD_SECONDS_MAX):
            head = await reader.readuntil(b"\r\n\r\n")
        asked = _REQUEST.match(head)
        if asked is None:
            _refuse(writer, "405 Method Not Allowed", "only CONNECT to an https index is passed on")
            return
        host, port = asked[1].decode().lower(), int(asked[2])
        if host not in self._hosts or port != HTTPS_PORT:
            self._tell(host if port == HTTPS_PORT else f"{host}:{port}")
            _refuse(writer, "403 Forbidden", f"{host}:{port} is no package index of this server")
            return
        try:
            async with asyncio.timeout(CONNECT_SECONDS_MAX):
                index_reader, index_writer = await asyncio.open_connection(host, port)
        except (OSError, TimeoutError) as error:
            _refuse(writer, "502 Bad Gateway", f"{host} cannot be reached: {error}")
            return
        try:
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await asyncio.gather(_pump(reader, index_writer), _pump(index_reader, writer))
        finally:
            index_writer.close()

    def _tell(self, host: str) -> None:
        if host not in self._told and len(self._told) < CONNECTIONS_MAX:
            self._told.add(host)
            self._refused(host)


def _refuse(writer: asyncio.StreamWriter, status: str, why: str) -> None:
    body = why.encode() + b"\n"
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + body)


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Pass bytes on until the source ends, then tell the target so."""
    while True:
        async with asyncio.timeout(IDLE_SECONDS_MAX):
            chunk = await source.read(_CHUNK_BYTES)
        if not chunk:
            break
        target.write(chunk)
        await target.drain()
    with contextlib.suppress(OSError, RuntimeError):
        target.write_eof()
