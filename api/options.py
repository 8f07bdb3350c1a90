"""Options of lists and writing verbs, as they arrive: query parameters, headers, and the body of a delete.

Kubernetes clients send the options of a DELETE in its body, others in the query; both count, the body more.
"""

from __future__ import annotations

import hashlib
from typing import Any

from starlette.datastructures import QueryParams
from starlette.requests import Request

from controlplane.errors import ApiError, Cause, Reason
from controlplane.identity.principal import Principal
from controlplane.machinery import problems
from controlplane.machinery.field_validation import FieldCheck, FieldValidation
from controlplane.machinery.managed_fields import MANAGER_LENGTH_MAX, Manager, Operation
from controlplane.machinery.validation import decode_json, decode_object
from controlplane.resources import CreateOptions, DeleteOptions, ListOptions, Propagation
from controlplane.resources.listing import forbidden_parameter
from controlplane.store.idempotency import KeyedRequest

_DRY_RUN_ALL = "All"
_VALIDATIONS = frozenset(validation.value for validation in FieldValidation)
_BOOLEANS = {"": False, "false": False, "0": False, "true": True, "1": True}
_UNKNOWN_CLIENT = "unknown"
_POLICIES = tuple(policy.value for policy in Propagation)


def dry_run(query: QueryParams) -> bool:
    """Whether the request is only a rehearsal; 422 for a word other than All."""
    return _is_dry_run(query.getlist("dryRun"))


def create_options(request: Request, caller: Principal, content: bytes) -> CreateOptions:
    """How a create is asked; its key counts for this credential, method, path and query."""
    key = request.headers.get("idempotency-key")
    return CreateOptions(
        dry_run=dry_run(request.query_params),
        manager=manager(request, Operation.UPDATE),
        keyed=None if key is None else _keyed(request, caller, key, content),
        if_match=request.headers.get("if-match"),
    )


def manager(request: Request, operation: Operation, subresource: str = "") -> Manager:
    """Who will own the fields that are written: `fieldManager`, which an apply must give, else the client's name."""
    name = request.query_params.get("fieldManager", "")
    if len(name) > MANAGER_LENGTH_MAX or not name.isprintable():
        raise _invalid("fieldManager", f"must be at most {MANAGER_LENGTH_MAX} printable characters")
    if operation is Operation.APPLY and not name:
        raise _invalid("fieldManager", "is required for apply patch", problems.REQUIRED)
    return Manager(name or _client_name(request.headers.get("user-agent", "")), operation, subresource)


def force(query: QueryParams, operation: Operation) -> bool:
    """Whether an apply takes over fields of other managers; 422 for other patches, as it would mean nothing there."""
    word = query.get("force", "")
    if word not in _BOOLEANS:
        raise _invalid("force", "must be true or false")
    if word and operation is not Operation.APPLY:
        raise _invalid("force", "may not be specified for non-apply patch", problems.FORBIDDEN)
    return _BOOLEANS[word]


def field_check(query: QueryParams) -> FieldCheck:
    """What becomes of unknown and repeated fields of the body; 422 for another word than the three."""
    word = query.get("fieldValidation", "")
    if word not in _VALIDATIONS:
        raise _invalid("fieldValidation", "must be Ignore, Warn or Strict", problems.NOT_SUPPORTED)
    return FieldCheck(FieldValidation(word))


def list_options(query: QueryParams) -> ListOptions:
    """Which page of which snapshot a list asks for; `controlplane/resources/listing.py` judges the words together."""
    if query.get("sendInitialEvents"):
        # Ignoring what a client waits for would leave it waiting.
        raise forbidden_parameter("sendInitialEvents", "is forbidden for list; it belongs to `watch=true`")
    return ListOptions(
        limit=query.get("limit", ""),
        continue_token=query.get("continue", ""),
        resource_version=query.get("resourceVersion", ""),
        resource_version_match=query.get("resourceVersionMatch", ""),
    )


def delete_options(query: QueryParams, content: bytes) -> DeleteOptions:
    """How a delete is asked; unknown words are a 422, because guessing could delete too much."""
    body: dict[str, Any] = decode_object(decode_json(content)) if content.strip() else {}
    policy = body.get("propagationPolicy") or query.get("propagationPolicy") or Propagation.BACKGROUND.value
    if policy not in _POLICIES:
        raise _invalid("propagationPolicy", "must be Foreground, Background or Orphan")
    preconditions = body.get("preconditions") or {}
    if not isinstance(preconditions, dict):
        raise _invalid("preconditions", "must be an object")
    return DeleteOptions(
        propagation=Propagation(policy),
        dry_run=_is_dry_run(body.get("dryRun") or query.getlist("dryRun")),
        uid=_text(preconditions, "uid"),
        resource_version=_text(preconditions, "resourceVersion"),
    )


def _is_dry_run(words: object) -> bool:
    if not words:
        return False
    if not isinstance(words, list) or any(word != _DRY_RUN_ALL for word in words):
        raise _invalid("dryRun", "must be All")
    return True


def _text(preconditions: dict[str, Any], field: str) -> str | None:
    value = preconditions.get(field)
    if value is not None and not isinstance(value, str):
        raise _invalid(f"preconditions.{field}", "must be a string")
    return value


def _keyed(request: Request, caller: Principal, key: str, content: bytes) -> KeyedRequest:
    if not key:
        raise ApiError(Reason.BAD_REQUEST, "`Idempotency-Key` must not be empty")
    scope = f"{caller.org}/{caller.id} {request.method} {request.scope['path']}?{request.url.query}"
    return KeyedRequest(scope, key, hashlib.sha256(content).hexdigest())


def _client_name(user_agent: str) -> str:
    """What a client calls itself before the first slash of its User-Agent, as Kubernetes names its managers."""
    name = "".join(character for character in user_agent.partition("/")[0] if character.isprintable())
    return name[:MANAGER_LENGTH_MAX].strip() or _UNKNOWN_CLIENT


def _invalid(parameter: str, problem: str, reason: str = problems.INVALID) -> ApiError:
    return ApiError(Reason.INVALID, f"`{parameter}` {problem}", causes=(Cause(parameter, problem, reason),))
