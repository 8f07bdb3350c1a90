"""The Organization kind: whoever shares projects, members, keys and a balance. An operator makes one."""

from __future__ import annotations

from pydantic import Field

from controlplane.kinds.project import ProjectStrategy
from controlplane.machinery.conditions import Conditions
from controlplane.machinery.kind import READ_VERBS, Kind, Scope, Verb
from controlplane.machinery.model import ApiModel
from controlplane.machinery.table import AGE_COLUMN, NAME_COLUMN, PHASE_COLUMN


class OrganizationSpec(ApiModel):
    """What people call an organisation."""

    display_name: str | None = Field(default=None, max_length=128, description="A name for people.")


class OrganizationStatus(ApiModel):
    """What the server observed about an organisation."""

    phase: str | None = Field(default=None, description="Ready.")
    conditions: Conditions | None = Field(default=None, description="Ready.")


ORGANIZATION = Kind(
    kind="Organization",
    plural="organizations",
    uid_prefix="org",
    scope=Scope.ORG,
    # Whoever may ask belongs to one already, so it is an operator who makes and ends them.
    verbs=READ_VERBS | {Verb.PATCH, Verb.UPDATE},
    description="Whoever shares projects, members, keys and a balance. A credential sees its own alone.",
    spec=OrganizationSpec,
    status=OrganizationStatus,
    columns=(NAME_COLUMN, PHASE_COLUMN, AGE_COLUMN),
    short_names=("org",),
    selectable_fields=("status.phase",),
    strategy=ProjectStrategy(),
    project_field="",
    verbs_of_all_projects=frozenset({Verb.PATCH, Verb.UPDATE}),
    scope_resource="organizations",
)
