"""The OpenAPI documents of Kubernetes' own groups, as far as they are served: core/v1 and the reviews.

`kubectl explain namespaces` and `explain selfsubjectaccessreviews` read them. The fields are told in tables here, since
no model of ours has them: `core.py` makes namespaces and events from other kinds, and `api/reviews.py` answers reviews.
A test holds the tables to what is answered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controlplane.kinds.core import CORE_VERSION, FACADES
from controlplane.machinery.discovery import REVIEWS, Review
from controlplane.machinery.kind import VERSION, Kind, Scope, Verb
from controlplane.machinery.openapi import LIST_PARAMETERS, document_of, path_parameter, refusals, response
from controlplane.machinery.schemas import META_PREFIX, Schema, group_version_kind, reference, schemas

Fields = Mapping[str, "str | tuple[str, Fields] | Schema"]
"""Of each field its description, or that and the fields below it, or its schema."""


def _object(description: str, fields: Fields) -> Schema:
    return {"type": "object", "description": description, "properties": {n: _field(f) for n, f in fields.items()}}


def _field(told: str | tuple[str, Fields] | Schema) -> Schema:
    match told:
        case str():
            return {"type": "string", "description": told}
        case (description, below):
            return _object(description, below)
        case schema:
            return dict(schema)


def _list(description: str, fields: Fields | None = None) -> Schema:
    items = {"type": "string"} if fields is None else _object("One of them.", fields)
    return {"type": "array", "description": description, "items": items}


def _of_type(type_: str, description: str, **more: object) -> Schema:
    return {"type": type_, "description": description, **more}


_TIME = {"format": "date-time"}
_USER: Fields = {
    "username": "Name of the caller.",
    "uid": "Id of the caller, which stays when the name changes.",
    "groups": _list("Groups of the caller; the second tells what kind of credential it has."),
    "extra": _of_type(
        "object",
        "The organisation, projects and scopes of the credential.",
        additionalProperties={"type": "array", "items": {"type": "string"}},
    ),
}
_RULE: Fields = {
    "verbs": _list("What may be done."),
    "apiGroups": _list("The groups of the resources."),
    "resources": _list("What it may be done to, subresources as `functions/scale`."),
    "resourceNames": _list("The names it is limited to; all when absent."),
}
FIELDS: Mapping[str, Fields] = {
    "Namespace": {
        "spec": ("What is wanted.", {"finalizers": _list("Always `kubernetes`.")}),
        "status": ("What the server observed. Read only.", {"phase": "Active, or Terminating when deleted."}),
    },
    "Event": {
        "involvedObject": (
            "The object it is about.",
            {
                "apiVersion": "The object's version.",
                "kind": "The object's kind.",
                "namespace": "The object's project.",
                "name": "The object's name.",
                "uid": "The object's uid.",
            },
        ),
        "type": "Normal or Warning.",
        "reason": "What happened, in one word.",
        "message": "What happened, in a sentence.",
        "source": ("Who tells it.", {"component": "The program."}),
        "firstTimestamp": _of_type("string", "When it happened first.", **_TIME),
        "lastTimestamp": _of_type("string", "When it happened last.", **_TIME),
        "count": _of_type("integer", "How often it has happened.", format="int32"),
    },
    "SelfSubjectAccessReview": {
        "spec": (
            "What the caller would like to do; one of the two.",
            {
                "resourceAttributes": (
                    "A verb on a resource.",
                    {
                        "namespace": "The project.",
                        "verb": "Such as get, list or create; `*` for all.",
                        "group": "The group of the resource; `*` for all.",
                        "version": "Ignored.",
                        "resource": "The plural of the kind; `*` for all.",
                        "subresource": "Such as status or scale.",
                        "name": "One object; all when absent.",
                    },
                ),
                "nonResourceAttributes": ("A verb on a path.", {"path": "The path.", "verb": "Such as get."}),
            },
        ),
        "status": (
            "The answer.",
            {"allowed": _of_type("boolean", "Whether the caller may."), "reason": "Why, or what is missing."},
        ),
    },
    "SelfSubjectRulesReview": {
        "spec": ("Where.", {"namespace": "The project."}),
        "status": (
            "The answer.",
            {
                "resourceRules": _list("What the caller may do to resources.", _RULE),
                "nonResourceRules": _list(
                    "What the caller may do to paths.",
                    {"verbs": _list("What may be done."), "nonResourceURLs": _list("The paths.")},
                ),
                "incomplete": _of_type("boolean", "Always false."),
            },
        ),
    },
    "SelfSubjectReview": {"status": ("The answer.", {"userInfo": ("Who the caller is.", _USER)})},
    "TokenReview": {
        "spec": ("What is asked.", {"token": "The token of this very request; no other is reviewed."}),
        "status": (
            "The answer.",
            {
                "authenticated": _of_type("boolean", "Whether the token is the one of the request."),
                "user": ("Whose it is.", _USER),
                "error": "Why it is not reviewed.",
            },
        ),
    },
}


def documents(release: str) -> dict[str, dict[str, Any]]:
    """The document of each group version, by the path that the index names it by."""
    found = {f"api/{CORE_VERSION}": _core(release)}
    for group in sorted({review.group for review in REVIEWS}):
        reviews = [review for review in REVIEWS if review.group == group]
        found[f"apis/{group}/{VERSION}"] = _reviews(group, reviews, release)
    return found


def _core(release: str) -> dict[str, Any]:
    paths: dict[str, Any] = {}
    found = schemas(())
    for kind in (facade.kind for facade in FACADES):
        root, everywhere = f"/api/{CORE_VERSION}", f"/api/{CORE_VERSION}/{kind.plural}"
        listed = {"get": _operation(kind.kind, "", "list", kind.list_kind, f"List or watch {kind.plural}.")}
        listed["get"]["parameters"] = LIST_PARAMETERS
        paths[everywhere] = listed
        if kind.scope is Scope.PROJECT:
            within = {"get": {**listed["get"], "operationId": f"listNamespaced{kind.kind}"}}
            place = [path_parameter("namespace", "The project.")]
            paths[f"{root}/namespaces/{{namespace}}/{kind.plural}"] = {**within, "parameters": place}
        if Verb.GET in kind.verbs:
            read = {"get": _operation(kind.kind, "", "get", kind.kind, f"Read {kind.kind}.")}
            paths[f"{everywhere}/{{name}}"] = {**read, "parameters": [path_parameter("name", "The object's name.")]}
        found[_name("", kind.kind)] = _schema("", CORE_VERSION, kind.kind, kind.description)
        found[_name("", kind.list_kind)] = _list_schema(kind)
    return document_of(CORE_VERSION, paths, found, release)


def _reviews(group: str, reviews: list[Review], release: str) -> dict[str, Any]:
    paths: dict[str, Any] = {}
    found = schemas(())
    for review in reviews:
        operation = _operation(review.kind, group, "post", review.kind, f"Ask a {review.kind}.", "201")
        body = {"application/json": {"schema": reference(_name(group, review.kind))}}
        paths[f"/apis/{review.group_version}/{review.plural}"] = {
            "post": {**operation, "requestBody": {"required": True, "content": body}}
        }
        described = "A question about the caller that is answered and not stored."
        found[_name(group, review.kind)] = _schema(group, review.group_version, review.kind, described)
    return document_of(f"{group}/{VERSION}", paths, found, release)


def _operation(kind: str, group: str, action: str, answer: str, summary: str, status: str = "200") -> dict[str, Any]:
    return {
        "summary": summary,
        "operationId": f"{action}{kind}",
        "responses": {
            status: response("OK", reference(_name(group, answer))),
            **refusals(Verb.CREATE if action == "post" else Verb(action)),
        },
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": group_version_kind(kind, group),
    }


def _schema(group: str, version: str, kind: str, description: str) -> Schema:
    own: Fields = {"apiVersion": f"Always {version}.", "kind": f"Always {kind}."}
    schema = _object(description, {**own, **FIELDS[kind]})
    schema["properties"]["metadata"] = _metadata("ObjectMeta", "The object's metadata; that of a review is empty.")
    return {**schema, "x-kubernetes-group-version-kind": [group_version_kind(kind, group)]}


def _list_schema(kind: Kind) -> Schema:
    own: Fields = {"apiVersion": f"Always {CORE_VERSION}.", "kind": f"Always {kind.list_kind}."}
    schema = _object(f"A list of {kind.plural}.", own)
    schema["properties"] |= {
        "metadata": _metadata("ListMeta", "The list's metadata."),
        "items": {"type": "array", "description": "The objects.", "items": reference(_name("", kind.kind))},
    }
    return {**schema, "x-kubernetes-group-version-kind": [group_version_kind(kind.list_kind, "")]}


def _metadata(name: str, description: str) -> Schema:
    return {"allOf": [reference(f"{META_PREFIX}{name}")], "description": description, "default": {}}


def _name(group: str, kind: str) -> str:
    return f"io.k8s.api.{group.partition('.')[0] or 'core'}.v1.{kind}"
