"""From an Authorization header to a `Principal`.

The edge calls this for every request, so what was looked up is trusted for a second; unknown tokens are remembered as
well, in a table of their own, so a flood of guesses can neither reach the database more than once each nor push out
those in use. How many different ones a source may try is the edge's to say (`Guesses`). Next: `scopes.py` says what the
principal may do.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol, TypeVar

import asyncpg

from controlplane.clock import Clock
from controlplane.errors import ApiError, Reason
from controlplane.identity.joining import Joining, is_invite
from controlplane.identity.key_use import USE_NOTED_EVERY, note_use
from controlplane.identity.oidc import is_user_token
from controlplane.identity.people import People
from controlplane.identity.principal import AttemptBinding, Principal, PrincipalKind, narrowed, user_label
from controlplane.identity.tokens import ATTEMPT, TOKEN_FORM, TokenHasher
from controlplane.kinds.roles import SCOPES_OF_ROLE, Role
from controlplane.kinds.service_account import SERVICE_ACCOUNT
from controlplane.machinery.scope_grammar import meet
from controlplane.settings import Settings
from controlplane.store.database import Database

Value = TypeVar("Value")

# A finished attempt, a newer epoch or the end of its owner ends a token without anybody having to revoke it.
LOOK_UP = """
SELECT t.hash, t.kind, t.org, t.principal, t.name, t.project, t.function, t.function_uid, t.attempt, t.epoch,
       t.scopes, t.projects, t.expires_at, coalesce(a.concurrency, 1) AS concurrency,
       CASE WHEN t.owner IS NULL THEN t.role ELSE o.role END AS role,
       t.kind = 'apikey' AND (t.last_used_at IS NULL OR t.last_used_at <= $2) AS use_is_news,
       o.kind AS owner_kind, o.name AS owner_name, o.scopes AS owner_scopes,
       o.projects AS owner_projects,
       t.revoked_at IS NOT NULL OR (t.kind = 'apikey' AND t.owner IS NOT NULL AND o.uid IS NULL)
           OR (t.kind = 'attempt' AND (a.uid IS NULL OR a.finished_at IS NOT NULL OR a.epoch <> t.epoch)) AS revoked
FROM tokens t LEFT JOIN attempts a ON a.uid = t.attempt LEFT JOIN credential_owners o ON o.uid = t.owner
WHERE t.hash = ANY($1::bytea[])
"""
_SCHEME = b"bearer "
_BEARER = b"Bearer "
_HEADER_BYTES_MAX = 4_096
_UNKNOWN = "the credential is unknown, expired or revoked"


class Guesses(Protocol):
    """What one source may still guess."""

    def begin(self) -> None:
        """Count a look-up; raises TooManyRequests instead when there were too many wrong ones."""

    def forgive(self) -> None:
        """It was none: the key is good, or nobody could tell."""


class Authenticator:
    """Looks credentials up. One per process; `__call__` may run concurrently."""

    def __init__(self, database: Database, settings: Settings, clock: Clock, joining: Joining | None = None) -> None:
        self._database = database
        self._clock = clock
        self._hasher = TokenHasher(settings.secret_key)
        node_token = settings.node_token.get_secret_value()
        self._node_hash = self._hasher.hash(node_token) if node_token else None
        self._people = People(database, settings, clock, joining) if settings.oidc_issuer else None
        self._header_bytes_max = settings.oidc_token_bytes_max if settings.oidc_issuer else _HEADER_BYTES_MAX
        self._joining = joining
        self._seconds = settings.token_cache_seconds
        self._known: OrderedDict[bytes, tuple[float, Principal]] = OrderedDict()
        self._unknown: OrderedDict[bytes, float] = OrderedDict()
        self._entries_max = settings.token_cache_entries_max
        self._noting: asyncio.Task[None] | None = None
        self._looking_up: dict[bytes, asyncio.Task[Principal | None]] = {}

    async def __call__(self, authorization: bytes, guesses: Guesses | None = None) -> Principal:
        """The caller behind an `Authorization` header (empty when absent).

        `guesses` bounds the look-ups of keys that have not been good here before; what it raises is passed on.
        Raises Unauthorized when there is none, it is not of ours, expired or (except for attempts, see `Principal`)
        revoked, and Unavailable when the database cannot be asked.
        """
        if not authorization:
            raise ApiError(Reason.UNAUTHORIZED, "the request carries no credential")
        if len(authorization) > self._header_bytes_max or authorization[: len(_SCHEME)].lower() != _SCHEME:
            raise ApiError(Reason.UNAUTHORIZED, "the `Authorization` header must be `Bearer <key>`")
        token = _token(authorization)
        hashed = self._hasher.hash(token)
        if self._node_hash is not None and hmac.compare_digest(hashed, self._node_hash):
            return _NODE
        if not TOKEN_FORM.fullmatch(token):
            return await self._person(authorization)
        principal = await self._principal(hashed, guesses)
        if principal is None:
            raise ApiError(Reason.UNAUTHORIZED, _UNKNOWN)
        return principal

    async def _person(self, authorization: bytes) -> Principal:
        """The holder of a token of the identity provider."""
        if self._people is None or not is_user_token(authorization):
            raise ApiError(Reason.UNAUTHORIZED, _UNKNOWN)
        return await self._people.principal(_token(authorization))

    async def people(self, token: str) -> Sequence[Principal]:
        """Whom a token stands for, in each organisation that it is good for, or whom an invite's token would make;
        raises as a request with it would."""
        if self._joining is not None and is_invite(token):
            return [await self._joining.invited(token)]
        if self._people is not None and is_user_token(token.encode()) and len(token) <= self._header_bytes_max:
            return await self._people.everywhere(token)
        return [await self(_BEARER + token.encode("latin-1", "replace"))]

    async def look_again(self, authorizations: Sequence[bytes]) -> dict[bytes, Principal | None]:
        """What these accepted credentials are now, whatever was remembered; None for one that is good no more.

        Those of people that cannot be checked now, each for reasons of its own, are left out. One query for all keys;
        raises Unavailable when the database cannot be asked.
        """
        tokens = [each for each in authorizations if self._people is not None and is_user_token(each)]
        people: dict[bytes, Principal | None] = {}
        for authorization in tokens:
            with suppress(ApiError):
                people[authorization] = await self._person_again(authorization)
        hashes = {each: self._hash(each) for each in set(authorizations).difference(tokens)}
        asked = [hashed for hashed in hashes.values() if hashed != self._node_hash]
        found = await self._look_up_all(asked) if asked else {}
        if self._node_hash is not None:
            found[self._node_hash] = _NODE
        return people | {authorization: found[hashed] for authorization, hashed in hashes.items()}

    async def _person_again(self, authorization: bytes) -> Principal | None:
        assert self._people is not None, "only then there are tokens"
        try:
            return await self._people.principal(_token(authorization), afresh=True)
        except ApiError as error:
            if error.reason is Reason.UNAVAILABLE:
                raise
            return None

    def _hash(self, authorization: bytes) -> bytes:
        return self._hasher.hash(_token(authorization))

    async def _principal(self, hashed: bytes, guesses: Guesses | None) -> Principal | None:
        now = time.monotonic()
        known = self._known.get(hashed)
        if known is not None and known[0] > now:
            return known[1]
        if self._unknown.get(hashed, 0.0) > now:
            return None
        if guesses is None or known is not None or hashed in self._looking_up:
            return await self._asked(hashed)
        guesses.begin()
        is_wrong = False
        try:
            principal = await self._asked(hashed)
            is_wrong = principal is None
        finally:
            if not is_wrong:
                guesses.forgive()
        return principal

    async def _asked(self, hashed: bytes) -> Principal | None:
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
        return (await self._look_up_all([hashed]))[hashed]

    async def _look_up_all(self, hashes: Sequence[bytes]) -> dict[bytes, Principal | None]:
        """The callers behind these hashes, each remembered or forgotten from now on."""
        # What is true of a token is true of the moment in which it is asked about, not of that of a slow answer.
        expires = time.monotonic() + self._seconds
        rows = await self._database.fetch(LOOK_UP, hashes, self._clock.now() - USE_NOTED_EVERY)
        good = {row["hash"]: _principal_of(row) for row in rows if self._is_good(row)}
        self._note_use([row["hash"] for row in rows if row["use_is_news"] and row["hash"] in good])
        found = {hashed: good.get(hashed) for hashed in hashes}
        for hashed, principal in found.items():
            if principal is None:
                self._known.pop(hashed, None)
                _remember(self._unknown, hashed, expires, self._entries_max)
            else:
                _remember(self._known, hashed, (expires, principal), self._entries_max)
        return found

    def _note_use(self, hashes: Sequence[bytes]) -> None:
        """Beside the request, which need not wait for it; what is lost here is noted at the next look-up."""
        if hashes and (self._noting is None or self._noting.done()):
            self._noting = asyncio.create_task(self._noted(hashes), name="note-use")

    async def _noted(self, hashes: Sequence[bytes]) -> None:
        with suppress(ApiError):
            await note_use(self._database, hashes, self._clock.now())

    def _is_good(self, row: asyncpg.Record) -> bool:
        if row["expires_at"] is not None and row["expires_at"] <= self._clock.now():
            return False
        return row["kind"] == ATTEMPT or not row["revoked"]


_NODE = Principal(kind=PrincipalKind.NODE, org="", id="node", label="node", scopes=frozenset({"nodes:connect"}))
"""Nodes belong to the installation, not to an organisation, and have routes of their own."""


def _token(authorization: bytes) -> str:
    return authorization[len(_SCHEME) :].strip().decode("latin-1")


def _remember(cache: OrderedDict[bytes, Value], key: bytes, value: Value, entries_max: int) -> None:
    cache[key] = value
    cache.move_to_end(key)
    if len(cache) > entries_max:
        cache.popitem(last=False)


def _principal_of(row: asyncpg.Record) -> Principal:
    scopes, projects = frozenset(row["scopes"]), narrowed(frozenset(row["projects"]), row["owner_projects"])
    if row["kind"] == ATTEMPT:
        return Principal(
            kind=PrincipalKind.ATTEMPT,
            org=row["org"],
            id=row["principal"],
            label=row["principal"],
            scopes=scopes | frozenset(row["owner_scopes"] or ()),
            projects=projects,
            account=row["owner_name"],
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
    if row["owner_kind"] == SERVICE_ACCOUNT.kind:
        return Principal(
            kind=PrincipalKind.SERVICE_ACCOUNT,
            org=row["org"],
            id=row["principal"],
            label=row["principal"],
            scopes=meet(scopes, frozenset(row["owner_scopes"])),
            projects=projects,
            account=row["owner_name"],
        )
    role = Role(row["role"])
    return Principal(
        kind=PrincipalKind.USER,
        org=row["org"],
        id=row["principal"],
        label=user_label(row["principal"]),
        scopes=meet(scopes, SCOPES_OF_ROLE[role]),
        projects=projects,
        user_uuid=row["principal"],
        role=role.value,
    )
