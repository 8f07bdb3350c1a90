"""What placement chooses from: the offerings of a price book, and the hosts of this server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from controlplane.ledger.pricebook import PriceBook, PricedOffering
from controlplane.ledger.pricing import LOCAL, PER_SECOND, Billing
from controlplane.machinery.quantities import parse_duration, parse_money, quantity_bytes, quantity_milli
from controlplane.placement.demand import GpuDemand, normalised

_STARTUP_SECONDS = (2.0, 8.0)
"""Of a class whose book tells none, and of a local host, as median and 90th percentile: what a sandbox, an interpreter
and the user's imports take."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One class of capacity. None of a host's sizes is known where it is None, and then any floor fits."""

    name: str
    rate_micro_usd_per_hour: int
    region_class: str
    cpu_milli: int | None = None
    memory_bytes: int | None = None
    disk_bytes: int | None = None
    billing: Billing = PER_SECOND
    gpu_count: int = 0
    gpu_variants: frozenset[str] = frozenset()
    """Normalised names of exactly this accelerator."""
    gpu_family: str = ""
    gpu_memory_bytes: int = 0
    nvlink: bool = False
    interruptible: bool = False
    interruptions_per_hour: float = 0.0
    startup_seconds_p50: float = _STARTUP_SECONDS[0]
    startup_seconds_p90: float = _STARTUP_SECONDS[1]
    available: bool = True
    """Whether this server has a host of the class; one that it has not is for planning."""


def local_candidate(rate_micro_usd_per_hour: int, region_class: str, gpu: GpuDemand | None = None) -> Candidate:
    """The hosts of this server, where no book says what they are: nothing takes them back.

    `gpu` are accelerators that the operator offers there. Which are in which host only its node knows, so they are what
    was asked for.
    """
    own = Candidate(name=LOCAL, rate_micro_usd_per_hour=rate_micro_usd_per_hour, region_class=region_class)
    if gpu is None:
        return own
    return replace(own, gpu_count=gpu.count, gpu_variants=gpu.types, gpu_memory_bytes=gpu.memory_bytes_min, nvlink=True)


@dataclass(frozen=True, kw_only=True)
class Offered:
    """What a book offers: its classes, read once, since a large book is asked about with every new spec."""

    version: str = ""
    classes: Sequence[Candidate] = ()

    @classmethod
    def of(cls, book: PriceBook | None) -> Offered:
        """What this book offers, nothing without one."""
        return cls(version=book.version, classes=book_candidates(book)) if book is not None else cls()


def book_candidates(book: PriceBook | None) -> Sequence[Candidate]:
    """The classes of a book, none without one."""
    return [_priced(offering) for offering in book.offerings] if book is not None else []


def _priced(offering: PricedOffering) -> Candidate:
    host, gpu, startup = offering.host, offering.accelerator, offering.startup
    return Candidate(
        name=offering.name,
        rate_micro_usd_per_hour=parse_money(offering.rate_usd_per_hour),
        region_class=offering.region_class,
        billing=Billing(increment_seconds=offering.billing_increment_seconds, minimum_seconds=offering.minimum_seconds),
        cpu_milli=quantity_milli(host.cpu),
        memory_bytes=quantity_bytes(host.memory),
        disk_bytes=quantity_bytes(host.disk) if host.disk is not None else None,
        gpu_count=offering.count,
        gpu_variants=frozenset(map(normalised, (gpu.id, gpu.display_name))) if gpu is not None else frozenset(),
        gpu_family=normalised(gpu.family) if gpu is not None else "",
        gpu_memory_bytes=quantity_bytes(gpu.memory) if gpu is not None else 0,
        nvlink=(offering.interconnect or "").casefold() == "nvlink",
        interruptible=offering.interruptible,
        interruptions_per_hour=float(offering.interruptions_per_hour or 0),
        startup_seconds_p50=parse_duration(startup.p50) if startup is not None else _STARTUP_SECONDS[0],
        startup_seconds_p90=parse_duration(startup.p90) if startup is not None else _STARTUP_SECONDS[1],
        available=offering.available > 0,
    )
