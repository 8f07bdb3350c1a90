"""What the sweeper does for the audit log: seal what was written, and forget what is old."""

from __future__ import annotations

from datetime import timedelta

import structlog

from activities.chores import Chore
from controlplane.audit.chain import seal
from controlplane.audit.retention import forget_released, set_checkpoint
from controlplane.clock import Clock
from controlplane.settings import Settings
from controlplane.store.database import Database
from controlplane.store.writer import Writer

log = structlog.get_logger(__name__)

SEALS_PER_TURN = 20
"""Links made in one turn, so that a long log without seals does not keep the other chores waiting."""


class AuditKeeper:
    """The chores."""

    def __init__(self, database: Database, writer: Writer, settings: Settings, clock: Clock) -> None:
        self._database = database
        self._writer = writer
        self._clock = clock
        self._kept_for = timedelta(days=settings.audit_retention_days)
        self.chores = (
            Chore("seal audit events", settings.audit_seal_seconds, self.seal),
            Chore("forget old audit events", 3_600.0, self.forget),
        )

    async def seal(self) -> None:
        """Seal what was written since the last time. Each head is logged, which keeps it outside of the database."""
        for _ in range(SEALS_PER_TURN):
            head = await seal(self._database, self._clock)
            if head is None:
                return
            log.info("audit events sealed", head=str(head), last_event=head.last_seq)

    async def forget(self) -> None:
        """Forget what was sealed longer ago than it is kept."""
        released = True
        while released:
            head = await set_checkpoint(self._database, self._writer, self._clock.now() - self._kept_for)
            released = head is not None
            if released:
                log.info("audit events released", upto=str(head))
            while await forget_released(self._database):
                pass
