"""The Attempt kind."""

from __future__ import annotations

from controlplane.machinery.kind import READ_VERBS, Kind, Scope

ATTEMPT = Kind(
    kind="Attempt",
    plural="attempts",
    uid_prefix="att",
    scope=Scope.PROJECT,
    verbs=READ_VERBS,
    description="Attempt",
    spec=None,
    status=None,
    columns=(),
    short_names=("att",),
    selectable_fields=("status.phase", "status.reason"),
    scope_resource=None,
)
