"""An ETag stands for a spec and its price; an estimate says how long that price is known to hold."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.estimates.bands import Amounts
from controlplane.estimates.overhead import (
    WorkerFacts,
    first_hold_micro_usd,
    lacking_micro_usd,
    minimum_micro_usd,
    overhead,
)
from controlplane.estimates.quoting import QUOTE_SECONDS, Facts, Source, quote
from controlplane.kinds.accelerators import offer_accelerators
from controlplane.kinds.registry import KINDS
from controlplane.ledger.pricebook import PriceBook
from controlplane.ledger.pricing import PER_SECOND, Billing, call_charge_micro_usd, flat_price
from controlplane.ledger.worker_accounts import FundingRules
from controlplane.machinery.validation import judged_spec
from controlplane.placement.candidates import Offered
from controlplane.placement.capacity import capacity_for
from tests.fixtures.app import FUNCTION

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
GPU = {"id": "h100-sxm-80g", "family": "H100", "displayName": "H100", "memory": "80Gi", "vendor": "NVIDIA"}
HOUR = timedelta(seconds=QUOTE_SECONDS)

FUNDING = FundingRules(
    hold_seconds=300,
    hold_seconds_min=60,
    renew_seconds=30,
    teardown_seconds_max=45,
)
WORKER = WorkerFacts(
    cold={"p50": "2s", "p90": "8s"},
    warm=None,
    idle_seconds=60.0,
    starts_at_once=1,
    funding=FUNDING,
    holdable_micro_usd=None,
)
WARM = replace(WORKER, warm={"p50": "0.01s", "p90": "0.02s"}, holdable_micro_usd=0)
RATE = 3_600_000
"""1,000 micro-USD a second."""


def book(version: str, rate: str, name: str = "h100") -> PriceBook:
    offering = {
        "name": name,
        "accelerator": GPU,
        "count": 1,
        "host": {"cpu": "8", "memory": "64Gi"},
        "regionClass": "us",
        "rateUSDPerHour": rate,
    }
    return PriceBook.model_validate({"version": version, "validFrom": "2026-01-01T00:00:00Z", "offerings": [offering]})


def facts(prices: PriceBook, **spec: Any) -> Facts:
    whole, causes = judged_spec(KINDS["Function"], {**FUNCTION, "resources": {"gpu": "H100"}, **spec})
    assert not causes
    return Facts(
        spec=whole,
        capacity=capacity_for(whole, Offered.of(prices), flat_price("0.036"), "local"),
        shares=whole["scaling"]["targetConcurrency"],
        cost=Amounts(p50_micro_usd=1, p90_micro_usd=2),
        source=Source.OWN,
        worker=WORKER,
        now=NOW,
        prices_change_at=None,
    )


FIRST = facts(book("a", "2.00"))


@pytest.mark.parametrize(
    "same",
    [
        # After `validUntil`, with a past and workers by now, and under another book that leaves the price alone.
        replace(FIRST, now=NOW + 48 * HOUR, prices_change_at=NOW + 50 * HOUR),
        replace(FIRST, cost=Amounts(p50_micro_usd=5, p90_micro_usd=9), source=Source.CLASS, worker=WARM),
        facts(book("b", "2.00")),
    ],
)
def test_an_etag_is_good_for_as_long_as_spec_and_price_are_what_they_were(same: Facts) -> None:
    assert quote(same).etag == quote(FIRST).etag


@pytest.mark.parametrize(
    "other",
    [
        facts(book("a", "2.000001")),
        facts(book("a", "1.90")),
        facts(book("a", "2.00", name="other")),
        facts(book("a", "2.00"), timeout="10s"),
        facts(book("a", "2.00"), scaling={"targetConcurrency": 2}),
        facts(book("a", "2.00"), resources={}),
    ],
)
def test_another_spec_or_another_price_is_another_etag(other: Facts) -> None:
    assert quote(other).etag != quote(FIRST).etag


@pytest.mark.parametrize(
    ("change", "until"),
    [(None, NOW + HOUR), (NOW + HOUR / 2, NOW + HOUR / 2), (NOW + 2 * HOUR, NOW + HOUR)],
)
def test_prices_are_current_for_an_hour_or_until_the_next_book(change: datetime | None, until: datetime) -> None:
    told = quote(replace(FIRST, prices_change_at=change)).estimate
    assert told["validUntil"] == until.strftime("%Y-%m-%dT%H:%M:%SZ")
    assert told["pricebookVersion"] == "a"


def test_what_runs_nowhere_has_a_warning_and_no_price() -> None:
    told = quote(facts(book("a", "2.00"), resources={"gpu": "B200"}))
    assert told.rate_micro_usd_per_hour is None
    assert [each["code"] for each in told.estimate["warnings"]] == ["NoOffering"]
    assert told.estimate.keys() == {"warnings", "pricebookVersion", "validUntil"}


def test_a_cold_call_pays_for_the_start_the_window_and_the_stop_of_a_worker_and_a_warm_one_does_not() -> None:
    # 2 s to start and 60 s to stay; 8 s, 60 s and 45 s to stop.
    assert overhead(WORKER, RATE, PER_SECOND) == Amounts(p50_micro_usd=62_000, p90_micro_usd=113_000)
    assert overhead(WARM, RATE, PER_SECOND) == Amounts(p50_micro_usd=0, p90_micro_usd=0)
    assert [first_hold_micro_usd(each, RATE, PER_SECOND) for each in (WORKER, WARM)] == [300_000, 0]


MINUTES = Billing(increment_seconds=60, minimum_seconds=600)


def test_increment_and_minimum_of_a_class_are_a_part_of_what_a_cold_call_adds() -> None:
    # 62 s beside a call of a second are a minute and a bit more: ten are charged, of which the call has one second.
    assert overhead(WORKER, RATE, MINUTES) == Amounts(p50_micro_usd=599_000, p90_micro_usd=599_000)
    increments = replace(MINUTES, minimum_seconds=1)
    # 63 s are charged as 120 s; the 113 s of the slow case become up to 59 s more.
    assert overhead(WORKER, RATE, increments) == Amounts(p50_micro_usd=119_000, p90_micro_usd=172_000)
    assert (minimum_micro_usd(RATE, PER_SECOND), minimum_micro_usd(RATE, MINUTES)) == (1_000, 600_000)
    assert (first_hold_micro_usd(WORKER, RATE, MINUTES), lacking_micro_usd(WORKER, RATE, MINUTES)) == (600_000, 0)
    poor = replace(WORKER, holdable_micro_usd=599_999)
    assert lacking_micro_usd(poor, RATE, MINUTES) == 1


@given(
    calls=st.integers(1, 10_000),
    increment=st.integers(1, 3_600),
    minimum=st.integers(1, 3_600),
)
def test_no_call_adds_more_than_the_larger_amount_whatever_rounding_makes_of_it(
    calls: int, increment: int, minimum: int
) -> None:
    billing = Billing(increment_seconds=increment, minimum_seconds=minimum)
    longest = 8 + 60 + 45
    beside = call_charge_micro_usd(billing.billed_seconds(longest + calls) - calls, RATE, 1)
    told = overhead(WORKER, RATE, billing)
    assert beside <= told.p90_micro_usd
    assert told.p50_micro_usd <= told.p90_micro_usd


@pytest.mark.parametrize(("holdable", "lacking"), [(None, 0), (300_000, 0), (60_000, 0), (59_999, 1), (0, 60_000)])
def test_a_worker_starts_with_the_shortest_window_that_the_money_reaches_for(
    holdable: int | None, lacking: int
) -> None:
    worker = replace(WORKER, holdable_micro_usd=holdable)
    assert lacking_micro_usd(worker, RATE, PER_SECOND) == lacking
    told = quote(replace(FIRST, worker=worker)).estimate
    # At 2 USD an hour the shortest hold is of 33,334 micro-USD.
    assert ("InsufficientCredits" in [each["code"] for each in told["warnings"]]) == (holdable == 0)


def test_the_holds_of_workers_that_start_together_are_told_together() -> None:
    told = quote(replace(FIRST, worker=replace(WORKER, starts_at_once=3))).estimate
    assert (told["holdUSD"], told["concurrentHoldUSD"]) == ("0.166667", "0.500001")


def test_accelerators_that_the_operator_offers_are_those_of_the_hosts_here_at_their_rate() -> None:
    wanted = {"gpu": {"type": ["H100"], "count": 4, "exact": True}}
    offer_accelerators(["NVIDIA H100 80GB HBM3"])
    try:
        told = quote(facts(book("a", "2.00"), resources=wanted)).estimate
    finally:
        offer_accelerators(())
    assert (told["placementPreview"]["offering"], told["rateUSDPerHour"]) == ("local", "0.036")
    assert told["placementPreview"]["explain"]["rejected"] == [{"offeringClass": "h100", "reason": "GPUCountMismatch"}]
