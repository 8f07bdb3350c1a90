from __future__ import annotations

from typing import Any

import pytest

from controlplane.kinds.registry import KINDS
from controlplane.machinery.discovery import (
    aggregated_media_type,
    aggregated_with_reviews,
    api_group,
    api_group_list,
    api_resource_list,
    review_resource_list,
)

GROUPS = ("nodus.dev", "authentication.k8s.io", "authorization.k8s.io")


def test_every_group_names_its_version_and_ours_comes_first() -> None:
    listed = api_group_list()
    assert (listed["kind"], listed["apiVersion"]) == ("APIGroupList", "v1")
    assert [group["name"] for group in listed["groups"]] == list(GROUPS)
    for name, group in zip(GROUPS, listed["groups"], strict=True):
        version = {"groupVersion": f"{name}/v1", "version": "v1"}
        assert group == {"name": name, "versions": [version], "preferredVersion": version}
        assert api_group(name) == {"kind": "APIGroup", "apiVersion": "v1", **group}


def test_a_kind_is_listed_with_its_names_and_verbs_and_its_subresources_after_it() -> None:
    resources = api_resource_list(KINDS.values())["resources"]
    names = [resource["name"] for resource in resources]
    at = names.index("functions")
    assert resources[at] == {
        "name": "functions",
        "singularName": "function",
        "namespaced": True,
        "kind": "Function",
        "verbs": ["create", "get", "list", "watch", "patch", "update", "delete", "deletecollection"],
        "shortNames": ["fn"],
        "categories": ["nodus"],
    }
    assert names[at + 1 : at + 6] == [f"functions/{name}" for name in ("status", "scale", "log", "calls", "claims")]
    assert resources[at + 2] == {
        "name": "functions/scale",
        "singularName": "",
        "namespaced": True,
        "group": "autoscaling",
        "version": "v1",
        "kind": "Scale",
        "verbs": ["get", "patch", "update"],
    }
    assert resources[names.index("attempts/status")]["verbs"] == ["get"]
    assert resources[names.index("attempts")]["verbs"] == ["get", "list", "watch"]
    assert resources[names.index("projects")]["namespaced"] is False


@pytest.mark.parametrize("version", ["v2", "v2beta1"])
def test_the_aggregated_document_says_the_same_as_the_legacy_one(version: str) -> None:
    document = aggregated_with_reviews(KINDS.values(), version)
    assert document["apiVersion"] == f"apidiscovery.k8s.io/{version}"
    assert aggregated_media_type(version).endswith(f"v={version};as=APIGroupDiscoveryList")
    assert [item["metadata"] for item in document["items"]] == [{"name": name} for name in GROUPS]
    for item in document["items"]:
        name = item["metadata"]["name"]
        legacy = api_resource_list(KINDS.values()) if name == "nodus.dev" else review_resource_list(name)
        assert legacy["groupVersion"] == f"{name}/v1"
        [served] = item["versions"]
        assert _told(served["resources"]) == {
            resource["name"]: (resource["kind"], resource["verbs"], resource.get("shortNames", []))
            for resource in legacy["resources"]
        }


def _told(resources: list[dict[str, Any]]) -> dict[str, tuple[str, list[str], list[str]]]:
    """What an aggregated document says of each resource and subresource."""
    told = {}
    for resource in resources:
        kind = resource["responseKind"]["kind"]
        told[resource["resource"]] = (kind, resource["verbs"], resource.get("shortNames", []))
        for subresource in resource.get("subresources", ()):
            name = f"{resource['resource']}/{subresource['subresource']}"
            told[name] = (subresource["responseKind"]["kind"], subresource["verbs"], [])
    return told
