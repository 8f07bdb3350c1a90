"""From an Authorization header to a `Principal`.

The edge calls this for every request, so what was looked up is trusted for a second; unknown tokens are remembered as
well, in a table of their own, so a flood of guesses can neither reach the database more than once each nor push out
those in use. Next: `scopes.py` says what the principal may do.
"""

from __future__ import annotations

import asyncio
import hmac
import time
import uuid
from collections import OrderedDict
from typing import TypeVar

import asyncpg

from controlplane.clock import Clock
from controlplane.errors import ApiError, Reason
from controlplane.identity.principal import AttemptBinding, Principal, PrincipalKind
from controlplane.identity.tokens import ATTEMPT, TOKEN_FORM, TokenHasher
from controlplane.ids import encode_base32
from controlplane.settings import Settings
from controlplane.store.database import Database

Value = TypeVar("Value")

# A finished attempt or a newer epoch ends a token without anybody having to revoke it.
LOOK_UP = """
SELECT t.kind, t.org, t.principal, t.name, t.project, t.function, t.function_uid, t.attempt, t.epoch,
       t.scopes, t.projects, t.expires_at, coalesce(a.concurrency, 1) AS concurrency,
       t.revoked_at IS NOT NULL
           OR (t.kind = 'attempt' AND (a.uid IS NULL OR a.finished_at IS NOT NULL OR a.epoch <> t.epoch)) AS revoked
FROM tokens t LEFT JOIN attempts a ON a.uid = t.attempt WHERE t.hash = $1
"""
_SCHEME = b"bearer "
_HEADER_BYTES_MAX = 4_096


class Authenticator:
    """Looks credentials up. One per process; `__call__` may run concurrently."""

    def __init__(self, database: Database, settings: Settings, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._hasher = TokenHasher(settings.secret_key)
        node_token = settings.node_token.get_secret_value()
        self._node_hash = self._hasher.hash(node_token) if node_token else None
        self._seconds = settings.token_cache_seconds
        self._known: OrderedDict[bytes, tuple[float, Principal]] = OrderedDict()
        self._unknown: OrderedDict[bytes, float] = OrderedDict()
        self._entries_max = settings.token_cache_entries_max
        self._looking_up: dict[bytes, asyncio.Task[Principal | None]] = {}

    async def __call__(self, authorization: bytes) -> Principal:
        """The caller behind an `Authorization` header (empty when absent).

        Raises Unauthorized when there is none, it is not of ours, expired or (except for attempts, see `Principal`)
        revoked, and Unavailable when the database cannot be asked.
        """
        if not authorization:
            raise ApiError(Reason.UNAUTHORIZED, "the request carries no credential")
        if len(authorization) > _HEADER_BYTES_MAX or authorization[: len(_SCHEME)].lower() != _SCHEME:
            raise ApiError(Reason.UNAUTHORIZED, "the `Authorization` header must be `Bearer <key>`")
        token = authorization[len(_SCHEME) :].strip().decode("latin-1")
        hashed = self._hasher.hash(token)
        if self._node_hash is not None and hmac.compare_digest(hashed, self._node_hash):
            return _NODE
        principal = await self._principal(hashed) if TOKEN_FORM.fullmatch(token) else None
        if principal is None:
            raise ApiError(Reason.UNAUTHORIZED, "the credential is unknown, expired or revoked")
        return principal

    async def _principal(self, hashed: bytes) -> Principal | None:
        now = time.monotonic()
        known = self._known.get(hashed)
        if known is not None and known[0] > now:
            return known[1]
        if self._unknown.get(hashed, 0.0) > now:
            return None
        # Requests that arrive together wait for one look-up; it is a task of its own, so that a client which goes away
        # does not take the others' answer with it.
        task = self._looking_up.get(hashed)
        if task is None:
            task = asyncio.create_task(self._look_up(hashed), name="look-up")
            self._looking_up[hashed] = task
            task.add_done_callback(lambda done: self._looked_up(hashed, done))
        return await asyncio.shield(task)

    def _looked_up(self, hashed: bytes, task: asyncio.Task[Principal | None]) -> None:
        self._looking_up.pop(hashed, None)
        if not task.cancelled():
            task.exception()  # everybody who waited may have gone; then nobody else would look

    async def _look_up(self, hashed: bytes) -> Principal | None:
        try:
            rows = await self._database.fetch(LOOK_UP, hashed)
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            raise ApiError(
                Reason.UNAVAILABLE,
                "the credential cannot be checked now: the database cannot be reached",
                retry_after_seconds=1,
                debug=repr(error),
            ) from error
        row = rows[0] if rows else None
        expires = time.monotonic() + self._seconds
        if row is None or not self._is_good(row):
            self._known.pop(hashed, None)
            _remember(self._unknown, hashed, expires, self._entries_max)
            return None
        principal = _principal_of(row)
        _remember(self._known, hashed, (expires, principal), self._entries_max)
        return principal

    def _is_good(self, row: asyncpg.Record) -> bool:
        if row["expires_at"] is not None and row["expires_at"] <= self._clock.now():
            return False
        return row["kind"] == ATTEMPT or not row["revoked"]


_NODE = Principal(kind=PrincipalKind.NODE, org="", id="node", label="node", scopes=frozenset({"nodes:connect"}))
"""Nodes belong to the installation, not to an organisation, and have routes of their own."""


def _remember(cache: OrderedDict[bytes, Value], key: bytes, value: Value, entries_max: int) -> None:
    cache[key] = value
    cache.move_to_end(key)
    if len(cache) > entries_max:
        cache.popitem(last=False)


def _principal_of(row: asyncpg.Record) -> Principal:
    scopes, projects = frozenset(row["scopes"]), frozenset(row["projects"])
    if row["kind"] == ATTEMPT:
        return Principal(
            kind=PrincipalKind.ATTEMPT,
            org=row["org"],
            id=row["principal"],
            label=row["principal"],
            scopes=scopes,
            projects=projects,
            binding=AttemptBinding(
                project=row["project"],
                function=row["function"],
                function_uid=row["function_uid"],
                attempt=row["attempt"],
                epoch=row["epoch"],
                concurrency=row["concurrency"],
            ),
            revoked=row["revoked"],
        )
    return Principal(
        kind=PrincipalKind.USER,
        org=row["org"],
        id=row["principal"],
        label=user_label(row["principal"]),
        scopes=scopes,
        projects=projects,
        user_uuid=row["principal"],
        role="owner" if "*" in scopes else "member",
    )


def user_label(user_uuid: str) -> str:
    """How the public command line writes a user's id: `usr_` and 26 characters of base 32."""
    return f"usr_{encode_base32(uuid.UUID(user_uuid).int)}"
