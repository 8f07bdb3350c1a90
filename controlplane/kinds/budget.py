"""The Budget kind: how much may be spent in a month, or in all, by what its scope covers.

What a Budget has spent and holds is kept beside it in rows (`controlplane/ledger/reservations.py`), in the transactions
that spend; its status is a copy of them for people, written by `activities/budgets.py`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from controlplane.errors import Cause, invalid
from controlplane.machinery.conditions import Conditions
from controlplane.machinery.documents import value_at
from controlplane.machinery.kind import ALL_VERBS, READ_VERBS, AdmissionContext, Column, Document, Kind, Scope
from controlplane.machinery.model import ApiModel
from controlplane.machinery.quantities import Money, parse_money
from controlplane.machinery.selectors import LabelOperator, LabelTerm
from controlplane.machinery.table import AGE_COLUMN, NAME_COLUMN, text_at

THRESHOLDS = (50, 80, 100)
MONTHLY, TOTAL = "Monthly", "Total"
BLOCK, NOTIFY = "Block", "Notify"
EXCEEDED, LIMIT_REACHED = "Exceeded", "LimitReached"
REQUIREMENTS_MAX = 20
"""Of a selector; it is asked of every dispatch in scope."""


class LabelRequirement(ApiModel):
    """One requirement of a selector."""

    key: str = Field(min_length=1, max_length=317, description="The label.")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"] = Field(description="How it is compared.")
    values: list[Annotated[str, Field(max_length=63)]] | None = Field(
        default=None, max_length=100, description="With what; for In and NotIn."
    )


class LabelSelector(ApiModel):
    """Which objects, by their labels."""

    match_labels: dict[str, str] | None = Field(
        default=None, max_length=REQUIREMENTS_MAX, description="Labels with exactly these values."
    )
    match_expressions: list[LabelRequirement] | None = Field(
        default=None, max_length=REQUIREMENTS_MAX, description="Further requirements; all must hold."
    )


class BudgetScope(ApiModel):
    """What a Budget covers; everything when unset."""

    project: str | None = Field(default=None, max_length=63, description="Only this project.")
    selector: LabelSelector | None = Field(
        default=None, description="Only calls with these labels; those of its Function are a call's too."
    )


class BudgetNotify(ApiModel):
    """Who is told."""

    emails: list[Annotated[str, Field(max_length=254)]] | None = Field(
        default=None, max_length=10, description="Kept, and not written to: this server sends no mail, but Events."
    )


class BudgetSpec(ApiModel):
    """How much, of what, and what happens then."""

    limit_usd: Money = Field(description="What may be spent and held; above 0.")
    period: Literal["Monthly", "Total"] = Field(
        default="Monthly", description="Monthly: each calendar month of UTC. Total: from its creation on."
    )
    action: Literal["Block", "Notify"] = Field(
        default="Block", description="Block: nothing starts that might pass the limit. Notify: Events only."
    )
    thresholds: list[Annotated[int, Field(ge=1, le=100)]] | None = Field(
        default=None, max_length=5, description="Percentages at which an Event is recorded, once a period; 50, 80, 100."
    )
    scope: BudgetScope | None = Field(default=None, description="What it covers; everything when unset.")
    notify: BudgetNotify | None = Field(default=None, description="Who is told.")


class BudgetPeriod(ApiModel):
    """The present period."""

    start_time: str = Field(description="When it began.")
    end_time: str | None = Field(default=None, description="When it ends; unset for Total.")


class BudgetStatus(ApiModel):
    """How much of it is left."""

    spent_usd: Money | None = Field(default=None, description="Charged in the present period.")
    held_usd: Money | None = Field(default=None, description="The most that running work may cost still.")
    remaining_usd: Money | None = Field(default=None, description="What is neither spent nor held.")
    percent_used: int | None = Field(default=None, description="Spent, in whole percent of the limit.")
    current_period: BudgetPeriod | None = Field(default=None, description="The present period.")
    notified_thresholds: list[int] | None = Field(default=None, description="Thresholds that were told this period.")
    conditions: Conditions | None = Field(default=None, description="Exceeded: nothing is left for new work.")


class BudgetStrategy:
    """What Budgets add to the generic verbs."""

    async def prepare_create(self, document: Document, context: AdmissionContext) -> None:
        _check(document)
        document["spec"].setdefault("thresholds", list(THRESHOLDS))
        limit = document["spec"]["limitUSD"]
        document["status"] = {
            "spentUSD": "0.00",
            "heldUSD": "0.00",
            "remainingUSD": limit,
            "percentUsed": 0,
            "notifiedThresholds": [],
            "conditions": [],
        }

    async def prepare_update(self, old: Document, new: Document, context: AdmissionContext) -> None:
        _check(new)
        new["spec"].setdefault("thresholds", list(THRESHOLDS))


def selector_terms(spec: Document) -> tuple[LabelTerm, ...]:
    """The requirements of a Budget's selector; none when it has no selector."""
    selector = value_at(spec, "scope.selector") or {}
    exact = [LabelTerm(key, LabelOperator.IN, (value,)) for key, value in (selector.get("matchLabels") or {}).items()]
    return (
        *exact,
        *(
            LabelTerm(each["key"], _OPERATORS[each["operator"]], tuple(each.get("values") or ()))
            for each in selector.get("matchExpressions") or ()
        ),
    )


_OPERATORS = {
    "In": LabelOperator.IN,
    "NotIn": LabelOperator.NOT_IN,
    "Exists": LabelOperator.EXISTS,
    "DoesNotExist": LabelOperator.NOT_EXISTS,
}


def _check(document: Document) -> None:
    """422 for a limit of nothing, and for requirements that have no values or need none."""
    spec, causes = document["spec"], []
    if parse_money(spec["limitUSD"]) == 0:
        causes.append(Cause("spec.limitUSD", 'must be above 0, such as "50.00"'))
    for position, each in enumerate(value_at(spec, "scope.selector.matchExpressions") or ()):
        if bool(each.get("values")) is not (each["operator"] in ("In", "NotIn")):
            field = f"spec.scope.selector.matchExpressions[{position}].values"
            causes.append(Cause(field, "must be given for In and NotIn, and for nothing else"))
    if causes:
        raise invalid("budgets", document["metadata"].get("name", ""), causes)


def _used(document: Document, now: datetime) -> str | int:
    return f"{value_at(document, 'status.percentUsed') or 0}%"


BUDGET = Kind(
    kind="Budget",
    plural="budgets",
    uid_prefix="bud",
    scope=Scope.ORG,
    verbs=ALL_VERBS,
    description="How much may be spent in a month or in all.",
    spec=BudgetSpec,
    status=BudgetStatus,
    columns=(
        NAME_COLUMN,
        Column("Period", text_at("spec.period"), "Monthly or Total."),
        Column("Limit", text_at("spec.limitUSD"), "What may be spent and held."),
        Column("Spent", text_at("status.spentUSD"), "Charged in the present period."),
        Column("Held", text_at("status.heldUSD"), "What running work may cost still."),
        Column("Remaining", text_at("status.remainingUSD"), "What is left."),
        Column("Used%", _used, "Spent, in percent of the limit."),
        Column("Action", text_at("spec.action"), "Block or Notify.", priority=1),
        Column("Project", text_at("spec.scope.project"), "The project it is limited to.", priority=1),
        Column(AGE_COLUMN.name, AGE_COLUMN.read, AGE_COLUMN.description, priority=1),
    ),
    short_names=("bud",),
    selectable_fields=("spec.action", "spec.limitUSD", "spec.period", "spec.scope.project"),
    immutable_fields=("spec.period",),
    strategy=BudgetStrategy(),
    project_field="spec.scope.project",
    # A key of some projects could else end the Budget of another, or stop everybody with one of its own.
    verbs_of_all_projects=ALL_VERBS - READ_VERBS,
    scope_resource="billing",
)
