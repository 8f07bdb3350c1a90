"""The ServiceAccount kind: a program of a project, with scopes that bound all its tokens, now and as they change."""

from __future__ import annotations

from pydantic import Field

from controlplane.kinds.api_key import ScopeText
from controlplane.kinds.granting import check_given
from controlplane.machinery.conditions import Condition, Conditions, with_condition
from controlplane.machinery.kind import ALL_VERBS, AdmissionContext, Column, Document, Kind, Scope, Subresource
from controlplane.machinery.model import ApiModel
from controlplane.machinery.scope_grammar import SCOPES_MAX
from controlplane.machinery.table import AGE_COLUMN, NAME_COLUMN, text_at

TOKENS = "tokens"


class ServiceAccountSpec(ApiModel):
    """What the account is for, and what it may do in its project."""

    description: str | None = Field(default=None, max_length=256, description="What it is for.")
    scopes: list[ScopeText] | None = Field(
        default=None, max_length=SCOPES_MAX, description="What its tokens may do; nothing when it names none."
    )


class ServiceAccountStatus(ApiModel):
    """What the server observed about an account."""

    last_used_time: str | None = Field(default=None, description="When a token of it was last used, to ten minutes.")
    conditions: Conditions | None = Field(default=None, description="Ready.")


class ServiceAccountStrategy:
    """What accounts add to the generic verbs: nobody gives one what they do not have."""

    async def prepare_create(self, document: Document, context: AdmissionContext) -> None:
        check_given(context, document["spec"].get("scopes", ()))
        ready = Condition("Ready", "True", "Ready", "tokens can be made for it", 1)
        document["status"] = {"conditions": with_condition([], ready, context.now)}

    async def prepare_update(self, old: Document, new: Document, context: AdmissionContext) -> None:
        check_given(context, set(new["spec"].get("scopes", ())) - set(old["spec"].get("scopes", ())))


SERVICE_ACCOUNT = Kind(
    kind="ServiceAccount",
    plural="serviceaccounts",
    uid_prefix="sa",
    scope=Scope.PROJECT,
    verbs=ALL_VERBS,
    description="A program of the project, with scopes that bound all its tokens.",
    spec=ServiceAccountSpec,
    status=ServiceAccountStatus,
    columns=(
        NAME_COLUMN,
        Column("Scopes", text_at("spec.scopes"), "What its tokens may do."),
        Column("Last Used", text_at("status.lastUsedTime"), "When one was last used."),
        AGE_COLUMN,
    ),
    short_names=("sa",),
    selectable_fields=("spec.description",),
    subresources=(Subresource(TOKENS, ("create",), "A new token, shown once.", "TokenRequest"),),
    strategy=ServiceAccountStrategy(),
    scope_resource="serviceaccounts",
)
