"""What a Function's workers run on, and what one costs an hour: pure, from its spec and the prices in force.

The hosts of this server are what the price book in force says that there is of each class. Where it offers none, or
there is no book, they are one class, `local`, at the flat rate; the classes of the book stand beside it for planning.
So a book is tried out before anything costs by it, and a server without one needs none. `placements.py` knows the
prices and remembers the answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from controlplane.kinds.accelerators import are_offered
from controlplane.kinds.quotes import within_quote
from controlplane.ledger.pricing import LOCAL, PER_SECOND, Billing, WorkerPrice
from controlplane.machinery.quantities import format_duration, parse_duration
from controlplane.placement.candidates import Candidate, Offered, local_candidate
from controlplane.placement.demand import Demand
from controlplane.placement.filters import what_to_change
from controlplane.placement.placing import Placed, place

_ANY_HOST = local_candidate(0, LOCAL)


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """The outcome: how the placement went, the version of its prices, and what a person can do where it found none."""

    placed: Placed
    pricebook: str
    lacking: str = ""
    """Why no worker can be started, and what to change; empty when one can."""

    @property
    def chosen(self) -> Candidate | None:
        """The class; None when nothing would do. It is one for planning where something is `lacking`."""
        return self.placed.chosen

    @property
    def rate_micro_usd_per_hour(self) -> int:
        """What one worker costs; nothing where none would run."""
        return self.chosen.rate_micro_usd_per_hour if self.chosen is not None else 0

    @property
    def price(self) -> WorkerPrice:
        """What one worker costs, as it is agreed when one starts."""
        return WorkerPrice(
            rate_micro_usd_per_hour=self.rate_micro_usd_per_hour,
            pricebook=self.pricebook,
            offering=self.chosen.name if self.chosen is not None else "",
        )

    @property
    def billing(self) -> Billing:
        """How its time is rounded up."""
        return self.chosen.billing if self.chosen is not None else PER_SECOND

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


def capacity_for(spec: Mapping[str, Any], offered: Offered, flat: WorkerPrice, region_class: str) -> Capacity:
    """Where workers of a Function with this canonical spec would run now. The same spec and prices give the same.

    `region_class` is that of the hosts which have the flat price.
    """
    demand, work_seconds = Demand.from_spec(spec), parse_duration(spec["timeout"])
    classes, version = offered.classes, offered.version
    if demand.gpu is not None and not are_offered(spec["resources"]["gpu"]):
        # Whatever a book says that there is, the operator does not offer these accelerators on the hosts.
        classes = [replace(candidate, available=False) for candidate in classes]
    elif not any(candidate.available for candidate in classes):
        local = local_candidate(flat.rate_micro_usd_per_hour, region_class, demand.gpu)
        classes, version = [local, *classes], flat.pricebook
    placed = place(demand, classes, work_seconds)
    lacking = "" if placed.available else _lacking(demand, classes)
    return Capacity(placed=placed, pricebook=version, lacking=lacking)


def _lacking(demand: Demand, classes: Sequence[Candidate]) -> str:
    hosts = [candidate for candidate in classes if candidate.available]
    if not hosts:
        return "this server has no host with such accelerators; ask for others in `spec.resources.gpu`, or for none"
    return f"no host of this server will do: {what_to_change(demand, hosts)}"
