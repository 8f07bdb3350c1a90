"""The App kind."""

from __future__ import annotations

from controlplane.machinery.kind import ALL_VERBS, Kind, Scope

APP = Kind(
    kind="App",
    plural="apps",
    uid_prefix="app",
    scope=Scope.PROJECT,
    verbs=ALL_VERBS,
    description="App",
    spec=None,
    status=None,
    columns=(),
    short_names=("app",),
    selectable_fields=("spec.ephemeral", "status.phase"),
    scope_resource="apps",
)
