"""One connection of the HTTP server, with an end to whatever a client may leave unfinished.

uvicorn's protocol reads a head of any size for any time, keeps a connection that says nothing, and goes on reading the
body of a request that was answered long ago. Here a head has a size and a time, a body that nobody wants a time, and
connections a number; what is refused before there is a request gets the same Status as everything else. Bodies that a
route reads have their own limits (`api/bodies.py`), and what clients do not take is the kernel's to end (`api.py`).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from api.errors import status_response
from api.middleware import new_request_id
from controlplane.errors import ApiError, Reason
from controlplane.settings import Settings

_STATUS_LINES = {400: b"HTTP/1.1 400 Bad Request\r\n", 503: b"HTTP/1.1 503 Service Unavailable\r\n"}


@dataclass
class ConnectionCount:
    """The connections of a process, whichever of its ports they came to."""

    number: int = 0


class BoundedProtocol(HttpToolsProtocol):
    """The server's end of a connection."""

    def __init__(
        self,
        settings: Settings,
        count: ConnectionCount,
        server_state: ServerState,
        **of_uvicorn: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(server_state=server_state, **of_uvicorn)
        self._settings = settings
        self._count = count
        self._refusal: ApiError | None = None
        self._in_head = True
        """Whether the next bytes belong to a head, not to a body."""
        self._in_message = False
        """Whether the end of a message is still to come."""
        self._head_bytes = 0
        self._unparsed_bytes = 0
        """About so many of a head that has not ended yet; the parser keeps them without telling."""
        self._ending: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection, unless there are too many; its first head must come in time."""
        super().connection_made(transport)
        self._count.number += 1
        if self._count.number > self._settings.http_connections_max:
            told = f"this server has {self._settings.http_connections_max} connections, and takes no more"
            self._refuse(ApiError(Reason.UNAVAILABLE, told))
            return
        self._end_in(self._settings.http_head_seconds_max)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._keep()
        self._count.number -= 1
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came, and see to it that what is unfinished ends."""
        if self.transport.is_closing():
            return
        self._unparsed_bytes += len(data)
        super().data_received(data)
        if self.transport.is_closing() or not (self._in_head and self._unparsed_bytes):
            return
        if self._unparsed_bytes > self._settings.http_head_bytes_max:
            self._refuse(self._too_large())
        elif self._ending is None and not self._is_answering():
            self._end_in(self._settings.http_head_seconds_max)

    def on_message_begin(self) -> None:
        """A head begins."""
        super().on_message_begin()
        self._in_head = self._in_message = True
        # What is parsed with the end of another message is little: the kernel hands over so much at once.
        self._head_bytes = 0
        self._unparsed_bytes = max(self._unparsed_bytes, 1)

    def on_url(self, url: bytes) -> None:
        """Count it."""
        self._head_bytes += len(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count it."""
        self._head_bytes += len(name) + len(value)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start the request unless its head is too large."""
        self._keep()
        self._in_head = False
        self._unparsed_bytes = 0
        if self._head_bytes > self._settings.http_head_bytes_max:
            self._refusal = self._too_large()
            raise ValueError("the head is too large")  # the parser stops, and `send_400_response` tells why
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The next bytes are a head again."""
        super().on_message_complete()
        self._in_message = False
        self._in_head = True
        self._unparsed_bytes = 0
        self._keep()

    def on_response_complete(self) -> None:
        """A body that is still on its way is of no use to anybody now, but its sender must be able to read on."""
        super().on_response_complete()
        if self._in_message and self.cycle.response_complete and not self.transport.is_closing():
            self._end_in(self._settings.http_head_seconds_max)

    def send_400_response(self, msg: str) -> None:
        """Tell why the bytes are no request."""
        self._refuse(self._refusal or ApiError(Reason.BAD_REQUEST, "the bytes of the request are not HTTP/1.1"))

    def _too_large(self) -> ApiError:
        bytes_max = self._settings.http_head_bytes_max
        return ApiError(
            Reason.BAD_REQUEST, f"the URL and the headers of a request must be at most {bytes_max} bytes together"
        )

    def _refuse(self, error: ApiError) -> None:
        """Answer with the error and close; an answer that has begun can only be cut."""
        if not self._is_answering():
            self.transport.write(self._rendered(error))
        self.transport.close()

    def _rendered(self, error: ApiError) -> bytes:
        settings, request_id = self._settings, new_request_id()
        host, port = self.server or ("localhost", settings.http_port)
        origin = settings.public_url.rstrip("/") or f"{self.scheme}://{host}:{port}"
        response = status_response(error, request_id, settings.docs_url.rstrip("/") or f"{origin}/docs/errors")
        headers = [*response.raw_headers, (b"x-request-id", request_id.encode()), (b"connection", b"close")]
        lines = b"".join(b"%b: %b\r\n" % header for header in headers)
        return _STATUS_LINES[response.status_code] + lines + b"\r\n" + bytes(response.body)

    def _is_answering(self) -> bool:
        """Whether a request has been taken whose answer is not complete."""
        begun: RequestResponseCycle | None = self.cycle
        return begun is not None and not begun.response_complete

    def _end_in(self, seconds: float) -> None:
        self._keep()
        self._ending = self.loop.call_later(seconds, self._end)

    def _keep(self) -> None:
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None

    def _end(self) -> None:
        """Close; who has sent a part of a head learns why."""
        self._ending = None
        if self._unparsed_bytes:
            told = f"the head of the request did not come within {self._settings.http_head_seconds_max:g} s"
            self._refuse(ApiError(Reason.BAD_REQUEST, told))
        else:
            self.transport.close()
