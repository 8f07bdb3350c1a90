from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from controlplane.kinds.registry import KINDS
from controlplane.machinery.kind import Kind, Scope, Verb
from controlplane.machinery.openapi import GROUP_PATH, openapi_document, openapi_index

DOCUMENT = openapi_document(KINDS.values(), release="1.2.3")
SCHEMAS = DOCUMENT["components"]["schemas"]
ROOT = "/apis/nodus.dev/v1"


def collection(kind: Kind) -> str:
    return f"{ROOT}/namespaces/{{namespace}}/{kind.plural}" if kind.scope is Scope.PROJECT else f"{ROOT}/{kind.plural}"


def values(node: Any) -> Iterator[dict[str, Any]]:
    """Every object in a JSON value."""
    if isinstance(node, dict):
        yield node
        node = list(node.values())
    if isinstance(node, list):
        for item in node:
            yield from values(item)


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.kind)
def test_every_kind_has_a_schema_that_says_what_it_is_of(kind: Kind) -> None:
    for name in (kind.kind, kind.list_kind):
        schema = SCHEMAS[f"dev.nodus.v1.{name}"]
        assert schema["x-kubernetes-group-version-kind"] == [{"group": "nodus.dev", "version": "v1", "kind": name}]
        assert schema["description"]


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.kind)
def test_every_verb_of_a_kind_is_an_operation_and_no_other_is(kind: Kind) -> None:
    listed = DOCUMENT["paths"][collection(kind)]
    named = DOCUMENT["paths"][f"{collection(kind)}/{{name}}"]
    actions = {
        operation["x-kubernetes-action"]
        for path in (listed, named)
        for method, operation in path.items()
        if method != "parameters"
    }
    expected = {"create": "post", "update": "put", "delete": "delete"}
    assert actions == {expected.get(verb.value, verb.value) for verb in kind.verbs if verb is not Verb.WATCH}
    assert listed["get"]["x-kubernetes-action"] == "list"
    gvk = {"group": "nodus.dev", "version": "v1", "kind": kind.kind}
    assert listed["get"]["x-kubernetes-group-version-kind"] == gvk


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS.values() if Verb.PATCH in kind.verbs], ids=lambda kind: kind.kind
)
def test_every_write_can_be_rehearsed_and_validated(kind: Kind) -> None:
    listed = DOCUMENT["paths"][collection(kind)]
    named = DOCUMENT["paths"][f"{collection(kind)}/{{name}}"]
    written = {Verb.CREATE: (listed, "post"), Verb.UPDATE: (named, "put"), Verb.PATCH: (named, "patch")}
    for operation in (path[method] for verb, (path, method) in written.items() if verb in kind.verbs):
        assert {"dryRun", "fieldManager", "fieldValidation"} <= {
            parameter["name"] for parameter in operation["parameters"]
        }
        assert operation["x-kubernetes-group-version-kind"]["kind"] == kind.kind
    assert set(named["patch"]["requestBody"]["content"]) == {
        "application/merge-patch+json",
        "application/json-patch+json",
        "application/apply-patch+yaml",
    }
    assert "force" in {parameter["name"] for parameter in named["patch"]["parameters"]}


@pytest.mark.parametrize("kind", [kind for kind in KINDS.values() if Verb.DELETE in kind.verbs], ids=lambda k: k.kind)
def test_every_delete_tells_its_options_in_the_query_and_in_the_body(kind: Kind) -> None:
    operation = DOCUMENT["paths"][f"{collection(kind)}/{{name}}"]["delete"]
    assert {"dryRun", "propagationPolicy", "orphanDependents", "gracePeriodSeconds", "pretty"} == {
        parameter["name"] for parameter in operation["parameters"]
    }
    assert set(operation["requestBody"]["content"]) == {"application/json", "application/yaml"}


def test_objects_of_all_projects_can_be_listed() -> None:
    for kind in KINDS.values():
        if kind.scope is Scope.PROJECT:
            assert set(DOCUMENT["paths"][f"{ROOT}/{kind.plural}"]) == {"get"}


def test_subresources_have_paths() -> None:
    paths = DOCUMENT["paths"]
    functions = f"{ROOT}/namespaces/{{namespace}}/functions/{{name}}"
    assert "text/plain" in paths[f"{functions}/log"]["get"]["responses"]["200"]["content"]
    assert "post" in paths[f"{functions}/calls"]
    assert "post" in paths[f"{functions}/claims"]


def test_operations_have_names_of_their_own() -> None:
    names = [
        operation["operationId"]
        for path in DOCUMENT["paths"].values()
        for method, operation in path.items()
        if method != "parameters"
    ]
    assert len(names) == len(set(names))


def test_every_reference_leads_somewhere() -> None:
    references = {node["$ref"] for node in values(DOCUMENT) if "$ref" in node}
    assert {reference.removeprefix("#/components/schemas/") for reference in references} <= SCHEMAS.keys()


def test_schemas_use_only_words_of_openapi_3_0() -> None:
    newer = {"anyOf", "const", "$defs", "patternProperties", "propertyNames", "prefixItems", "examples"}
    for name, schema in SCHEMAS.items():
        for node in values(schema):
            assert not newer & node.keys(), name
            assert node.get("type") != "null", name
            assert "$ref" not in node or len(node) == 1, name


def test_every_field_is_described() -> None:
    for name, schema in SCHEMAS.items():
        for field, node in schema.get("properties", {}).items():
            assert node.get("description"), f"{name}.{field}"


def test_bounds_and_defaults_of_the_models_are_in_the_schemas() -> None:
    scaling = SCHEMAS["dev.nodus.v1.FunctionScaling"]["properties"]
    assert scaling["maxWorkers"]["minimum"] == 1
    assert scaling["maxWorkers"]["maximum"] == 1_000
    assert scaling["maxWorkers"]["default"] == 10
    assert SCHEMAS["dev.nodus.v1.FunctionSpec"]["required"] == ["code", "python"]
    assert SCHEMAS["dev.nodus.v1.FunctionCallSpec"]["properties"]["state"]["enum"] == ["Running", "Cancelled"]
    assert SCHEMAS["dev.nodus.v1.Event"]["required"] == ["type", "reason", "message", "involvedObject", "lastTime"]


def test_the_index_changes_with_the_document() -> None:
    first = openapi_index({GROUP_PATH: orjson.dumps(DOCUMENT)})
    second = openapi_index({GROUP_PATH: orjson.dumps({**DOCUMENT, "info": {}})})
    [(path, entry)] = first["paths"].items()
    assert path == "apis/nodus.dev/v1"
    assert entry["serverRelativeURL"].startswith("/openapi/v3/apis/nodus.dev/v1?hash=")
    assert first != second
