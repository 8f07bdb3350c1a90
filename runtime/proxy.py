"""The socket a worker finds at `/run/nodus/api.sock`: the API, spoken to in the attempt's name.

Each attempt has a listener of its own, so the socket says who is asking; whatever the worker claims to be is removed
and the attempt's token put in. Requests are parsed and written anew, so no trick of framing passes; answers go
through as the API sent them, but for the deadlines of calls (`deadlines.py`). The proxy also watches claims: the first
one means that the worker is ready, the final one that it has nothing left to run, and a claim held open while the
worker must leave is answered here, because the worker does not wake from it by itself.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import httptools

from runtime.answers import status_answer, unavailable
from runtime.deadlines import DeadlineMover
from runtime.unix_sockets import bind_socket
from runtime.upstream import ApiPool, Upstream

CONNECTIONS_MAX = 128
"""Of one worker; the public SDK uses a handful."""
HEAD_BYTES_MAX = 65_536
RELEASE_AGAIN_SECONDS = 1.0
"""A worker that polls once more while it must leave is held at least this long, so that it cannot spin."""

_CLAIM_KEPT_BYTES = 4_096
_TRY_LATER = frozenset({502, 503, 504})
"""An API that answers so is not there, whatever the request; a 500 may be the fault of what was sent."""
_FINAL_CLAIM = re.compile(rb'"draining"\s*:\s*true\s*}\s*$')
# Hop-by-hop headers, and everything that says who is asking.
_DROPPED = frozenset(
    b"host authorization connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer "
    b"transfer-encoding upgrade http2-settings forwarded nodus-org "
    b"nodus-data-origin".split()
)


@dataclass(frozen=True, kw_only=True)
class ClaimEvents:
    """What the supervisor wants to know: each claim that came, and an accepted one that said `draining`."""

    claimed: Callable[[], None]
    final: Callable[[], None]


class AttemptProxy:
    """The listener of one attempt."""

    def __init__(self, pool: ApiPool, token: str, events: ClaimEvents, *, direct: bool = False) -> None:
        """`direct` tells that the worker is on the node's network, and so reaches the API where the node does."""
        self.pool = pool
        self.events = events
        self.identity = b"host: %b\r\nauthorization: Bearer %b\r\n" % (pool.host, token.encode("ascii"))
        if direct:
            self.identity += b"nodus-data-origin: %b\r\n" % pool.origin
        self.draining = False
        self.api_away = False
        """Whether the API failed to answer the worker's last request; a worker ends itself when that goes on."""
        self._clients: set[Client] = set()
        self._server: asyncio.Server | None = None

    async def listen(self, directory: Path, owner: int | None) -> None:
        """Listen on `directory/api.sock`, for `owner` (a uid) only; for this process's own user when None."""
        listener = bind_socket(directory, "api.sock", owner)
        self._server = await asyncio.get_running_loop().create_unix_server(lambda: Client(self), sock=listener)

    def release_claims(self) -> None:
        """Answer every idle claim that is being held, and from now on each new one after a second."""
        self.draining = True
        for client in list(self._clients):
            client.release_claim()

    def close(self) -> None:
        """Stop listening and cut every connection."""
        if self._server is not None:
            self._server.close()
        for client in list(self._clients):
            client.abort()

    def admit(self, client: Client) -> bool:
        """Count a new connection; false when the worker has too many."""
        if len(self._clients) >= CONNECTIONS_MAX:
            return False
        self._clients.add(client)
        return True

    def dismiss(self, client: Client) -> None:
        """Forget a connection that has ended."""
        self._clients.discard(client)


class Client(asyncio.Protocol):
    """One connection of the worker: one exchange at a time, upstream borrowed for each."""

    def __init__(self, proxy: AttemptProxy) -> None:
        self._proxy = proxy
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._upstream: Upstream | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._in_exchange = False
        self._full = False
        self._reset()

    def _reset(self) -> None:
        self._target = b""
        self._headers: list[bytes] = []
        self._head_bytes = 0
        self._chunked = False
        self._received = False
        self._keep_open = False
        self._answered = False
        self._local: bytes | None = None
        self._outgoing: list[bytes] = []
        self._claim: bytearray | None = None
        self._claim_cut = False
        self._deadlines: DeadlineMover | None = None

    # The event loop's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio.Transport, not its type.
        self._transport = cast(asyncio.Transport, transport)
        if not self._proxy.admit(self):
            self._write(unavailable("this worker has too many connections open"))
            self._close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._proxy.dismiss(self)
        if self._connecting is not None:
            self._connecting.cancel()
        if self._upstream is not None:
            self._upstream.abandon()
            self._upstream = None

    def data_received(self, data: bytes) -> None:
        if not self._in_exchange:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._refuse(400, "BadRequest", "the request is not HTTP/1.1 that this socket understands")
            return
        if not self._in_exchange and self._head_bytes > HEAD_BYTES_MAX:
            self._refuse(431, "BadRequest", f"the head of a request must not exceed {HEAD_BYTES_MAX} bytes")
            return
        self._flush()

    def pause_writing(self) -> None:
        self._full = True
        if self._upstream is not None:
            self._upstream.pause()

    def resume_writing(self) -> None:
        self._full = False
        if self._upstream is not None:
            self._upstream.resume()
        elif not self._in_exchange:
            self.resume_sending()

    def abort(self) -> None:
        """Cut the connection now."""
        if self._transport is not None:
            self._transport.abort()

    # The parser's side.

    def on_url(self, url: bytes) -> None:
        """A piece of the request target."""
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header; those of another hop and those that name a caller are left out."""
        if self._in_exchange:
            return  # A trailer after a chunked body; the API reads none.
        lowered = name.lower()
        if lowered == b"transfer-encoding":
            self._chunked = True
        if lowered not in _DROPPED and not lowered.startswith((b"x-forwarded-", b"x-remote-")):
            self._headers.append(b"%b: %b\r\n" % (name, value))

    def on_headers_complete(self) -> None:
        """The head is known: answer here, or send it on."""
        if self._in_exchange:
            # A second request before the first was answered; no client of ours pipelines.
            self.abort()
            return
        self._in_exchange = True
        path = self._target.partition(b"?")[0]
        if not path.startswith(b"/") or self._parser.get_http_version() != "1.1":
            self._local = status_answer(400, "BadRequest", "send HTTP/1.1 requests with a path")
            return
        if path.startswith(b"/_nodus/"):
            self._local = status_answer(404, "NotFound", "this server offers no volumes to its workers")
            return
        method = self._parser.get_method()
        if method == b"POST" and path.endswith(b"/claims"):
            self._claim, self._deadlines = bytearray(), DeadlineMover()
        framing = b"transfer-encoding: chunked\r\n" if self._chunked else b""
        head = [method, b" ", self._target, b" HTTP/1.1\r\n", self._proxy.identity, *self._headers, framing, b"\r\n"]
        self._borrow(method)
        self._outgoing += head

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        if self._local is not None:
            return
        if self._claim is not None:
            self._keep_claim(body)
        self._outgoing.append(b"%x\r\n%b\r\n" % (len(body), body) if self._chunked else body)

    def on_message_complete(self) -> None:
        """The request is complete."""
        self._received = True
        self._keep_open = self._parser.should_keep_alive()
        if self._local is not None:
            self._write(self._local)
            self._close()
            return
        if self._chunked:
            self._outgoing.append(b"0\r\n\r\n")
        if self._claim is not None:
            self._proxy.events.claimed()
            if self._proxy.draining:
                asyncio.get_running_loop().call_later(RELEASE_AGAIN_SECONDS, self.release_claim)

    # The API's side.

    def _borrow(self, method: bytes) -> None:
        idle = self._proxy.pool.take_idle()
        if idle is not None:
            self._attach(idle, method)
            return
        self.pause_sending()
        self._connecting = asyncio.get_running_loop().create_task(self._connect(method))

    async def _connect(self, method: bytes) -> None:
        try:
            upstream = await self._proxy.pool.connect()
        except OSError:
            self._connecting = None
            self._refuse_unavailable()
            return
        self._connecting = None
        if self._transport is None or not self._in_exchange:
            upstream.abandon()
            return
        self._attach(upstream, method)
        self._flush()
        self.resume_sending()

    def _attach(self, upstream: Upstream, method: bytes) -> None:
        self._upstream = upstream
        upstream.lend(self, method)

    def _flush(self) -> None:
        """Send what the parser made of one read, in one write; it waits while there is no connection yet."""
        if self._upstream is not None and self._outgoing:
            self._upstream.send(b"".join(self._outgoing))
            self._outgoing.clear()

    def pause_sending(self) -> None:
        """The API does not keep up."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_sending(self) -> None:
        """The API reads again."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def answer_bytes(self, data: bytes) -> None:
        """Pass a piece of the API's answer on."""
        self._answered = True
        self._write(data if self._deadlines is None else self._deadlines.feed(data))

    def answer_complete(self, status: int) -> None:
        """The API has answered in full; with the request still under way, the connection is out of step."""
        if self._deadlines is not None:
            self._write(self._deadlines.rest())
        upstream, self._upstream = self._upstream, None
        self._proxy.api_away = status in _TRY_LATER
        if not self._received and upstream is not None:
            upstream.abandon()
        if status < 300 and self._is_final_claim():
            self._proxy.events.final()
        self._end_exchange()

    def answer_broken(self) -> None:
        """The API went away in the middle: say so if nothing was said yet, else cut, so that the client sees it."""
        self._upstream = None
        if self._answered:
            self._close()
        else:
            self._refuse_unavailable()

    # Ends of an exchange.

    def _end_exchange(self) -> None:
        if self._transport is None:
            return
        if not self._received or not self._keep_open:
            self._transport.close()
            return
        self._in_exchange = False
        self._reset()
        if self._full:
            # The worker asks without reading the answers: take no more until it does, or they would pile up here.
            self.pause_sending()
        else:
            self.resume_sending()

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _refuse_unavailable(self) -> None:
        self._proxy.api_away = True
        self._write(unavailable("the API cannot be reached from this host"))
        self._close()

    def _refuse(self, code: int, reason: str, message: str) -> None:
        if self._upstream is not None:
            self._upstream.abandon()
            self._upstream = None
        if not self._answered:
            self._write(status_answer(code, reason, message))
        self._close()

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # Claims.

    def _keep_claim(self, body: bytes) -> None:
        assert self._claim is not None
        self._claim += body
        if len(self._claim) > _CLAIM_KEPT_BYTES:
            # Results make a claim large; only its end, where `draining` stands, is of interest then.
            self._claim_cut = True
            del self._claim[:-_CLAIM_KEPT_BYTES]

    def _is_final_claim(self) -> bool:
        return self._claim is not None and _FINAL_CLAIM.search(self._claim[-64:]) is not None

    def release_claim(self) -> None:
        """Answer `{}` in the API's place if this connection holds an idle claim: no results in it and time to wait.

        A claim with results is never answered here: the worker would take them for accepted and forget them.
        """
        if not self._received or self._answered or self._upstream is None or not self._is_idle_claim():
            return
        self._upstream.abandon()
        self._upstream = None
        self._write(_EMPTY_CLAIM)
        self._end_exchange()

    def _is_idle_claim(self) -> bool:
        if self._claim is None or self._claim_cut:
            return False
        try:
            claim = json.loads(self._claim)
        except ValueError:
            return False
        if not isinstance(claim, dict):
            return False
        return not claim.get("completed") and not claim.get("draining") and claim.get("wait") not in (None, "0s", 0)


_EMPTY_CLAIM = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
