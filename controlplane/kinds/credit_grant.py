"""The CreditGrant kind: credit that an operator gave an organisation, and what became of it.

Read only and stored nowhere as an object: `controlplane/ledger/grants.py` makes it of the ledger when it is asked for.
Grants are made by `python -m workers ledger grant`.
"""

from __future__ import annotations

from pydantic import Field

from controlplane.machinery.conditions import Conditions
from controlplane.machinery.kind import Column, Kind, Scope, Verb
from controlplane.machinery.model import ApiModel
from controlplane.machinery.quantities import Money
from controlplane.machinery.table import AGE_COLUMN, NAME_COLUMN, text_at

EXPIRED = "Expired"


class CreditGrantSpec(ApiModel):
    """What was granted."""

    amount_usd: Money = Field(alias="amountUSD", description="How much.")
    source: str = Field(description="Operator: whoever runs this server gave it.")
    reason: str | None = Field(default=None, description="Why, for people.")
    scope: str | None = Field(default=None, description="What it pays for; unset, as all are here, for any usage.")
    expiration_time: str | None = Field(default=None, description="When what is left of it expires; unset for never.")


class CreditGrantStatus(ApiModel):
    """What became of it. Grants that expire sooner pay first."""

    granted_time: str = Field(description="When it was given.")
    remaining_usd: Money = Field(description="Not spent and not expired, what is held included.")
    held_usd: Money = Field(description="The part of it that work holds; it expires when that lets go of it.")
    spent_usd: Money = Field(description="What usage took of it.")
    expired_usd: Money = Field(description="What expired unspent.")
    conditions: Conditions | None = Field(
        default=None, description="Expired, once nothing is left and its time is over."
    )


CREDIT_GRANT = Kind(
    kind="CreditGrant",
    plural="creditgrants",
    uid_prefix="grt",
    scope=Scope.ORG,
    verbs=frozenset({Verb.GET, Verb.LIST}),
    description="Credit that an operator gave.",
    spec=CreditGrantSpec,
    status=CreditGrantStatus,
    columns=(
        NAME_COLUMN,
        Column("Amount", text_at("spec.amountUSD"), "How much was given."),
        Column("Spent", text_at("status.spentUSD"), "What usage took of it."),
        Column("Remaining", text_at("status.remainingUSD"), "What is left of it."),
        Column("Expires", text_at("spec.expirationTime"), "When what is left expires."),
        AGE_COLUMN,
        Column("Reason", text_at("spec.reason"), "Why it was given.", priority=1),
    ),
    short_names=("grt",),
    selectable_fields=("spec.source",),
    project_field="",
    verbs_of_all_projects=frozenset({Verb.GET, Verb.LIST}),
    scope_resource="billing",
)
