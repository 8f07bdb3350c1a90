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
from controlplane.machinery.validation import decode_json, decode_object
from controlplane.resources import CreateOptions, DeleteOptions, ListOptions, Propagation
from controlplane.resources.listing import forbidden_parameter
from controlplane.store.idempotency import KeyedRequest

_DRY_RUN_ALL = "All"
_POLICIES = tuple(policy.value for policy in Propagation)


def dry_run(query: QueryParams) -> bool:
    """Whether the request is only a rehearsal; 422 for a word other than All."""
    return _is_dry_run(query.getlist("dryRun"))


def create_options(request: Request, caller: Principal, content: bytes) -> CreateOptions:
    """How a create is asked; its key counts for this credential, method, path and query."""
    key = request.headers.get("idempotency-key")
    return CreateOptions(
        dry_run=dry_run(request.query_params),
        keyed=None if key is None else _keyed(request, caller, key, content),
        if_match=request.headers.get("if-match"),
    )


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


def _invalid(parameter: str, problem: str) -> ApiError:
    return ApiError(Reason.INVALID, f"`{parameter}` {problem}", causes=(Cause(parameter, problem),))
