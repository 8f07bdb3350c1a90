"""What clients learn about the kinds before they ask for one: names, verbs, short names, subresources.

Two forms say the same: the legacy documents, one request a level, and the aggregated one, all in one request. Which of
them a client gets is decided in `api/discovery.py` by its Accept header.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from controlplane.machinery.kind import API_VERSION, GROUP, VERSION, Kind, Scope, Subresource, Verb

AGGREGATED_GROUP = "apidiscovery.k8s.io"


@dataclass(frozen=True, slots=True)
class Review:
    """A question about oneself, which Kubernetes words as an object that is created and not stored."""

    group: str
    plural: str
    kind: str

    @property
    def group_version(self) -> str:
        return f"{self.group}/{VERSION}"


REVIEWS = (
    Review("authentication.k8s.io", "selfsubjectreviews", "SelfSubjectReview"),
    Review("authentication.k8s.io", "tokenreviews", "TokenReview"),
    Review("authorization.k8s.io", "selfsubjectaccessreviews", "SelfSubjectAccessReview"),
    Review("authorization.k8s.io", "selfsubjectrulesreviews", "SelfSubjectRulesReview"),
)
"""What `kubectl auth` and its like ask; sorted by group. `api/reviews.py` answers."""

GROUPS = (GROUP, *(group for group, _ in groupby(REVIEWS, lambda review: review.group)))
"""Every group that is served, ours first: clients take the first group for a name that two have."""


def api_group(name: str) -> dict[str, Any]:
    """One group, as `/apis/nodus.dev` answers."""
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(name)}


def api_group_list() -> dict[str, Any]:
    """The groups, as `/apis` answers."""
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(name) for name in GROUPS]}


def review_resource_list(group: str) -> dict[str, Any]:
    """The reviews of a group, as `/apis/authorization.k8s.io/v1` answers."""
    resources = [
        {"name": review.plural, "singularName": review.kind.lower(), "namespaced": False, "kind": review.kind,
         "verbs": ["create"]}
        for review in REVIEWS
        if review.group == group
    ]  # fmt: skip
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{group}/{VERSION}",
        "resources": resources,
    }


def api_resource_list(kinds: Iterable[Kind], group_version: str = API_VERSION) -> dict[str, Any]:
    """The kinds of a version with their subresources, as `/apis/nodus.dev/v1` answers."""
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
                **({"group": subresource.group, "version": VERSION} if subresource.group else {}),
                "kind": subresource.kind or kind.kind,
                "verbs": list(subresource.verbs),
            }
            for subresource in kind.served_subresources
        ]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources}


def aggregated(kinds: Iterable[Kind], version: str) -> dict[str, Any]:
    """The groups of these kinds, with the kinds, in one document, as `/api` answers for core/v1.

    `version` is that of apidiscovery.k8s.io: v2, or v2beta1 of older clients.
    """
    groups: dict[str, list[dict[str, Any]]] = {}
    for kind in kinds:
        groups.setdefault(kind.group, []).append(_aggregated_resource(kind))
    return _aggregated_groups(groups, version)


def aggregated_with_reviews(kinds: Iterable[Kind], version: str) -> dict[str, Any]:
    """The same with the groups of the reviews, as `/apis` answers."""
    document = aggregated(kinds, version)
    groups: dict[str, list[dict[str, Any]]] = {}
    for review in REVIEWS:
        groups.setdefault(review.group, []).append(_aggregated_review(review))
    document["items"] += _aggregated_groups(groups, version)["items"]
    return document


def aggregated_media_type(version: str) -> str:
    """The Content-Type that makes clients read an aggregated document as one (R-DISC-2)."""
    return f"application/json;g={AGGREGATED_GROUP};v={version};as=APIGroupDiscoveryList"


def verbs(kind: Kind) -> list[str]:
    """The verbs of a kind, in the order in which `Verb` lists them."""
    return [verb.value for verb in Verb if verb in kind.verbs]


def _group(name: str) -> dict[str, Any]:
    version = {"groupVersion": f"{name}/{VERSION}", "version": VERSION}
    return {"name": name, "versions": [version], "preferredVersion": dict(version)}


def _aggregated_groups(groups: dict[str, list[dict[str, Any]]], version: str) -> dict[str, Any]:
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": f"{AGGREGATED_GROUP}/{version}",
        "metadata": {},
        "items": [_aggregated_group(name, resources) for name, resources in groups.items()],
    }


def _aggregated_group(name: str, resources: list[dict[str, Any]]) -> dict[str, Any]:
    versions = [{"version": VERSION, "resources": resources, "freshness": "Current"}]
    # The core group has no name.
    return {"metadata": {"name": name} if name else {}, "versions": versions}


def _aggregated_review(review: Review) -> dict[str, Any]:
    return {
        "resource": review.plural,
        "responseKind": {"group": review.group, "version": VERSION, "kind": review.kind},
        "scope": "Cluster",
        "singularResource": review.kind.lower(),
        "verbs": ["create"],
    }


def _aggregated_resource(kind: Kind) -> dict[str, Any]:
    resource: dict[str, Any] = {
        "resource": kind.plural,
        "responseKind": _response_kind(kind),
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
                "responseKind": _response_kind(kind, subresource),
                "verbs": list(subresource.verbs),
            }
            for subresource in kind.served_subresources
        ]
    return resource


def _response_kind(kind: Kind, subresource: Subresource | None = None) -> dict[str, str]:
    # The one other group is autoscaling, whose Scale is of version v1 as well.
    group = (subresource and subresource.group) or kind.group
    return {"group": group, "version": VERSION, "kind": (subresource and subresource.kind) or kind.kind}
