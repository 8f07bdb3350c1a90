"""The Image kind."""

from __future__ import annotations

from controlplane.machinery.kind import ALL_VERBS, Kind, Scope

IMAGE = Kind(
    kind="Image",
    plural="images",
    uid_prefix="img",
    scope=Scope.PROJECT,
    verbs=ALL_VERBS,
    description="Image",
    spec=None,
    status=None,
    columns=(),
    short_names=("img",),
    selectable_fields=("status.phase", "status.reason"),
    scope_resource="images",
)
