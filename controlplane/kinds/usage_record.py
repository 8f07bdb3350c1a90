"""The UsageRecord kind: what was used, from when to when, and what that cost; and sums of them.

Read only and stored nowhere as an object: `controlplane/ledger/usage.py` makes a record of each charge in the ledger,
and adds charges up by the keys of `?groupBy=` into a UsageSummary.
"""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from controlplane.machinery.documents import value_at
from controlplane.machinery.kind import Column, Document, Kind, Scope, Verb
from controlplane.machinery.model import ApiModel
from controlplane.machinery.quantities import Money
from controlplane.machinery.table import AGE_COLUMN, NAME_COLUMN, text_at


class UsedObject(ApiModel):
    """What used it."""

    kind: str = Field(description="Its kind.")
    name: str = Field(description="Its name.")
    uid: str | None = Field(default=None, description="Its uid.")


class UsageRate(ApiModel):
    """What a unit of capacity costs."""

    usd: Money = Field(description="The price.")
    per: str = Field(description="Of how much of it.")


class UsageFields(ApiModel):
    """What was used, and what it cost."""

    period_start_time: str = Field(description="From when it is charged.")
    period_end_time: str | None = Field(default=None, description="Until when it is charged.")
    project: str | None = Field(default=None, description="The project that used it.")
    object: UsedObject = Field(description="What used it: a Function.")
    function_call: str | None = Field(default=None, description="The call that the capacity ran for.")
    meter: str = Field(description="What is measured: ComputeSeconds.")
    segment: str = Field(description="What the capacity did: Boot, Running, Restore or Teardown.")
    quantity: str = Field(description="How much of the unit.")
    unit: str = Field(description="s: seconds of a worker, or of a place on one that is shared.")
    shares: int | None = Field(default=None, description="Places of the worker, which share its rate.")
    amount_usd: Money = Field(description="What it cost.")
    rate: UsageRate | None = Field(default=None, description="What a worker costs.")
    rank: int | None = Field(default=None, description="Which member of a gang; unset, because none run here.")
    offering: str | None = Field(default=None, description="The capacity that it ran on, where that is known.")
    pricebook_version: str | None = Field(default=None, description="The price book that the rate is from.")
    transaction: str = Field(description="The Transaction that charged it.")


def _object(document: Document, now: datetime) -> str | int:
    return f"{str(value_at(document, 'object.kind')).lower()}/{value_at(document, 'object.name')}"


USAGE_RECORD = Kind(
    kind="UsageRecord",
    plural="usagerecords",
    uid_prefix="use",
    scope=Scope.ORG,
    verbs=frozenset({Verb.GET, Verb.LIST}),
    description="What was used in an interval, and what that cost.",
    spec=None,
    status=None,
    flat=UsageFields,
    columns=(
        Column("Start", text_at("periodStartTime"), "From when it is charged."),
        Column("Object", _object, "What used it."),
        Column("Meter", text_at("meter"), "What is measured."),
        Column("Segment", text_at("segment"), "What the capacity did."),
        Column("Quantity", text_at("quantity"), "How much."),
        Column("Amount", text_at("amountUSD"), "What it cost."),
        Column(NAME_COLUMN.name, NAME_COLUMN.read, NAME_COLUMN.description, format="name", priority=1),
        Column("Transaction", text_at("transaction"), "The Transaction that charged it.", priority=1),
        Column(AGE_COLUMN.name, AGE_COLUMN.read, AGE_COLUMN.description, priority=1),
    ),
    short_names=("use",),
    selectable_fields=("project", "object.kind", "object.name", "functionCall", "meter", "segment"),
    project_field="project",
    scope_resource="billing",
)
