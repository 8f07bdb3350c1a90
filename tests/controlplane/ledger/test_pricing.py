"""Whole worker-seconds times a rate, rounded up once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.ledger.pricing import call_charge_micro_usd, worker_seconds

START = datetime(2026, 11, 29, 12, 0, 0, tzinfo=UTC)

seconds = st.integers(min_value=0, max_value=10**7)
rates = st.integers(min_value=0, max_value=10**12)
shares = st.integers(min_value=1, max_value=1_000)


@pytest.mark.parametrize(
    ("microseconds", "charged"),
    [(0, 1), (1, 1), (999_999, 1), (1_000_000, 1), (1_000_001, 2), (59_000_000, 59), (-3_600_000_000, 1)],
)
def test_a_begun_second_counts_and_a_clock_set_back_counts_one(microseconds: int, charged: int) -> None:
    assert worker_seconds(START, START + timedelta(microseconds=microseconds)) == charged


def test_the_default_rate_is_ten_micro_usd_a_second() -> None:
    assert call_charge_micro_usd(7, 36_000, 1) == 70


def test_a_shared_worker_costs_each_call_its_share() -> None:
    assert call_charge_micro_usd(1, 36_000, 4) == 3
    assert call_charge_micro_usd(4, 36_000, 4) == 10


@given(seconds, rates, shares)
def test_the_charge_is_the_exact_price_rounded_up(seconds: int, rate: int, share: int) -> None:
    exact = Fraction(seconds * rate, 3_600 * share)
    charge = call_charge_micro_usd(seconds, rate, share)
    assert 0 <= charge - exact < 1


@given(seconds, seconds, rates, shares)
def test_two_dispatches_never_cost_less_than_one_of_their_length(a: int, b: int, rate: int, share: int) -> None:
    apart = call_charge_micro_usd(a, rate, share) + call_charge_micro_usd(b, rate, share)
    together = call_charge_micro_usd(a + b, rate, share)
    assert together <= apart <= together + 1


@given(seconds, seconds, rates, rates, shares)
def test_more_time_or_a_higher_rate_never_costs_less(a: int, b: int, low: int, high: int, share: int) -> None:
    a, b, low, high = min(a, b), max(a, b), min(low, high), max(low, high)
    assert 0 <= call_charge_micro_usd(a, low, share) <= call_charge_micro_usd(b, low, share)
    assert call_charge_micro_usd(b, low, share) <= call_charge_micro_usd(b, high, share)


@given(st.integers(-(10**12), 10**12), st.integers(-(10**12), 10**12))
def test_a_later_end_never_means_fewer_seconds(a: int, b: int) -> None:
    early, late = (worker_seconds(START, START + timedelta(microseconds=each)) for each in sorted((a, b)))
    assert 1 <= early <= late


@pytest.mark.parametrize("arguments", [(-1, 1, 1), (1, -1, 1), (1, 1, 0)])
def test_what_cannot_be_priced_is_refused(arguments: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="cannot price"):
        call_charge_micro_usd(*arguments)
