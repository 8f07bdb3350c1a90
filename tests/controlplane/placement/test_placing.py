"""Which class work is placed on, why it won, and why each other lost."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.kinds.attempt import PlacementExplain
from controlplane.kinds.registry import KINDS
from controlplane.ledger.pricebook import load_books
from controlplane.machinery.validation import judged_spec
from controlplane.placement.candidates import Candidate, book_candidates, local_candidate
from controlplane.placement.demand import Demand, Interruptible, Profile
from controlplane.placement.placing import TOLD_MAX, Placed, place
from controlplane.placement.scoring import SCORES, WEIGHTS, expectation
from tests.fixtures.app import FUNCTION

EXAMPLE = Path(__file__).resolve().parents[3] / "deploy" / "pricebooks" / "example.yaml"
[BOOK] = load_books(EXAMPLE)
OWNED = [replace(candidate, available=True) for candidate in book_candidates(BOOK)]
"""The example's classes, as if this server had hosts of each."""
HOUR = 3_600.0
DAY = 24 * HOUR


def demand(resources: dict[str, Any] | None = None, **placement: Any) -> Demand:
    """What a Function with these resources and this placement asks for, its defaults filled in."""
    spec, causes = judged_spec(KINDS["Function"], {**FUNCTION, "resources": resources or {}, "placement": placement})
    assert not causes
    return Demand.from_spec(spec)


def gpu(*types: str, **request: Any) -> dict[str, Any]:
    return {"gpu": {"type": list(types), **request}}


def placed(asked: Demand, work_seconds: float = HOUR) -> Placed:
    return place(asked, OWNED, work_seconds)


@pytest.mark.parametrize(
    ("asked", "work_seconds", "won"),
    [
        # Floors.
        (demand(), 60, "cpu-1x2"),
        (demand({"cpu": "2"}), 60, "cpu-4x8"),
        (demand({"cpu": "0.5", "memory": "9Gi"}), 60, "cpu-16x32"),
        (demand({"cpu": "17"}), 60, None),
        (demand({**gpu("A100"), "memory": "100Gi"}), 60, "a100-sxm-80g-x1-us"),
        (demand({**gpu("H100"), "disk": "800Gi"}, interruptible="Never"), 60, "h100-sxm-80g-x1-us"),
        # Accelerators: a family, a variant by its id or its full name in any spelling, several, only exactly, by
        # count, memory and connection.
        (demand(gpu("H100"), profile="Cost"), HOUR, "h100-sxm-80g-x1-us-spot"),
        (demand(gpu("h100-pcie-80g")), HOUR, "h100-pcie-80g-x1-eu"),
        (demand(gpu("NVIDIA H100 PCIe 80 GB", exact=True)), HOUR, "h100-pcie-80g-x1-eu"),
        (demand(gpu("H100", exact=True)), HOUR, None),
        (demand(gpu("T4", "L4"), profile="Cost", interruptible="Never"), HOUR, "t4-16g-x1-us"),
        (demand(gpu("T4", "L4", minMemory="20Gi"), profile="Cost", interruptible="Never"), HOUR, "l4-24g-x1-us"),
        (demand(gpu("A100", "H100", "H200", "B200", count=8, minMemory="100Gi")), HOUR, "h200-sxm-141g-x8-us"),
        (demand(gpu("MI300X", "H100", count=8)), HOUR, "mi300x-192g-x8-us"),
        (demand(gpu("MI300X", "H100", count=8, interconnect="NVLink")), HOUR, "h100-sxm-80g-x8-us"),
        (demand(gpu("H100", count=4)), HOUR, None),
        # What the owner excludes or prefers.
        (demand(gpu("L4", "A10", "L40S"), regions=["eu"], profile="Cost"), HOUR, "a10-24g-x1-eu"),
        (demand(gpu("L4", "A10"), offerings=["l4-24g-x1-us"]), HOUR, "l4-24g-x1-us"),
        (demand(gpu("H100"), maxRateUSDPerHour="1.50"), HOUR, None),
        (demand(gpu("H100"), maxRateUSDPerHour="2.50", interruptible="Never"), HOUR, "h100-pcie-80g-x1-eu"),
        (demand(gpu("T4", "L4"), interruptible="Prefer", profile="Speed"), HOUR, "l4-24g-x1-us-spot"),
        # What a profile wants, when the same work takes an hour or two days: interruptions cost runs that are lost.
        (demand(gpu("H100", "A100"), profile="Cost", interruptible="Never"), HOUR, "a100-sxm-80g-x1-us"),
        (demand(gpu("H100"), profile="Cost"), 2 * DAY, "h100-pcie-80g-x1-eu"),
        (demand(gpu("L4"), profile="Cost"), HOUR, "l4-24g-x1-us-spot"),
        (demand(gpu("L4"), profile="Balanced"), HOUR, "l4-24g-x1-us-spot"),
        (demand(gpu("L4"), profile="Speed"), 8 * HOUR, "l4-24g-x1-us"),
        (demand(gpu("L4", "L40S"), profile="Speed", interruptible="Never"), 60, "l4-24g-x1-us"),
    ],
)
def test_work_is_placed_on_the_class_that_its_spec_asks_for(
    asked: Demand, work_seconds: float, won: str | None
) -> None:
    chosen = placed(asked, work_seconds).chosen
    assert (chosen and chosen.name) == won


def test_every_class_that_lost_has_a_reason_and_the_winner_its_scores() -> None:
    told = placed(demand(gpu("H100"), regions=["us"], maxRateUSDPerHour="20", profile="Cost"))
    assert told.chosen is not None
    assert {**told.lost, told.chosen.name: ""} == {
        "h100-sxm-80g-x1-us-spot": "",
        "h100-sxm-80g-x1-us": "CostsMore",
        "h100-sxm-80g-x8-us": "GPUCountMismatch",
        "h100-pcie-80g-x1-eu": "RegionMismatch",
        "a10-24g-x1-eu": "RegionMismatch",
        "l40s-48g-x1-eu": "RegionMismatch",
        **dict.fromkeys(
            (
                "cpu-1x2", "cpu-4x8", "cpu-16x32", "t4-16g-x1-us", "l4-24g-x1-us", "l4-24g-x1-us-spot",
                "a100-sxm-80g-x1-us", "a100-sxm-80g-x8-us", "h200-sxm-141g-x8-us", "b200-sxm-180g-x8-us",
                "mi300x-192g-x8-us",
            ),
            "GPUTypeMismatch",
        ),
    }  # fmt: skip
    assert told.fallbacks == ("h100-sxm-80g-x1-us",)
    assert told.scores.keys() == {*SCORES, "total"}
    wire = told.explain()
    PlacementExplain.model_validate(wire)
    assert wire["scores"]["costToComplete"] == "1"
    assert len(wire["rejected"]) == len(told.lost)


@pytest.mark.parametrize(
    ("asked", "name", "reason"),
    [
        (demand(offerings=["cpu-4x8"]), "cpu-1x2", "NotListed"),
        (demand(gpu("L4"), interruptible="Never"), "l4-24g-x1-us-spot", "InterruptibleNotAllowed"),
        (demand(gpu("L4"), interruptible="Prefer", profile="Speed"), "l4-24g-x1-us", "NotInterruptible"),
        (demand(), "t4-16g-x1-us", "GPUCountMismatch"),
        (demand(gpu("T4", minMemory="20Gi")), "t4-16g-x1-us", "GPUMemoryTooSmall"),
        (demand(gpu("MI300X", count=8, interconnect="NVLink")), "mi300x-192g-x8-us", "InterconnectMismatch"),
        (demand({"cpu": "2"}), "cpu-1x2", "CPUTooSmall"),
        (demand({"memory": "3Gi"}), "cpu-1x2", "MemoryTooSmall"),
        (demand({**gpu("T4"), "disk": "200Gi"}), "t4-16g-x1-us", "DiskTooSmall"),
        (demand(maxRateUSDPerHour="0.1"), "cpu-4x8", "RateAboveMax"),
        (demand(), "cpu-4x8", "CostsMore"),
        (demand(gpu("A10", "L4"), profile="Speed", interruptible="Never"), "a10-24g-x1-eu", "TakesLonger"),
        (demand(offerings=["cpu-1x2", "same"]), "same", "LargerThanNeeded"),
        (demand(offerings=["cpu-1x2", "risky"]), "risky", "InterruptedMoreOften"),
    ],
)
def test_each_filter_and_each_score_is_told_by_its_code(asked: Demand, name: str, reason: str) -> None:
    [small] = [candidate for candidate in OWNED if candidate.name == "cpu-1x2"]
    same = replace(small, name="same", cpu_milli=4_000, memory_bytes=small.memory_bytes)
    # As quick and as cheap with its interruptions as the other without them.
    risky = replace(small, name="risky", interruptible=True, interruptions_per_hour=900, startup_seconds_p50=0.854)
    assert place(asked, [*OWNED, same, risky], 2.0).lost[name] == reason


def test_what_the_server_has_comes_before_what_would_be_better_and_planning_needs_neither() -> None:
    some = [replace(each, available=each.name == "cpu-16x32") for each in OWNED]
    told = place(demand(), some, HOUR)
    assert (told.chosen and told.chosen.name, told.available, told.lost["cpu-1x2"]) == (
        "cpu-16x32",
        True,
        "InsufficientCapacity",
    )
    none = place(demand(), book_candidates(BOOK), HOUR)
    assert (none.chosen and none.chosen.name, none.available) == ("cpu-1x2", False)
    assert place(demand(), [], HOUR) == Placed(
        profile=Profile.BALANCED, chosen=None, available=False, scores={}, fallbacks=(), lost={}
    )


def test_a_local_host_takes_whatever_needs_no_accelerator() -> None:
    local = local_candidate(36_000, "local")
    assert place(demand({"cpu": "64", "memory": "512Gi"}), [local], HOUR).chosen == local
    assert place(demand(gpu("H100")), [local], HOUR).lost == {"local": "GPUTypeMismatch"}
    free = place(demand(), [local_candidate(0, "local"), replace(local, name="other")], HOUR)
    assert free.chosen == local_candidate(0, "local")


def test_an_explanation_of_a_large_book_is_bounded() -> None:
    many = [replace(local_candidate(number, "local"), name=f"c{number:04}") for number in range(1_000)]
    told = place(demand(), many, HOUR).explain()
    assert len(told["rejected"]) == len(told["fallbacks"]) == TOLD_MAX


def test_the_weights_of_every_profile_are_about_every_score_and_add_up_to_one() -> None:
    assert WEIGHTS.keys() == set(Profile)
    for weights in WEIGHTS.values():
        assert tuple(weights) == SCORES
        assert math.isclose(sum(weights.values()), 1.0)


SPOT = Candidate(
    name="spot", rate_micro_usd_per_hour=1_000_000, region_class="us", interruptions_per_hour=0.5, startup_seconds_p50=0
)


def test_interruptions_are_paid_for_as_runs_that_are_lost() -> None:
    # Two hours at one interruption in two hours: exp(1) - 1 lost runs, and (exp(1) - 1) / 0.5 hours of running.
    hours = (math.e - 1) / 0.5
    told = expectation(SPOT, 2 * HOUR)
    assert math.isclose(told.seconds, hours * HOUR)
    assert told.cost_micro_usd == math.ceil(hours * 1_000_000)
    assert math.isclose(told.undisturbed, math.exp(-1))
    steady = expectation(replace(SPOT, interruptions_per_hour=0.0, startup_seconds_p50=HOUR), 2 * HOUR)
    assert (steady.seconds, steady.cost_micro_usd, steady.undisturbed) == (3 * HOUR, 3_000_000, 1.0)
    assert math.isfinite(expectation(replace(SPOT, interruptions_per_hour=1e9), 1e9).seconds)


rates = st.integers(0, 10**9)
times = st.floats(0, 30 * DAY)


@given(rates, rates, times, times, st.floats(0, 2), st.floats(0, 2))
def test_the_expected_cost_never_falls_with_rate_time_or_interruptions(
    rate: int, more_rate: int, seconds: float, more_seconds: float, risk: float, more_risk: float
) -> None:
    less = replace(SPOT, rate_micro_usd_per_hour=rate, interruptions_per_hour=risk)
    more = replace(SPOT, rate_micro_usd_per_hour=rate + more_rate, interruptions_per_hour=risk + more_risk)
    cheap, dear = expectation(less, seconds), expectation(more, seconds + more_seconds)
    # The last digit of a float may fall where a value does not change.
    assert 0 <= cheap.cost_micro_usd <= dear.cost_micro_usd * (1 + 1e-9) + 1


@given(st.permutations(OWNED), st.sampled_from(Profile), st.sampled_from(Interruptible))
def test_the_order_of_the_candidates_does_not_matter(
    shuffled: list[Candidate], profile: Profile, interruptible: Interruptible
) -> None:
    asked = replace(demand(gpu("H100", "A100", "L4")), profile=profile, interruptible=interruptible)
    assert place(asked, shuffled, HOUR) == place(asked, OWNED, HOUR)


def test_equal_classes_are_decided_by_their_names() -> None:
    twins = [replace(SPOT, name=name) for name in ("b", "a", "c")]
    for order in itertools.permutations(twins):
        told = place(demand(), order, HOUR)
        assert told.chosen is not None
        assert (told.chosen.name, told.fallbacks) == ("a", ("b", "c"))
        assert set(told.lost.values()) == {"RankedLaterByRateAndName"}
