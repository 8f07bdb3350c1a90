"""What a write of an Invite does beside its object: a token, made in the transaction and stored as a keyed hash.

The row is beside those of keys, and is none: tokens with its prefix are looked for by `joining.py` alone, so an invite
authenticates nobody. It goes with the object, or with the Member that comes of it.
"""

from __future__ import annotations

import secrets

from controlplane.clock import parse_time
from controlplane.identity.shown_once import ShownOnce
from controlplane.identity.tokens import TokenHasher
from controlplane.secrets.sealing import SecretSealer
from controlplane.store.contract import Document, Key, Tx
from controlplane.store.hooks import PlainHooks

INVITE_PREFIX = "nodusinv_"
_RANDOM_BYTES = 32
_PREFIX_LENGTH = len(INVITE_PREFIX) + 6
"""Characters that the object shows of it: what all have in common, and enough to tell a few apart."""
_INSERT = """
INSERT INTO tokens (hash, kind, org, principal, name, scopes, projects, created_at, expires_at, uid)
VALUES ($1, 'invite', $2, $3, $4, '{}', '{}', $5, $6, $3)
"""
DELETE_INVITE_TOKEN = "DELETE FROM tokens WHERE uid = $1"  # noqa: S105 - SQL
"""Ends the token of an invite, by its uid."""


class InviteHooks(PlainHooks):
    """The hooks of the kind Invite."""

    def __init__(self, sealer: SecretSealer, hasher: TokenHasher) -> None:
        self._shown = ShownOnce(sealer)
        self._hasher = hasher

    def admit_create(self, tx: Tx, key: Key, document: Document) -> Document:
        uid, token = document["metadata"]["uid"], INVITE_PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
        ends = parse_time(document["status"]["expirationTime"])
        tx.execute(_INSERT, (self._hasher.hash(token), key.org, uid, key.name, tx.now, ends))
        self._shown.keep(tx, uid, token)
        return {**document, "status": {**document["status"], "prefix": token[:_PREFIX_LENGTH]}}

    def answered(self, tx: Tx, key: Key, document: Document) -> Document:
        return self._shown.answered(tx, document)

    def revealed(self, body: bytes) -> bytes:
        return self._shown.revealed(body)

    def deleting(self, tx: Tx, key: Key, document: Document) -> Document:
        """The invite ends when its delete is asked, whatever finalizers still hold its object."""
        tx.execute(DELETE_INVITE_TOKEN, (document["metadata"]["uid"],))
        return document
