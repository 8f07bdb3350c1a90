"""The Secret kind."""

from __future__ import annotations

from controlplane.machinery.kind import ALL_VERBS, Kind, Scope

SECRET = Kind(
    kind="Secret",
    plural="secrets",
    uid_prefix="sec",
    scope=Scope.PROJECT,
    verbs=ALL_VERBS,
    description="Secret",
    spec=None,
    status=None,
    columns=(),
    short_names=("sec",),
    selectable_fields=("spec.type", "status.phase", "status.reason"),
    scope_resource="secrets",
)
