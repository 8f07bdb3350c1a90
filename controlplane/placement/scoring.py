"""What a class of capacity is worth: how long work takes there and what it costs, interruptions included.

Work that is interrupted starts again. With interruptions at a constant rate `r` an hour, a run of `t` hours finishes
undisturbed with probability exp(-r t), so it is interrupted exp(r t) - 1 times on average and takes (exp(r t) - 1) / r
hours of running in all, lost runs among them; each start takes its time as well. All of that time is paid for here:
whoever allows interruptions should see what they come to, though what the platform loses is not charged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from controlplane.placement.candidates import Candidate
from controlplane.placement.demand import Demand, Profile

_HOUR_SECONDS = 3_600.0
_EXPONENT_MAX = 40.0
"""Work that is interrupted this often never ends, and exp of much more is no float."""
_DECIMALS = 6
"""Of a score: finer differences are those of floating-point numbers and not of classes."""


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """What one run of the work comes to on a class."""

    seconds: float
    """From the first start to the result."""
    cost_micro_usd: int
    undisturbed: float
    """The probability that nothing interrupts it."""


SCORES = ("costToComplete", "timeToResult", "recoveryValue", "fit")
WEIGHTS: Mapping[Profile, Mapping[str, float]] = MappingProxyType(
    {
        Profile.COST: {"costToComplete": 0.85, "timeToResult": 0.05, "recoveryValue": 0.05, "fit": 0.05},
        Profile.BALANCED: {"costToComplete": 0.50, "timeToResult": 0.30, "recoveryValue": 0.15, "fit": 0.05},
        Profile.SPEED: {"costToComplete": 0.05, "timeToResult": 0.75, "recoveryValue": 0.15, "fit": 0.05},
    }
)
"""What each profile makes of the scores; the weights of one add up to 1, so a total is between 0 and 1."""


def expectation(candidate: Candidate, work_seconds: float) -> Expectation:
    """What `work_seconds` of undisturbed work come to on this class."""
    exponent = min(candidate.interruptions_per_hour * work_seconds / _HOUR_SECONDS, _EXPONENT_MAX)
    interruptions = math.expm1(exponent)
    # expm1(x) / x goes to 1 with x: without interruptions the work takes as long as it takes.
    running = work_seconds * (interruptions / exponent if exponent else 1.0)
    seconds = running + candidate.startup_seconds_p50 * (1 + interruptions)
    return Expectation(
        seconds=seconds,
        cost_micro_usd=math.ceil(seconds * candidate.rate_micro_usd_per_hour / _HOUR_SECONDS),
        undisturbed=math.exp(-exponent),
    )


def scores(demand: Demand, candidates: Sequence[Candidate], work_seconds: float) -> list[Mapping[str, float]]:
    """The scores of each candidate, each between 0 and 1, relative to the best of them."""
    expected = [expectation(candidate, work_seconds) for candidate in candidates]
    cheapest = min((each.cost_micro_usd for each in expected), default=0)
    quickest = min((each.seconds for each in expected), default=0.0)
    return [
        {
            "costToComplete": _relative(cheapest, each.cost_micro_usd),
            "timeToResult": _relative(quickest, each.seconds),
            "recoveryValue": round(each.undisturbed, _DECIMALS),
            "fit": _fit(demand, candidate),
        }
        for candidate, each in zip(candidates, expected, strict=True)
    ]


def total(profile: Profile, of: Mapping[str, float]) -> float:
    """What a profile makes of the scores of a class."""
    return round(sum(weight * of[name] for name, weight in WEIGHTS[profile].items()), _DECIMALS)


def _relative(best: float, value: float) -> float:
    return 1.0 if value <= best else round(best / value, _DECIMALS)


def _fit(demand: Demand, candidate: Candidate) -> float:
    """How much of the host the work asks for, by what it asks most of; a host of unknown size fits."""
    shares = [
        asked / size
        for asked, size in ((demand.cpu_milli, candidate.cpu_milli), (demand.memory_bytes, candidate.memory_bytes))
        if size
    ]
    return round(min(1.0, max(shares, default=1.0)), _DECIMALS)
