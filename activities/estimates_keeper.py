"""Keeps the estimates of Functions up to date: part of the sweeper.

Looks at Functions whose calls ended since the last turn, and at those that were told another price than is in force,
a bounded number at a time. What is left, or lost with a process, is found by a later turn or the next call that ends.
"""

from __future__ import annotations

import asyncio

from activities.chores import Chore
from controlplane.clock import Clock
from controlplane.estimates.estimator import FUNCTION_KIND, Estimator
from controlplane.estimates.refreshing import ENDED_SINCE, RefreshEstimate, is_priced_otherwise
from controlplane.placement.placements import Placements
from controlplane.store.cache import ObjectCache
from controlplane.store.contract import Key
from controlplane.store.database import Database
from controlplane.store.writer import Writer

PER_TURN = 64
"""Functions; each costs three queries, and a write if its estimate changed."""
REFRESH_SECONDS = 30.0
"""A price that changed is told this late; what a call is charged is decided when its worker starts."""
_PLACED_PER_TURN = 16
"""Functions placed before the event loop does something else: one takes milliseconds in a large book."""


class EstimatesKeeper:
    """The chore."""

    def __init__(
        self,
        *,
        database: Database,
        writer: Writer,
        cache: ObjectCache,
        estimator: Estimator,
        placements: Placements,
        clock: Clock,
    ) -> None:
        self._database = database
        self._writer = writer
        self._cache = cache
        self._estimator = estimator
        self._placements = placements
        self._clock = clock
        self._since = clock.now()
        self.chores = (Chore("refresh estimates", REFRESH_SECONDS, self.refresh),)

    async def refresh(self) -> None:
        """Estimate anew what is out of date."""
        now = self._clock.now()
        ended = await self._database.fetch(ENDED_SINCE, self._since, PER_TURN)
        due = [Key(FUNCTION_KIND, row["org"], row["project"], row["function"]) for row in ended]
        due += await self._priced_otherwise()
        for key in dict.fromkeys(due):
            function = self._cache.get(key)
            quote = await self._estimator.quote(key, function) if function is not None else None
            if function is not None and quote is not None:
                await self._writer.write(RefreshEstimate(key, function, quote.estimate))
        self._since = ended[-1]["last_end_at"] if len(ended) == PER_TURN else now

    async def _priced_otherwise(self) -> list[Key]:
        """Functions that were told another price; placing many takes a while, so others get their turns."""
        found: list[Key] = []
        for number, (key, function) in enumerate(self._cache.of_kind(FUNCTION_KIND)):
            if len(found) == PER_TURN:
                break
            if number % _PLACED_PER_TURN == _PLACED_PER_TURN - 1:
                await asyncio.sleep(0)
            if is_priced_otherwise(function, self._placements.of(function["spec"])):
                found.append(key)
        return found
