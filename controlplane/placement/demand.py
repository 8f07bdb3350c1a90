"""What work asks of its capacity, read from a canonical spec of a Function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from controlplane.machinery.quantities import parse_money, quantity_bytes, quantity_milli


class Profile(StrEnum):
    """What a placement optimises for; the words of `spec.placement.profile`."""

    BALANCED = "Balanced"
    COST = "Cost"
    SPEED = "Speed"


class Interruptible(StrEnum):
    """Whether capacity that may be taken back will do; the words of `spec.placement.interruptible`."""

    NEVER = "Never"
    ALLOW = "Allow"
    PREFER = "Prefer"


@dataclass(frozen=True, kw_only=True)
class GpuDemand:
    """Accelerators of one worker. `types` are normalised names, any of which will do."""

    types: frozenset[str]
    count: int = 1
    memory_bytes_min: int = 0
    """Of each accelerator."""
    exact: bool = False
    """Whether a type names one variant, and a family none."""
    nvlink: bool = False


@dataclass(frozen=True, kw_only=True)
class Demand:
    """The floors and filters of one worker; an empty set of regions or offerings means any."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    disk_bytes: int = 0
    gpu: GpuDemand | None = None
    interruptible: Interruptible = Interruptible.ALLOW
    profile: Profile = Profile.BALANCED
    regions: frozenset[str] = frozenset()
    offerings: frozenset[str] = frozenset()
    rate_micro_usd_per_hour_max: int | None = None

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> Demand:
        """What the canonical spec of a Function asks for."""
        resources, placement = spec["resources"], spec["placement"]
        rate_max = placement.get("maxRateUSDPerHour")
        return cls(
            cpu_milli=quantity_milli(resources["cpu"]),
            memory_bytes=quantity_bytes(resources["memory"]),
            disk_bytes=quantity_bytes(resources["disk"]),
            gpu=_gpu(resources["gpu"]) if resources.get("gpu") else None,
            interruptible=Interruptible(placement["interruptible"]),
            profile=Profile(placement["profile"]),
            regions=frozenset(placement.get("regions") or ()),
            offerings=frozenset(placement.get("offerings") or ()),
            rate_micro_usd_per_hour_max=parse_money(rate_max) if rate_max is not None else None,
        )


NO_DEMAND = Demand()
"""Whatever there is will do."""


def normalised(name: str) -> str:
    """A name of an accelerator without case and punctuation: `H100 SXM 80 GB` and `h100-sxm-80gb` are the same."""
    return "".join(letter for letter in name.casefold() if letter.isalnum())


def _gpu(request: Mapping[str, Any]) -> GpuDemand:
    memory = request.get("minMemory")
    return GpuDemand(
        types=frozenset(normalised(name) for name in request["type"]),
        count=request["count"],
        memory_bytes_min=quantity_bytes(memory) if memory is not None else 0,
        exact=bool(request.get("exact")),
        nvlink=request.get("interconnect") == "NVLink",
    )
