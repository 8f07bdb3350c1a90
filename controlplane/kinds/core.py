"""Two kinds of Kubernetes' own that clients insist on, shown from ours: Namespace and Event of core/v1.

kubectl asks for a Namespace after each 404, to word its message, and for Events in `describe`; operators look up the
namespaces they may work in before anything else. They can be read and watched, not written: a Project is what is
stored. `api/facades.py` serves them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from controlplane.kinds.event import EVENT
from controlplane.kinds.project import PROJECT
from controlplane.machinery.kind import API_VERSION, Column, Document, Kind, Scope, Verb
from controlplane.machinery.selectors import FieldTerm, parse_fields
from controlplane.machinery.table import AGE_COLUMN, NAME_COLUMN, age_of, text_at

CORE_VERSION = "v1"
_COMPONENT = "nodus-server"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facade:
    """A kind as others word it: the row that describes it, the kind behind it, and how an object is reworded."""

    kind: Kind
    behind: Kind
    reword: Callable[[Document], Document]
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Fields that are selected by another name than the one they have in the kind behind."""
    constant: Mapping[str, str] = field(default_factory=dict)
    """Fields that are the same in all objects, which the kind behind does not have."""

    def terms(self, text: str) -> tuple[FieldTerm, ...]:
        """A field selector of this kind as one of the kind behind; BadRequest for a field that it does not have."""
        found = []
        for term in parse_fields(text, self.kind):
            if term.path not in self.constant:
                found.append(FieldTerm(self.renamed.get(term.path, term.path), term.equal, term.value))
            elif (self.constant[term.path] == term.value) is not term.equal:
                found.append(_NOTHING)
        return tuple(found)


_NOTHING = FieldTerm("metadata.name", True, "")


def _namespace(project: Document) -> Document:
    terminating = "deletionTimestamp" in project["metadata"]
    return {
        "kind": "Namespace",
        "apiVersion": CORE_VERSION,
        "metadata": project["metadata"],
        "spec": {"finalizers": ["kubernetes"]},
        "status": {"phase": "Terminating" if terminating else "Active"},
    }


def _core_event(event: Document) -> Document:
    """The Event in the words of core/v1, which sorts and ages by its timestamps."""
    involved: dict[str, Any] = {"apiVersion": API_VERSION, **event["involvedObject"]}
    last = event["lastTime"]
    return {
        "kind": "Event",
        "apiVersion": CORE_VERSION,
        "metadata": {**event["metadata"], "namespace": involved.get("namespace", "default")},
        "involvedObject": involved,
        "type": event["type"],
        "reason": event["reason"],
        "message": event["message"],
        "source": {"component": _COMPONENT},
        "firstTimestamp": event.get("firstTime", last),
        "lastTimestamp": last,
        "count": event.get("count", 1),
    }


NAMESPACES = Facade(
    kind=Kind(
        kind="Namespace",
        plural="namespaces",
        api_version=CORE_VERSION,
        uid_prefix=PROJECT.uid_prefix,
        scope=Scope.ORG,
        verbs=frozenset({Verb.GET, Verb.LIST, Verb.WATCH}),
        description="A Project, as core/v1 calls it.",
        spec=None,
        status=None,
        columns=(NAME_COLUMN, Column("Status", text_at("status.phase"), "Active or Terminating."), AGE_COLUMN),
        short_names=("ns",),
        categories=(),
        project_field=PROJECT.project_field,
        scope_resource=PROJECT.scope_resource,
    ),
    behind=PROJECT,
    reword=_namespace,
)

_EVENT_CONSTANTS = {"involvedObject.apiVersion": API_VERSION, "source": _COMPONENT}

EVENTS = Facade(
    kind=replace(
        EVENT,
        api_version=CORE_VERSION,
        scope=Scope.PROJECT,
        verbs=frozenset({Verb.LIST, Verb.WATCH}),
        selectable_fields=(*EVENT.selectable_fields, *_EVENT_CONSTANTS),
        description="An Event, as core/v1 words it.",
        columns=(
            replace(EVENT.columns[0], read=lambda document, now: age_of(document["lastTimestamp"], now)),
            *EVENT.columns[1:],
        ),
    ),
    behind=EVENT,
    reword=_core_event,
    renamed={"metadata.namespace": "involvedObject.namespace"},
    constant=_EVENT_CONSTANTS,
)

FACADES = (NAMESPACES, EVENTS)
DISCOVERED = (NAMESPACES.kind,)
"""What discovery lists of core/v1. Events are left out: `kubectl get events` would find these before our own kind."""
