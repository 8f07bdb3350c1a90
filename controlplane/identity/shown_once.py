"""A token that the answer to a create shows once, sealed in the answer that is kept for repetitions (decision 0030).

Hooks of kinds that make tokens keep one here in the transaction; `Creator` opens it on the way out.
"""

from __future__ import annotations

from base64 import b64decode, b64encode

import orjson

from controlplane.secrets.sealing import SecretSealer
from controlplane.store.contract import Document, Tx

_TOKEN = "token"  # noqa: S105 - a name
_SEALED = "identity-sealed-tokens"


class ShownOnce:
    """The tokens of one kind."""

    def __init__(self, sealer: SecretSealer) -> None:
        self._sealer = sealer

    def keep(self, tx: Tx, uid: str, token: str) -> None:
        """Let the answer to the create of this object tell the token."""
        tx.scratch(_SEALED)[uid] = b64encode(self._sealer.seal(uid, 0, {_TOKEN: token.encode()})).decode()

    def answered(self, tx: Tx, document: Document) -> Document:
        """The new object with its token, sealed as it is kept with the answer; an older one has none to show."""
        sealed = tx.scratch(_SEALED).get(document["metadata"]["uid"])
        return document if sealed is None else _with_token(document, sealed)

    def revealed(self, body: bytes) -> bytes:
        """The answer with its token opened; a rehearsal's object does not exist, so it has no token."""
        document: Document = orjson.loads(body)
        sealed = document.get("status", {}).get(_TOKEN)
        if sealed is None:
            return body
        metadata = document["metadata"]
        if "resourceVersion" not in metadata:
            status = {name: value for name, value in document["status"].items() if name not in (_TOKEN, "prefix")}
            return orjson.dumps({**document, "status": status})
        opened = self._sealer.open(metadata["uid"], 0, b64decode(sealed))
        return orjson.dumps(_with_token(document, opened[_TOKEN].decode()))


def _with_token(document: Document, token: str) -> Document:
    return {**document, "status": {**document["status"], _TOKEN: token}}
