"""Models as OpenAPI 3.0 schemas, the dialect that Kubernetes clients read.

Pydantic writes a newer dialect of JSON Schema: nullable unions, constants and references with siblings are rewritten
here. `openapi.py` puts the schemas into the document of the group.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic.json_schema import models_json_schema

from controlplane.machinery.kind import (
    API_VERSION,
    GROUP,
    SCALE_API_VERSION,
    SCALE_GROUP,
    SCALE_KIND,
    VERSION,
    Kind,
    Subresource,
)
from controlplane.machinery.meta import OwnerReference
from controlplane.machinery.model import LIST_MAP_KEYS, LIST_TYPE, ApiModel

PREFIX = f"dev.nodus.{VERSION}."
META_PREFIX = "dev.nodus.meta.v1."
SCHEMA_REFERENCE = "#/components/schemas/"

Schema = dict[str, Any]


def schemas(kinds: Iterable[Kind]) -> dict[str, Schema]:
    """Every schema that the kinds need, by name: models, objects, lists, metadata and Status."""
    kinds = tuple(kinds)
    models: dict[type[ApiModel], None] = {OwnerReference: None}
    for kind in kinds:
        models.update(dict.fromkeys(model for model in (kind.spec, kind.status, kind.flat) if model is not None))
        models.update(dict.fromkeys(view.status for view in kind.subresources if view.status is not None))
    _, generated = models_json_schema(
        [(model, "validation") for model in models], ref_template=f"{SCHEMA_REFERENCE}{PREFIX}{{model}}"
    )
    found = {f"{PREFIX}{name}": _rewritten(schema) for name, schema in generated["$defs"].items()}
    found.update(_meta_schemas())
    for kind in kinds:
        found[f"{PREFIX}{kind.kind}"] = _object_schema(kind, found)
        found[f"{PREFIX}{kind.list_kind}"] = _list_schema(kind)
        found.update(
            {f"{PREFIX}{view.kind}": _view_schema(view, view.status) for view in kind.subresources if view.status}
        )
    return dict(sorted(found.items()))


def reference(name: str) -> Schema:
    """A reference to the schema of that name."""
    return {"$ref": f"{SCHEMA_REFERENCE}{name}"}


def group_version_kind(kind: str, group: str = GROUP) -> Schema:
    """How Kubernetes clients recognise what a schema or an operation is about."""
    return {"group": group, "version": VERSION, "kind": kind}


def _object_schema(kind: Kind, found: dict[str, Schema]) -> Schema:
    properties = {
        **_type_fields(kind.kind),
        "metadata": _described(f"{META_PREFIX}ObjectMeta", "The object's metadata."),
    }
    required: list[str] = []
    if kind.flat is not None:
        fields = found[f"{PREFIX}{kind.flat.__name__}"]
        properties.update(fields["properties"])
        required += fields.get("required", [])
    if kind.spec is not None:
        properties["spec"] = _described(f"{PREFIX}{kind.spec.__name__}", "What is wanted.")
        if any(field.is_required() for field in kind.spec.model_fields.values()):
            required.append("spec")
    if kind.status is not None:
        properties["status"] = _described(f"{PREFIX}{kind.status.__name__}", "What the server observed. Read only.")
    schema: Schema = {
        "type": "object",
        "description": kind.description,
        "properties": properties,
        "x-kubernetes-group-version-kind": [group_version_kind(kind.kind)],
    }
    if required:
        schema["required"] = required
    return schema


def _view_schema(view: Subresource, status: type[ApiModel]) -> Schema:
    """An object that is served only below another: it has the other's metadata and a status."""
    return {
        "type": "object",
        "description": view.description,
        "required": ["status"],
        "properties": {
            **_type_fields(view.kind),
            "metadata": _described(f"{META_PREFIX}ObjectMeta", "That of the object it is about."),
            "status": _described(f"{PREFIX}{status.__name__}", "What the server observed. Read only."),
        },
        "x-kubernetes-group-version-kind": [group_version_kind(view.kind)],
    }


def _list_schema(kind: Kind) -> Schema:
    return {
        "type": "object",
        "description": f"A list of {kind.plural}.",
        "required": ["items"],
        "properties": {
            **_type_fields(kind.list_kind),
            "metadata": _described(f"{META_PREFIX}ListMeta", "The list's metadata."),
            "items": {
                "type": "array",
                "description": "The objects.",
                "items": reference(f"{PREFIX}{kind.kind}"),
            },
        },
        "x-kubernetes-group-version-kind": [group_version_kind(kind.list_kind)],
    }


def _type_fields(kind: str) -> dict[str, Schema]:
    return {
        "apiVersion": {"type": "string", "description": f"Always {API_VERSION}."},
        "kind": {"type": "string", "description": f"Always {kind}."},
    }


def _described(name: str, description: str) -> Schema:
    """A reference with a description beside it, which this dialect only allows around the reference."""
    return {"allOf": [reference(name)], "description": description, "default": {}}


def _text(description: str, **more: object) -> Schema:
    return {"type": "string", "description": description, **more}


def _time(description: str) -> Schema:
    return _text(description, format="date-time")


def _text_map(description: str) -> Schema:
    return {"type": "object", "description": description, "additionalProperties": {"type": "string"}}


def _meta_schemas() -> dict[str, Schema]:
    """What Kubernetes defines for every group, as far as it is served."""
    return {
        f"{META_PREFIX}ObjectMeta": _object("Metadata of an object.", _object_meta_fields()),
        f"{META_PREFIX}ManagedFieldsEntry": _object("The fields that one writer set.", _managed_fields_entry()),
        f"{META_PREFIX}ListMeta": _object("Metadata of a list.", _list_meta_fields()),
        f"{META_PREFIX}Status": _object("An error, or the outcome of a delete.", _status_fields()),
        f"{META_PREFIX}{SCALE_KIND}": {
            **_object("How many replicas of an object are wanted.", _scale_fields()),
            "x-kubernetes-group-version-kind": [group_version_kind(SCALE_KIND, SCALE_GROUP)],
        },
        f"{META_PREFIX}DeleteOptions": _object("How to delete.", delete_options_fields()),
        f"{META_PREFIX}Patch": {"type": "object", "description": "A merge patch, or the operations of a JSON patch."},
    }


def _object_meta_fields() -> dict[str, Schema]:
    return {
        "name": _text("Name of the object, unique among those of its kind in the project."),
        "generateName": _text("Prefix of a name that the server completes, when `name` is absent."),
        "namespace": _text("The project. Objects of the organisation have none."),
        "labels": _text_map("Names and values to select objects by."),
        "annotations": _text_map("Names and values for programs; not selectable."),
        "uid": _text("Unique for all time. Read only."),
        "resourceVersion": _text("The version of this object; sent with a write, it must be the current one."),
        "generation": {
            "type": "integer",
            "format": "int64",
            "description": "Grows with each change of spec. Read only.",
        },
        "creationTimestamp": _time("When the object was created. Read only."),
        "deletionTimestamp": _time("When its delete was asked for. Read only."),
        "deletionGracePeriodSeconds": {"type": "integer", "format": "int64", "description": "Always 0. Read only."},
        "finalizers": {
            "type": "array",
            "description": "Who must agree before a deleted object goes.",
            "items": {"type": "string"},
            LIST_TYPE: "set",
        },
        "ownerReferences": {
            "type": "array",
            "description": "What this object belongs to; it goes when all of these are gone.",
            "items": reference(f"{PREFIX}{OwnerReference.__name__}"),
            LIST_TYPE: "map",
            LIST_MAP_KEYS: ["uid"],
        },
        "managedFields": {
            "type": "array",
            "description": "Who set which fields; server-side apply asks before it changes another's.",
            "items": reference(f"{META_PREFIX}ManagedFieldsEntry"),
        },
        "selfLink": _text("Ignored."),
    }


def _managed_fields_entry() -> dict[str, Schema]:
    return {
        "manager": _text("Who set the fields."),
        "operation": _text("How: Apply or Update.", enum=["Apply", "Update"]),
        "apiVersion": _text("The version of the kind in which the fields are named."),
        "time": _time("When the set of fields last changed."),
        "fieldsType": _text("Always FieldsV1."),
        "fieldsV1": {"type": "object", "description": "The fields, nested as in the object."},
        "subresource": _text("Where they were set, if not on the object itself."),
    }


def _list_meta_fields() -> dict[str, Schema]:
    return {
        "resourceVersion": _text("The version at which the list is exact; watch from here."),
        "continue": _text("Token for the next page; absent on the last one."),
        "remainingItemCount": {
            "type": "integer",
            "format": "int64",
            "description": "Objects after this page, if known.",
        },
    }


def _status_fields() -> dict[str, Schema]:
    cause = {
        "reason": _text("The problem in one word."),
        "field": _text("Path of the field."),
        "message": _text("The problem in a sentence."),
    }
    details = {
        "name": _text("Name of the object."),
        "group": _text("Its group."),
        "kind": _text("Its kind."),
        "uid": _text("Its uid."),
        "causes": {"type": "array", "description": "Every problem.", "items": _object("One problem.", cause)},
        "retryAfterSeconds": {"type": "integer", "description": "When to try again."},
    }
    return {
        **_type_fields("Status"),
        "apiVersion": _text("Always v1."),
        "metadata": _described(f"{META_PREFIX}ListMeta", "Empty."),
        "status": _text("Success or Failure."),
        "code": {"type": "integer", "format": "int32", "description": "The HTTP status."},
        "reason": _text("The error code."),
        "message": _text("What is wrong."),
        "details": _object("About what, and every problem in it.", details),
        "fix": _text("What to do next."),
        "docs": _text("Where the error code is explained."),
        "requestId": _text("Names the request in the server's logs."),
    }


def _scale_fields() -> dict[str, Schema]:
    replicas: Schema = {"type": "integer", "format": "int32"}
    wanted = {"replicas": {**replicas, "description": "How many are wanted."}}
    observed = {"replicas": {**replicas, "description": "How many there are."}}
    return {
        "apiVersion": _text(f"Always {SCALE_API_VERSION}."),
        "kind": _text(f"Always {SCALE_KIND}."),
        "metadata": _described(f"{META_PREFIX}ObjectMeta", "That of the scaled object."),
        "spec": _object("What is wanted.", wanted),
        "status": _object("What the server observed. Read only.", observed),
    }


def delete_options_fields() -> dict[str, Schema]:
    """What a delete may say in its body."""
    preconditions = {"uid": _text("The uid it must have."), "resourceVersion": _text("The version it must have.")}
    return {
        **_type_fields("DeleteOptions"),
        "propagationPolicy": _text("What happens to what it owns.", enum=["Foreground", "Background", "Orphan"]),
        "orphanDependents": {
            "type": "boolean",
            "description": "The older word for `propagationPolicy`: true is Orphan, false is Background. Not with it.",
        },
        "gracePeriodSeconds": {"type": "integer", "format": "int64", "description": "Ignored."},
        "ignoreStoreReadErrorWithClusterBreakingPotential": {
            "type": "boolean",
            "description": "Ignored: what is stored here can be read.",
        },
        "dryRun": {"type": "array", "description": "All: rehearse only.", "items": {"type": "string"}},
        "preconditions": _object("What must be true of the object.", preconditions),
    }


def _object(description: str, properties: dict[str, Schema]) -> Schema:
    return {"type": "object", "description": description, "properties": properties}


def _rewritten(schema: Schema) -> Schema:
    """A schema of pydantic in the dialect of OpenAPI 3.0."""
    result = dict(schema)
    branches = [branch for branch in result.pop("anyOf", ()) if branch.get("type") != "null"]
    assert len(branches) <= 1, f"a union of types has no place in this dialect: {schema}"
    for branch in branches:
        result = {**branch, **result}
    for key in ("title", "propertyNames", "$defs"):
        result.pop(key, None)
    if "const" in result:
        result["enum"] = [result.pop("const")]
    if result.get("default", ...) is None:
        del result["default"]
    if "patternProperties" in result:
        # Keys with a grammar: the dialect can only speak of their values.
        result["additionalProperties"] = next(iter(result.pop("patternProperties").values()))
    if "$ref" in result and len(result) > 1:
        result["allOf"] = [{"$ref": result.pop("$ref")}]
    if "properties" in result:
        result["properties"] = {name: _rewritten(field) for name, field in result["properties"].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(result.get(key), dict):
            result[key] = _rewritten(result[key])
    return result
