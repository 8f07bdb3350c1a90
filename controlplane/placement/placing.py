"""The choice: which class work runs on, what comes next, and why every other class was not taken.

The same demand over the same candidates gives the same answer in whatever order they are given: equal totals are
decided by the lower rate, then by the name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controlplane.machinery.kind import Document
from controlplane.placement.candidates import Candidate
from controlplane.placement.demand import Demand, Interruptible, Profile
from controlplane.placement.filters import NO_CAPACITY, Filter, excluded_by
from controlplane.placement.scoring import WEIGHTS, scores, total

TOLD_MAX = 20
"""Classes that an explanation names, of each sort; a book may have a thousand."""
_LOST_BY: Mapping[str, str] = {
    "costToComplete": "CostsMore",
    "timeToResult": "TakesLonger",
    "recoveryValue": "InterruptedMoreOften",
    "fit": "LargerThanNeeded",
}
_NOT_PREFERRED = "NotInterruptible"
_TIE = "RankedLaterByRateAndName"


@dataclass(frozen=True, kw_only=True)
class Placed:
    """How a placement went. `chosen` is None when no class would do, here or anywhere."""

    profile: Profile
    chosen: Candidate | None
    available: bool
    """Whether a host of the chosen class can be had; otherwise it is the class that would be chosen if one could."""
    scores: Mapping[str, float]
    """Of the chosen class, with its `total`."""
    fallbacks: tuple[str, ...]
    """What would be tried next, best first."""
    lost: Mapping[str, str]
    """By class, the code why it was not taken."""

    def told(self) -> Document:
        """What the placement of an Attempt says of its class beside name and rate; nothing when none was chosen."""
        if self.chosen is None:
            return {}
        return {
            "regionClass": self.chosen.region_class,
            "interruptible": self.chosen.interruptible,
            "profile": str(self.profile),
            "candidates": 1 + len(self.fallbacks) + len(self.lost.keys() - set(self.fallbacks)),
            "explain": self.explain(),
        }

    def explain(self) -> Document:
        """The explanation as the protocol shows it: the same shape as `status.placement.explain` of an Attempt."""
        lost = list(self.lost.items())[:TOLD_MAX]
        return {
            "profile": str(self.profile),
            "scores": {name: f"{value:.6f}".rstrip("0").rstrip(".") for name, value in self.scores.items()},
            "fallbacks": list(self.fallbacks[:TOLD_MAX]),
            "rejected": [{"offeringClass": name, "reason": reason} for name, reason in lost],
        }


def place(demand: Demand, candidates: Sequence[Candidate], work_seconds: float) -> Placed:
    """Choose a class for work that takes `work_seconds` undisturbed, of those that can be had; when none can, say
    which would have been chosen."""
    excluded: dict[str, Filter] = {}
    fitting: list[Candidate] = []
    for candidate in sorted(candidates, key=lambda each: each.name):
        reason = excluded_by(demand, candidate)
        if reason is None:
            fitting.append(candidate)
        else:
            excluded[candidate.name] = reason
    at_hand = [candidate for candidate in fitting if candidate.available]
    ranked = _ranked(demand, at_hand or fitting, work_seconds)
    lost = {each.name: _why_lost(demand, each, of, *ranked[0]) for each, of in ranked[1:]}
    if at_hand:
        lost |= {each.name: NO_CAPACITY.code for each in fitting if not each.available}
    chosen, its = ranked[0] if ranked else (None, {})
    return Placed(
        profile=demand.profile,
        chosen=chosen,
        available=bool(at_hand),
        scores={**its, "total": total(demand.profile, its)} if its else {},
        fallbacks=tuple(candidate.name for candidate, _ in ranked[1:]),
        lost=lost | {name: reason.code for name, reason in excluded.items()},
    )


def _ranked(
    demand: Demand, candidates: Sequence[Candidate], work_seconds: float
) -> list[tuple[Candidate, Mapping[str, float]]]:
    def rank(scored: tuple[Candidate, Mapping[str, float]]) -> tuple[bool, float, int, str]:
        candidate, of = scored
        preferred = demand.interruptible is Interruptible.PREFER and candidate.interruptible
        return not preferred, -total(demand.profile, of), candidate.rate_micro_usd_per_hour, candidate.name

    return sorted(zip(candidates, scores(demand, candidates, work_seconds), strict=True), key=rank)


def _why_lost(
    demand: Demand,
    candidate: Candidate,
    of: Mapping[str, float],
    winner: Candidate,
    best: Mapping[str, float],
) -> str:
    """The score by which it fell behind most, as the profile weighs it."""
    if demand.interruptible is Interruptible.PREFER and winner.interruptible and not candidate.interruptible:
        return _NOT_PREFERRED
    weights = WEIGHTS[demand.profile]
    behind = {name: weights[name] * (best[name] - of[name]) for name in weights}
    worst = max(behind, key=lambda name: behind[name])
    return _LOST_BY[worst] if behind[worst] > 0 else _TIE
