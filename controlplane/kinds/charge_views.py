"""What is served at `/charges` below a call and a Function: how its cost came about, worked out once more.

Nobody stores it: `controlplane/calls/charges.py` makes it from the dispatches of a call and from the ledger when it is
asked for, and `controlplane/calls/function_charges.py` from all that the ledger holds for a Function.
"""

from __future__ import annotations

from pydantic import Field

from controlplane.machinery.model import ApiModel
from controlplane.machinery.quantities import Money


class CallCharge(ApiModel):
    """What one dispatch of the call cost, and from what that follows."""

    dispatch: int | None = Field(default=None, description="Which dispatch of the call, from 1.")
    attempt: str | None = Field(default=None, description="The worker that had it; unset for dispatches long ago.")
    charged_from: str | None = Field(
        default=None, description="From when, to the microsecond: `seconds` follow from it."
    )
    charged_until: str | None = Field(default=None, description="Until when, likewise.")
    seconds: int | None = Field(default=None, description="Whole seconds of it; a begun second counts.")
    rate_usd_per_hour: Money | None = Field(default=None, description="What its worker costs an hour.")
    shares: int | None = Field(default=None, description="Places of that worker, which share the rate.")
    pricebook_version: str | None = Field(default=None, description="The price book that the rate is from.")
    amount_usd: Money = Field(description="What was charged.")
    recomputed_usd: Money | None = Field(default=None, description="What the rule makes of the fields above.")
    transaction: str | None = Field(default=None, description="The entry of the ledger; unset when it was free.")
    started_at: str | None = Field(default=None, description="When it began; told of what was not charged.")
    ended_at: str | None = Field(default=None, description="When it ended, likewise.")
    reason: str | None = Field(default=None, description="Why nothing was charged.")


class CallRefund(ApiModel):
    """A part of the cost that was given back."""

    transaction: str = Field(description="The entry of the ledger.")
    of: str = Field(description="The transaction of the charge.")
    amount_usd: Money = Field(description="How much.")
    time: str = Field(description="When.")
    reason: str | None = Field(default=None, description="Why.")


class FunctionCallChargesStatus(ApiModel):
    """The cost of a call, told by the call, by the ledger and by the rule."""

    phase: str = Field(description="The call's phase; while it runs, its present dispatch is not charged yet.")
    cost_usd: Money = Field(description="What the call says that it cost.")
    ledger_usd: Money = Field(description="What the ledger charged for it.")
    recomputed_usd: Money = Field(description="What the rule makes of the recorded intervals and rates.")
    refunded_usd: Money = Field(description="What was given back since.")
    equal: bool = Field(description="Whether the three amounts are the same, in total and for every dispatch.")
    differences: list[str] | None = Field(default=None, description="What is not the same.")
    charges: list[CallCharge] = Field(description="By dispatch, oldest first.")
    charges_are_cut: bool | None = Field(default=None, description="Whether the ledger has more than are told.")
    refunds: list[CallRefund] | None = Field(default=None, description="Oldest first.")


class FunctionChargesPart(ApiModel):
    """All charges of one sort."""

    part: str = Field(
        description="Calls, Warm (free places of workers that served), Boot, Restore, Teardown, or Opening for what "
        "was charged before there was a ledger."
    )
    charges: int = Field(description="Entries of the ledger.")
    seconds: int = Field(description="Seconds that they charge: of a place for Calls and Warm, of a worker for others.")
    amount_usd: Money = Field(description="What was charged.")
    recomputed_usd: Money = Field(description="What the rule makes of the recorded periods, rates and shares.")


class WorkerCharge(ApiModel):
    """What was charged for a worker itself, beside its calls."""

    attempt: str = Field(description="The worker.")
    segment: str = Field(description="Boot, Running, Restore or Teardown.")
    charged_from: str = Field(description="When the period began, to the microsecond.")
    charged_until: str = Field(description="When the period ended.")
    seconds: int = Field(description="Seconds of it that are charged: of places that held no call, or of the worker.")
    rounding_seconds: int | None = Field(
        default=None,
        description="Those of them that round the worker's time up to the increment or the minimum of its class.",
    )
    rate_usd_per_hour: Money = Field(description="What the worker costs an hour.")
    shares: int = Field(description="Places of the worker, which share the rate; 1 for what has no places.")
    pricebook_version: str = Field(description="The price book that the rate is from.")
    amount_usd: Money = Field(description="What was charged.")
    transaction: str = Field(description="The entry of the ledger.")


class FunctionChargesStatus(ApiModel):
    """The cost of a Function, told by the Function, by the ledger and by the rule."""

    phase: str | None = Field(default=None, description="The Function's phase; what runs is not charged yet.")
    total_usd: Money = Field(description="What the Function says that it cost.")
    ledger_usd: Money = Field(description="What the ledger charged for it: the sum of the parts.")
    recomputed_usd: Money = Field(description="What the rule makes of every recorded period, rate and share.")
    refunded_usd: Money = Field(description="What was given back since.")
    held_usd: Money = Field(description="What its workers hold now.")
    equal: bool = Field(description="Whether all accounts of it are the same, in total and entry by entry.")
    differences: list[str] | None = Field(default=None, description="What is not the same.")
    parts: list[FunctionChargesPart] = Field(description="The charges by sort.")
    workers: list[WorkerCharge] = Field(description="Charges of workers themselves, the newest first.")
    workers_are_cut: bool | None = Field(default=None, description="Whether there are more than are told.")
