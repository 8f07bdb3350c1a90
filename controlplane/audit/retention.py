"""Forgetting old events without breaking the chain.

Whole seals are forgotten, the oldest first. A checkpoint comes before: the hash from which the chain goes on, stored in
one transaction with an event that tells of it. Only what a checkpoint covers can be deleted (a trigger of the tables).
If the process dies after the checkpoint, the next look deletes what it covers.
"""

from __future__ import annotations

from datetime import datetime

from controlplane import failpoints
from controlplane.audit.chain import Head
from controlplane.audit.entries import PART, ActorKind, AuditEntry
from controlplane.identity.bootstrap import FIRST_ORG
from controlplane.store.contract import Loader, Reads, Tx
from controlplane.store.database import Database
from controlplane.store.writer import Writer

RETENTION_VERB = "forget"
DELETED_EVENTS_MAX = 2_000
"""Events deleted in one statement, so that no lock is held for long."""

_OLD = Loader(
    "audit-old-seals",
    """SELECT asked.key, s.number, s.last_seq, s.hash FROM unnest($1::timestamptz[]) AS asked(key),
    LATERAL (SELECT number, last_seq, hash FROM audit_seals WHERE sealed_at < asked.key
        AND number > (SELECT coalesce(max(seal), 0) FROM audit_checkpoints)
        AND number < (SELECT max(number) FROM audit_seals) ORDER BY number DESC LIMIT 1) AS s""",
)
_CHECKPOINT = "INSERT INTO audit_checkpoints (seal, created_at, last_seq, hash) VALUES ($1, $2, $3, $4)"
_RELEASED = "SELECT max(last_seq) FROM audit_checkpoints"
_DELETE_EVENTS = """
DELETE FROM audit_events WHERE seq IN (SELECT seq FROM audit_events WHERE seq <= $1 ORDER BY seq LIMIT $2)
"""
_DELETE_SEALS = "DELETE FROM audit_seals WHERE last_seq <= $1"


async def set_checkpoint(writer: Writer, before: datetime) -> Head | None:
    """Release what was sealed before then, but for the newest seal; None when there is nothing new to release."""
    head = await writer.write(SetCheckpoint(before))
    failpoints.reach("audit-released")
    return head


async def forget_released(database: Database) -> bool:
    """Delete some of what a checkpoint covers; whether there is more."""
    released = await database.fetchval(_RELEASED)
    if released is None:
        return False
    status = await database.execute(_DELETE_EVENTS, released, DELETED_EVENTS_MAX)
    if int(status.rpartition(" ")[2]) == DELETED_EVENTS_MAX:
        return True
    # After their events: a seal without events is nobody's proof of anything.
    await database.execute(_DELETE_SEALS, released)
    return False


def checkpoint_message(head: Head) -> str:
    """What the event of a checkpoint says; verification looks for just this."""
    return f"events up to number {head.last_seq} are no longer kept; the chain goes on from {head}"


class SetCheckpoint:
    """Stores a checkpoint and the event that tells of it."""

    def __init__(self, before: datetime) -> None:
        self._before = before

    def reads(self) -> Reads:
        return Reads(loads=((_OLD, self._before),))

    def apply(self, tx: Tx) -> Head | None:
        rows = tx.rows(_OLD, self._before)
        if not rows:
            return None
        head = Head(rows[0]["number"], rows[0]["hash"], rows[0]["last_seq"])
        tx.execute(_CHECKPOINT, (head.number, tx.now, head.last_seq, head.hash))
        entry = AuditEntry(
            created_at=tx.now, org=FIRST_ORG, kind="AuditEvent", verb=RETENTION_VERB, principal_kind=ActorKind.SERVER,
            code=200, reason="Deleted", message=checkpoint_message(head),
        )  # fmt: skip
        tx.join(PART, entry.as_row())
        return head
