"""The Estimate that a client sees, and the ETag that binds a create to it: pure, from the facts of one moment.

An ETag names what was reviewed: the spec, the class, its rate, how its time is rounded and how many calls share it.
It names no version of a price book and no time, so it is good for as long as spec and price stay what they were, past
`validUntil` and into a new book that leaves the price alone; any other price is another ETag.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

import orjson

from controlplane.clock import format_time
from controlplane.errors import ApiError
from controlplane.estimates.bands import Amounts
from controlplane.estimates.overhead import (
    WorkerFacts,
    first_hold_micro_usd,
    lacking_micro_usd,
    minimum_micro_usd,
    overhead,
)
from controlplane.kinds.money import EstimateWarning
from controlplane.machinery.kind import Document
from controlplane.machinery.quantities import format_money
from controlplane.placement.capacity import Capacity

QUOTE_SECONDS = 3_600
"""How long prices are called current when no later ones are known: the shortest time for which a book is in force
anywhere that sells by the hour."""


class Source(Enum):
    """From what a band was made: nothing to warn of, or the code and the sentence of a warning."""

    OWN = None
    CLASS = (
        "OtherFunctionsHistory",
        "too few calls of this Function have ended to tell; the cost is that of calls of this project's other "
        "Functions with the same resources",
    )
    LIMITS = (
        "NoHistory",
        "no calls like these have ended yet; the cost is that of a run to the timeout, and the same with all retries",
    )


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What an estimate is made of. Bands of durations are as the protocol shows them."""

    spec: Mapping[str, Any]
    """Of the object that is estimated."""
    capacity: Capacity
    shares: int
    cost: Amounts
    source: Source
    worker: WorkerFacts
    now: datetime
    prices_change_at: datetime | None
    """When the next price book takes effect, if there is one."""


@dataclass(frozen=True, kw_only=True)
class Quote:
    """An estimate with what binds to it."""

    estimate: Document
    etag: str
    rate_micro_usd_per_hour: int | None
    """The quoted rate of one worker; None when nothing would do."""


def quote(facts: Facts) -> Quote:
    """The estimate of these facts."""
    chosen = facts.capacity.chosen
    rate, billing = facts.capacity.rate_micro_usd_per_hour, facts.capacity.billing
    estimate: Document = {"warnings": [each.to_wire() for each in _warnings(facts)]}
    if chosen is not None:
        hold = first_hold_micro_usd(facts.worker, rate, billing)
        estimate |= {
            "costUSD": _amounts(facts.cost),
            "overheadUSD": _amounts(overhead(facts.worker, rate, billing)),
            "holdUSD": format_money(hold),
            "concurrentHoldUSD": format_money(facts.worker.starts_at_once * hold),
            "minimumChargeUSD": format_money(minimum_micro_usd(rate, billing)),
            "rateUSDPerHour": format_money(rate),
            "startup": _startup(facts),
            "placementPreview": {
                "offering": chosen.name,
                "regionClass": chosen.region_class,
                "interruptible": chosen.interruptible,
                "warmReuse": facts.worker.warm is not None,
                "explain": facts.capacity.placed.explain(),
            },
        }
    if facts.capacity.pricebook:
        latest = facts.now + timedelta(seconds=QUOTE_SECONDS)
        valid_until = min(latest, facts.prices_change_at or latest)
        estimate |= {"pricebookVersion": facts.capacity.pricebook, "validUntil": format_time(valid_until)}
    etag = etag_of(facts.spec, chosen.name if chosen is not None else None, rate, facts.shares, vars(billing))
    return Quote(estimate=estimate, etag=etag, rate_micro_usd_per_hour=rate if chosen is not None else None)


def etag_of(spec: object, *price: object) -> str:
    """The ETag of a dry-run: what a create would do, and for what costs money at which price."""
    content = orjson.dumps([spec, *price], option=orjson.OPT_SORT_KEYS)
    return f'"{hashlib.sha256(content).hexdigest()[:32]}"'


def blocked(estimate: Document, refusals: Iterable[ApiError]) -> Document:
    """The estimate of what would be refused, and why."""
    reasons = [{"code": each.reason.row.wire, "message": each.message, "fix": each.fix} for each in refusals]
    return {**estimate, "blockingReasons": reasons} if reasons else estimate


def _amounts(amounts: Amounts) -> Document:
    return {"p50": format_money(amounts.p50_micro_usd), "p90": format_money(amounts.p90_micro_usd)}


def _startup(facts: Facts) -> Document:
    startup: Document = {"cold": dict(facts.worker.cold)}
    if facts.worker.warm is not None:
        startup["warm"] = dict(facts.worker.warm)
    return startup


def _warnings(facts: Facts) -> Iterable[EstimateWarning]:
    chosen = facts.capacity.chosen
    if facts.capacity.lacking:
        yield EstimateWarning(code="NoOffering", message=f"no worker can be started: {facts.capacity.lacking}")
    if chosen is None:
        return
    if facts.worker.warm is None:
        cold = facts.worker.cold["p50"]
        yield EstimateWarning(
            code="ColdStart", message=f"no worker is ready; the first call waits for one to start, about {cold}"
        )
    lacking = lacking_micro_usd(facts.worker, facts.capacity.rate_micro_usd_per_hour, facts.capacity.billing)
    if lacking:
        yield EstimateWarning(
            code="InsufficientCredits",
            message=f"{format_money(lacking)} USD more must be free before a worker can start; calls wait until then, "
            "so add credit or wait for other work to end",
        )
    if chosen.interruptible:
        yield EstimateWarning(
            code="InterruptibleSelected",
            message=f'"{chosen.name}" can be taken back while a call runs on it, which then starts again; '
            "set `spec.placement.interruptible` to Never to pay for what cannot",
        )
    if facts.source.value is not None:
        code, message = facts.source.value
        yield EstimateWarning(code=code, message=message)
