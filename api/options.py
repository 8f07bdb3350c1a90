"""Options of lists and writing verbs, as they arrive: query parameters, headers, and the body of a delete.

Kubernetes clients send the options of a DELETE in its body, others in the query; both count, the body more. What this
server does not know is refused in the body, where a mistyped word could delete too much; in the query, to which proxies
and consoles add words of their own, it is ignored.
"""

from __future__ import annotations

import hashlib
from urllib.parse import quote

from starlette.datastructures import QueryParams
from starlette.requests import Request

from api.negotiation import BodyType, body_type
from controlplane.errors import ApiError, Cause, Reason
from controlplane.identity.principal import Principal
from controlplane.machinery import problems
from controlplane.machinery.field_validation import FieldCheck, FieldValidation
from controlplane.machinery.kind import Document
from controlplane.machinery.managed_fields import MANAGER_LENGTH_MAX, Manager, Operation
from controlplane.machinery.schemas import delete_options_fields
from controlplane.machinery.validation import CAUSES_MAX, decode_object
from controlplane.resources import CreateOptions, DeleteOptions, ListOptions, Propagation
from controlplane.resources.listing import forbidden_parameter
from controlplane.store.idempotency import KeyedRequest

_DRY_RUN_ALL = "All"
_VALIDATIONS = frozenset(validation.value for validation in FieldValidation)
_BOOLEANS = {"": None, "false": False, "0": False, "true": True, "1": True}
"""What clients send for yes, no and neither, in lower case: those in Python say True."""
_UNKNOWN_CLIENT = "unknown"
_POLICIES = tuple(policy.value for policy in Propagation)
_DELETE_WORDS = frozenset(delete_options_fields())
_PRECONDITIONS = frozenset({"uid", "resourceVersion"})


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
    forced = _boolean(query, "force")
    if forced is not None and operation is not Operation.APPLY:
        raise _invalid("force", "may not be specified for non-apply patch", problems.FORBIDDEN)
    return forced or False


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


def decoded(request: Request, content: bytes, check: FieldCheck) -> Document:
    """A body that is an object, as JSON or as YAML by its type; 415 for another type, 400 for another value."""
    is_yaml = body_type(request.headers.get("content-type", "")) is BodyType.YAML
    return decode_object(check.yaml(content) if is_yaml else check.json(content))


def delete_options(request: Request, content: bytes) -> DeleteOptions:
    """How a delete is asked; unknown words are a 422, because guessing could delete too much."""
    query = request.query_params
    body = decoded(request, content, FieldCheck(FieldValidation.DEFAULT)) if content.strip() else {}
    _refuse_unknown(body, _DELETE_WORDS, "")
    preconditions = body.get("preconditions") or {}
    if not isinstance(preconditions, dict):
        raise _invalid("preconditions", "must be an object")
    _refuse_unknown(preconditions, _PRECONDITIONS, "preconditions.")
    return DeleteOptions(
        propagation=_propagation(query, body),
        dry_run=_is_dry_run(body.get("dryRun") or query.getlist("dryRun")),
        uid=_text(preconditions, "uid"),
        resource_version=_text(preconditions, "resourceVersion"),
    )


def _propagation(query: QueryParams, body: Document) -> Propagation:
    """What becomes of dependents, in today's word for it or in the one before; 422 for both, as they may differ."""
    policy = body.get("propagationPolicy") or query.get("propagationPolicy")
    orphan = body.get("orphanDependents")
    if orphan is None:
        orphan = _boolean(query, "orphanDependents")
    if not isinstance(orphan, bool | None):
        raise _invalid("orphanDependents", "must be true or false")
    if policy and orphan is not None:
        raise _invalid("orphanDependents", "may not be set together with `propagationPolicy`", problems.FORBIDDEN)
    if orphan is not None:
        return Propagation.ORPHAN if orphan else Propagation.BACKGROUND
    if policy and policy not in _POLICIES:
        raise _invalid("propagationPolicy", "must be Foreground, Background or Orphan")
    return Propagation(policy) if policy else Propagation.BACKGROUND


def _refuse_unknown(options: Document, known: frozenset[str], path: str) -> None:
    """422 for words that mean nothing, each named."""
    unknown = sorted(options.keys() - known)
    if unknown:
        causes = tuple(Cause(f"{path}{word}", "is not an option of a delete", problems.UNKNOWN) for word in unknown)
        told = ", ".join(f"`{path}{word[:40]}`" for word in unknown[:3])
        raise ApiError(
            Reason.INVALID,
            f"a delete has no option {told}",
            causes=causes[:CAUSES_MAX],
            fix=f"Delete options are {', '.join(sorted(known))}, written just so.",
        )


def _boolean(query: QueryParams, name: str) -> bool | None:
    """A parameter that is yes or no, None when it was not given; 422 for another word."""
    word = query.get(name, "").lower()
    if word not in _BOOLEANS:
        raise _invalid(name, "must be true or false")
    return _BOOLEANS[word]


def _is_dry_run(words: object) -> bool:
    if not words:
        return False
    if not isinstance(words, list) or any(word != _DRY_RUN_ALL for word in words):
        raise _invalid("dryRun", "must be All")
    return True


def _text(preconditions: Document, field: str) -> str | None:
    value = preconditions.get(field)
    if value is not None and not isinstance(value, str):
        raise _invalid(f"preconditions.{field}", "must be a string")
    return value


def _keyed(request: Request, caller: Principal, key: str, content: bytes) -> KeyedRequest:
    if not key:
        raise ApiError(Reason.BAD_REQUEST, "`Idempotency-Key` must not be empty")
    # Quoted, because the scope may hold no control character: a name in the path may be anything.
    path = quote(request.scope["path"])
    scope = f"{caller.org}/{caller.id} {request.method} {path}?{request.url.query}"
    return KeyedRequest(scope, key, hashlib.sha256(content).hexdigest())


def _client_name(user_agent: str) -> str:
    """What a client calls itself before the first slash of its User-Agent, as Kubernetes names its managers."""
    name = "".join(character for character in user_agent.partition("/")[0] if character.isprintable())
    return name[:MANAGER_LENGTH_MAX].strip() or _UNKNOWN_CLIENT


def _invalid(parameter: str, problem: str, reason: str = problems.INVALID) -> ApiError:
    return ApiError(Reason.INVALID, f"`{parameter}` {problem}", causes=(Cause(parameter, problem, reason),))
