"""Connections from a node to the API, shared by the proxies of all its workers.

A connection serves one exchange at a time: `proxy.py` borrows it for a request, bytes of the answer go to the
borrower as they come, and it returns to the pool when the answer is complete and the API will keep it open. An idle
one is closed before the API's own keep-alive time ends, so that a request does not meet a connection that is just
being closed.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Protocol, cast
from urllib.parse import urlsplit

import httptools

IDLE_SECONDS_MAX = 4.0
"""Less than the 5 s after which uvicorn closes an idle connection; workers heartbeat every 5 s, on a fresh one."""
IDLE_CONNECTIONS_MAX = 64
CONNECT_SECONDS_MAX = 5.0


class Borrower(Protocol):
    """Who waits for the answer on a connection."""

    def answer_bytes(self, data: bytes) -> None:
        """A piece of the answer, exactly as the API sent it."""

    def answer_complete(self, status: int) -> None:
        """The last piece has been given; `status` is its HTTP status. The connection is no longer the borrower's."""

    def answer_broken(self) -> None:
        """The connection ended before the answer did; nothing more will come."""

    def pause_sending(self) -> None:
        """The API does not keep up: send no more until `resume_sending`."""

    def resume_sending(self) -> None:
        """The API reads again."""


class Upstream(asyncio.Protocol):
    """One connection to the API."""

    def __init__(self, pool: ApiPool) -> None:
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._borrower: Borrower | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._bodiless = False
        self._complete = False
        self._reusable = False
        self._expiry: asyncio.TimerHandle | None = None

    # The pool's and the borrower's side.

    @property
    def usable(self) -> bool:
        """Whether a request could be sent on it now."""
        return self._transport is not None and not self._transport.is_closing()

    def lend(self, borrower: Borrower, method: bytes) -> None:
        """Give the connection to `borrower` for one exchange; answers to HEAD end with their head."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        self._borrower = borrower
        self._bodiless = method == b"HEAD"
        self._complete = False
        self._reusable = False

    def send(self, data: bytes) -> None:
        """Queue a piece of the request."""
        if self._transport is not None:
            self._transport.write(data)

    def pause(self) -> None:
        """Take no more of the answer from the API for now."""
        if self.usable and self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        """Take the answer up again."""
        if self.usable and self._transport is not None:
            self._transport.resume_reading()

    def abandon(self) -> None:
        """End the exchange and the connection: the API learns that nobody waits."""
        self._borrower = None
        if self._transport is not None:
            self._transport.abort()

    def expire_in(self, seconds: float) -> None:
        """Close the connection unless it is lent before."""
        self._expiry = asyncio.get_running_loop().call_later(seconds, self.abandon)

    # The event loop's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio.Transport, not its type.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        borrower = self._borrower
        if borrower is None:
            # Bytes that nobody asked for: the connection is out of step.
            self.abandon()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.abandon()
            borrower.answer_broken()
            return
        borrower.answer_bytes(data)
        if self._complete and self._borrower is borrower:
            self._finish(borrower)

    def _finish(self, borrower: Borrower) -> None:
        status = self._parser.get_status_code()
        self._borrower = None
        if self._reusable:
            self._pool.give_back(self)
        else:
            self.abandon()
        borrower.answer_complete(status)

    def connection_lost(self, exc: Exception | None) -> None:
        self._pool.forget(self)
        self._transport = None
        if self._expiry is not None:
            self._expiry.cancel()
        borrower, self._borrower = self._borrower, None
        if borrower is not None:
            borrower.answer_broken()

    def pause_writing(self) -> None:
        if self._borrower is not None:
            self._borrower.pause_sending()

    def resume_writing(self) -> None:
        if self._borrower is not None:
            self._borrower.resume_sending()

    # The parser's side.

    def on_headers_complete(self) -> None:
        """Called by httptools; answers to HEAD announce a body that never comes."""
        if self._bodiless and self._parser.get_status_code() >= 200:
            self._complete = True

    def on_message_complete(self) -> None:
        """Called by httptools; an interim answer (1xx) is not the end."""
        if self._parser.get_status_code() >= 200:
            self._complete = True
            # Only here does the parser still know; after an answer to HEAD it waits for a body and cannot go on.
            self._reusable = self._parser.should_keep_alive() and not self._bodiless


class ApiPool:
    """Connections to one API origin such as `http://127.0.0.1:8080`."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/"):
            raise ValueError(f"the API's URL must be an http or https origin without a path, not {url!r}")
        self._address = (parts.hostname, parts.port or (443 if parts.scheme == "https" else 80))
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._idle: list[Upstream] = []
        self.host = parts.netloc.rpartition("@")[2].encode()
        self.origin = parts.scheme.encode() + b"://" + self.host

    def take_idle(self) -> Upstream | None:
        """An open connection, the most recently used first, or None."""
        while self._idle:
            upstream = self._idle.pop()
            if upstream.usable:
                return upstream
        return None

    async def connect(self) -> Upstream:
        """A new connection; OSError (TimeoutError included) when the API cannot be reached."""
        host, port = self._address
        async with asyncio.timeout(CONNECT_SECONDS_MAX):
            _, upstream = await asyncio.get_running_loop().create_connection(
                lambda: Upstream(self), host, port, ssl=self._tls
            )
        return upstream

    def give_back(self, upstream: Upstream) -> None:
        """Keep a connection for the next exchange, for a short while."""
        if len(self._idle) >= IDLE_CONNECTIONS_MAX:
            upstream.abandon()
            return
        upstream.resume()
        upstream.expire_in(IDLE_SECONDS_MAX)
        self._idle.append(upstream)

    def forget(self, upstream: Upstream) -> None:
        """Drop a connection that has ended."""
        if upstream in self._idle:
            self._idle.remove(upstream)

    def close(self) -> None:
        """Close what is idle; what is lent ends with its exchange."""
        while self._idle:
            self._idle.pop().abandon()
