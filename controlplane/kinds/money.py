"""What an object costs and is expected to cost, as every kind that spends money shows it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from controlplane.machinery.model import ApiModel
from controlplane.machinery.quantities import Duration, Money

Segment = Literal["Boot", "Running", "Restore", "Teardown"]


class CostSegments(ApiModel):
    """A charge split by what the workers were doing."""

    boot_usd: Money | None = Field(default=None, description="Charged from the start of billing to the first claim.")
    boot_seconds: int | None = Field(default=None, description="Charged seconds of booting.")
    boot_covered_seconds: int | None = Field(default=None, description="Seconds of booting the operator paid.")
    running_usd: Money | None = Field(default=None, description="Charged while workers served.")
    running_seconds: int | None = Field(default=None, description="Charged seconds of serving.")
    running_covered_seconds: int | None = Field(default=None, description="Seconds of serving the operator paid.")
    restore_usd: Money | None = Field(default=None, description="Charged for replacing lost workers.")
    restore_seconds: int | None = Field(default=None, description="Charged seconds of replacing.")
    restore_covered_seconds: int | None = Field(default=None, description="Seconds of replacing the operator paid.")
    teardown_usd: Money | None = Field(default=None, description="Charged from the stop to the proven end.")
    teardown_seconds: int | None = Field(default=None, description="Charged seconds of stopping.")
    teardown_covered_seconds: int | None = Field(default=None, description="Seconds of stopping the operator paid.")
    covered_by_nodus: list[Segment] | None = Field(default=None, description="Segments the operator paid a part of.")


class Cost(ApiModel):
    """A copy of the ledger for people to read; nothing is charged from it."""

    total_usd: Money | None = Field(default=None, description="Charged so far.")
    held_usd: Money | None = Field(default=None, description="Reserved now for what is still running.")
    rate_usd_per_hour: Money | None = Field(default=None, description="What the running workers cost an hour.")
    limit_usd: Money | None = Field(default=None, description="The object's `maxCostUSD`, if it has one.")
    final: bool | None = Field(default=None, description="Whether the last charge has been posted.")
    funded_until_time: str | None = Field(default=None, description="When the present holds are used up.")
    by_segment: CostSegments | None = Field(default=None, description="The charge by segment.")


class UsdBand(ApiModel):
    """A median and a 90th percentile of an amount."""

    p50: Money | None = Field(default=None, description="Half of the outcomes cost at most this.")
    p90: Money | None = Field(default=None, description="Nine of ten outcomes cost at most this.")


class DurationBand(ApiModel):
    """A median and a 90th percentile of a duration."""

    p50: Duration | None = Field(default=None, description="Half of the outcomes take at most this long.")
    p90: Duration | None = Field(default=None, description="Nine of ten outcomes take at most this long.")


class StartupEstimate(ApiModel):
    """How long it takes until work starts."""

    cold: DurationBand | None = Field(default=None, description="When a worker must be started first.")
    warm: DurationBand | None = Field(default=None, description="On a worker that is ready; absent if there is none.")


class PlacementPreview(ApiModel):
    """The capacity a create would use."""

    offering: str | None = Field(default=None, description="Name of the Offering.")
    region_class: str | None = Field(default=None, description="Where it is.")
    interruptible: bool | None = Field(default=None, description="Whether it can be taken back while it runs.")
    warm_reuse: bool | None = Field(default=None, description="Whether a machine that is up would be reused.")
    explain: Any | None = Field(default=None, description="How the scheduler came to it.")


class EstimateWarning(ApiModel):
    """Something worth knowing that does not stop a create."""

    code: str = Field(description="One CamelCase word, such as ColdStart.")
    message: str | None = Field(default=None, description="The warning in a sentence.")


class BlockingReason(ApiModel):
    """Why a create would be refused now."""

    code: str = Field(description="The error code it would get.")
    message: str | None = Field(default=None, description="The reason with its amounts.")
    fix: str | None = Field(default=None, description="What to do about it.")


class Estimate(ApiModel):
    """What an object would cost and how soon it would start; given by dry-runs and on create."""

    cost_usd: UsdBand | None = Field(default=None, description="Expected price; of a Function, of one of its calls.")
    overhead_usd: UsdBand | None = Field(
        default=None, description="What starting, keeping and stopping a worker for it costs beside that."
    )
    rate_usd_per_hour: Money | None = Field(default=None, description="Hourly rate of the chosen capacity.")
    hold_usd: Money | None = Field(default=None, description="The first hold, which must fit balance and budgets.")
    concurrent_hold_usd: Money | None = Field(default=None, description="Holds of everything that starts at once.")
    minimum_charge_usd: Money | None = Field(default=None, description="The least that will be charged.")
    gang_hold_usd: Money | None = Field(default=None, description="Holds of all members of a gang.")
    assembly_bound_usd: Money | None = Field(default=None, description="The most a gang that never forms can cost.")
    topology: Any | None = Field(default=None, description="How a gang would be laid out.")
    startup: StartupEstimate | None = Field(default=None, description="Expected time to start.")
    placement_preview: PlacementPreview | None = Field(default=None, description="The capacity it would use.")
    warnings: list[EstimateWarning] | None = Field(default=None, description="What is worth knowing.")
    blocking_reasons: list[BlockingReason] | None = Field(default=None, description="Why a create would fail now.")
    pricebook_version: str | None = Field(default=None, description="The price book the amounts are from.")
    valid_until: str | None = Field(default=None, description="When these prices end.")
