"""Bands are order statistics of the past, and nine of ten calls cost at most what the estimate said."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.calls.samples import SAMPLES_MAX
from controlplane.estimates.bands import SAMPLES_MIN, Amounts, PastCall, Price, from_limits, from_past

PRICE = Price(rate_micro_usd_per_hour=3_600_000, shares=1)
"""1,000 micro-USD a second."""
CALLS = 10_000


def amounts(p50: int, p90: int) -> Amounts:
    return Amounts(p50_micro_usd=p50, p90_micro_usd=p90)


@pytest.mark.parametrize(
    ("past", "told"),
    [
        ([[1]] * (SAMPLES_MIN - 1), None),
        # Of nine, the 5th and the last; of 19, the 10th and the 18th.
        ([[seconds] for seconds in range(1, 10)], amounts(5_000, 9_000)),
        ([[seconds] for seconds in range(1, 20)], amounts(10_000, 18_000)),
        ([[seconds] for seconds in reversed(range(1, 20))], amounts(10_000, 18_000)),
        # A call that was retried costs what all its dispatches cost.
        ([[1, 2, 3]] * 9, amounts(6_000, 6_000)),
    ],
)
def test_a_band_is_made_of_the_amounts_that_calls_came_to(past: list[list[int]], told: Amounts | None) -> None:
    assert from_past(past, PRICE) == told


def test_without_a_past_a_band_is_what_the_limits_of_a_call_allow() -> None:
    assert from_limits(300.0, 2, PRICE) == amounts(300_000, 900_000)
    assert from_limits(1.5, 0, PRICE) == amounts(2_000, 2_000)


def test_dispatches_are_rounded_one_by_one_and_a_place_costs_its_share() -> None:
    price = Price(rate_micro_usd_per_hour=36_000, shares=3)
    assert (price.of([1]), price.of([1, 1]), price.of([3])) == (4, 8, 10)


@given(st.lists(st.lists(st.integers(1, 86_400), min_size=1, max_size=4), min_size=SAMPLES_MIN, max_size=60))
def test_a_band_is_in_order_and_never_beyond_what_was_seen(past: list[list[int]]) -> None:
    told = from_past(past, PRICE)
    assert told is not None
    costs = [PRICE.of(call) for call in past]
    assert min(costs) <= told.p50_micro_usd <= told.p90_micro_usd <= max(costs)


def lognormal(source: random.Random) -> float:
    return source.lognormvariate(3.0, 1.0)


def heavy_tailed(source: random.Random) -> float:
    return 10 * source.paretovariate(1.5)


def of_two_sorts(source: random.Random) -> float:
    """A cache that hits or does not."""
    return source.gauss(12, 3) if source.random() < 0.7 else source.gauss(120, 20)


def life(draw: Callable[[random.Random], float], source: random.Random) -> Iterator[PastCall]:
    """The calls of a Function, one after the other: it becomes slower by a half over its life, one dispatch in twenty
    raises and is retried, and one in fifty runs a while on a worker that it brings down."""
    for number in range(CALLS):
        call: list[int] = []
        while True:
            seconds = max(1, -int(-draw(source) * (1 + 0.5 * number / CALLS) // 1))
            chance = source.random()
            call.append(seconds if chance > 0.02 else max(1, seconds // 2))
            if chance > 0.07 or len(call) > 3:
                break
        yield call


@pytest.mark.parametrize("draw", [lognormal, heavy_tailed, of_two_sorts])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_p90_band_covers_nine_of_ten_of_ten_thousand_calls(
    draw: Callable[[random.Random], float], seed: int
) -> None:
    past: deque[PastCall] = deque(maxlen=SAMPLES_MAX)
    within_p50 = within_p90 = estimated = 0
    told: Amounts | None = None
    for number, call in enumerate(life(draw, random.Random(seed))):
        # As a client does that looks at the estimate now and then: it is up to ten calls old.
        if number % 10 == 0:
            told = from_past(past, PRICE)
        if told is not None:
            cost = PRICE.of(call)
            estimated += 1
            within_p50 += cost <= told.p50_micro_usd
            within_p90 += cost <= told.p90_micro_usd
        past.append(call)
    assert estimated >= CALLS - 2 * SAMPLES_MIN - 10
    assert 0.85 <= within_p90 / estimated <= 0.95
    assert 0.45 <= within_p50 / estimated <= 0.55
