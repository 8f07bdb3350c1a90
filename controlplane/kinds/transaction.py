"""The Transaction kind: one entry of the ledger that changed what an organisation has, with the balance after it.

Read only and stored nowhere as an object: `controlplane/ledger/statements.py` makes it of a transfer when it is asked
for. What only reserves (holds, and what ends them without a charge) moves no money and is no Transaction.
"""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from controlplane.machinery.documents import value_at
from controlplane.machinery.kind import Column, Document, Kind, Scope, Verb
from controlplane.machinery.model import ApiModel
from controlplane.machinery.quantities import SignedMoney
from controlplane.machinery.table import NAME_COLUMN, NOTHING, age_of, text_at


class TransactionReference(ApiModel):
    """What a transaction is about."""

    kind: str = Field(description="Its kind.")
    name: str = Field(description="Its name.")
    uid: str | None = Field(default=None, description="Its uid.")


class TransactionBucket(ApiModel):
    """Which money was moved."""

    kind: str = Field(description="Grant: credit that an operator gave.")
    credit_grant: str | None = Field(default=None, description="Which grant, where only one can be meant.")


class TransactionFields(ApiModel):
    """What was moved, when and why."""

    time: str = Field(description="When it was written.")
    type: str = Field(description="Capture, Grant, Refund or GrantExpiry.")
    amount_usd: SignedMoney = Field(description="What it adds to the balance; negative for a charge.")
    balance_after_usd: SignedMoney | None = Field(
        default=None, description="The balance after it; unset for keys that do not see all projects."
    )
    project: str | None = Field(default=None, description="The project that it is about.")
    reference: TransactionReference | None = Field(default=None, description="What it is about.")
    bucket: TransactionBucket | None = Field(default=None, description="Which money was moved.")
    cause: str | None = Field(default=None, description="Why it was written, in one word.")
    description: str | None = Field(default=None, description="Why it was written, in a sentence.")
    entry: str = Field(description="The id of the entry in the ledger, as `…/charges` names it.")


def _reference(document: Document, now: datetime) -> str | int:
    kind, name = value_at(document, "reference.kind"), value_at(document, "reference.name")
    return f"{str(kind).lower()}/{name}" if kind else NOTHING


def _age(document: Document, now: datetime) -> str | int:
    return age_of(document.get("time"), now)


TRANSACTION = Kind(
    kind="Transaction",
    plural="transactions",
    uid_prefix="txn",
    scope=Scope.ORG,
    verbs=frozenset({Verb.GET, Verb.LIST}),
    description="An entry of the ledger that changed the balance.",
    spec=None,
    status=None,
    flat=TransactionFields,
    columns=(
        NAME_COLUMN,
        Column("Type", text_at("type"), "Capture, Grant, Refund or GrantExpiry."),
        Column("Amount", text_at("amountUSD"), "What it adds to the balance."),
        Column("Balance", text_at("balanceAfterUSD"), "The balance after it."),
        Column("Reference", _reference, "What it is about."),
        Column("Age", _age, "How long ago it was written."),
        Column("Description", text_at("description"), "Why it was written.", priority=1),
    ),
    short_names=("txn",),
    selectable_fields=("type", "project"),
    project_field="project",
    scope_resource="billing",
)
