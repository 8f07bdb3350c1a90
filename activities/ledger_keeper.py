"""What the sweeper does for the ledger: end holds and grants whose time has come, and look whether everything balances.

A ledger that does not balance is told in the log and as an Event of its organisation, one with a count, and nothing is
mended: `python -m workers ledger verify` tells all of it.
"""

from __future__ import annotations

import structlog

from activities.chores import Chore
from controlplane import metrics
from controlplane.clock import Clock
from controlplane.identity.bootstrap import FIRST_ORG
from controlplane.ledger.grants import Grants, LapseGrants
from controlplane.ledger.holds import ExpireHolds, overdue_holds
from controlplane.ledger.invariants import Breach, LedgerAuditor
from controlplane.store.contract import Document, Key, Reads, Tx
from controlplane.store.database import Database
from controlplane.store.events import WARNING, Happening, record_repeated
from controlplane.store.writer import Writer

log = structlog.get_logger(__name__)

PER_TURN = 200
UNBALANCED = "LedgerUnbalanced"


class LedgerKeeper:
    """The chores."""

    def __init__(self, database: Database, writer: Writer, clock: Clock) -> None:
        self._database = database
        self._writer = writer
        self._clock = clock
        self._auditor = LedgerAuditor(database)
        self._grants = Grants(database, clock)
        self.chores = (
            Chore("expire holds", 5.0, self.expire_holds),
            Chore("lapse grants", 10.0, self.lapse_grants),
            Chore("audit the ledger", 60.0, self.audit),
        )

    async def expire_holds(self) -> None:
        """End holds that nobody has posted or voided in their time."""
        more = True
        while more:
            found = await overdue_holds(self._database, self._clock.now(), PER_TURN)
            if found:
                log.info("holds expired", holds=await self._writer.write(ExpireHolds(found)))
            more = len(found) == PER_TURN

    async def lapse_grants(self) -> None:
        """Take back what is left of grants whose time is over."""
        for org in await self._grants.overdue():
            log.info("credit lapsed", org=org, micro_usd=await self._writer.write(LapseGrants(org)))

    async def audit(self) -> None:
        """Add up what was written since the last time, and tell what does not balance."""
        breaches = await self._auditor.look()
        metrics.add("nodus_ledger_audits_total")
        metrics.add("nodus_ledger_breaches_total", len(breaches))
        for breach in breaches:
            log.critical("the ledger does not balance", rule=breach.rule, told=breach.told, org=breach.org)
            await self._writer.write(TellBreach(breach))


class TellBreach:
    """Records the breach as an Event of its organisation; one that is known already is counted."""

    def __init__(self, breach: Breach) -> None:
        self._breach = breach
        # What belongs to no organisation alone is the operator's, whose own is the first.
        self._org = breach.org or FIRST_ORG
        self._key = Key("Event", self._org, "", "ledger-unbalanced")

    def reads(self) -> Reads:
        return Reads(keys=(self._key,))

    def apply(self, tx: Tx) -> Document:
        happening = Happening(
            key=Key("Organization", self._org, "", self._org),
            uid="",
            type=WARNING,
            reason=UNBALANCED,
            message=f"{self._breach.rule}, but {self._breach.told}; `python -m workers ledger verify` tells all of it",
        )
        return record_repeated(tx, self._key, happening)
