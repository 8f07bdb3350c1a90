"""Gathers what an estimate is made of: the Function, its past and that of Functions like it, prices and workers.

Three queries at most, each bounded; whatever else is asked is in memory. Reads only, so it may be asked at any time and
be given up at any point.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from controlplane.calls.samples import Sampled, kept_calls, latest_calls
from controlplane.clock import Clock, parse_time
from controlplane.estimates.bands import SAMPLES_MIN, Amounts, PastCall, Price, from_limits, from_past
from controlplane.estimates.overhead import WorkerFacts
from controlplane.estimates.quoting import Facts, Quote, Source, quote
from controlplane.ledger.accounts import read_balance
from controlplane.ledger.worker_accounts import FundingRules
from controlplane.machinery.documents import value_at
from controlplane.machinery.kind import Document
from controlplane.machinery.quantities import parse_duration
from controlplane.placement.capacity import Capacity
from controlplane.placement.placements import Placements
from controlplane.settings import Settings
from controlplane.store.cache import ObjectCache
from controlplane.store.contract import Key
from controlplane.store.database import Database

FUNCTIONS_LIKE_IT_MAX = 64
"""Others whose calls are looked at when a Function has too few of its own; the latest calls hold no more of them."""
FUNCTION_KIND = "Function"
_CALL_KIND = "FunctionCall"


class Estimator:
    """Says what an object would cost."""

    def __init__(
        self,
        *,
        database: Database,
        cache: ObjectCache,
        placements: Placements,
        settings: Settings,
        clock: Clock,
    ) -> None:
        self._database = database
        self._cache = cache
        self._placements = placements
        self._clock = clock
        self._funding = FundingRules.from_settings(settings)

    @property
    def has_book(self) -> bool:
        """Whether a price book is in force, so that what no host here has can be quoted all the same."""
        return self._placements.book is not None

    async def quote(self, key: Key, document: Document) -> Quote | None:
        """The estimate of an admitted object that would be created as `key`; None for kinds that cost nothing.

        A Function is estimated as one of its calls, started by itself; its calls are asked for by the rest of it.
        """
        function_key = _function_key(key, document)
        if function_key is None:
            return None
        stored = await self._cache.read(function_key)
        # What is declared decides on prices; only what is stored already has workers and a past.
        function = document if key.kind == FUNCTION_KIND else stored
        if function is None:
            return None  # It went in this moment; the create says so.
        now, spec = self._clock.now(), function["spec"]
        # Calls of a Function that is bound to a quote are bound as it is.
        capacity = self._placements.of(spec).bound_as(function)
        shares = spec["scaling"]["targetConcurrency"]
        rate = capacity.rate_micro_usd_per_hour
        timeout = document["spec"].get("timeout") or spec["timeout"]
        cost, source = await self._cost(
            function_key, stored, spec, timeout, Price(rate_micro_usd_per_hour=rate, shares=shares)
        )
        return quote(
            Facts(
                spec=document["spec"],
                capacity=capacity,
                shares=shares,
                cost=cost,
                source=source,
                worker=await self._worker(key, spec, stored, capacity),
                now=now,
                prices_change_at=self._placements.next_book_at(now),
            )
        )

    async def _worker(
        self, key: Key, spec: Mapping[str, Any], stored: Document | None, capacity: Capacity
    ) -> WorkerFacts:
        startup = value_at(stored or {}, "status.estimate.startup") or {}
        is_priced = capacity.rate_micro_usd_per_hour > 0
        balance = await read_balance(self._database, key.org) if is_priced else None
        return WorkerFacts(
            cold=startup.get("cold") or capacity.startup,
            warm=startup.get("warm"),
            idle_seconds=parse_duration(spec["scaling"]["scaledownWindow"]),
            starts_at_once=max(1, spec["scaling"]["minWorkers"]) if key.kind == FUNCTION_KIND else 1,
            funding=self._funding,
            holdable_micro_usd=balance.holdable_micro_usd if balance is not None else None,
        )

    async def _cost(
        self, key: Key, stored: Document | None, spec: Mapping[str, Any], timeout: str, price: Price
    ) -> tuple[Amounts, Source]:
        """The band of one call, from the first source that knows enough."""
        own = [_sampled(key, stored)] if stored is not None else []
        others = [_sampled(other, each) for other, each in self._like(key, spec)]
        latest = await latest_calls(self._database, key, [*own, *others])
        past: Sequence[PastCall] = latest.get(key.name, ())
        if own and len(past) < SAMPLES_MIN:
            past = await kept_calls(self._database, key, own[0])
        by_class = [call for name, calls in latest.items() if name != key.name for call in calls]
        for source, calls in ((Source.OWN, past), (Source.CLASS, by_class)):
            told = from_past(calls, price)
            if told is not None:
                return told, source
        retries = (spec.get("retries") or {}).get("maxRetries", 0)
        return from_limits(parse_duration(timeout), retries, price), Source.LIMITS

    def _like(self, key: Key, spec: Mapping[str, Any]) -> list[tuple[Key, Document]]:
        """Other Functions of the project whose workers are of the same size."""
        return [
            (other, document)
            for other, document in self._cache.of_kind(FUNCTION_KIND)
            if (other.org, other.project) == (key.org, key.project)
            and other.name != key.name
            and document["spec"].get("resources") == spec["resources"]
        ][:FUNCTIONS_LIKE_IT_MAX]


def _function_key(key: Key, document: Document) -> Key | None:
    """The Function that an object is, or is a call of."""
    names = {FUNCTION_KIND: key.name, _CALL_KIND: document["spec"].get("function")}
    name = names.get(key.kind)
    return None if name is None else Key(FUNCTION_KIND, key.org, key.project, name)


def _sampled(key: Key, function: Document) -> Sampled:
    return Sampled(name=key.name, since=parse_time(function["metadata"]["creationTimestamp"]))
