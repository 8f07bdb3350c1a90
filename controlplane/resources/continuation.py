"""`continue`: the token that carries a list from page to page at one snapshot (R-LIST-2).

It names the snapshot, the last key that was read and the list it belongs to, and is signed, so that a client can
neither make one nor change what it may reach. It is opaque: its form may change with any release, which costs a client
that holds an old one a list from the start. `listing.py` decides what a token means beside the other parameters.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

import orjson
from pydantic import SecretStr

from controlplane.errors import ApiError, Reason
from controlplane.identity.keys import KeyPurpose, derive_key
from controlplane.store.contract import Key, Selection

_DIGEST_LENGTH = 16
"""Hexadecimal digits: 64 bits tell the lists of one client apart."""
_SIGNATURE_BYTES = 16
"""128 bits cannot be guessed."""


class ContinueTokens:
    """Makes and reads tokens; all processes of an installation have the same key."""

    def __init__(self, secret_key: SecretStr) -> None:
        self._key = derive_key(secret_key, KeyPurpose.CONTINUE_TOKENS)

    def encode(self, selection: Selection, rv: int | None, last: Key) -> str:
        """The token of a list that read up to `last` at snapshot `rv`; None goes on with the present state."""
        content = orjson.dumps({"rv": rv, "after": [last.project, last.name], "of": _digest(selection)})
        return base64.urlsafe_b64encode(self._signature(content) + content).decode().rstrip("=")

    def decode(self, token: str, selection: Selection) -> tuple[Key, int | None]:
        """The last key read and the snapshot; 400 when the token is not ours or belongs to another list."""
        try:
            signed = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        except (binascii.Error, ValueError):
            signed = b""
        signature, content = signed[:_SIGNATURE_BYTES], signed[_SIGNATURE_BYTES:]
        if not hmac.compare_digest(signature, self._signature(content)):
            raise ApiError(Reason.BAD_REQUEST, "`continue` is not a token of this server", fix="List from the start.")
        told = orjson.loads(content)
        if told["of"] != _digest(selection):
            raise ApiError(
                Reason.BAD_REQUEST,
                "`continue` belongs to a list with other selectors or of another project",
                fix="Repeat the selectors of the first page, or list from the start.",
            )
        project, name = told["after"]
        return Key(selection.kind, selection.org, project, name), told["rv"]

    def _signature(self, content: bytes) -> bytes:
        return hmac.digest(self._key, content, "sha256")[:_SIGNATURE_BYTES]


def expired(fresh_token: str) -> ApiError:
    """The 410 of a token whose snapshot is gone, with one that goes on where it ended (R-LIST-3)."""
    return ApiError(
        Reason.EXPIRED,
        "the list of `continue` is older than the change log, so the rest of it cannot be shown as it was",
        fix="List from the start, or go on with the token in `metadata.continue`, which shows the rest as it is now.",
        metadata={"continue": fresh_token},
    )


def _digest(selection: Selection) -> str:
    """Names what a token lists, so that it is refused for another list."""
    projects = sorted(selection.projects) if selection.projects is not None else None
    text = repr((selection.kind, selection.org, selection.project, selection.labels, selection.fields, projects))
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_LENGTH]
