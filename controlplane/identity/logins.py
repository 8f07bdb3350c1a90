"""Logins under way: a program waits, a person decides on a page, and the program gets a key (RFC 8628, or a code that
the person's browser carries back to the program).

The state is in a table, so the page, the program's questions and the key may each meet another process. A login that is
redeemed is marked first and its key made afterwards, under one Idempotency-Key for both (`api/login.py`): if the
process dies between them, the program's repetition of the same request gets the key, and nobody else does. Codes are
stored hashed, work once and for minutes; `forget` removes what has ended, and so does each new login.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from enum import StrEnum

import asyncpg
import orjson

from controlplane.clock import Clock
from controlplane.errors import ApiError, Reason
from controlplane.identity.principal import Principal, PrincipalKind, narrowed, user_label
from controlplane.identity.tokens import TokenHasher
from controlplane.kinds.roles import SCOPES_OF_ROLE, Role
from controlplane.login_settings import LoginSettings
from controlplane.machinery.scope_grammar import meet
from controlplane.store.database import Database

USER_CODE_LETTERS = "BCDFGHJKLMNPQRSTVWXZ"
"""No vowels, so that no code is a word, and nothing that looks like a digit (RFC 8628 §6.1)."""
USER_CODE_LENGTH = 8
_GROUP_LENGTH = 4
_SECRET_BYTES = 32
_SLOW_DOWN_SECONDS = 5
"""How much longer a program that asked too soon must wait from then on (RFC 8628 §3.5)."""
_EARLY_FRACTION = 0.2
"""Of the interval; a question may be this much early, for a network that delayed the one before."""
_FORGOTTEN_AT_ONCE = 200
_KEPT_FOR = timedelta(minutes=10)
"""After its end a program is still told that its login has expired; afterwards it is as good as unknown."""
TEXT_LENGTH_MAX = 128
"""Characters kept of what a program says of itself."""

_FORGET = f"""
DELETE FROM logins WHERE secret_hash IN (
    SELECT secret_hash FROM logins WHERE expires_at < $1 ORDER BY expires_at LIMIT {_FORGOTTEN_AT_ONCE})
"""  # noqa: S608 - a constant
# Two processes that count at the same moment may let in one more each, which harms nothing.
_BEGIN = """
INSERT INTO logins (secret_hash, user_code_hash, challenge, client, host, address, state, grants, interval_seconds,
                    created_at, expires_at)
SELECT $1, $2, $3, $4, $5, $6, $7, $8::jsonb, $9, $10, $11
WHERE (SELECT count(*) FROM logins WHERE expires_at >= $10) < $12
    AND (SELECT count(*) FROM logins WHERE expires_at >= $10 AND address = $6) < $13
"""
_FIND = "SELECT client, host, address, created_at FROM logins WHERE user_code_hash = $1 AND state = 'pending' "
_FIND += "AND expires_at > $2"
_DECIDE = """
UPDATE logins SET state = $2, grants = $3::jsonb
WHERE user_code_hash = $1 AND state = 'pending' AND expires_at > $4
"""
_ASK = """
UPDATE logins l SET polled_at = $2,
    interval_seconds = l.interval_seconds + CASE WHEN l.state = 'pending' AND old.early THEN $4 ELSE 0 END,
    redeemed_with = CASE WHEN l.state = 'approved' AND l.expires_at > $2 THEN coalesce(l.redeemed_with, $3) END
FROM (
    SELECT secret_hash, polled_at IS NOT NULL
        AND polled_at + interval_seconds * $5::float8 * interval '1 second' > $2 AS early
    FROM logins WHERE secret_hash = $1 FOR UPDATE
) old
WHERE l.secret_hash = old.secret_hash
RETURNING l.state, l.grants, l.challenge, l.client, l.host, l.address, l.expires_at, l.created_at, old.early,
    l.redeemed_with = $3 AS is_its_own
"""
_MEMBER = "SELECT role, projects FROM credential_owners WHERE org = $1 AND user_uuid = $2 AND kind = 'Member'"


@dataclass(frozen=True, kw_only=True)
class Asking:
    """What a person is told of a program that waits, in letters that they can see and that can be stored."""

    client: str
    host: str
    address: str
    since: datetime

    def __post_init__(self) -> None:
        """Anybody says anything here: a NUL cannot be stored, other invisible ones make a page lie."""
        for told in ("client", "host"):
            object.__setattr__(self, told, _visible(getattr(self, told)))


@dataclass(frozen=True, kw_only=True)
class Grant:
    """What a person gives: a key of theirs in an organisation, bound by what they proved themselves with."""

    org: str
    user: str
    scopes: tuple[str, ...]
    projects: tuple[str, ...]
    project: str
    """Where the program begins."""


@dataclass(frozen=True, kw_only=True)
class Approved:
    """A login that may be redeemed."""

    asking: Asking
    grants: Sequence[Grant]
    challenge: str | None
    expires_at: datetime


class Refused(StrEnum):
    """Why there is no key, in the words of RFC 8628 and RFC 6749."""

    PENDING = "authorization_pending"
    SLOW_DOWN = "slow_down"
    DENIED = "access_denied"
    EXPIRED = "expired_token"
    UNKNOWN = "invalid_grant"


class Logins:
    """The logins of all organisations."""

    def __init__(self, database: Database, settings: LoginSettings, hasher: TokenHasher, clock: Clock) -> None:
        self._database = database
        self._settings = settings
        self._hasher = hasher
        self._clock = clock

    async def begin(self, asking: Asking) -> tuple[str, str]:
        """A new login that waits: the code that the program keeps, and the one that the person types.

        Raises TooManyRequests when as many wait as may.
        """
        user_code = "".join(secrets.choice(USER_CODE_LETTERS) for _ in range(USER_CODE_LENGTH))
        secret = await self._insert(asking, user_code=user_code)
        return secret, f"{user_code[:_GROUP_LENGTH]}-{user_code[_GROUP_LENGTH:]}"

    async def approve_at_once(self, asking: Asking, grants: Sequence[Grant], challenge: str) -> str:
        """A login that a person has approved already: the code for their browser to carry to the program, which must
        know what `challenge` was made of (RFC 7636). Raises TooManyRequests as `begin` does."""
        return await self._insert(asking, grants=grants, challenge=challenge)

    async def find(self, user_code: str) -> Asking | None:
        """Who waits under this code as a person typed it; None for one that is wrong, decided or expired."""
        row = await self._database.fetchrow(_FIND, self._hash_typed(user_code), self._clock.now())
        return None if row is None else _asking(row)

    async def decide(self, user_code: str, grants: Sequence[Grant]) -> bool:
        """Approve the login, or deny it by granting nothing; False when it waits no longer."""
        state, told = ("approved", _json(grants)) if grants else ("denied", None)
        done = await self._database.execute(_DECIDE, self._hash_typed(user_code), state, told, self._clock.now())
        return done.endswith(" 1")

    async def ask(self, secret: str, asked_with: str) -> Approved | Refused:
        """What came of a login. Once it is approved only `asked_with`, the name of a request that may be repeated,
        gets the answer from then on."""
        now = self._clock.now()
        asked_hash = self._hasher.hash(asked_with)
        fraction = 1 - _EARLY_FRACTION
        row = await self._database.fetchrow(
            _ASK, self._hasher.hash(secret), now, asked_hash, _SLOW_DOWN_SECONDS, fraction
        )
        if row is None:
            return Refused.UNKNOWN
        if row["expires_at"] <= now:
            return Refused.EXPIRED
        if row["state"] == "pending":
            return Refused.SLOW_DOWN if row["early"] else Refused.PENDING
        if row["state"] == "denied":
            return Refused.DENIED
        if not row["is_its_own"]:
            return Refused.UNKNOWN
        return Approved(
            asking=_asking(row),
            grants=[Grant(**{**grant, "scopes": tuple(grant["scopes"]), "projects": tuple(grant["projects"])})
                    for grant in orjson.loads(row["grants"])],
            challenge=row["challenge"],
            expires_at=row["expires_at"],
        )  # fmt: skip

    async def grantee(self, grant: Grant) -> Principal | None:
        """The person who gave it, as they are now and within what they gave; None when they are no Member any more."""
        row = await self._database.fetchrow(_MEMBER, grant.org, grant.user)
        if row is None:
            return None
        role = Role(row["role"])
        return Principal(
            kind=PrincipalKind.USER,
            org=grant.org,
            id=grant.user,
            label=user_label(grant.user),
            scopes=meet(frozenset(grant.scopes), SCOPES_OF_ROLE[role]),
            projects=narrowed(frozenset(grant.projects), row["projects"]),
            user_uuid=grant.user,
            role=role.value,
        )

    async def forget(self) -> int:
        """Remove logins that have ended, some at a time; returns how many."""
        return int((await self._database.execute(_FORGET, self._clock.now() - _KEPT_FOR)).rsplit(" ", 1)[-1])

    async def _insert(
        self,
        asking: Asking,
        *,
        user_code: str | None = None,
        grants: Sequence[Grant] = (),
        challenge: str | None = None,
    ) -> str:
        await self.forget()
        secret, settings = secrets.token_urlsafe(_SECRET_BYTES), self._settings
        done = await self._database.execute(
            _BEGIN,
            self._hasher.hash(secret),
            None if user_code is None else self._hasher.hash(user_code),
            challenge,
            asking.client,
            asking.host,
            asking.address,
            "approved" if grants else "pending",
            _json(grants) if grants else None,
            settings.login_poll_seconds,
            asking.since,
            asking.since + timedelta(seconds=settings.login_seconds_max),
            settings.logins_open_max,
            settings.logins_open_per_address_max,
        )
        if not done.endswith(" 1"):
            raise ApiError(
                Reason.TOO_MANY_REQUESTS,
                "too many logins wait for somebody to decide about them, here or from this address",
                retry_after_seconds=settings.login_poll_seconds,
                fix="Finish one of them, or try again when they have ended, which takes minutes.",
            )
        return secret

    def _hash_typed(self, user_code: str) -> bytes:
        return self._hasher.hash("".join(letter for letter in user_code.upper() if letter in USER_CODE_LETTERS))


def _visible(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _asking(row: asyncpg.Record) -> Asking:
    return Asking(client=row["client"], host=row["host"], address=row["address"], since=row["created_at"])


def _json(grants: Sequence[Grant]) -> str:
    return orjson.dumps([asdict(grant) for grant in grants]).decode()
