"""A bound that a bench prints is one that it holds itself to."""

from __future__ import annotations

import pytest

from bench.__main__ import BOUNDS
from bench.bounds import Bound, missed


@pytest.mark.parametrize(
    ("bound", "value", "met"),
    [
        (Bound(most=1.5), 1.5, True),
        (Bound(most=1.5), 1.51, False),
        (Bound(least=4), 4, True),
        (Bound(least=4), 3.99, False),
    ],
)
def test_a_bound_is_met_up_to_itself(bound: Bound, value: float, *, met: bool) -> None:
    assert bound.met_by(value) is met


def test_what_is_missed_is_named_with_its_bound() -> None:
    figures = {"fast": 1.0, "slow": 9.0, "free": 5.0}
    told = missed(figures, {"fast": Bound(most=2), "slow": Bound(most=2)})
    assert told == ["slow is 9.00 and must be <= 2"]


def test_figures_beyond_the_bounds_of_calls_are_all_missed() -> None:
    bad = {"remote_latency_ratio": 0.6, "map_burst_ratio": 1.0, "sustained_ratio": 0.1}
    assert len(missed(bad, BOUNDS)) == len(bad)
