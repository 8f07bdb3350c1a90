"""What calls will cost, told from what calls have cost: medians and 90th percentiles, pure.

A quantile is an order statistic of the past: the next value of a steady source is at most the k-th smallest of n past
ones with probability k / (n + 1). So 90 % of the next calls cost at most the ceil(0.9 (n + 1))-th, whatever the
distribution, and fewer than nine calls tell no 90th percentile at all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from controlplane.ledger.pricing import call_charge_micro_usd

SAMPLES_MIN = 9
"""With fewer, the 90th percentile would lie beyond all that was seen."""
_P50, _P90 = Fraction(1, 2), Fraction(9, 10)

PastCall = Sequence[int]
"""The whole seconds that each dispatch of an ended call was charged for."""


@dataclass(frozen=True, kw_only=True)
class Amounts:
    """A median and a 90th percentile in micro-USD."""

    p50_micro_usd: int
    p90_micro_usd: int


@dataclass(frozen=True, kw_only=True)
class Price:
    """What a second of a call costs: the rate of its worker, and how many places that has."""

    rate_micro_usd_per_hour: int
    shares: int

    def of(self, seconds: PastCall) -> int:
        """What a call with these dispatches costs, in micro-USD; each dispatch is rounded up by itself."""
        return sum(call_charge_micro_usd(each, self.rate_micro_usd_per_hour, self.shares) for each in seconds)


def from_past(past: Sequence[PastCall], price: Price) -> Amounts | None:
    """What such calls cost at this price; None when too few are known to say."""
    if len(past) < SAMPLES_MIN:
        return None
    ordered = sorted(price.of(seconds) for seconds in past)
    return Amounts(p50_micro_usd=_order_statistic(ordered, _P50), p90_micro_usd=_order_statistic(ordered, _P90))


def from_limits(timeout_seconds: float, retries_max: int, price: Price) -> Amounts:
    """Bounds for a call that nothing is known of: one run to its timeout, and the same with every retry."""
    seconds = max(1, math.ceil(timeout_seconds))
    return Amounts(p50_micro_usd=price.of([seconds]), p90_micro_usd=price.of([seconds] * (1 + retries_max)))


def _order_statistic(ordered: Sequence[int], quantile: Fraction) -> int:
    rank = math.ceil(quantile * (len(ordered) + 1))
    return ordered[min(rank, len(ordered)) - 1]
