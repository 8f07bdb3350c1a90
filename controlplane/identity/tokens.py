"""Credentials as they are made and stored: random text for the client, a keyed hash for us.

A token is 256 random bits behind a prefix that tells what it is. The table holds HMAC-SHA256 of it under a key derived
from the installation's secret, so a copy of the database opens nothing, and the time a look-up takes tells nothing
about the tokens that exist. `authenticator.py` looks tokens up.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from datetime import datetime

from pydantic import SecretStr

from controlplane.identity.keys import KeyPurpose, derive_key
from controlplane.identity.principal import AttemptBinding
from controlplane.identity.scopes import ACCOUNT_WORKER_SCOPES, ATTEMPT_SCOPES
from controlplane.kinds.invite import EXPIRED
from controlplane.store.database import Database

API_KEY_PREFIX = "nodus_"
ATTEMPT_PREFIX = "nodusatt_"

ATTEMPT = "attempt"
_RANDOM_BYTES = 32
TOKEN_FORM = re.compile(rf"(?:{API_KEY_PREFIX}|{ATTEMPT_PREFIX})[A-Za-z0-9_-]{{43}}")
"""Anything else cannot be a token of ours and is refused without a look-up."""

INSERT_API_KEY = """
INSERT INTO tokens (hash, kind, org, principal, name, scopes, projects, created_at, expires_at, role, owner)
VALUES ($1, 'apikey', $2, $3, $4, $5, $6, $7, $8, $9, $10)
"""
"""`owner` is the uid of the Member whose role bounds the key; `role` bounds a key that has none."""

# A token that was already given out for the attempt dies, so only the node that asked last speaks for it. No lock is
# needed against the attempt's end: a look-up compares the two.
MINT = """
WITH live AS (
    SELECT uid, org, project, function, function_uid, epoch, concurrency FROM attempts
    WHERE uid = $1 AND epoch = $2 AND finished_at IS NULL
), replaced AS (
    DELETE FROM tokens WHERE attempt IN (SELECT uid FROM live)
), minted AS (
    INSERT INTO tokens (hash, kind, org, principal, name, project, function, function_uid, attempt, epoch,
                        scopes, projects, created_at, owner)
    SELECT $3, 'attempt', org, uid, uid, project, function, function_uid, uid, epoch, $4::text[], ARRAY[project], $5, $6
    FROM live
)
SELECT project, function, function_uid, concurrency FROM live
"""
REVOKE_ATTEMPT = "UPDATE tokens SET revoked_at = $2 WHERE attempt = $1 AND revoked_at IS NULL"
"""Ends the token of an attempt (uid, time) before the attempt itself ends; afterwards it is ended anyway, because a
look-up compares the attempt's state and epoch. For `Tx.execute` of whoever fences a worker."""
PURGE = f"""
DELETE FROM tokens WHERE hash IN (
    SELECT t.hash FROM tokens t LEFT JOIN attempts a ON a.uid = t.attempt LEFT JOIN objects o ON o.uid = t.uid
    WHERE (t.kind = 'attempt' AND (a.uid IS NULL OR a.finished_at < $1))
        OR (t.expires_at < $1 AND (o.uid IS NULL OR o.doc -> 'status' ->> 'phase' = '{EXPIRED}'))
        OR (t.kind = 'attempt' AND t.revoked_at < $1)
    LIMIT 1000)
"""  # noqa: S608 - a constant


def new_api_key() -> str:
    """A fresh key for people and programs; the only time it exists in the clear."""
    return API_KEY_PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)


class TokenHasher:
    """Computes what is stored of a token."""

    def __init__(self, secret_key: SecretStr) -> None:
        self._key = derive_key(secret_key, KeyPurpose.TOKEN_HASHES)

    def hash(self, token: str) -> bytes:
        """The keyed hash of a token, 32 bytes."""
        return hmac.digest(self._key, token.encode(), hashlib.sha256)


async def mint_attempt_token(
    database: Database, hasher: TokenHasher, *, attempt: str, epoch: int, now: datetime, account_uid: str | None = None
) -> tuple[str, AttemptBinding] | None:
    """A token for the worker of a live attempt, and what it is bound to; None when the attempt has ended, is unknown or
    has another epoch. A token minted earlier for the same attempt stops working. With the uid of a ServiceAccount its
    worker acts as that, as long as it is there and with the scopes that it has at the moment.
    """
    token = ATTEMPT_PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
    scopes = sorted(ATTEMPT_SCOPES if account_uid is None else ACCOUNT_WORKER_SCOPES)
    rows = await database.fetch(MINT, attempt, epoch, hasher.hash(token), scopes, now, account_uid)
    if not rows:
        return None
    row = rows[0]
    binding = AttemptBinding(
        project=row["project"],
        function=row["function"],
        function_uid=row["function_uid"],
        attempt=attempt,
        epoch=epoch,
        concurrency=row["concurrency"],
    )
    return token, binding


async def purge_tokens(database: Database, before: datetime) -> int:
    """Remove up to 1,000 tokens that ended before a time; returns how many."""
    return int((await database.execute(PURGE, before)).rsplit(" ", 1)[-1])
