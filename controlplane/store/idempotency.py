"""Idempotency keys: the first answer to a keyed request, stored with the change it answers.

The row is written in the transaction of the change, so there is no moment in which one exists without the other;
whoever repeats the request meets the row and gets the same answer. Rows live for a day (`compaction.py` removes
them).
"""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.errors import ApiError, Reason
from controlplane.store.contract import Loader, Tx

KEY_LENGTH_MAX = 255
"""The protocol's limit."""

# The argument is scope and key joined by \x01, which neither can contain: paths come quoted, such keys are refused.
LOOKUP = Loader(
    "idempotency",
    """SELECT k.key, i.digest, i.status, i.body FROM unnest($1::text[]) AS k(key)
    JOIN idempotency i ON i.scope = split_part(k.key, E'\\x01', 1) AND i.key = split_part(k.key, E'\\x01', 2)""",
    as_json=True,
)
_INSERT = """
INSERT INTO idempotency (scope, key, digest, status, body, created_at)
SELECT scope, key, digest, status, body, created_at FROM json_populate_recordset(NULL::idempotency, $rows)
"""


@dataclass(frozen=True, slots=True)
class KeyedRequest:
    """A request with an Idempotency-Key: who sent what where, the key, and the fingerprint of its body."""

    scope: str
    key: str
    digest: str

    @property
    def argument(self) -> str:
        """What LOOKUP is asked for."""
        return f"{self.scope}\x01{self.key}"


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """The status and body that were sent first."""

    status: int
    body: bytes


def stored_answer(tx: Tx, request: KeyedRequest) -> StoredAnswer | None:
    """The answer already given to this key, or None. A different request under the same key is refused."""
    known = tx.scratch("idempotency").get(request.argument)
    if known is None:
        rows = tx.rows(LOOKUP, request.argument)
        if not rows:
            return None
        known = (rows[0]["digest"], StoredAnswer(rows[0]["status"], rows[0]["body"].encode()))
    digest, answer = known
    if digest != request.digest:
        raise ApiError(
            Reason.IDEMPOTENCY_KEY_REUSED, "this Idempotency-Key was used for a different request in the last 24 hours"
        )
    found: StoredAnswer = answer
    return found


def store_answer(tx: Tx, request: KeyedRequest, answer: StoredAnswer) -> None:
    """Remember the answer together with the change."""
    tx.scratch("idempotency")[request.argument] = (request.digest, answer)
    tx.join(
        _INSERT,
        {
            "scope": request.scope,
            "key": request.key,
            "digest": request.digest,
            "status": answer.status,
            "body": answer.body.decode(),
            "created_at": tx.now,
        },
    )
