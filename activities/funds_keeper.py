"""What the sweeper does for workers that cost something: renew what they hold before it is used up.

A worker that cannot be paid any more is marked to go in the commit that finds out; the autoscaler, which looks at every
Function with workers, tells it.
"""

from __future__ import annotations

import structlog

from activities.budgets import LimitsOfWorkers
from activities.chores import Chore
from controlplane import failpoints
from controlplane.calls.worker_settlement import RenewFunds
from controlplane.clock import Clock
from controlplane.ledger.limits import Documents
from controlplane.ledger.worker_accounts import FundingRules, due_accounts
from controlplane.store.contract import Key
from controlplane.store.database import Database
from controlplane.store.writer import Writer

log = structlog.get_logger(__name__)

PER_TURN = 200
RENEW_SECONDS = 5.0
"""A fraction of the time by which holds are renewed early."""


class FundsKeeper:
    """The chore."""

    def __init__(self, database: Database, writer: Writer, known: Documents, rules: FundingRules, clock: Clock) -> None:
        self._database = database
        self._writer = writer
        self._rules = rules
        self._clock = clock
        self._limits = LimitsOfWorkers(database, writer, known, clock)
        self.chores = (Chore("renew funds", RENEW_SECONDS, self.renew),)

    async def renew(self) -> None:
        """Hold the next window of every worker whose present one is nearly over."""
        due = await due_accounts(self._database, self._clock.now(), PER_TURN)
        while due:
            renewed = [await self._renew(*keys) for keys in due]
            failpoints.reach("funds-renewed")
            more = len(due) == PER_TURN and any(renewed)
            due = await due_accounts(self._database, self._clock.now(), PER_TURN) if more else []

    async def _renew(self, attempt: Key, function: Key) -> bool:
        """Whether there was something to renew."""
        return await self._writer.write(RenewFunds(attempt, self._rules, await self._limits.opened(function)))
