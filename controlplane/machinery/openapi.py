"""The OpenAPI v3 document of the group, written from the table of kinds.

kubectl needs it to create, apply, diff and explain: it finds the kind of a path by `x-kubernetes-group-version-kind`,
and looks at the parameters of the writes to learn whether the server can rehearse and validate them (R-DISC-5).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

from controlplane.machinery.kind import API_VERSION, GROUP, VERSION, Kind, Scope, Subresource, Verb
from controlplane.machinery.schemas import META_PREFIX, PREFIX, Schema, group_version_kind, reference, schemas

GROUP_PATH = f"apis/{GROUP}/{VERSION}"
# Strategic merge is left out on purpose: kubectl apply takes its patch type from here (R-DISC-7).
PATCH_TYPES = ("application/merge-patch+json", "application/json-patch+json", "application/apply-patch+yaml")
BODY_TYPES = ("application/json", "application/yaml")

_ACTIONS = {
    Verb.CREATE: ("post", "post", "Create"),
    Verb.GET: ("get", "get", "Read"),
    Verb.LIST: ("get", "list", "List or watch"),
    Verb.PATCH: ("patch", "patch", "Change a part of"),
    Verb.UPDATE: ("put", "put", "Replace"),
    Verb.DELETE: ("delete", "delete", "Delete"),
    Verb.DELETE_COLLECTION: ("delete", "deletecollection", "Delete a selection of"),
}
"""Of each verb: the HTTP method, the word of `x-kubernetes-action`, and how its summary begins."""

_REFUSALS = (400, 401, 403, 404, 406, 429, 500, 503)
"""What any request may meet, by status; the messages tell more."""
_REFUSALS_OF_VERB = {
    Verb.CREATE: (402, 409, 412, 413, 415, 422),
    Verb.UPDATE: (402, 409, 413, 415, 422),
    Verb.PATCH: (402, 409, 413, 415, 422),
    Verb.DELETE: (409, 413, 415, 422),
    Verb.DELETE_COLLECTION: (409, 410, 413, 415, 422, 504),
    Verb.LIST: (410, 422, 504),
}


def openapi_index(documents: Mapping[str, bytes]) -> dict[str, Any]:
    """The answer of `/openapi/v3`; the hash makes clients fetch a serialised document again when it changed."""
    return {
        "paths": {
            path: {"serverRelativeURL": f"/openapi/v3/{path}?hash={document_hash(document)}"}
            for path, document in documents.items()
        }
    }


def document_hash(document: bytes) -> str:
    """What a document is known by: in the index, and as its ETag."""
    return hashlib.sha256(document).hexdigest().upper()


def openapi_document(kinds: Iterable[Kind], *, release: str = "") -> dict[str, Any]:
    """The document of all kinds; `release` tells which build it describes."""
    kinds = tuple(kinds)
    paths: dict[str, Any] = {}
    for kind in kinds:
        paths.update(_paths(kind))
    return document_of(API_VERSION, paths, schemas(kinds), release)


def document_of(title: str, paths: dict[str, Any], found: dict[str, Schema], release: str) -> dict[str, Any]:
    """The document of one group version."""
    return {
        "openapi": "3.0.0",
        "info": {"title": title, "version": release or VERSION},
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": found,
            "securitySchemes": {"BearerToken": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"BearerToken": []}],
    }


def _paths(kind: Kind) -> dict[str, Any]:
    namespaced = kind.scope is Scope.PROJECT
    root = f"/{GROUP_PATH}/namespaces/{{namespace}}" if namespaced else f"/{GROUP_PATH}"
    place = [path_parameter("namespace", "The project.")] if namespaced else []
    named = [*place, path_parameter("name", "The object's name.")]
    paths: dict[str, Any] = {
        f"{root}/{kind.plural}": _operations(kind, (Verb.LIST, Verb.CREATE, Verb.DELETE_COLLECTION), place),
        f"{root}/{kind.plural}/{{name}}": _operations(kind, (Verb.GET, Verb.UPDATE, Verb.PATCH, Verb.DELETE), named),
    }
    if namespaced and Verb.LIST in kind.verbs:
        everywhere = _operation(kind, Verb.LIST)
        everywhere["operationId"] += "ForAllNamespaces"
        paths[f"/{GROUP_PATH}/{kind.plural}"] = {"get": everywhere}
    for subresource in kind.served_subresources:
        operations = {_method(verb): _subresource_operation(kind, subresource, verb) for verb in subresource.verbs}
        paths[f"{root}/{kind.plural}/{{name}}/{subresource.name}"] = {**operations, "parameters": named}
    return paths


def _operations(kind: Kind, verbs: Iterable[Verb], parameters: list[Schema]) -> dict[str, Any]:
    operations = {_ACTIONS[verb][0]: _operation(kind, verb) for verb in verbs if verb in kind.verbs}
    return {**operations, "parameters": parameters} if parameters else operations


def _operation(kind: Kind, verb: Verb) -> dict[str, Any]:
    _, action, summary = _ACTIONS[verb]
    name = kind.list_kind if verb is Verb.LIST else kind.kind
    operation: dict[str, Any] = {
        "summary": f"{summary} {kind.plural if verb in (Verb.LIST, Verb.DELETE_COLLECTION) else kind.kind}.",
        "operationId": f"{action}{'Namespaced' if kind.scope is Scope.PROJECT else ''}{kind.kind}",
        "tags": [kind.plural],
        "parameters": _query(verb),
        "responses": _responses(verb, f"{PREFIX}{name}"),
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": group_version_kind(kind.kind),
    }
    if body := _body(verb, f"{PREFIX}{kind.kind}"):
        operation["requestBody"] = body
    return operation


def _responses(verb: Verb, name: str) -> dict[str, Any]:
    schema = reference(f"{META_PREFIX}Status") if verb is Verb.DELETE_COLLECTION else reference(name)
    responses: dict[str, Any] = {"200": response("OK", schema)}
    if verb is Verb.CREATE:
        responses["201"] = response("Created", schema)
    return responses | refusals(verb)


def refusals(verb: Verb) -> dict[str, Any]:
    """The refusals that a client must expect by status, and the rest."""
    status = reference(f"{META_PREFIX}Status")
    codes = (*_REFUSALS, *_REFUSALS_OF_VERB.get(verb, ()))
    told = {str(code): response(f"{HTTPStatus(code).phrase}.", status) for code in codes}
    return told | {"default": response("An error.", status)}


def response(description: str, schema: Schema, media_type: str = "application/json") -> dict[str, Any]:
    """An answer with a body of the schema."""
    return {"description": description, "content": {media_type: {"schema": schema}}}


def _query(verb: Verb) -> list[Schema]:
    return [*_PARAMETERS.get(verb, ()), _PRETTY]


def _body(verb: Verb, name: str) -> dict[str, Any] | None:
    match verb:
        case Verb.CREATE | Verb.UPDATE:
            return {"required": True, "content": {media: {"schema": reference(name)} for media in BODY_TYPES}}
        case Verb.PATCH:
            patch = reference(f"{META_PREFIX}Patch")
            return {"required": True, "content": {media: {"schema": patch} for media in PATCH_TYPES}}
        case Verb.DELETE | Verb.DELETE_COLLECTION:
            return {"content": {media: {"schema": reference(f"{META_PREFIX}DeleteOptions")} for media in BODY_TYPES}}
        case _:
            return None


def _subresource_operation(kind: Kind, subresource: Subresource, verb: str) -> dict[str, Any]:
    is_text = subresource.name == "log"
    shown = f"{META_PREFIX}{subresource.kind}" if subresource.group else f"{PREFIX}{subresource.kind or kind.kind}"
    schema: Schema = {"type": "string" if is_text else "object"}
    if verb in ("get", "update", "patch") and not is_text:
        schema = reference(shown)
    operation: dict[str, Any] = {
        "summary": subresource.description,
        "operationId": f"{verb}{kind.kind}{subresource.name.capitalize()}",
        "tags": [kind.plural],
        "responses": {
            "200": response("OK", schema, "text/plain" if is_text else "application/json"),
            **({"201": response("Created", schema)} if verb == "create" else {}),
            **refusals(Verb(verb)),
        },
        "x-kubernetes-action": "connect" if is_text else _method(verb),
        "x-kubernetes-group-version-kind": group_version_kind(
            subresource.kind or kind.kind, subresource.group or kind.group
        ),
    }
    if is_text:
        operation["parameters"] = _LOG_PARAMETERS
    if verb in ("update", "patch"):
        operation["parameters"] = _query(Verb(verb))
        operation["requestBody"] = _body(Verb(verb), shown)
    if verb == "create":
        operation["requestBody"] = {"content": {"application/json": {"schema": schema}}}
    return operation


def _method(verb: str) -> str:
    return {"create": "post", "update": "put"}.get(verb, verb)


def path_parameter(name: str, description: str) -> Schema:
    """A part of the path that the client fills in."""
    return {"name": name, "in": "path", "required": True, "description": description, "schema": {"type": "string"}}


def _parameter(name: str, description: str, type_: str = "string") -> Schema:
    return {"name": name, "in": "query", "description": description, "schema": {"type": type_}}


_DRY_RUN = _parameter("dryRun", "All: check and answer as if, but store nothing.")
_SELECTORS = [
    _parameter("labelSelector", "Only objects whose labels match, such as `app=a,tier in (x,y)`."),
    _parameter("fieldSelector", "Only objects whose fields match, such as `status.phase=Running`."),
]
_WRITE_PARAMETERS = [
    _DRY_RUN,
    _parameter("fieldManager", "Who writes and owns the fields; an apply must say it."),
    _parameter(
        "fieldValidation",
        "What to do about unknown and repeated fields: Strict refuses them with a 400, Warn tells them in Warning "
        "headers, Ignore drops them. Unset refuses unknown ones together with everything else that is invalid (422).",
    ),
]
_FORCE = _parameter("force", "Whether an apply takes over fields of other managers.", "boolean")
_DELETE_PARAMETERS = [
    _DRY_RUN,
    _parameter("propagationPolicy", "What happens to what it owns: Foreground, Background or Orphan."),
    _parameter("orphanDependents", "The older word for it: true is Orphan, false is Background.", "boolean"),
    _parameter("gracePeriodSeconds", "Ignored.", "integer"),
]
_PAGES = [
    *_SELECTORS,
    _parameter("limit", "Most objects of a page; a delete deletes no more than one page of them.", "integer"),
    _parameter("continue", "The token of the page before."),
    _parameter("resourceVersion", "For a list the version it must have reached, for a watch that it starts after."),
    _parameter("resourceVersionMatch", "How the version is meant: Exact or NotOlderThan."),
]
LIST_PARAMETERS = [
    *_PAGES,
    _parameter("watch", "Stream the changes instead.", "boolean"),
    _parameter("allowWatchBookmarks", "Send the version from time to time though nothing matches.", "boolean"),
    _parameter("sendInitialEvents", "Begin a watch with the present objects.", "boolean"),
    _parameter("timeoutSeconds", "End the watch after this long.", "integer"),
]
_PRETTY = _parameter("pretty", "Indent the answer for people.", "boolean")
_PARAMETERS: dict[Verb, list[Schema]] = {
    Verb.LIST: LIST_PARAMETERS,
    Verb.CREATE: _WRITE_PARAMETERS,
    Verb.UPDATE: _WRITE_PARAMETERS,
    Verb.PATCH: [*_WRITE_PARAMETERS, _FORCE],
    Verb.DELETE: _DELETE_PARAMETERS,
    Verb.DELETE_COLLECTION: [*_PAGES, *_DELETE_PARAMETERS],
}
"""What each verb reads of the query; all of them read `pretty`."""
_LOG_PARAMETERS = [
    _parameter("follow", "Stream lines as they come.", "boolean"),
    _parameter("tailLines", "Only the last lines.", "integer"),
    _parameter("sinceSeconds", "Only lines of the last seconds.", "integer"),
    _parameter("timestamps", "Begin each line with its time.", "boolean"),
]
