"""What every request passes before a route: a request id, who is asking and how often, and a last net for errors.

`Edge` is one plain ASGI callable around the whole application, because Starlette's middleware base class holds back
streaming headers and costs a task per request. It authenticates everything outside `deps.public_paths`, so a new route
is private unless someone decides otherwise. Routes find the caller with `api.deps.principal`.
"""

from __future__ import annotations

import base64
import binascii
import os
import time
from urllib.parse import urlsplit

import structlog
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.auditing import REFUSAL, Auditing, actor_of
from api.bodies import BODY_SECONDS_MAX
from api.buffered_bytes import COUNT_BODY, BufferedBytes
from api.deps import CREDENTIAL, PRINCIPAL, REQUEST_ID, Deps, source_of
from api.errors import from_http_status, internal_error, status_response
from api.rates import ALLOWANCE, GuessRates, Rates
from controlplane import metrics
from controlplane.audit.requests import AUDITED, AuditedRequest
from controlplane.errors import ApiError, Reason
from controlplane.identity.oidc import is_user_token
from controlplane.identity.people import ORG_HEADER
from controlplane.ids import encode_base32

log = structlog.get_logger("api")

_CLIENT_CLOSED_REQUEST = 499
"""What proxies log for a client that left before its answer."""
_OWNERS_MIN = 4
"""So many senders must be at it to fill the memory for bodies."""


_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


def new_request_id() -> str:
    """A name for a request, told to its client and to the log."""
    return f"req_{encode_base32(int.from_bytes(os.urandom(16)))}"


class Edge:
    """The outermost ASGI application: names each request, authenticates it, logs it and answers what nobody caught."""

    def __init__(self, app: ASGIApp, deps: Deps) -> None:
        self._app = app
        self._deps = deps
        self._auditing = Auditing(deps)
        self._rates = Rates(deps.settings)
        self._guesses = GuessRates(deps.settings)
        bytes_max = deps.settings.bodies_buffered_bytes_max
        self._bodies = BufferedBytes("bodies of requests", bytes_max, bytes_max // _OWNERS_MIN)
        self._prefix = urlsplit(deps.settings.public_url).path.rstrip("/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope[REQUEST_ID] = request_id = new_request_id()
        scope[BODY_SECONDS_MAX] = self._deps.settings.body_seconds_max
        started = time.monotonic()
        status = 0

        async def send_named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                self._auditing.conclude(described, scope, status)
                headers = message.setdefault("headers", [])
                headers.append((b"x-request-id", request_id.encode()))
                if (allowance := scope.get(ALLOWANCE)) is not None:
                    headers += allowance.headers()
            await send(message)

        path: str = scope["path"].removeprefix(self._prefix) if self._is_below(scope["path"]) else scope["path"]
        scope["path"] = path
        if path.endswith("/") and path != "/":
            # kr8s asks for `/apis/`; a redirect would cost it the body of a POST (R-DISC-4).
            scope["path"] = path = path.rstrip("/")
        described = self._auditing.described(scope, path)
        # Each request runs in a context of its own, or takes this one over from the last request of its connection.
        AUDITED.set(described.writes)
        try:
            if "\0" in path or b"%00" in scope["query_string"]:
                # No name, selector or key holds one, and PostgreSQL's text cannot.
                raise ApiError(Reason.BAD_REQUEST, "the URL must not contain a NUL character")
            if not self._is_public(path):
                await self._admit(scope, described.request)
            with self._bodies.entry(_owner(scope)) as scope[COUNT_BODY]:
                await self._app(scope, receive, send_named)
        except ClientDisconnect:
            status = _CLIENT_CLOSED_REQUEST
        except ApiError as error:
            await self._answer(error, scope, receive, send_named)
        except Exception as error:
            log.exception("request failed", request_id=request_id, method=scope["method"], path=path, error=repr(error))
            if not status:
                await self._answer(internal_error(), scope, receive, send_named)
        seconds = time.monotonic() - started
        method = scope["method"] if scope["method"] in _METHODS else "other"
        metrics.add("nodus_requests_total", method=method, status=str(status))
        metrics.add("nodus_request_seconds_total", seconds, method=method)
        self._log(scope, path, status, seconds)

    async def _admit(self, scope: Scope, audited: AuditedRequest) -> None:
        """Say who asks; raises the refusal of a caller that is unknown or asks too often."""
        scope[CREDENTIAL] = credential = _authorization(scope, basic=self._deps.settings.basic_auth)
        if is_user_token(credential) and (org := Headers(scope=scope).get(ORG_HEADER)):
            # A key is of one organisation; the holder of a token may be a Member of several.
            scope[CREDENTIAL] = b"%b %b" % (credential, org.encode("latin-1"))
        scope[PRINCIPAL] = caller = await self._deps.authenticate(scope[CREDENTIAL], self._guesses.of(source_of(scope)))
        audited.actor = actor_of(scope)
        scope[ALLOWANCE] = allowance = self._rates.take(scope[CREDENTIAL], caller, scope)
        if allowance is not None and not allowance.allowed:
            raise allowance.refusal()

    def _is_below(self, path: str) -> bool:
        """Whether the path has the prefix under which a reverse proxy serves us and passes on what it gets."""
        return bool(self._prefix) and path.startswith(f"{self._prefix}/")

    def _is_public(self, path: str) -> bool:
        return path in self._deps.public_paths or path.startswith(self._deps.public_prefixes)

    async def _answer(self, error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
        scope[REFUSAL] = error
        response = status_response(error, scope[REQUEST_ID], self._deps.docs_prefix(scope))
        await response(scope, receive, send)

    def _log(self, scope: Scope, path: str, status: int, seconds: float) -> None:
        if not self._deps.settings.access_log and status < 500:
            return
        caller = scope.get(PRINCIPAL)
        log.info(
            "request",
            request_id=scope[REQUEST_ID],
            method=scope["method"],
            path=path,
            status=status,
            milliseconds=round(seconds * 1000, 1),
            principal=caller.label if caller is not None else "",
        )


def _owner(scope: Scope) -> str:
    """Whose body it is: the organisation's, for all that its keys send, or a node's; of strangers all have one part."""
    caller = scope.get(PRINCIPAL)
    return "" if caller is None else caller.org or caller.label


def _authorization(scope: Scope, *, basic: bool) -> bytes:
    """The Authorization header, empty when there is none; however it was spaced, one credential is one for who counts.

    Where `basic` credentials are taken they become Bearer ones, the password being the token: over plain http, Go
    clients send no other kind (`server: http://any:TOKEN@host`, R-AUTH-1).
    """
    for name, value in scope["headers"]:
        if name == b"authorization":
            scheme, _, credentials = bytes(value).partition(b" ")
            if scheme.lower() == b"bearer":
                return _bearer(credentials)
            if scheme.lower() != b"basic":
                return bytes(value)
            if not basic:
                raise ApiError(
                    Reason.UNAUTHORIZED,
                    "this server does not take HTTP Basic credentials",
                    fix="Send `Authorization: Bearer <key>` over https, or have the operator set `basic_auth`.",
                )
            return _bearer(_password(credentials))
    return b""


def _bearer(token: bytes) -> bytes:
    # As `Authenticator` strips it, which takes the header for Latin-1.
    return b"Bearer " + token.decode("latin-1").strip().encode("latin-1")


def _password(credentials: bytes) -> bytes:
    try:
        return base64.b64decode(credentials.strip(), validate=True).partition(b":")[2]
    except binascii.Error:
        return b""


class ErrorHandlers:
    """The handlers FastAPI calls for exceptions of a route."""

    def __init__(self, deps: Deps) -> None:
        self._deps = deps

    async def api_error(self, request: Request, error: Exception) -> Response:
        """Renders a refusal of ours; what an operator should know of it goes to the log."""
        if not isinstance(error, ApiError):
            raise error
        request.scope[REFUSAL] = error
        if error.debug:
            log.warning("refused", request_id=request.scope[REQUEST_ID], message=error.message, debug=error.debug)
        return status_response(error, request.scope[REQUEST_ID], self._deps.docs_prefix(request.scope))

    async def http_exception(self, request: Request, error: Exception) -> Response:
        """Renders a refusal of the router: no such route, no such method."""
        if not isinstance(error, HTTPException):
            raise error
        refusal = from_http_status(error.status_code, str(error.detail), request.url.path, _methods_of_path(request))
        request.scope[REFUSAL] = refusal
        return status_response(refusal, request.scope[REQUEST_ID], self._deps.docs_prefix(request.scope))

    async def unexpected(self, request: Request, error: Exception) -> Response:
        """Renders a bug; Starlette raises it again afterwards and `Edge` logs it with its traceback."""
        return status_response(internal_error(), request.scope[REQUEST_ID], self._deps.docs_prefix(request.scope))


def _methods_of_path(request: Request) -> set[str]:
    """What all routes of the path take: several may share it, and the router tells only of the first."""
    routes = (route for route in request.app.router.routes if route.matches(request.scope)[0] is not Match.NONE)
    return {method for route in routes for method in route.methods or ()}
