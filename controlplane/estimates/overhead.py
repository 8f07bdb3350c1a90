"""What a worker costs beside its calls, and what it holds: pure, by the rules of `ledger/worker_costs.py`.

A call that finds a ready worker causes neither. One that finds none has a worker started for it, which its Function
pays from its start to its end, and which stays for `scaledownWindow` after its last call. If other calls come meanwhile
they share that, so this is the most that one call adds and not what each of many does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from controlplane.estimates.bands import Amounts
from controlplane.ledger.pricing import Billing, call_charge_micro_usd
from controlplane.ledger.worker_accounts import FundingRules
from controlplane.machinery.quantities import parse_duration


@dataclass(frozen=True, kw_only=True)
class WorkerFacts:
    """What is known about the workers that would run it. Bands of durations are as the protocol shows them."""

    cold: Mapping[str, str]
    """What a start takes."""
    warm: Mapping[str, str] | None
    """What a call waits that finds a ready worker; None when there is none."""
    idle_seconds: float
    """How long a worker stays after its last call."""
    starts_at_once: int
    """Workers that the Function keeps, and so starts together; 1 for those that start with a call."""
    funding: FundingRules
    holdable_micro_usd: int | None
    """The largest hold that fits now; None when any does."""


def overhead(worker: WorkerFacts, rate_micro_usd_per_hour: int, billing: Billing) -> Amounts:
    """What starting a worker, keeping it for its window and stopping it costs; the stop takes nothing at best. The
    median has the rounding of the shortest call, the other the most that rounding adds to any."""
    if worker.warm is not None:
        return Amounts(p50_micro_usd=0, p90_micro_usd=0)

    median = math.ceil(parse_duration(worker.cold["p50"]) + worker.idle_seconds)
    longest = math.ceil(parse_duration(worker.cold["p90"]) + worker.idle_seconds) + worker.funding.teardown_seconds_max
    shortest_call = 1
    return Amounts(
        p50_micro_usd=call_charge_micro_usd(
            billing.billed_seconds(median + shortest_call) - shortest_call, rate_micro_usd_per_hour, 1
        ),
        p90_micro_usd=call_charge_micro_usd(
            max(longest + billing.increment_seconds - 1, billing.minimum_seconds - shortest_call),
            rate_micro_usd_per_hour,
            1,
        ),
    )


def first_hold_micro_usd(worker: WorkerFacts, rate_micro_usd_per_hour: int, billing: Billing) -> int:
    """What the first worker holds when it starts, where the money reaches for a whole window; nothing if one is
    ready."""
    return 0 if worker.warm is not None else worker.funding.first_micro_usd(rate_micro_usd_per_hour, billing)


def minimum_micro_usd(rate_micro_usd_per_hour: int, billing: Billing) -> int:
    """The least that a worker is charged, its calls included: the increment or the minimum of its class, once."""
    return call_charge_micro_usd(billing.billed_seconds(1), rate_micro_usd_per_hour, 1)


def lacking_micro_usd(worker: WorkerFacts, rate_micro_usd_per_hour: int, billing: Billing) -> int:
    """How much more must be free before a worker can start: less than a window is held where less is left, down to the
    shortest."""
    if worker.warm is not None or worker.holdable_micro_usd is None:
        return 0
    return max(0, worker.funding.least_micro_usd(rate_micro_usd_per_hour, billing) - worker.holdable_micro_usd)
