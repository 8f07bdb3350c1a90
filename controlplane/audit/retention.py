"""Forgetting old events without breaking the chain.

Whole seals are forgotten, the oldest first, and only those that agree with the chain: what decides over their age,
their own time and that of their events, is covered by their hashes, and whoever made either older finds nothing
forgotten. A checkpoint comes before: the hash from which the chain goes on, stored in one transaction with an event
that tells of it. Only what a checkpoint covers can be deleted (a trigger of the tables). If the process dies after the
checkpoint, the next look deletes what it covers.
"""

from __future__ import annotations

from datetime import datetime

import structlog

from controlplane import failpoints
from controlplane.audit.chain import RETENTION_VERB, Head, checkpoint_message
from controlplane.audit.entries import PART, ActorKind, AuditEntry
from controlplane.audit.verification import Verdict, begin, look, next_seal
from controlplane.identity.bootstrap import FIRST_ORG
from controlplane.store.contract import Loader, Reads, Tx
from controlplane.store.database import Database
from controlplane.store.writer import Writer

log = structlog.get_logger(__name__)

RELEASED_SEALS_MAX = 1_000
"""Seals verified and released by one checkpoint: some more than are made in an hour, so one look keeps up."""
DELETED_EVENTS_MAX = 2_000
"""Events deleted in one statement, so that no lock is held for long."""

_STANDING = Loader(
    "audit-seal-to-release",
    """SELECT asked.key, s.hash FROM unnest($1::bigint[]) AS asked(key) JOIN audit_seals s ON s.number = asked.key
    WHERE s.number > (SELECT coalesce(max(seal), 0) FROM audit_checkpoints)""",
)
_NEWEST = "SELECT coalesce(max(number), 0) FROM audit_seals"
_CHECKPOINT = "INSERT INTO audit_checkpoints (seal, created_at, last_seq, hash) VALUES ($1, $2, $3, $4)"
_RELEASED = "SELECT max(last_seq) FROM audit_checkpoints"
_DELETE_EVENTS = """
DELETE FROM audit_events WHERE seq IN (SELECT seq FROM audit_events WHERE seq <= $1 ORDER BY seq LIMIT $2)
"""
_DELETE_SEALS = "DELETE FROM audit_seals WHERE last_seq <= $1"


async def set_checkpoint(database: Database, writer: Writer, before: datetime) -> Head | None:
    """Release some of what was written and sealed before then, but for the newest seal; None when there is nothing new
    to release. Nothing from a seal on that does not agree with the chain is released, which is logged."""
    found = await _old(database, before)
    head = None if found is None else await writer.write(SetCheckpoint(found))
    failpoints.reach("audit-released")
    return head


async def _old(database: Database, before: datetime) -> Head | None:
    """The last of the old seals that agree with the chain, at most RELEASED_SEALS_MAX further than the last time."""
    verdict, found = Verdict(), None
    async with database.snapshot() as connection:
        newest = await connection.fetchval(_NEWEST)
        await begin(connection, verdict)
        while not verdict.tamperings and verdict.seals < RELEASED_SEALS_MAX:
            row = await next_seal(connection, verdict)
            if row is None or row["number"] >= newest or row["sealed_at"] >= before:
                break
            if await look(connection, verdict, row) >= before or verdict.tamperings:
                break
            found = verdict.head
    for tampering in verdict.tamperings:
        log.error("old audit events stay: they do not agree with the chain", at=tampering.where, why=tampering.told)
    return found


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


class SetCheckpoint:
    """Stores a checkpoint at a seal that was found to be old, and the event that tells of it."""

    def __init__(self, head: Head) -> None:
        self._head = head

    def reads(self) -> Reads:
        return Reads(loads=((_STANDING, self._head.number),))

    def apply(self, tx: Tx) -> Head | None:
        """None when another process was faster."""
        head, rows = self._head, tx.rows(_STANDING, self._head.number)
        if not rows or rows[0]["hash"] != head.hash:
            return None
        tx.execute(_CHECKPOINT, (head.number, tx.now, head.last_seq, head.hash))
        entry = AuditEntry(
            created_at=tx.now, org=FIRST_ORG, kind="AuditEvent", verb=RETENTION_VERB, principal_kind=ActorKind.SERVER,
            code=200, reason="Deleted", message=checkpoint_message(head),
        )  # fmt: skip
        tx.join(PART, entry.as_row())
        return head
