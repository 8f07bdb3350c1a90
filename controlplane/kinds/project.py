"""The Project kind: a namespace of the organisation. Deleting one deletes everything in it."""

from __future__ import annotations

from pydantic import Field

from controlplane.machinery.conditions import Condition, Conditions, with_condition
from controlplane.machinery.kind import ALL_VERBS, AdmissionContext, Document, Kind, Scope, Verb
from controlplane.machinery.model import ApiModel
from controlplane.machinery.table import AGE_COLUMN, NAME_COLUMN, PHASE_COLUMN


class ProjectSpec(ApiModel):
    """What people call a project."""

    display_name: str | None = Field(default=None, max_length=128, description="A name for people.")
    description: str | None = Field(default=None, max_length=1_024, description="A note for people.")


class ProjectStatus(ApiModel):
    """What the server observed about a project."""

    phase: str | None = Field(default=None, description="Ready or Terminating.")
    reason: str | None = Field(default=None, description="Why it is in that phase, in one word.")
    conditions: Conditions | None = Field(default=None, description="Ready.")


class ProjectStrategy:
    """What projects add to the generic verbs."""

    async def prepare_create(self, document: Document, context: AdmissionContext) -> None:
        ready = Condition("Ready", "True", "Ready", "objects can be created", 1)
        document["status"] = {"phase": "Ready", "conditions": with_condition([], ready, context.now)}

    async def prepare_update(self, old: Document, new: Document, context: AdmissionContext) -> None:
        return None


PROJECT = Kind(
    kind="Project",
    plural="projects",
    uid_prefix="prj",
    scope=Scope.ORG,
    verbs=ALL_VERBS,
    description="A namespace for Apps, Functions and all they use.",
    spec=ProjectSpec,
    status=ProjectStatus,
    columns=(NAME_COLUMN, PHASE_COLUMN, AGE_COLUMN),
    short_names=("prj",),
    selectable_fields=("status.phase",),
    deletion_finalizer="nodus.dev/contents",
    strategy=ProjectStrategy(),
    project_field="metadata.name",
    verbs_of_all_projects=frozenset({Verb.CREATE}),
    scope_resource="projects",
)
