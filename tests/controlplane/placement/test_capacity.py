"""What workers run on by the prices in force, and what is told where no host will do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from controlplane.kinds.attempt import AttemptPlacement
from controlplane.kinds.registry import KINDS
from controlplane.ledger.pricebook import PriceBook
from controlplane.ledger.pricing import flat_price
from controlplane.machinery.quantities import format_money
from controlplane.machinery.validation import judged_spec
from controlplane.placement.candidates import Offered
from controlplane.placement.capacity import Capacity, capacity_for
from controlplane.placement.placements import Placements
from controlplane.settings import Settings
from tests.fixtures.app import FUNCTION
from tests.fixtures.moving_clock import MovingClock

START = datetime(2026, 1, 1, tzinfo=UTC)


def book(version: str = "b", *, available: int = 4, rate: str = "0.10", valid_from: datetime = START) -> PriceBook:
    """Two classes of hosts, the larger in the eu at twice the rate."""
    small = {"name": "small", "host": {"cpu": "2", "memory": "4Gi"}, "regionClass": "us", "rateUSDPerHour": rate}
    large = {"name": "large", "host": {"cpu": "8", "memory": "16Gi"}, "regionClass": "eu", "rateUSDPerHour": "0.40"}
    return PriceBook.model_validate(
        {
            "version": version,
            "validFrom": valid_from.isoformat(),
            "offerings": [{**each, "available": available} for each in (small, large)],
        }
    )


def spec(resources: dict[str, Any] | None = None, **placement: Any) -> dict[str, Any]:
    whole, causes = judged_spec(KINDS["Function"], {**FUNCTION, "resources": resources or {}, "placement": placement})
    assert not causes
    return whole


def capacity(whole: dict[str, Any], prices: PriceBook | None, region_class: str = "local") -> Capacity:
    return capacity_for(whole, Offered.of(prices), flat_price("0.036"), region_class)


@pytest.mark.parametrize(
    ("asked", "prices", "chosen", "rate", "version"),
    [
        (spec(), None, "local", "0.036", "flat-0.036"),
        (spec(), book(available=0), "local", "0.036", "flat-0.036"),
        (spec(), book(), "small", "0.10", "b"),
        (spec({"cpu": "4"}), book(), "large", "0.40", "b"),
        (spec(regions=["eu"]), book(), "large", "0.40", "b"),
        (spec(offerings=["large"]), book(), "large", "0.40", "b"),
        (spec(maxRateUSDPerHour="0.10"), book(), "small", "0.10", "b"),
    ],
)
def test_workers_run_on_what_the_book_offers_and_without_that_on_the_hosts_at_the_flat_rate(
    asked: dict[str, Any], prices: PriceBook | None, chosen: str, rate: str, version: str
) -> None:
    found = capacity(asked, prices)
    price = found.price
    assert (price.offering, format_money(price.rate_micro_usd_per_hour), price.pricebook) == (chosen, rate, version)
    assert found.lacking == ""
    AttemptPlacement.model_validate({"offering": chosen, **found.placed.told()})


@pytest.mark.parametrize(
    ("asked", "prices", "told"),
    [
        (spec(regions=["us"]), None, ['"local" is not taken because `regions` leaves it out: add "local" to']),
        (spec(regions=["us"]), book(available=0), ['add "local" to `spec.placement.regions` or leave that out']),
        (spec(offerings=["x"]), book(), ['"small" (and 1 more) is not taken', 'add "small" to `spec.placement.off']),
        (spec(maxRateUSDPerHour="0.09"), book(), ["raise `spec.placement.maxRateUSDPerHour` to 0.10"]),
        (
            spec({"cpu": "4"}, regions=["us"]),
            book(),
            ['"small" is not taken because its hosts have fewer CPUs', '"large" is not taken because `regions`'],
        ),
        (spec({"gpu": "H100"}), book(), ["this server has no host with such accelerators"]),
    ],
)
def test_where_no_host_will_do_the_reason_is_told_with_what_to_change(
    asked: dict[str, Any], prices: PriceBook | None, told: list[str]
) -> None:
    lacking = capacity(asked, prices).lacking
    for part in told:
        assert part in lacking


def test_the_region_of_the_hosts_is_a_setting() -> None:
    found = capacity(spec(regions=["us"]), None, region_class="us")
    assert (found.lacking, found.placed.told()["regionClass"]) == ("", "us")


def test_a_book_that_takes_effect_is_asked_from_then_on() -> None:
    clock = MovingClock()
    now = clock.now()
    later = book("c", rate="0.20", valid_from=now + timedelta(hours=1))
    placements = Placements([book(valid_from=now - timedelta(hours=1)), later], Settings(), clock)
    assert placements.is_priced
    assert placements.next_book_at(now) == later.valid_from
    assert (placements.of(spec()).price.pricebook, placements.of(spec()).rate_micro_usd_per_hour) == ("b", 100_000)
    clock.advance(3_600)
    assert (placements.of(spec()).price.pricebook, placements.of(spec()).rate_micro_usd_per_hour) == ("c", 200_000)
    assert placements.next_book_at(clock.now()) is None


@pytest.mark.parametrize(("rate", "prices", "priced"), [("0", [], False), ("0.1", [], True), ("0", [book()], True)])
def test_a_server_is_priced_when_any_of_its_prices_is_not_zero(
    rate: str, prices: list[PriceBook], priced: bool
) -> None:
    settings = Settings(worker_rate_usd_per_hour=rate)
    assert Placements(prices, settings, MovingClock()).is_priced is priced
