"""What a Function's workers would run on, and what one costs an hour.

Workers run on the hosts of this server, which cost the flat rate, so that is what is quoted. The classes of a price
book stand beside it in the explanation; for accelerators that the hosts here lack, the class that would be chosen is
quoted, for planning. Filters that exclude the hosts here cannot be kept by a server that has no others, and are told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from controlplane.kinds.accelerators import are_offered
from controlplane.kinds.money import EstimateWarning
from controlplane.kinds.quotes import within_quote
from controlplane.ledger.pricebook import PriceBook
from controlplane.ledger.pricing import flat_price
from controlplane.machinery.quantities import format_duration, parse_duration
from controlplane.placement.candidates import Candidate, book_candidates, local_candidate
from controlplane.placement.demand import Demand
from controlplane.placement.filters import excluded_by
from controlplane.placement.placing import Placed, place

_ANY_HOST = local_candidate(0)


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """The outcome: how the placement went, the version of its prices, and what of the spec it could not keep."""

    placed: Placed
    pricebook: str
    ignored: EstimateWarning | None = None

    @property
    def chosen(self) -> Candidate | None:
        """The class; None when nothing would do."""
        return self.placed.chosen

    @property
    def rate_micro_usd_per_hour(self) -> int:
        """What one worker costs; nothing where none would run."""
        return self.chosen.rate_micro_usd_per_hour if self.chosen is not None else 0

    @property
    def startup(self) -> Mapping[str, str]:
        """What a start takes by the figures of the class, as the protocol shows it."""
        chosen = self.chosen or _ANY_HOST
        return {
            "p50": format_duration(chosen.startup_seconds_p50),
            "p90": format_duration(chosen.startup_seconds_p90),
        }

    def bound_as(self, owner: Mapping[str, Any]) -> Capacity:
        """The same, at no more than what its owner was quoted."""
        if self.chosen is None:
            return self
        rate = within_quote(owner, self.rate_micro_usd_per_hour)
        return replace(self, placed=replace(self.placed, chosen=replace(self.chosen, rate_micro_usd_per_hour=rate)))


def capacity_for(spec: Mapping[str, Any], book: PriceBook | None, flat_rate_usd_per_hour: str) -> Capacity:
    """Where workers of a Function with this canonical spec would run now. The same spec and prices give the same."""
    demand, work_seconds = Demand.from_spec(spec), parse_duration(spec["timeout"])
    # Nothing is started on them yet, however many of them there are.
    classes = [replace(candidate, available=False) for candidate in book_candidates(book)]
    if demand.gpu is not None and not are_offered(spec["resources"]["gpu"]):
        return Capacity(placed=place(demand, classes, work_seconds), pricebook=book.version if book is not None else "")
    flat = flat_price(flat_rate_usd_per_hour)
    local = local_candidate(flat.rate_micro_usd_per_hour, demand.gpu)
    excluded, ignored = excluded_by(demand, local), None
    if excluded is not None:
        ignored = EstimateWarning(
            code="PlacementNotKept",
            message=f"workers run on the hosts of this server all the same, though of their class holds that "
            f"{excluded.meaning}; leave that part of `spec.placement` out",
        )
        demand = replace(demand, regions=frozenset(), offerings=frozenset(), rate_micro_usd_per_hour_max=None)
    return Capacity(
        placed=place(demand, [local, *classes], work_seconds),
        pricebook=flat.pricebook,
        ignored=ignored,
    )
