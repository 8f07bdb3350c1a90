"""The Offering kind: a class of capacity with its price. Read only; the price book in force says what there is.

`activities/offerings.py` keeps the objects as the book has them, so whoever lists or watches offerings sees the prices
that a worker started now would have. What is available is told apart from what is priced: a class that nobody has is
good for planning.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from controlplane.machinery.conditions import Conditions
from controlplane.machinery.documents import value_at
from controlplane.machinery.kind import READ_VERBS, Column, Document, Kind, Scope
from controlplane.machinery.model import ApiModel
from controlplane.machinery.quantities import Duration, Money, Quantity
from controlplane.machinery.table import AGE_COLUMN, NAME_COLUMN, text_at

Availability = Literal["Available", "Limited", "Unavailable"]


class OfferingAccelerator(ApiModel):
    """The accelerator of an offering."""

    id: str = Field(description="Names the variant, such as h100-sxm-80g.")
    family: str = Field(description="What it is called by most, such as H100.")
    display_name: str = Field(description="Its full name.")
    memory: Quantity = Field(description="Memory of each.")
    vendor: str = Field(description="Who makes it.")
    arch: str | None = Field(default=None, description="Its architecture, such as Hopper.")
    form_factor: str | None = Field(default=None, description="SXM, PCIe …")


class OfferingHost(ApiModel):
    """What the host of an offering has."""

    cpu: Quantity = Field(description="CPUs.")
    memory: Quantity = Field(description="Memory.")
    disk: Quantity | None = Field(default=None, description="Disk.")


class OfferingSupports(ApiModel):
    """What may run on an offering besides Functions."""

    jobs: bool = Field(description="Jobs.")
    gangs: bool = Field(description="Jobs of several nodes.")
    sandboxes: bool = Field(description="Sandboxes.")
    workspaces: bool = Field(description="Workspaces.")
    restricted_egress: bool = Field(description="Workloads whose network reaches only listed hosts.")


class OfferingSpec(ApiModel):
    """What the capacity is."""

    category: Literal["GPU", "CPU"] = Field(description="GPU or CPU.")
    count: int = Field(ge=0, description="Accelerators of one host; 0 of a CPU offering.")
    accelerator: OfferingAccelerator | None = Field(default=None, description="Which, for GPU offerings.")
    host: OfferingHost = Field(description="The host around them.")
    interconnect: str | None = Field(default=None, description="Between the accelerators, such as NVLink.")
    interruptible: bool = Field(description="Whether the capacity may be taken away while something runs.")
    multi_node: bool = Field(description="Whether several hosts can be had beside each other.")
    region_class: str = Field(description="Where it is, such as us.")
    supports: OfferingSupports = Field(description="What may run there besides Functions.")


class OfferingPrice(ApiModel):
    """What one host of the offering costs."""

    from_: Money = Field(alias="from", description="The lowest rate at present.")
    typical: Money | None = Field(default=None, description="The usual rate.")


class OfferingStartup(ApiModel):
    """How long a start takes."""

    p50: Duration = Field(description="Half of the starts take no longer.")
    p90: Duration = Field(description="Nine of ten take no longer.")


class OfferingStatus(ApiModel):
    """What it costs, and whether there is any."""

    availability: Availability = Field(description="Available, Limited or Unavailable.")
    available_now: int = Field(ge=0, description="How many hosts are free.")
    price_usd_per_hour: OfferingPrice = Field(description="The price of one host.")
    list_price_usd_per_hour: Money | None = Field(default=None, description="The price without any discount.")
    interruption_rate_per_hour: str | None = Field(default=None, description="How often it is taken away, per hour.")
    startup: OfferingStartup | None = Field(default=None, description="How long a start takes.")
    observed_time: str | None = Field(default=None, description="Since when the price is in force.")
    conditions: Conditions | None = Field(default=None, description="Available.")


def _accelerators(document: Document, now: datetime) -> str | int:
    return int(value_at(document, "spec.count") or 0)


def _free(document: Document, now: datetime) -> str | int:
    return int(value_at(document, "status.availableNow") or 0)


OFFERING = Kind(
    kind="Offering",
    plural="offerings",
    uid_prefix="ofr",
    scope=Scope.ORG,
    verbs=READ_VERBS,
    description="A class of capacity, with its price.",
    spec=OfferingSpec,
    status=OfferingStatus,
    columns=(
        NAME_COLUMN,
        Column("GPU", text_at("spec.accelerator.family"), "Family of its accelerators."),
        Column("GPUs", _accelerators, "Accelerators of one host.", type="integer"),
        Column("CPU", text_at("spec.host.cpu"), "CPUs of the host."),
        Column("Memory", text_at("spec.host.memory"), "Memory of the host."),
        Column("Region", text_at("spec.regionClass"), "Where it is."),
        Column("Interruptible", text_at("spec.interruptible"), "Whether it may be taken away."),
        Column("Availability", text_at("status.availability"), "Whether there is any."),
        Column("Free", _free, "Hosts that are free.", type="integer"),
        Column("$/H", text_at("status.priceUSDPerHour.from"), "What one host costs an hour."),
        Column(AGE_COLUMN.name, AGE_COLUMN.read, AGE_COLUMN.description, priority=1),
    ),
    short_names=("gpus", "gpu", "ofr"),
    selectable_fields=(
        "spec.category",
        "spec.accelerator.family",
        "spec.count",
        "spec.regionClass",
        "spec.interruptible",
    ),
    project_field="",
    scope_resource=None,
)
