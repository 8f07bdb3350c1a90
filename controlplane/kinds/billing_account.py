"""The BillingAccount and TopUp kinds: what an organisation has to spend, and payments, of which this server takes none.

A BillingAccount is made of the ledger's accounts when it is asked for (`controlplane/ledger/statements.py`). Credit is
granted by an operator (`python -m workers ledger grant`); whatever needs a card answers PaymentsNotConfigured, so the
commands for it say why they cannot work instead of not being there.
"""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from controlplane.machinery.conditions import Conditions
from controlplane.machinery.documents import value_at
from controlplane.machinery.kind import Column, Document, Kind, Scope, Subresource, Verb
from controlplane.machinery.model import ApiModel
from controlplane.machinery.quantities import Money
from controlplane.machinery.table import AGE_COLUMN, NAME_COLUMN, text_at

ACCOUNT_NAME = "default"
"""The one account of an organisation."""


class AutoRecharge(ApiModel):
    """Buying credit before it runs out, which needs a card."""

    enabled: bool = Field(default=False, description="Always false: this server takes no payments.")
    threshold_usd: Money | None = Field(default=None, description="Below which credit would be bought.")
    amount_usd: Money | None = Field(default=None, description="How much would be bought.")


class BillingAccountSpec(ApiModel):
    """How an organisation pays."""

    auto_recharge: AutoRecharge | None = Field(default=None, description="Buying credit before it runs out.")


class MonthToDate(ApiModel):
    """What happened since the beginning of the month, in UTC."""

    spent_usd: Money = Field(description="Charged, less what was given back.")


class GrantExpiry(ApiModel):
    """What of the credit expires next."""

    expiration_time: str = Field(description="When.")
    remaining_usd: Money = Field(description="What is left of that grant now.")


class BillingAccountStatus(ApiModel):
    """What an organisation has."""

    available_usd: Money = Field(description="Neither spent nor reserved; 0.00 in arrears.")
    purchased_usd: Money = Field(description="The part of it that was bought.")
    grants_usd: Money = Field(description="The part of it that was granted.")
    pending_usd: Money = Field(description="Reserved by open holds.")
    arrears_usd: Money = Field(description="Charged beyond what there was, where credit is limited.")
    month_to_date: MonthToDate = Field(description="The present month.")
    next_grant_expiry: GrantExpiry | None = Field(default=None, description="Of the credit, what expires next.")
    conditions: Conditions | None = Field(default=None, description="PaymentMethodPresent and CreditLimited.")


def _since(document: Document, now: datetime) -> str | int:
    return str(value_at(document, "status.monthToDate.spentUSD"))


BILLING_ACCOUNT = Kind(
    kind="BillingAccount",
    plural="billingaccounts",
    uid_prefix="bac",
    scope=Scope.ORG,
    verbs=frozenset({Verb.GET, Verb.LIST, Verb.PATCH}),
    description="What an organisation has to spend.",
    spec=BillingAccountSpec,
    status=BillingAccountStatus,
    columns=(
        NAME_COLUMN,
        Column("Available", text_at("status.availableUSD"), "What may be spent."),
        Column("Reserved", text_at("status.pendingUSD"), "What open holds reserve."),
        Column("Arrears", text_at("status.arrearsUSD"), "What was charged beyond it."),
        Column("Month", _since, "What this month cost."),
        Column(AGE_COLUMN.name, AGE_COLUMN.read, AGE_COLUMN.description, priority=1),
    ),
    short_names=("bac",),
    subresources=(
        Subresource("sessions", ("create",), "A visit to a payment page; answers PaymentsNotConfigured."),
        Subresource("redemptions", ("create",), "A promo code; answers PaymentsNotConfigured."),
        Subresource("deals", ("get", "create"), "Partner offers; answers PaymentsNotConfigured."),
    ),
    project_field="",
    verbs_of_all_projects=frozenset({Verb.LIST, Verb.PATCH}),
    scope_resource="billing",
)


class TopUpSpec(ApiModel):
    """How much is to be bought."""

    amount_usd: Money = Field(description="How much.")
    save_payment_method: bool | None = Field(default=None, description="Whether to keep the card.")
    success_url: str | None = Field(default=None, description="Where a browser goes after the payment.")
    cancel_url: str | None = Field(default=None, description="Where a browser goes without one.")


class TopUpStatus(ApiModel):
    """What became of a payment."""

    phase: str | None = Field(default=None, description="How far it is.")


TOP_UP = Kind(
    kind="TopUp",
    plural="topups",
    uid_prefix="top",
    scope=Scope.ORG,
    verbs=frozenset({Verb.GET, Verb.LIST, Verb.CREATE}),
    description="A payment; this server takes none, so there are none.",
    spec=TopUpSpec,
    status=TopUpStatus,
    columns=(NAME_COLUMN, Column("Amount", text_at("spec.amountUSD"), "How much."), AGE_COLUMN),
    short_names=("top",),
    project_field="",
    verbs_of_all_projects=frozenset({Verb.CREATE}),
    scope_resource="billing",
)
