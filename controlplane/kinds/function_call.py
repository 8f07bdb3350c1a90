"""The FunctionCall kind."""

from __future__ import annotations

from controlplane.machinery.kind import ALL_VERBS, Kind, Scope

FUNCTION_CALL = Kind(
    kind="FunctionCall",
    plural="functioncalls",
    uid_prefix="fnc",
    scope=Scope.PROJECT,
    verbs=ALL_VERBS,
    description="FunctionCall",
    spec=None,
    status=None,
    columns=(),
    short_names=("fc", "call"),
    selectable_fields=("spec.function", "spec.mapId", "spec.session", "spec.state", "status.phase", "status.reason"),
    scope_resource="functioncalls",
)
