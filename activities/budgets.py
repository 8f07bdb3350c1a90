"""What the sweeper does for Budgets: what their status says, the Events of their thresholds, and what was missed.

Spending is counted where it happens (`controlplane/ledger/reservations.py`); here it is told. A process may also have
dispatched or ended a call in the moment before it heard of a new Budget: such calls are found by comparing the
reservations with what runs, which is due whenever it is looked at, so a crash costs a turn.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from activities.chores import Chore
from controlplane.clock import Clock
from controlplane.ledger.budget_status import TellBudget
from controlplane.ledger.limits import Documents, Limit, SpendingLimits, budget_limit, limit_at
from controlplane.ledger.spending_repairs import (
    AddReservations,
    FollowObject,
    OpenLimit,
    SettleDispatches,
    ended_unnoticed,
    limits_behind,
    limits_without_row,
    miscount,
    running_unnoticed,
)
from controlplane.store.cache import ObjectCache
from controlplane.store.contract import Key
from controlplane.store.database import Database
from controlplane.store.writer import Writer

log = structlog.get_logger(__name__)

PER_TURN = 500
"""Calls in one commit."""
RECOUNTED_PER_TURN = 100
"""Limits compared with the ledger in a minute; more take turns. Each reads what was charged in its period."""


class LimitsOfWorkers:
    """What limits the workers of Functions, with a row for each, as their starts and renewals need it."""

    def __init__(self, database: Database, writer: Writer, known: Documents, clock: Clock) -> None:
        self._database = database
        self._writer = writer
        self._known = known
        self._clock = clock
        self._limits = SpendingLimits(known)

    async def opened(self, function: Key) -> Sequence[Limit]:
        """The limits of a Function's workers; where there are none it asks nothing."""
        limits = self._limits.of_workers(function, self._known.get(function))
        await self.open(limits)
        return limits

    async def open(self, limits: Sequence[Limit]) -> None:
        """Make the rows of those limits that nobody has asked about yet."""
        known = {limit.id: limit for limit in limits}
        for limit_id in await limits_without_row(self._database, list(known)) if known else ():
            await self._writer.write(OpenLimit(known[limit_id], self._clock.now()))


class BudgetKeeper:
    """The chores."""

    def __init__(self, database: Database, writer: Writer, cache: ObjectCache, clock: Clock) -> None:
        self._database = database
        self._writer = writer
        self._cache = cache
        self._clock = clock
        self._of_workers = LimitsOfWorkers(database, writer, cache, clock)
        self._recounted = ""
        """The limit that was compared with the ledger last."""
        self.chores = (
            Chore("reconcile budgets", 5.0, self.reconcile),
            Chore("tell budgets", 2.0, self.tell),
            Chore("recount budgets", 60.0, self.recount),
        )

    async def reconcile(self) -> None:
        """Give back what is held for calls that run no more, hold what runs unnoticed, and let rows follow their
        objects."""
        keys, limits = self._present_limits()
        if not limits:
            return
        await self._of_workers.open(list(limits.values()))
        for limit_id in await limits_behind(self._database, list(limits.values())):
            await self._writer.write(FollowObject(keys[limit_id]))
        more = True
        while more:
            ended = await ended_unnoticed(self._database, PER_TURN)
            if ended:
                await self._writer.write(SettleDispatches(ended))
            more = len(ended) == PER_TURN
        for limit in limits.values():
            running = await running_unnoticed(self._database, limit, PER_TURN)
            if running:
                await self._writer.write(AddReservations(limit, running))

    async def recount(self) -> None:
        """Let rows tell what the ledger says: a process that had not heard of a Budget counted nothing for it."""
        keys, limits = self._present_limits()
        ids = sorted(limits)
        ids = [each for each in ids if each > self._recounted] + [each for each in ids if each <= self._recounted]
        for limit_id in ids[:RECOUNTED_PER_TURN]:
            wrong = await miscount(self._database, limits[limit_id])
            if wrong is not None:
                log.warning(
                    "a limit missed what was spent",
                    limit=wrong.limit.told,
                    org=wrong.limit.org,
                    spent_micro_usd=wrong.spent_micro_usd,
                    charged_micro_usd=wrong.charged_micro_usd,
                )
                await self._writer.write(FollowObject(keys[limit_id]))
            self._recounted = limit_id

    async def tell(self) -> None:
        """Bring the status of each Budget to what its row says, with an Event for each threshold that it reached."""
        for key, document in self._cache.of_kind("Budget"):
            await self._writer.write(TellBudget(key, budget_limit(key, document)))

    def _present_limits(self) -> tuple[dict[str, Key], dict[str, Limit]]:
        """Where each limit is set, and what it is, by id."""
        known = [*self._cache.of_kind("Budget"), *self._cache.of_kind("Function")]
        found = [(key, limit) for key, document in known if (limit := limit_at(key, document)) is not None]
        return {limit.id: key for key, limit in found}, {limit.id: limit for _, limit in found}
