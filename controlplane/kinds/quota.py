"""The Quota kind: how much an organisation, or one of its projects, may have, and what it has. Read only.

An operator sets quotas (`python -m workers quotas`); no credential of an organisation changes its own. The objects are
made when they are asked for (`limits/quota_view.py`), so `status.used` is as of that moment.
"""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from controlplane.machinery.documents import value_at
from controlplane.machinery.kind import Column, Document, Kind, Scope, Verb
from controlplane.machinery.model import ApiModel
from controlplane.machinery.table import AGE_COLUMN, NAME_COLUMN, NOTHING, text_at

ORGANIZATION_QUOTA = "default"
"""The object of the whole organisation."""
PROJECT_PREFIX = "project-"
"""Before the name of a project in that of its object: there may be a project `default`."""


class QuotaSpec(ApiModel):
    """What there may be."""

    project: str | None = Field(default=None, description="The project that is bounded; unset for the organisation.")
    limits: dict[str, str] = Field(description="The most of each counter, such as functions or memory.")


class QuotaStatus(ApiModel):
    """What there is."""

    used: dict[str, str] = Field(description="What there is of each counter; objects are counted to 100,000.")


def _used_cell(document: Document, now: datetime) -> str | int:
    """`functions 3/10 memory 2Gi/64Gi`: what is bounded, as far as it is used."""
    limits, used = value_at(document, "spec.limits") or {}, value_at(document, "status.used") or {}
    return ", ".join(f"{counter} {used.get(counter, 0)}/{most}" for counter, most in limits.items()) or NOTHING


QUOTA = Kind(
    kind="Quota",
    plural="quotas",
    uid_prefix="quo",
    scope=Scope.ORG,
    verbs=frozenset({Verb.GET, Verb.LIST}),
    description="How much the organisation or a project may have, and what it has.",
    spec=QuotaSpec,
    status=QuotaStatus,
    columns=(
        NAME_COLUMN,
        Column("Project", text_at("spec.project"), "The project that is bounded; none for the organisation."),
        Column("Used", _used_cell, "What there is of what there may be."),
        AGE_COLUMN,
    ),
    short_names=("quo",),
    selectable_fields=("spec.project",),
    project_field="spec.project",
    scope_resource="quotas",
)
