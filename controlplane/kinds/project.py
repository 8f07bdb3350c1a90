"""The Project kind."""

from __future__ import annotations

from controlplane.machinery.kind import ALL_VERBS, Kind, Scope

PROJECT = Kind(
    kind="Project",
    plural="projects",
    uid_prefix="prj",
    scope=Scope.ORG,
    verbs=ALL_VERBS,
    description="Project",
    spec=None,
    status=None,
    columns=(),
    short_names=("prj",),
    selectable_fields=("status.phase",),
    scope_resource="projects",
)
