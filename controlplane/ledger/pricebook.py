"""Price books: what each class of capacity costs, from when on, as a file that an operator writes.

A file holds one book or several, each with a version and the time from which it is in force; the latest of those whose
time has come is. So a change of prices is written down before it happens and takes effect without a restart, and what
was charged by a version is still explained by it. Rates are decimal strings: a number of YAML or JSON would have been a
float before anybody could round it. `activities/offerings.py` makes the objects that clients see.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import yaml
from pydantic import AwareDatetime, Field, ValidationError, model_validator

from controlplane.clock import format_time
from controlplane.kinds.offering import OfferingAccelerator, OfferingHost, OfferingStartup
from controlplane.machinery.conditions import Condition, with_condition
from controlplane.machinery.kind import Document
from controlplane.machinery.model import ApiModel
from controlplane.machinery.quantities import Money

BOOK_BYTES_MAX = 1 << 20
"""A book of a thousand classes has half of it."""
OFFERINGS_MAX = 1_000
"""Of one book: they are stored in one commit."""
BOOKS_MAX = 100
BILLING_SECONDS_MAX = 86_400
"""Nobody sells capacity by more than the day; a worker holds an increment beyond its window."""
_SUPPORTS = {"jobs": False, "gangs": False, "sandboxes": False, "workspaces": False, "restrictedEgress": True}
"""This server runs Functions, in sandboxes that reach what their proxy allows."""


class PricedOffering(ApiModel):
    """One class of capacity in a book."""

    name: str = Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$", description="Name of the Offering.")
    accelerator: OfferingAccelerator | None = Field(default=None, description="Which; unset for CPU classes.")
    count: int = Field(default=0, ge=0, le=16, description="Accelerators of one host.")
    host: OfferingHost = Field(description="The host around them.")
    interconnect: str | None = Field(default=None, description="Between the accelerators.")
    interruptible: bool = Field(default=False, description="Whether it may be taken away.")
    multi_node: bool = Field(default=False, description="Whether several can be had beside each other.")
    region_class: str = Field(description="Where it is.")
    rate_usd_per_hour: Money = Field(description="What one host costs an hour.")
    list_rate_usd_per_hour: Money | None = Field(default=None, description="What it costs without a discount.")
    billing_increment_seconds: int = Field(
        default=1, ge=1, le=BILLING_SECONDS_MAX, description="A worker is charged for whole multiples of this time."
    )
    minimum_seconds: int = Field(
        default=1, ge=1, le=BILLING_SECONDS_MAX, description="A worker is charged for this time at least."
    )
    interruptions_per_hour: str | None = Field(
        default=None, pattern=r"^[0-9]+(\.[0-9]+)?$", description="How often it is taken away."
    )
    startup: OfferingStartup | None = Field(default=None, description="How long a start takes.")
    available: int = Field(default=0, ge=0, description="How many hosts there are; a class with none is for planning.")

    @model_validator(mode="after")
    def _accelerators_are_counted(self) -> PricedOffering:
        if (self.accelerator is None) is not (self.count == 0):
            raise ValueError("must have `count` if it has an `accelerator`, and none otherwise")
        return self


class PriceBook(ApiModel):
    """The prices of one version."""

    version: str = Field(min_length=1, max_length=63, description="Names the book for good.")
    valid_from: AwareDatetime = Field(strict=False, description="From when it is in force, until a later one is.")
    offerings: list[PricedOffering] = Field(max_length=OFFERINGS_MAX, description="The classes.")

    @model_validator(mode="after")
    def _names_are_unique(self) -> PriceBook:
        names = [offering.name for offering in self.offerings]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"must price each offering once: {', '.join(twice)}")
        return self


class _BookFile(ApiModel):
    """The content of a file."""

    books: list[PriceBook] = Field(min_length=1, max_length=BOOKS_MAX, description="The versions.")


def load_books(path: Path | None) -> Sequence[PriceBook]:
    """The books of a YAML or JSON file, by the time from which they are in force; none without a file.

    Raises ValueError that names the file and every field that is wrong, and OSError when it cannot be read.
    """
    if path is None:
        return ()
    with path.open("rb") as file:
        content = file.read(BOOK_BYTES_MAX + 1)
    if len(content) > BOOK_BYTES_MAX:
        raise ValueError(f"the price book {path} must be smaller than {BOOK_BYTES_MAX} bytes")
    try:
        books = _BookFile.model_validate(yaml.safe_load(content)).books
    except yaml.YAMLError as error:
        raise ValueError(f"the price book {path} must be YAML or JSON: {error}") from error
    except ValidationError as error:
        told = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise ValueError(f"the price book {path} is invalid: {told}") from error
    for what, values in (("version", [b.version for b in books]), ("`validFrom`", [b.valid_from for b in books])):
        if len(set(values)) < len(values):
            raise ValueError(f"the price book {path} must give every book a {what} of its own")
    return sorted(books, key=lambda book: book.valid_from)


def book_at(books: Sequence[PriceBook], now: datetime) -> PriceBook | None:
    """The book in force, None before the first is."""
    return next((book for book in reversed(books) if book.valid_from <= now), None)


def offering_parts(book: PriceBook, offering: PricedOffering, now: datetime, told: Document | None) -> Document:
    """Spec and status of the Offering; `told` is its present status, whose condition keeps its time."""
    wire = offering.to_wire()
    spec: Document = {
        name: wire[name] for name in ("accelerator", "host", "interconnect", "regionClass") if name in wire
    }
    spec |= {
        "category": "CPU" if offering.accelerator is None else "GPU",
        "count": offering.count,
        "interruptible": offering.interruptible,
        "multiNode": offering.multi_node,
        "supports": dict(_SUPPORTS),
    }
    status: Document = {
        "availability": "Available" if offering.available else "Unavailable",
        "availableNow": offering.available,
        "priceUSDPerHour": {"from": offering.rate_usd_per_hour, "typical": offering.rate_usd_per_hour},
        "observedTime": format_time(book.valid_from),
        "conditions": with_condition((told or {}).get("conditions") or [], _condition(offering), now),
    }
    if offering.list_rate_usd_per_hour is not None:
        status["listPriceUSDPerHour"] = offering.list_rate_usd_per_hour
    if offering.interruptions_per_hour is not None:
        status["interruptionRatePerHour"] = offering.interruptions_per_hour
    if "startup" in wire:
        status["startup"] = wire["startup"]
    return {"spec": spec, "status": status}


def _condition(offering: PricedOffering) -> Condition:
    if offering.available:
        return Condition("Available", "True", "HasCapacity", "there are hosts of this class", 1)
    message = "no host of this class belongs to this server; it is listed for planning"
    return Condition("Available", "False", "NoCapacity", message, 1)
