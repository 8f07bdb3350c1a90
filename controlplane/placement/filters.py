"""What rules a class of capacity out: a table, whose first row that applies is the reason told.

What the owner excluded comes before what does not fit, and both before what is merely not there: who reads that there
is no capacity of a class should be able to conclude that it would do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from controlplane.placement.candidates import Candidate
from controlplane.placement.demand import Demand, GpuDemand, Interruptible

Judge = Callable[[Demand, Candidate], bool]


@dataclass(frozen=True)
class Filter:
    """A reason: its stable code, when it applies, and what it means."""

    code: str
    excludes: Judge
    meaning: str


def _gpu(judge: Callable[[GpuDemand, Candidate], bool]) -> Judge:
    """Only work that wants accelerators is judged by them."""
    return lambda demand, candidate: demand.gpu is not None and judge(demand.gpu, candidate)


def _wrong_type(gpu: GpuDemand, candidate: Candidate) -> bool:
    family = frozenset() if gpu.exact else frozenset({candidate.gpu_family})
    return not gpu.types & (candidate.gpu_variants | family)


def _smaller(size: int | None, floor: int) -> bool:
    return size is not None and size < floor


FILTERS = (
    Filter("NotListed", lambda d, c: bool(d.offerings) and c.name not in d.offerings, "`offerings` leaves it out"),
    Filter(
        "RegionMismatch", lambda d, c: bool(d.regions) and c.region_class not in d.regions, "`regions` leaves it out"
    ),
    Filter(
        "InterruptibleNotAllowed",
        lambda d, c: d.interruptible is Interruptible.NEVER and c.interruptible,
        "it can be taken back, and `interruptible` is Never",
    ),
    Filter(
        "GPUTypeMismatch",
        _gpu(_wrong_type),
        "its accelerators are others; with `exact`, only an id such as h100-sxm-80g names one",
    ),
    # A program is written for a number of accelerators; those that it does not use are paid for all the same.
    Filter(
        "GPUCountMismatch",
        lambda d, c: c.gpu_count != (d.gpu.count if d.gpu is not None else 0),
        "it has another number of accelerators",
    ),
    Filter(
        "GPUMemoryTooSmall",
        _gpu(lambda gpu, c: c.gpu_memory_bytes < gpu.memory_bytes_min),
        "its accelerators have less than `gpu.minMemory`",
    ),
    Filter("InterconnectMismatch", _gpu(lambda gpu, c: gpu.nvlink and not c.nvlink), "it has no NVLink"),
    Filter("CPUTooSmall", lambda d, c: _smaller(c.cpu_milli, d.cpu_milli), "its hosts have fewer CPUs"),
    Filter("MemoryTooSmall", lambda d, c: _smaller(c.memory_bytes, d.memory_bytes), "its hosts have less memory"),
    Filter("DiskTooSmall", lambda d, c: _smaller(c.disk_bytes, d.disk_bytes), "its hosts have less disk"),
    Filter(
        "RateAboveMax",
        lambda d, c: (
            d.rate_micro_usd_per_hour_max is not None and c.rate_micro_usd_per_hour > d.rate_micro_usd_per_hour_max
        ),
        "it costs more than `maxRateUSDPerHour`",
    ),
)
"""Why a class would not do, whoever has it."""

NO_CAPACITY = Filter("InsufficientCapacity", lambda _, c: not c.available, "this server has no host of it")
"""Why a class that would do cannot be had."""


def excluded_by(demand: Demand, candidate: Candidate) -> Filter | None:
    """The first reason why this class would not do, None when it would."""
    return next((each for each in FILTERS if each.excludes(demand, candidate)), None)
