"""What the routes need, built once by the composition root.

`workers/wiring.py` makes a `Deps` and calls `api.app.create_app(deps)`; nothing under `api/` reads the environment or
opens a connection. Modules that serve more than objects (claims, logs, blobs, nodes) join through `subresources` and
`routes`, so the generic routes know none of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import Scope

from api.rendering import Renderer
from api.streams import Streams
from controlplane.audit.refusals import AuditQueue
from controlplane.clock import Clock
from controlplane.errors import ApiError, Reason
from controlplane.identity.authenticator import Guesses
from controlplane.identity.principal import Principal
from controlplane.machinery.kind import Kind
from controlplane.resources import Resources
from controlplane.settings import Settings
from controlplane.store.cache import ObjectCache
from controlplane.store.changes import ChangeFeed
from controlplane.store.contract import Selection
from controlplane.store.watch import Watches

PRINCIPAL = "nodus.principal"
"""Key of the authenticated caller in the ASGI scope."""
CREDENTIAL = "nodus.credential"
"""Key of the credential as it was read from the request, in the ASGI scope. Behind a token of an identity provider and
a space comes the organisation that the request is for, if it names one."""
REQUEST_ID = "nodus.request_id"
"""Key of the request id in the ASGI scope."""

LOGIN_PATHS = frozenset(
    {"/auth/device/code", "/auth/device/token", "/auth/cli-keys/redeem", "/auth/device", "/cli-auth"}
)
PUBLIC_PATHS = frozenset({"/healthz", "/readyz", "/version"}) | LOGIN_PATHS
PUBLIC_PREFIXES = ("/docs/errors/", "/.well-known/", "/blobs/v1/data/")
"""Blob data carries its own signature and logins are how one gets a credential; the rest tells nothing about anyone."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a path addresses: a kind, the project ("" for kinds of the organisation), a name and its subresource."""

    kind: Kind
    project: str
    name: str
    subresource: str
    rest: str
    """What follows the subresource (`uploads/{id}`), or ""."""


SubresourceHandler = Callable[[Request, Principal, Target], Awaitable[Response]]


@dataclass(frozen=True, kw_only=True)
class Derived:
    """Where the objects of a kind come from that nobody stores. The generic routes have authorised the request."""

    list: Callable[[Request, Selection, Renderer], Awaitable[bytes]]
    """A page in the form that the client accepts."""
    get: Callable[[Principal, Kind, str], Awaitable[bytes]]
    """One object by its name; raises 404."""
    write: Callable[[], Awaitable[bytes]]
    """What happens to creates and changes, where the kind has the verbs for them."""


class ReadinessCheck(Protocol):
    """One thing that should be well for this process to serve."""

    async def __call__(self) -> bool:
        """Whether it is well; must answer within a second."""


@dataclass(frozen=True, kw_only=True)
class Deps:
    """Everything the edge works with."""

    settings: Settings
    clock: Clock
    kinds: Mapping[str, Kind]
    """By plural."""
    resources: Resources
    cache: ObjectCache
    feed: ChangeFeed
    watches: Watches
    authenticate: Callable[[bytes, Guesses | None], Awaitable[Principal]]
    """From the Authorization header (empty when absent) to the caller; raises 401, and 429 for too many guesses."""
    streams: Streams
    audit: AuditQueue
    """What is told of requests that changed nothing."""
    subresources: Mapping[tuple[str, str, str], SubresourceHandler] = field(default_factory=dict)
    """By (plural, subresource, method); the generic routes have judged the caller before a handler is asked,
    but for claims."""
    derived: Mapping[str, Derived] = field(default_factory=dict)
    """By plural, the kinds whose objects are made when they are asked for."""
    routes: Sequence[BaseRoute] = ()
    """Routes beside the objects: blobs, nodes, console."""
    required: Mapping[str, ReadinessCheck] = field(default_factory=dict)
    """Checks without which `/readyz` answers 503."""
    optional: Mapping[str, ReadinessCheck] = field(default_factory=dict)
    """Checks that only show as `degraded` on `/readyz`."""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the process was asked to stop: streams end, readiness is off."""
    release: str = "unknown"
    """The build that answers, told in X-Nodus-Release."""
    public_paths: frozenset[str] = PUBLIC_PATHS
    public_prefixes: tuple[str, ...] = PUBLIC_PREFIXES

    def docs_prefix(self, scope: Scope) -> str:
        """Where error codes are explained, without a slash; by default at the address the client has just used."""
        if self.settings.docs_url:
            return self.settings.docs_url.rstrip("/")
        return f"{origin_of(scope, self.settings)}/docs/errors"


def origin_of(scope: Scope, settings: Settings) -> str:
    """Where clients reach this server, without a slash; by default the address that this one has just used."""
    if settings.public_url:
        return settings.public_url.rstrip("/")
    host = next((value for name, value in scope["headers"] if name == b"host"), b"localhost")
    return f"{scope['scheme']}://{host.decode('latin-1')}"


def source_of(scope: Scope) -> str:
    """Where a request comes from, as far as its connection and the proxies that are believed tell."""
    client: tuple[str, int] | None = scope.get("client")
    return client[0] if client is not None else ""


def credential(request: Request) -> bytes:
    """What `Deps.authenticate` was given for this request; a stream asks with it again whether it may go on."""
    read: bytes = request.scope[CREDENTIAL]
    return read


def principal(request: Request) -> Principal:
    """The caller that `Edge` authenticated."""
    caller = request.scope.get(PRINCIPAL)
    if not isinstance(caller, Principal):
        raise ApiError(Reason.UNAUTHORIZED, "this request needs a credential")
    return caller
