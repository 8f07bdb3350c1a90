"""What clients learn about the kinds before they ask for one: names, verbs, short names, subresources.

Two forms say the same: the legacy documents, one request a level, and the aggregated one, all in one request. Which of
them a client gets is decided in `api/discovery.py` by its Accept header.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from controlplane.machinery.kind import API_VERSION, GROUP, VERSION, Kind, Scope, Verb

AGGREGATED_GROUP = "apidiscovery.k8s.io"
_VERSION_ENTRY = {"groupVersion": API_VERSION, "version": VERSION}


def api_group() -> dict[str, Any]:
    """The one group there is, as `/apis/nodus.dev` answers."""
    return {"kind": "APIGroup", "apiVersion": "v1", **_group()}


def api_group_list() -> dict[str, Any]:
    """The groups, as `/apis` answers."""
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group()]}


def api_resource_list(kinds: Iterable[Kind]) -> dict[str, Any]:
    """The kinds with their subresources, as `/apis/nodus.dev/v1` answers."""
    resources: list[dict[str, Any]] = []
    for kind in kinds:
        resources.append(
            {
                "name": kind.plural,
                "singularName": kind.singular,
                "namespaced": kind.scope is Scope.PROJECT,
                "kind": kind.kind,
                "verbs": verbs(kind),
                "shortNames": list(kind.short_names),
                "categories": list(kind.categories),
            }
        )
        resources += [
            {
                "name": f"{kind.plural}/{subresource.name}",
                "singularName": "",
                "namespaced": kind.scope is Scope.PROJECT,
                **({"group": subresource.group, "version": VERSION} if subresource.group != GROUP else {}),
                "kind": subresource.kind or kind.kind,
                "verbs": list(subresource.verbs),
            }
            for subresource in kind.served_subresources
        ]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": API_VERSION, "resources": resources}


def aggregated(kinds: Iterable[Kind], version: str) -> dict[str, Any]:
    """Groups and kinds in one document. `version` is that of apidiscovery.k8s.io: v2, or v2beta1 of older clients.

    Without kinds there is no group either: clients that meet the group on `/api` and on `/apis` count each kind twice.
    """
    resources = [_aggregated_resource(kind) for kind in kinds]
    versions = [{"version": VERSION, "resources": resources, "freshness": "Current"}]
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": f"{AGGREGATED_GROUP}/{version}",
        "metadata": {},
        "items": [{"metadata": {"name": GROUP}, "versions": versions}] if resources else [],
    }


def aggregated_media_type(version: str) -> str:
    """The Content-Type that makes clients read an aggregated document as one (R-DISC-2)."""
    return f"application/json;g={AGGREGATED_GROUP};v={version};as=APIGroupDiscoveryList"


def verbs(kind: Kind) -> list[str]:
    """The verbs of a kind, in the order in which `Verb` lists them."""
    return [verb.value for verb in Verb if verb in kind.verbs]


def _group() -> dict[str, Any]:
    return {"name": GROUP, "versions": [dict(_VERSION_ENTRY)], "preferredVersion": dict(_VERSION_ENTRY)}


def _aggregated_resource(kind: Kind) -> dict[str, Any]:
    resource: dict[str, Any] = {
        "resource": kind.plural,
        "responseKind": _response_kind(kind.kind),
        "scope": "Namespaced" if kind.scope is Scope.PROJECT else "Cluster",
        "singularResource": kind.singular,
        "verbs": verbs(kind),
        "shortNames": list(kind.short_names),
        "categories": list(kind.categories),
    }
    if kind.served_subresources:
        resource["subresources"] = [
            {
                "subresource": subresource.name,
                "responseKind": _response_kind(subresource.kind or kind.kind, subresource.group),
                "verbs": list(subresource.verbs),
            }
            for subresource in kind.served_subresources
        ]
    return resource


def _response_kind(kind: str, group: str = GROUP) -> dict[str, str]:
    # The one other group is autoscaling, whose Scale is of version v1 as well.
    return {"group": group, "version": VERSION, "kind": kind}
