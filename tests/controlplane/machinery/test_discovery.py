from __future__ import annotations

import pytest

from controlplane.kinds.registry import KINDS
from controlplane.machinery.discovery import (
    aggregated,
    aggregated_media_type,
    api_group,
    api_group_list,
    api_resource_list,
)


def test_the_group_names_its_version() -> None:
    version = {"groupVersion": "nodus.dev/v1", "version": "v1"}
    group = {"name": "nodus.dev", "versions": [version], "preferredVersion": version}
    assert api_group() == {"kind": "APIGroup", "apiVersion": "v1", **group}
    assert api_group_list() == {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]}


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
    assert resources[names.index("secrets/status")]["verbs"] == ["get"]
    assert resources[names.index("attempts")]["verbs"] == ["get", "list", "watch"]
    assert resources[names.index("projects")]["namespaced"] is False


@pytest.mark.parametrize("version", ["v2", "v2beta1"])
def test_the_aggregated_document_says_the_same_as_the_legacy_one(version: str) -> None:
    document = aggregated(KINDS.values(), version)
    assert document["apiVersion"] == f"apidiscovery.k8s.io/{version}"
    assert aggregated_media_type(version).endswith(f"v={version};as=APIGroupDiscoveryList")
    [item] = document["items"]
    assert item["metadata"] == {"name": "nodus.dev"}
    [served] = item["versions"]
    told = {}
    for resource in served["resources"]:
        told[resource["resource"]] = (resource["responseKind"]["kind"], resource["verbs"], resource["shortNames"])
        for subresource in resource.get("subresources", ()):
            name = f"{resource['resource']}/{subresource['subresource']}"
            told[name] = (subresource["responseKind"]["kind"], subresource["verbs"], [])
    assert told == {
        resource["name"]: (resource["kind"], resource["verbs"], resource.get("shortNames", []))
        for resource in api_resource_list(KINDS.values())["resources"]
    }
