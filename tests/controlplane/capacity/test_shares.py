"""Max-min fairness between projects: the rule, and a host on which it is applied while work comes and goes."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.capacity.shares import MOVE_MIN, ProjectLoad, given_back, granted

loads = st.dictionaries(
    st.sampled_from("abcdef"),
    st.builds(ProjectLoad, workers=st.integers(0, 20), missing=st.integers(0, 20)),
    max_size=6,
)


def load(workers: int, missing: int = 0) -> ProjectLoad:
    return ProjectLoad(workers=workers, missing=missing)


@pytest.mark.parametrize(
    ("free", "found", "grants"),
    [
        (3, {"a": load(0, 9)}, {"a": 3}),
        (1, {"a": load(5, 100), "b": load(0, 1)}, {"b": 1}),
        (4, {"a": load(2, 100), "b": load(0, 100)}, {"b": 3, "a": 1}),
        (9, {"a": load(2, 1), "b": load(0, 2), "c": load(7)}, {"a": 1, "b": 2}),
        (0, {"a": load(0, 1)}, {}),
    ],
)
def test_a_free_place_goes_to_the_project_with_the_fewest_workers(
    free: int, found: dict[str, ProjectLoad], grants: dict[str, int]
) -> None:
    assert granted(free, found) == grants


@pytest.mark.parametrize(
    ("coming", "found", "returns"),
    [
        (0, {"a": load(8, 100), "b": load(0, 100)}, {"a": 4}),
        (0, {"a": load(8, 100), "b": load(0, 1)}, {"a": 1}),
        (1, {"a": load(8, 100), "b": load(0, 1)}, {}),
        (0, {"a": load(5, 100), "b": load(4, 100)}, {}),
        (0, {"a": load(8), "b": load(0, 1)}, {"a": 1}),
        (0, {"a": load(6, 9), "b": load(6, 9), "c": load(0, 9)}, {"a": 2, "b": 2}),
        (0, {"a": load(8, 100)}, {}),
        (0, {"a": load(1, 9), "b": load(0, 9)}, {}),
    ],
)
def test_a_rich_project_gives_back_what_makes_a_poor_one_richer(
    coming: int, found: dict[str, ProjectLoad], returns: dict[str, int]
) -> None:
    assert given_back(coming, found) == returns


@given(free=st.integers(0, 30), found=loads)
def test_grants_leave_nothing_free_that_somebody_misses_and_nobody_poorer_waits_for_a_richer(
    free: int, found: dict[str, ProjectLoad]
) -> None:
    grants = granted(free, found)
    assert sum(grants.values()) == min(free, sum(one.missing for one in found.values()))
    for name, count in grants.items():
        assert 0 < count <= found[name].missing
        last = found[name].workers + count - 1
        waiting = [
            one.workers + grants.get(other, 0) for other, one in found.items() if one.missing > grants.get(other, 0)
        ]
        assert all(workers >= last for workers in waiting)


@given(found=loads)
def test_giving_back_ends_fair_and_never_makes_the_giver_the_poorest(found: dict[str, ProjectLoad]) -> None:
    returns = given_back(0, found)
    after = {
        name: load(one.workers - returns.get(name, 0), one.missing + returns.get(name, 0) * (one.missing > 0))
        for name, one in found.items()
    }
    grants = granted(sum(returns.values()), after)
    # What was given goes to those who had fewer, and not back.
    assert not returns.keys() & grants.keys()
    held = {name: one.workers + grants.get(name, 0) for name, one in after.items()}
    poor = [held[name] for name, one in found.items() if one.missing > grants.get(name, 0)]
    assert not poor or max(held.values()) - min(poor) < MOVE_MIN
    assert all(held[name] >= max(held[other] for other in grants) for name in returns)


@dataclass
class Host:
    """Places of a host; a worker that is to leave does so when its call ends."""

    places: int
    workers: dict[str, int] = field(default_factory=dict)
    leaving: dict[str, int] = field(default_factory=dict)
    wanted: dict[str, int] = field(default_factory=dict)

    def loads(self) -> dict[str, ProjectLoad]:
        return {
            name: load(self.workers.get(name, 0), max(0, count - self.workers.get(name, 0)))
            for name, count in self.wanted.items()
        }

    def step(self, chance: random.Random) -> None:
        """One round of the autoscaler, and some calls that end."""
        live = sum(self.workers.values()) + sum(self.leaving.values())
        assert live <= self.places
        coming = self.places - live
        grants = granted(coming, self.loads())
        for name, count in given_back(coming + sum(self.leaving.values()), self.loads()).items():
            self.workers[name] -= count
            self.leaving[name] = self.leaving.get(name, 0) + count
        for name, count in grants.items():
            self.workers[name] = self.workers.get(name, 0) + count
        for name, count in self.leaving.items():
            self.leaving[name] = count - sum(chance.random() < 0.5 for _ in range(count))
        for name, count in self.wanted.items():
            # What nobody asks for any more goes when it has idled long enough.
            if self.workers.get(name, 0) > count and chance.random() < 0.3:
                self.workers[name] -= 1


@pytest.mark.parametrize("seed", range(25))
def test_on_a_host_where_work_comes_and_goes_nobody_starves_and_a_steady_load_ends_max_min_fair(seed: int) -> None:
    chance = random.Random(seed)
    host = Host(chance.randint(4, 40))
    names = [f"p{number}" for number in range(chance.randint(2, 6))]
    host.wanted = {"greedy": 10_000}
    for _ in range(5):
        host.step(chance)
    assert host.workers["greedy"] == host.places
    for _ in range(6):
        for name in names:
            host.wanted[name] = chance.choice([0, 1, 3, 1_000])
        for _ in range(80):
            host.step(chance)
        held, wanted = host.workers, host.wanted
        short = [name for name in wanted if held.get(name, 0) < wanted[name]]
        assert short == [] or sum(held.values()) == host.places
        # Nobody waits while somebody has two more: that is max-min up to the place that cannot be halved.
        for name in short:
            assert max(held.values()) - held.get(name, 0) < MOVE_MIN
        before = dict(held)
        for _ in range(10):
            host.step(chance)
        assert host.workers == before, "a fair host stays as it is"
