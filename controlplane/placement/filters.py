"""What rules a class of capacity out: a table, whose first row that applies is the reason told.

What the owner excluded comes before what does not fit, and both before what is merely not there: who reads that there
is no capacity of a class should be able to conclude that it would do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from controlplane.machinery.quantities import format_money
from controlplane.placement.candidates import Candidate
from controlplane.placement.demand import Demand, GpuDemand, Interruptible

Judge = Callable[[Demand, Candidate], bool]

_REASONS_TOLD_MAX = 3
"""In one sentence; all of them are in the explanation of an estimate."""


@dataclass(frozen=True)
class Filter:
    """A reason: its stable code, when it applies, what it means, and what helps."""

    code: str
    excludes: Judge
    meaning: str
    remedy: str
    """What to change so that it does not, with the fields of the class in braces."""


def _gpu(judge: Callable[[GpuDemand, Candidate], bool]) -> Judge:
    """Only work that wants accelerators is judged by them."""
    return lambda demand, candidate: demand.gpu is not None and judge(demand.gpu, candidate)


def _wrong_type(gpu: GpuDemand, candidate: Candidate) -> bool:
    family = frozenset() if gpu.exact else frozenset({candidate.gpu_family})
    return not gpu.types & (candidate.gpu_variants | family)


def _smaller(size: int | None, floor: int) -> bool:
    return size is not None and size < floor


FILTERS = (
    Filter(
        "NotListed",
        lambda d, c: bool(d.offerings) and c.name not in d.offerings,
        "`offerings` leaves it out",
        'add "{name}" to `spec.placement.offerings` or leave that out',
    ),
    Filter(
        "RegionMismatch",
        lambda d, c: bool(d.regions) and c.region_class not in d.regions,
        "`regions` leaves it out",
        'add "{region_class}" to `spec.placement.regions` or leave that out',
    ),
    Filter(
        "InterruptibleNotAllowed",
        lambda d, c: d.interruptible is Interruptible.NEVER and c.interruptible,
        "it can be taken back, and `interruptible` is Never",
        "set `spec.placement.interruptible` to Allow",
    ),
    Filter(
        "GPUTypeMismatch",
        _gpu(_wrong_type),
        "its accelerators are others; with `exact`, only an id such as h100-sxm-80g names one",
        "name what it has in `spec.resources.gpu.type`",
    ),
    # A program is written for a number of accelerators; those that it does not use are paid for all the same.
    Filter(
        "GPUCountMismatch",
        lambda d, c: c.gpu_count != (d.gpu.count if d.gpu is not None else 0),
        "it has another number of accelerators",
        "ask for {gpu_count} in `spec.resources.gpu`",
    ),
    Filter(
        "GPUMemoryTooSmall",
        _gpu(lambda gpu, c: c.gpu_memory_bytes < gpu.memory_bytes_min),
        "its accelerators have less than `gpu.minMemory`",
        "ask for less in `spec.resources.gpu.minMemory`",
    ),
    Filter(
        "InterconnectMismatch",
        _gpu(lambda gpu, c: gpu.nvlink and not c.nvlink),
        "it has no NVLink",
        "set `spec.resources.gpu.interconnect` to Any",
    ),
    Filter(
        "CPUTooSmall",
        lambda d, c: _smaller(c.cpu_milli, d.cpu_milli),
        "its hosts have fewer CPUs",
        "ask for less in `spec.resources.cpu`",
    ),
    Filter(
        "MemoryTooSmall",
        lambda d, c: _smaller(c.memory_bytes, d.memory_bytes),
        "its hosts have less memory",
        "ask for less in `spec.resources.memory`",
    ),
    Filter(
        "DiskTooSmall",
        lambda d, c: _smaller(c.disk_bytes, d.disk_bytes),
        "its hosts have less disk",
        "ask for less in `spec.resources.disk`",
    ),
    Filter(
        "RateAboveMax",
        lambda d, c: (
            d.rate_micro_usd_per_hour_max is not None and c.rate_micro_usd_per_hour > d.rate_micro_usd_per_hour_max
        ),
        "it costs more than `maxRateUSDPerHour`",
        "raise `spec.placement.maxRateUSDPerHour` to {rate}",
    ),
)
"""Why a class would not do, whoever has it."""

NO_CAPACITY = Filter(
    "InsufficientCapacity",
    lambda _, c: not c.available,
    "this server has no host of it",
    "wait until it has, or ask for less",
)
"""Why a class that would do cannot be had."""


def excluded_by(demand: Demand, candidate: Candidate) -> Filter | None:
    """The first reason why this class would not do, None when it would."""
    return next((each for each in FILTERS if each.excludes(demand, candidate)), None)


def what_to_change(demand: Demand, candidates: Sequence[Candidate]) -> str:
    """Why none of these classes would do, and what of the spec to change, in a sentence that names a few: first those
    that passed most filters, and of one reason the cheapest."""
    reasons: dict[str, list[Candidate]] = {}
    for candidate in sorted(candidates, key=lambda each: (each.rate_micro_usd_per_hour, each.name)):
        reason = excluded_by(demand, candidate)
        if reason is not None:
            reasons.setdefault(reason.code, []).append(candidate)
    nearest = [each for each in reversed(FILTERS) if each.code in reasons][:_REASONS_TOLD_MAX]
    return "; ".join(_told(reason, reasons[reason.code]) for reason in nearest)


def _told(reason: Filter, candidates: Sequence[Candidate]) -> str:
    first, others = candidates[0], len(candidates) - 1
    more = f" (and {others} more)" if others else ""
    remedy = reason.remedy.format(**vars(first), rate=format_money(first.rate_micro_usd_per_hour))
    return f'"{first.name}"{more} is not taken because {reason.meaning}: {remedy}'
