"""The proxy as its clients meet it: CONNECT for anything within TLS, requests with a whole URL for plain http.

`Door` serves one attempt; which attempt it is follows from the socket and from nothing that is sent. Requests are
parsed by h11 and written anew, one for each connection, so that nothing can ride along behind a request that was
judged. A refusal is an HTTP answer whose status line says why, because that is what most clients show.

The rules, in the order in which they are asked: the request can be read, the host and port are permitted
(`rules.py`), the address is (`dialer.py`), and under an allow-list the tunnel carries TLS to the name that it was
opened for (`hello.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Iterable

import h11

from runtime.egress.decisions import DecisionLog
from runtime.egress.dialer import Dialer, Streams
from runtime.egress.hello import NotTlsError, server_name
from runtime.egress.limits import EgressLimits
from runtime.egress.rules import EgressRules, RefusedError, Target, parse_target

HALF_CLOSED_SECONDS_MAX = 60.0
FAREWELL_SECONDS_MAX = 10.0
_READ_BYTES = 65_536
_REASON_CHARACTERS_MAX = 200
_UNRECOGNIZED_NAME = b"\x15\x03\x01\x00\x02\x02\x70"
"""The fatal TLS alert that says so (RFC 6066 §3): a client within the tunnel reports it by name."""
_HOP_BY_HOP = frozenset(
    b"host connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer upgrade".split()
)


class Door:
    """The proxy of one attempt."""

    def __init__(self, rules: EgressRules, limits: EgressLimits, dialer: Dialer, decisions: DecisionLog) -> None:
        self.decisions = decisions
        self._rules = rules
        self._limits = limits
        self._dialer = dialer
        self._pace = _Pace(limits.bytes_per_second_max)
        self._open: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection of the worker, to its end."""
        if len(self._open) >= self._limits.connections_max:
            self._refuse(writer, "a connection", _TOO_MANY)
            writer.close()
            return
        self._open.add(writer)
        try:
            await self._serve(reader, writer)
        except (OSError, h11.ProtocolError):
            # One side went away or stopped making sense in the middle; both ends are closed, which is the answer.
            pass
        finally:
            await _finish(writer)
            self._open.discard(writer)

    def close(self) -> None:
        """Cut every connection."""
        for writer in list(self._open):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parser = h11.Connection(h11.SERVER, max_incomplete_event_size=self._limits.head_bytes_max)
        what = "a request"
        try:
            request = await self._head(parser, reader)
            if not isinstance(request, h11.Request):
                return
            if request.method == b"CONNECT":
                target = parse_target(request.target.decode("ascii"))
                what = str(target)
                self._rules.check(target)
                async with _closing(await self._dialer.connect(target)) as upstream:
                    await self._tunnel(target, parser.trailing_data[0], (reader, writer), upstream)
            else:
                target, path = _plain_target(request)
                what = f"http://{target}"
                self._rules.check(target)
                async with _closing(await self._dialer.connect(target)) as upstream:
                    self.decisions.allowed(what)
                    await self._exchange(parser, request, path, (reader, writer), upstream)
        except RefusedError as refused:
            self._refuse(writer, what, refused)

    async def _head(self, parser: h11.Connection, reader: asyncio.StreamReader) -> h11.Event:
        try:
            async with asyncio.timeout(self._limits.head_seconds_max):
                request = await _next_event(parser, reader, self._limits.head_bytes_max)
        except TimeoutError:
            raise RefusedError("the request did not come in time", code=408) from None
        except h11.RemoteProtocolError as error:
            code = error.error_status_hint
            raise RefusedError(f"the request cannot be read: {error}", code=code if code in _ERRORS else 400) from None
        if (
            isinstance(request, h11.Request)
            and {b"content-length", b"transfer-encoding"} <= dict(request.headers).keys()
        ):
            # Two readers may see two different requests in one that is framed twice (RFC 9112 §6.3).
            raise RefusedError("the request has two lengths", "Send one of the headers.", code=400)
        return request

    # CONNECT.

    async def _tunnel(self, target: Target, early: bytes, client: Streams, upstream: Streams) -> None:
        reader, writer = client
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        if self._rules.policy == "AllowList":
            try:
                early = await self._checked_hello(target, early, reader)
            except RefusedError as refused:
                self.decisions.refused(str(target), refused.why)
                writer.write(_UNRECOGNIZED_NAME)
                return
        self.decisions.allowed(str(target))
        upstream[1].write(early)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._limits.idle_seconds_max) as timeout:
                quiet = _Quiet(timeout, self._limits.idle_seconds_max)
                await _both(self._pump(reader, upstream[1], quiet), self._pump(upstream[0], writer, quiet))

    async def _checked_hello(self, target: Target, early: bytes, reader: asyncio.StreamReader) -> bytes:
        """What the client sent, when it begins a TLS connection to `target`; RefusedError when it does not."""
        try:
            async with asyncio.timeout(self._limits.hello_seconds_max):
                while (name := server_name(early)) is None:
                    more = await reader.read(_READ_BYTES)
                    if not more:
                        raise RefusedError("it was closed before it had begun")
                    early += more
        except NotTlsError as error:
            raise RefusedError(f"only TLS may pass under an allow-list, and {error}") from None
        except TimeoutError:
            raise RefusedError("no TLS was begun in time") from None
        wanted = target.host if target.address is None else ""
        if name.lower().removesuffix(".") != wanted:
            asked = f"the name {name[:80]!a}" if name else "no name"
            raise RefusedError(f"the TLS in it asks for {asked}")
        return early

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, quiet: _Quiet) -> None:
        """Pass bytes on until `source` ends; whatever moves in either direction keeps the connection."""
        while data := await source.read(_READ_BYTES):
            await self._pace.keep(len(data))
            sink.write(data)
            await sink.drain()
            quiet.moved()
        sink.write_eof()
        quiet.half_closed()

    # Plain http.

    async def _exchange(
        self, parser: h11.Connection, request: h11.Request, path: bytes, client: Streams, upstream: Streams
    ) -> None:
        """One request and its answer, each taken apart and put together again."""
        (reader, writer), (answers, requests) = client, upstream
        host = next(value for name, value in request.headers if name == b"host")
        headers = [(b"host", host), *_end_to_end(request.headers), (b"connection", b"close")]
        origin = h11.Connection(h11.CLIENT, max_incomplete_event_size=self._limits.head_bytes_max)
        requests.write(_sent(origin, h11.Request(method=request.method, target=path, headers=headers)))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._limits.idle_seconds_max) as timeout:
                quiet = _Quiet(timeout, self._limits.idle_seconds_max)
                sending = asyncio.create_task(self._pass_on(parser, reader, origin, requests, quiet))
                try:
                    await self._pass_on(origin, answers, parser, writer, quiet)
                except h11.RemoteProtocolError:
                    if parser.our_state is not h11.SEND_RESPONSE:
                        raise
                    raise RefusedError("the host does not answer in HTTP", code=502) from None
                finally:
                    # A host may answer before it has the whole request; the rest of it is of no use then.
                    sending.cancel()
                    await asyncio.gather(sending, return_exceptions=True)

    async def _pass_on(
        self,
        source: h11.Connection,
        reader: asyncio.StreamReader,
        sink: h11.Connection,
        writer: asyncio.StreamWriter,
        quiet: _Quiet,
    ) -> None:
        while True:
            event = await _next_event(source, reader)
            if isinstance(event, h11.ConnectionClosed):
                return
            if isinstance(event, h11.Response | h11.InformationalResponse):
                event = _answer(event)
            if isinstance(event, h11.Data):
                await self._pace.keep(len(event.data))
            writer.write(_sent(sink, event))
            await writer.drain()
            quiet.moved()
            if isinstance(event, h11.EndOfMessage):
                return

    def _refuse(self, writer: asyncio.StreamWriter, what: str, refused: RefusedError) -> None:
        self.decisions.refused(what, refused.why)
        reason = refused.why[:_REASON_CHARACTERS_MAX].encode("ascii", "replace")
        body = f"The egress proxy of this worker refused {what}: {refused.why}. {refused.fix}\n".encode()
        writer.write(
            b"HTTP/1.1 %d %b\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\nconnection: close\r\n"
            b"proxy-status: nodus; error=%b\r\n\r\n%b" % (refused.code, reason, len(body), _ERRORS[refused.code], body)
        )


_ERRORS: dict[int, bytes] = {
    400: b"http_request_error",
    403: b"http_request_denied",
    408: b"http_request_error",
    429: b"connection_limit_reached",
    431: b"http_request_error",
    502: b"destination_unavailable",
    504: b"connection_timeout",
}
"""The words of RFC 9209 §2.3 for each status that is answered here."""

_TOO_MANY = RefusedError("this worker has too many connections open", "Close some, or reuse them.", code=429)


def _plain_target(request: h11.Request) -> tuple[Target, bytes]:
    """(where to, path and query) of a request with a whole URL; its Host must say the same (RFC 9112 §3.2.2)."""
    url = request.target.decode("ascii")
    scheme, separator, rest = url.partition("://")
    if not separator or scheme.lower() != "http":
        raise RefusedError("this is a proxy: it takes CONNECT, and requests for http:// URLs", code=400)
    ends = [at for at in map(rest.find, "/?#") if at >= 0]
    authority, path = rest[: min(ends, default=len(rest))], rest[min(ends, default=len(rest)) :]
    target = parse_target(authority, 80)
    hosts = [value for name, value in request.headers if name == b"host"]
    if not hosts or parse_target(hosts[0].decode("ascii", "replace"), 80) != target:
        raise RefusedError("the Host header names another host than the URL", "Send one name in both.")
    return target, (path if path.startswith("/") else "/" + path).encode()


def _end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The headers that are for the other end: not those of this hop, nor those that `Connection` lists."""
    listed = {
        option.strip().lower() for name, value in headers if name == b"connection" for option in value.split(b",")
    }
    return [(name, value) for name, value in headers if name not in _HOP_BY_HOP and name not in listed]


def _answer(event: h11.Response | h11.InformationalResponse) -> h11.Response | h11.InformationalResponse:
    headers = [*_end_to_end(event.headers)]
    if isinstance(event, h11.InformationalResponse):
        return h11.InformationalResponse(status_code=event.status_code, headers=headers, reason=event.reason)
    headers.append((b"connection", b"close"))
    return h11.Response(status_code=event.status_code, headers=headers, reason=event.reason)


def _sent(connection: h11.Connection, event: h11.Event) -> bytes:
    return connection.send(event) or b""


async def _next_event(
    connection: h11.Connection, reader: asyncio.StreamReader, bytes_max: int | None = None
) -> h11.Event:
    """The next event of an HTTP conversation; RefusedError (431) when it takes more than `bytes_max`."""
    taken = 0
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            if bytes_max is not None and taken >= bytes_max:
                raise RefusedError(f"the head of a request must not exceed {bytes_max} bytes", code=431)
            data = await reader.read(_READ_BYTES if bytes_max is None else bytes_max - taken)
            taken += len(data)
            connection.receive_data(data)
        elif event is h11.PAUSED:
            return h11.ConnectionClosed()
        else:
            assert not isinstance(event, type)
            return event


@contextlib.asynccontextmanager
async def _closing(streams: Streams) -> AsyncIterator[Streams]:
    try:
        yield streams
    finally:
        await _finish(streams[1])


async def _finish(writer: asyncio.StreamWriter) -> None:
    """Send what is left and close; a peer that takes nothing is cut off after a moment."""
    writer.close()
    try:
        async with asyncio.timeout(FAREWELL_SECONDS_MAX):
            await writer.wait_closed()
    except (OSError, TimeoutError):
        writer.transport.abort()


async def _both(first: Awaitable[None], second: Awaitable[None]) -> None:
    """Both directions of a tunnel: when one breaks, so does the other."""
    tasks = [asyncio.ensure_future(first), asyncio.ensure_future(second)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


class _Quiet:
    """Ends a connection on which nothing moves, sooner once one direction has ended."""

    def __init__(self, timeout: asyncio.Timeout, seconds_max: float) -> None:
        self._timeout = timeout
        self._seconds_max = seconds_max

    def moved(self) -> None:
        """Bytes went through, in either direction."""
        self._timeout.reschedule(asyncio.get_running_loop().time() + self._seconds_max)

    def half_closed(self) -> None:
        """One side has said all; a client that is gone looks the same."""
        self._seconds_max = min(self._seconds_max, HALF_CLOSED_SECONDS_MAX)
        self.moved()


class _Pace:
    """A token bucket of one second's bytes, shared by everything that an attempt sends and receives."""

    def __init__(self, bytes_per_second: int) -> None:
        self._rate = bytes_per_second
        self._free_at = 0.0

    async def keep(self, count: int) -> None:
        """Wait as long as the bytes before these are over the rate."""
        now = asyncio.get_running_loop().time()
        self._free_at = max(self._free_at, now - 1.0) + count / self._rate
        if self._free_at > now:
            await asyncio.sleep(self._free_at - now)
