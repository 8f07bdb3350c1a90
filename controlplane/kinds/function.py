"""The Function kind."""

from __future__ import annotations

from controlplane.machinery.kind import ALL_VERBS, Kind, Scope

FUNCTION = Kind(
    kind="Function",
    plural="functions",
    uid_prefix="fn",
    scope=Scope.PROJECT,
    verbs=ALL_VERBS,
    description="Function",
    spec=None,
    status=None,
    columns=(),
    short_names=("fn",),
    selectable_fields=("spec.state", "status.phase", "status.reason"),
    scope_resource="functions",
)
