"""What of a request belongs into the audit log.

`Edge` describes each request here, by its method and path alone, before it is routed: a refusal can come from anywhere.
What changes objects gets its events with the changes themselves (`controlplane/audit/requests.py`); what is refused, or
told for another reason, is queued when its answer begins. Reads, and what workers and nodes report all day, are told
only when they are refused for lack of a credential or a permission; reads of Secrets always (decision 0041).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from starlette.types import Scope

from api.deps import CREDENTIAL, LOGIN_PATHS, PRINCIPAL, REQUEST_ID, Deps, source_of
from api.errors import from_http_status
from controlplane.audit.entries import Actor, ActorKind
from controlplane.audit.requests import AUDITED, AuditedRequest
from controlplane.errors import ApiError
from controlplane.identity.api_keys import PREFIX_LENGTH
from controlplane.identity.bootstrap import FIRST_ORG
from controlplane.identity.principal import Principal, PrincipalKind
from controlplane.identity.tokens import API_KEY_PREFIX
from controlplane.kinds.api_key import API_KEY
from controlplane.kinds.function import FUNCTION
from controlplane.kinds.function_call import FUNCTION_CALL
from controlplane.kinds.secret import SECRET
from controlplane.kinds.service_account import SERVICE_ACCOUNT
from controlplane.machinery.kind import API_VERSION, Kind

REFUSAL = "nodus.refusal"
"""Key of the ApiError that is answered, in the ASGI scope."""

_ROOT = ["", "apis", *API_VERSION.split("/")]
_READS = {"GET", "HEAD", "OPTIONS"}
_VERBS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "GET": ("list", "get"),
        "HEAD": ("list", "get"),
        "POST": ("create", "create"),
        "PUT": ("update", "update"),
        "PATCH": ("patch", "patch"),
        "DELETE": ("deletecollection", "delete"),
    }
)
"""By method: the verb on a collection and on what has a name."""
_REPORTS = {(FUNCTION.plural, "claims"), (FUNCTION.plural, "cancels")}
"""What workers post again and again; what comes of it is in the calls themselves."""
_MADE_BELOW: Mapping[tuple[str, str], str] = MappingProxyType(
    {(FUNCTION.plural, "calls"): FUNCTION_CALL.kind, (SERVICE_ACCOUNT.plural, "tokens"): API_KEY.kind}
)
"""Subresources that make objects of another kind."""
_ACTOR_KINDS: Mapping[PrincipalKind, ActorKind] = MappingProxyType(
    {
        PrincipalKind.USER: ActorKind.USER,
        PrincipalKind.SERVICE_ACCOUNT: ActorKind.SERVICE_ACCOUNT,
        PrincipalKind.ATTEMPT: ActorKind.ATTEMPT,
        PrincipalKind.NODE: ActorKind.NODE,
    }
)
_HAVE_PREFIXES = {PrincipalKind.USER, PrincipalKind.SERVICE_ACCOUNT}
_DENIALS = {401, 403}
"""What is told of any request: somebody tried what they may not."""
_HTTP_ERROR = 400
"""Statuses from here on are refusals."""


@dataclass(frozen=True, kw_only=True)
class Described:
    """A request as the audit log sees it."""

    request: AuditedRequest
    is_change: bool = False
    """Whether it asks for a change, so that every refusal of it counts."""
    is_login: bool = False
    """Whether it may make a key. Programs ask again and again whether somebody has approved, which nobody is told."""
    is_told: bool = False
    """Whether an event is due although it changes nothing: a read of Secrets."""

    @property
    def writes(self) -> AuditedRequest | None:
        """The request whose changes leave events, None for one of which nothing is told but a denial."""
        return self.request if self.is_change or self.is_login else None


class Auditing:
    """The audit log of one edge."""

    def __init__(self, deps: Deps) -> None:
        self._deps = deps

    def described(self, scope: Scope, path: str) -> Described:
        """The request before anybody is known to have sent it."""
        method: str = scope["method"]
        steps = path.split("/")
        request = AuditedRequest(actor=_NOBODY, verb="", request_id=scope[REQUEST_ID], source=source_of(scope))
        if steps[: len(_ROOT)] != _ROOT or len(steps) == len(_ROOT):
            is_login = path in LOGIN_PATHS and method not in _READS
            request.verb = "login" if is_login else _VERBS.get(method, (method.lower(),) * 2)[1]
            request.written_kind, request.name = API_KEY.kind if is_login else "", path
            return Described(request=request, is_login=is_login)
        plural = self._address(request, steps[len(_ROOT) :])
        request.verb = _VERBS.get(method, (method.lower(),) * 2)[bool(request.name)]
        request.written_kind = _MADE_BELOW.get((plural, request.subresource), request.kind)
        is_read = method in _READS
        is_report = (plural, request.subresource) in _REPORTS
        return Described(
            request=request,
            is_change=not is_read and not is_report,
            is_told=is_read and plural == SECRET.plural,
        )

    def _address(self, request: AuditedRequest, steps: list[str]) -> str:
        """Write what the path names into the request; returns the plural."""
        if steps[0] == "namespaces" and len(steps) > 2:
            request.project, steps = steps[1], steps[2:]
        kind: Kind | None = self._deps.kinds.get(steps[0])
        plural, *below = steps
        request.name = below[0] if below else ""
        request.subresource = "/".join(below[1:])
        if kind is None:
            request.name = "/".join(steps)
            return plural
        request.kind = kind.kind
        if kind.is_project:
            request.project = request.name
        return plural

    def conclude(self, described: Described, scope: Scope, status: int) -> None:
        """Queue the event that is due when a request is answered, unless its changes have left theirs."""
        request = described.request
        is_due = described.is_told
        if status >= _HTTP_ERROR:
            is_due = status in _DENIALS or described.is_change or described.is_told
        # Some objects of a collection may have gone before it was refused.
        if not is_due or (request.recorded and (status < _HTTP_ERROR or request.verb != "deletecollection")):
            return
        refusal = scope.get(REFUSAL)
        reason = "Allowed"
        if status >= _HTTP_ERROR:
            error = refusal if isinstance(refusal, ApiError) else from_http_status(status, "", "", ())
            reason = error.reason.row.wire
        self._deps.audit.add(request.entry(self._deps.clock.now(), status, reason))


def actor_of(scope: Scope) -> Actor:
    """Who was found to have sent a request; the key's prefix is what its APIKey shows of it."""
    caller: Any = scope.get(PRINCIPAL)
    return _actor(caller, scope[CREDENTIAL]) if isinstance(caller, Principal) else _NOBODY


def acts_as(person: Principal) -> None:
    """Let what the present request changes from now on be told of this person, who approved it elsewhere."""
    request = AUDITED.get()
    if request is not None:
        request.actor = _actor(person, b"")


def _actor(caller: Principal, credential: bytes) -> Actor:
    name = caller.label if caller.account is None else "/".join((*sorted(caller.projects), caller.account))
    prefix = ""
    if caller.kind in _HAVE_PREFIXES:
        token = credential.partition(b" ")[2].strip().decode("latin-1")
        prefix = token[:PREFIX_LENGTH] if token.startswith(API_KEY_PREFIX) else ""
    return Actor(kind=_ACTOR_KINDS[caller.kind], org=caller.org or FIRST_ORG, name=name, key_prefix=prefix)


_NOBODY = Actor(kind=ActorKind.ANONYMOUS, org=FIRST_ORG)
"""What belongs to no organisation is told to the first one, which is the operator's."""
