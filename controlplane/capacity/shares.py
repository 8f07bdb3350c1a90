"""Who gets the places of a full host: max-min fairness between projects, pure.

A free place goes to the project that has the fewest workers among those that miss some (`granted`). When a host is full
and one project has at least two workers more than another that misses some, moving one makes the poorest richer, so the
rich one gives a place back (`given_back`); with a difference of one it would only turn the two around. Repeated, this
ends where nobody can have more without somebody with no more than that having less. `activities/host_shares.py`
remembers what is missing, `pool.py` chooses which workers leave.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass

MOVE_MIN = 2
"""How many workers more a project must have for one of its places to go to another."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProjectLoad:
    """The workers of one project on the host that are not leaving, and how many more it could use."""

    workers: int = 0
    missing: int = 0


def granted(free: int, loads: Mapping[str, ProjectLoad]) -> dict[str, int]:
    """How many of the free places each project gets."""
    grants: dict[str, int] = {}
    poor = [(load.workers, name) for name, load in loads.items() if load.missing]
    heapq.heapify(poor)
    while poor and free > 0:
        workers, name = heapq.heappop(poor)
        grants[name] = grants.get(name, 0) + 1
        free -= 1
        if grants[name] < loads[name].missing:
            heapq.heappush(poor, (workers + 1, name))
    return grants


def given_back(coming: int, loads: Mapping[str, ProjectLoad]) -> dict[str, int]:
    """How many places each project gives back, when `coming` are free or become so by themselves."""
    grants = granted(coming, loads)
    poor, rich = [], []
    for name, load in loads.items():
        workers = load.workers + grants.get(name, 0)
        if load.missing > grants.get(name, 0):
            poor.append((workers, name))
        if load.workers:
            rich.append((-workers, name))
    heapq.heapify(poor)
    heapq.heapify(rich)
    left = {name: load.missing - grants.get(name, 0) for name, load in loads.items()}
    returned: dict[str, int] = {}
    while poor and rich:
        (fewest, needy), (most, giver) = poor[0], rich[0]
        if -most - fewest < MOVE_MIN:
            break
        heapq.heapreplace(rich, (most + 1, giver))
        returned[giver] = returned.get(giver, 0) + 1
        left[needy] -= 1
        if left[needy]:
            heapq.heapreplace(poor, (fewest + 1, needy))
        else:
            heapq.heappop(poor)
    return returned
