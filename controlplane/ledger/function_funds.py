"""What the status of a Function says about money beyond its total: holds of its workers, what is left, segments.

Read by the autoscaler when it looks at Functions, in a few indexed queries for all of them; a server without a price
asks none.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from controlplane.ledger.accounts import BALANCE, balance_of
from controlplane.ledger.limits import Documents, Limit, SpendingLimits
from controlplane.ledger.reservations import LIMIT_ROWS, left_for_workers, remaining
from controlplane.ledger.worker_accounts import FundingRules
from controlplane.placement.capacity import Capacity
from controlplane.store.contract import Document, Key
from controlplane.store.database import Database

_HELD = """
SELECT function_uid, sum(held_micro_usd)::bigint AS held_micro_usd, min(funded_until) AS funded_until
FROM worker_accounts WHERE function_uid = ANY($1::text[]) GROUP BY function_uid
"""

SEGMENTS = """
SELECT function_uid, segment, amount_micro_usd, seconds, covered_seconds
FROM function_segments WHERE function_uid = ANY($1::text[]) ORDER BY segment
"""


@dataclass(frozen=True, kw_only=True)
class SegmentSum:
    """What all workers of a Function came to in one segment so far; of Running without what calls were charged."""

    amount_micro_usd: int
    seconds: int
    covered_seconds: int


@dataclass(frozen=True, kw_only=True)
class Cap:
    """What a Function's `maxCostUSD` leaves once all that runs has given back what it reserves, in micro-USD."""

    limit_micro_usd: int
    left_micro_usd: int
    worker_micro_usd: int
    """The least that one more worker reserves of it."""
    refused_micro_usd: int
    """The last call that had no room in it."""

    def is_reached(self, *, queued: int, running: int) -> bool:
        """Whether it pays for nothing any more: for no worker, or for none of the calls while nothing runs whose end
        would leave more than was thought. Then a worker would only cost what no call can use."""
        stuck = queued > 0 and not running and self.left_micro_usd < self.refused_micro_usd
        return stuck or self.left_micro_usd < self.worker_micro_usd


@dataclass(frozen=True, kw_only=True)
class FunctionFunds:
    """How a Function is funded now: what may still be held or reserved, of whatever has least."""

    held_micro_usd: int = 0
    funded_until: datetime | None = None
    """When the first of its workers must hold again."""
    needed_micro_usd: int = 0
    """The least that one more worker holds."""
    available_micro_usd: int | None = None
    """What may still be held; None when nobody limits it."""
    segments: Mapping[str, SegmentSum] = field(default_factory=dict)
    cap: Cap | None = None
    """Its `maxCostUSD`, if it has one."""

    @property
    def workers_more(self) -> int | None:
        """How many more workers the money reaches for; None when it always does."""
        if self.available_micro_usd is None or not self.needed_micro_usd:
            return None
        return self.available_micro_usd // self.needed_micro_usd


UNPRICED = FunctionFunds()
"""Of a Function whose workers cost nothing."""


async def function_funds(
    database: Database,
    rules: FundingRules,
    capacities: Mapping[str, Capacity],
    functions: Mapping[Key, Document],
    known: Documents,
    now: datetime,
) -> dict[str, FunctionFunds]:
    """How these Functions are funded, by uid. `capacities` is what one more worker of each costs, and empty
    where nothing ever costs anything; `known` has the Budgets."""
    orgs: dict[str, str] = {function["metadata"]["uid"]: key.org for key, function in functions.items()}
    if not capacities:
        return dict.fromkeys(orgs, UNPRICED)
    uids = list(orgs)
    limits = SpendingLimits(known)
    covering = {function["metadata"]["uid"]: limits.blocking(key, function) for key, function in functions.items()}
    capping = {limit.id: limit for found in covering.values() for limit in found if limit.function_uid is not None}
    held, sums, balances, left, spent = await asyncio.gather(
        database.fetch(_HELD, uids),
        database.fetch(SEGMENTS, uids),
        database.fetch(BALANCE.sql, list(set(orgs.values()))),
        left_for_workers(database, covering, now),
        database.fetch(LIMIT_ROWS.sql, list(capping)) if capping else _nothing(),
    )
    reserved = {
        uid: rules.least_reserved_micro_usd(each.rate_micro_usd_per_hour, each.billing)
        for uid, each in capacities.items()
    }
    caps = _caps(capping, {record["key"]: dict(record) for record in spent}, reserved, now)
    holds = {record["function_uid"]: record for record in held}
    available = {record["key"]: balance_of(dict(record)).holdable_micro_usd for record in balances}
    scarce = {
        uid: _scarcer(
            (available[org], rules.least_micro_usd(each.rate_micro_usd_per_hour, each.billing)),
            (left[uid], reserved[uid]),
        )
        for (uid, org), each in zip(orgs.items(), (capacities[uid] for uid in orgs), strict=True)
    }
    segments: dict[str, dict[str, SegmentSum]] = {}
    for record in sums:
        segments.setdefault(record["function_uid"], {})[record["segment"]] = segment_sum(record)
    return {
        uid: FunctionFunds(
            held_micro_usd=holds[uid]["held_micro_usd"] if uid in holds else 0,
            funded_until=holds[uid]["funded_until"] if uid in holds else None,
            needed_micro_usd=scarce[uid][1],
            available_micro_usd=scarce[uid][0],
            segments=segments.get(uid, {}),
            cap=caps.get(uid),
        )
        for uid in orgs
    }


def _caps(
    limits: Mapping[str, Limit], rows: Mapping[str, Mapping[str, Any]], reserved: Mapping[str, int], now: datetime
) -> dict[str, Cap]:
    """How the caps of Functions stand, by uid; one that nobody has asked about has no row."""
    return {
        uid: Cap(
            limit_micro_usd=limit.limit_micro_usd,
            left_micro_usd=remaining(limit, [rows[uid]] if uid in rows else [], now),
            worker_micro_usd=reserved[uid],
            refused_micro_usd=(rows[uid]["refused_micro_usd"] or 0) if uid in rows else 0,
        )
        for uid, limit in limits.items()
    }


async def _nothing() -> Sequence[Any]:
    return ()


def _scarcer(*funds: tuple[int | None, int]) -> tuple[int | None, int]:
    """Of what is available and what of it one more worker needs, that which suffices for fewest."""
    return min(funds, key=lambda fund: math.inf if fund[0] is None or not fund[1] else fund[0] // fund[1])


def segment_sum(record: Any) -> SegmentSum:  # noqa: ANN401 - a driver row
    """The sum in a row of `SEGMENTS`."""
    return SegmentSum(
        amount_micro_usd=record["amount_micro_usd"],
        seconds=record["seconds"],
        covered_seconds=record["covered_seconds"],
    )
