"""What a write of an APIKey does beside its object: the token, made in the transaction and stored as a keyed hash.

The answer to the create carries the token, and the answer to a create that is repeated under its Idempotency-Key must
carry it again, or a lost answer would lose the key. So the stored answer holds the token sealed, for the day that
answers are kept; nothing else can tell it. `Creator` opens it on the way out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controlplane.clock import parse_time
from controlplane.errors import ApiError, Reason, not_found
from controlplane.identity.shown_once import ShownOnce
from controlplane.identity.tokens import TokenHasher, new_api_key
from controlplane.machinery.kind import API_VERSION
from controlplane.secrets.sealing import SecretSealer
from controlplane.store.contract import Document, Key, Loader, Reads, Tx
from controlplane.store.hooks import PlainHooks

PREFIX_LENGTH = 12
"""Characters of a token that its object shows: what all have in common, and enough to tell a few apart."""

_MEMBER_OF_USER = Loader(
    "identity-member-of-user",
    """SELECT k.key, o.uid, o.name FROM unnest($1::text[]) AS k(key)
    JOIN credential_owners o ON o.org = split_part(k.key, '/', 1) AND o.user_uuid = split_part(k.key, '/', 2)""",
)
INSERT_KEY = """
INSERT INTO tokens (hash, kind, org, principal, name, scopes, projects, created_at, expires_at, owner, uid)
VALUES ($1, 'apikey', $2, $3, $4, $5, $6, $7, $8, $9, $10)
"""
_DELETE = "DELETE FROM tokens WHERE uid = $1"


class ApiKeyHooks(PlainHooks):
    """The hooks of the kind APIKey."""

    def __init__(self, sealer: SecretSealer, hasher: TokenHasher) -> None:
        self._shown = ShownOnce(sealer)
        self._hasher = hasher

    def reads_create(self, key: Key, document: Document) -> Reads:
        account = _account_of(key, document)
        if account is not None:
            return Reads(keys=(account,))
        return Reads(loads=((_MEMBER_OF_USER, _user_of(key, document)),))

    def admit_create(self, tx: Tx, key: Key, document: Document) -> Document:
        """The object with its prefix and owner; the token goes to the answer alone."""
        kind, name, uid = self._owner(tx, key, document)
        token, status, metadata = new_api_key(), document["status"], document["metadata"]
        expires = document["spec"].get("expirationTime")
        tx.execute(
            INSERT_KEY,
            (
                self._hasher.hash(token),
                key.org,
                status.get("user", uid),
                key.name,
                status["scopes"],
                status["projects"],
                tx.now,
                parse_time(expires) if expires else None,
                uid,
                metadata["uid"],
            ),
        )
        self._shown.keep(tx, metadata["uid"], token)
        owner = {"apiVersion": API_VERSION, "kind": kind, "name": name, "uid": uid}
        return {
            **document,
            "metadata": {**metadata, "ownerReferences": [owner]},
            "status": {**status, "prefix": token[:PREFIX_LENGTH]},
        }

    def answered(self, tx: Tx, key: Key, document: Document) -> Document:
        return self._shown.answered(tx, document)

    def revealed(self, body: bytes) -> bytes:
        return self._shown.revealed(body)

    def deleting(self, tx: Tx, key: Key, document: Document) -> Document:
        """The key ends when its delete is asked, whatever finalizers still hold its object."""
        tx.execute(_DELETE, (document["metadata"]["uid"],))
        return document

    @staticmethod
    def _owner(tx: Tx, key: Key, document: Document) -> tuple[str, str, str]:
        """Kind, name and uid of whoever the key belongs to."""
        account = _account_of(key, document)
        if account is not None:
            found = tx.get(account)
            if found is None or "deletionTimestamp" in found["metadata"]:
                raise not_found("serviceaccounts", account.name)
            return account.kind, account.name, found["metadata"]["uid"]
        rows: list[Mapping[str, Any]] = tx.rows(_MEMBER_OF_USER, _user_of(key, document))
        if not rows:
            raise ApiError(
                Reason.FORBIDDEN,
                "this credential belongs to no Member, so it can make no key of its own",
                details={"missingScope": "members:write"},
                fix="Name the Member that the key is for in `spec.member`.",
            )
        return "Member", rows[0]["name"], rows[0]["uid"]


def _account_of(key: Key, document: Document) -> Key | None:
    spec = document["spec"]
    if "serviceAccountName" not in spec:
        return None
    return Key("ServiceAccount", key.org, spec["project"], spec["serviceAccountName"])


def _user_of(key: Key, document: Document) -> str:
    return f"{key.org}/{document['status']['user']}"
