"""The Event kind."""

from __future__ import annotations

from controlplane.machinery.kind import READ_VERBS, Kind, Scope

EVENT = Kind(
    kind="Event",
    plural="events",
    uid_prefix="evt",
    scope=Scope.ORG,
    verbs=READ_VERBS,
    description="Event",
    spec=None,
    status=None,
    columns=(),
    short_names=("evt",),
    selectable_fields=(
        "type",
        "reason",
        "involvedObject.kind",
        "involvedObject.name",
        "involvedObject.namespace",
        "involvedObject.uid",
    ),
    scope_resource=None,
)
