"""Whether a caller may do something, asked beforehand: the answers to `kubectl auth can-i` and `whoami`.

They come from the questions of `scopes.py` that every request must pass, so a review cannot promise what a request is
then refused. What a request meets after them (a missing project, a broken rule of its kind) is no matter of permission
and is not foretold. `api/reviews.py` serves them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from controlplane.errors import ApiError
from controlplane.identity.principal import Principal
from controlplane.identity.scopes import (
    Access,
    needed,
    require_active,
    require_claim,
    require_object,
    require_subresource,
)
from controlplane.kinds.core import FACADES
from controlplane.machinery.discovery import REVIEWS
from controlplane.machinery.kind import GROUP, Document, Kind, Scope, Verb

ANY = "*"
NON_RESOURCE_URLS = (
    "/api",
    "/api/*",
    "/apis",
    "/apis/*",
    "/auth/whoami",
    "/healthz",
    "/openapi/*",
    "/readyz",
    "/version",
)
"""What every caller may GET that is no object."""

_NARROWED_VERBS = (Verb.LIST, Verb.WATCH, Verb.DELETE_COLLECTION)
"""What may be asked of many objects at once, because it shows and touches no more than what is visible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attributes:
    """What somebody wants to do; empty `namespace` means all projects, empty `name` any object."""

    verb: str
    group: str
    resource: str
    subresource: str = ""
    namespace: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer, and why."""

    allowed: bool
    reason: str


def decide(principal: Principal, asked: Attributes, kinds: Mapping[str, Kind]) -> Decision:
    """Whether the principal may; with wildcards, whether it may do all that they stand for. `kinds` by plural."""
    try:
        require_active(principal)
        reason = ""
        for attributes in _spelt_out(asked, kinds):
            reason = _require(principal, attributes, kinds)
    except ApiError as refusal:
        return Decision(False, refusal.message)
    except LookupError as unknown:
        return Decision(False, str(unknown.args[0]))
    return Decision(True, reason)


def decide_url(path: str, verb: str) -> Decision:
    """Whether any caller may do `verb` to a path that is no object."""
    if verb not in ("get", "head"):
        return Decision(False, "only get is offered outside of objects")
    if not any(fnmatchcase(path, pattern) for pattern in NON_RESOURCE_URLS):
        return Decision(False, f'there is no path "{path}" outside of objects')
    return Decision(True, "every credential may read this path")


def rules(principal: Principal, namespace: str, kinds: Mapping[str, Kind]) -> list[Document]:
    """All that the principal may do in a project, as the resourceRules of a rules review."""
    by_verbs: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for group, resource, subresource, verbs in _offered(kinds.values()):
        allowed = tuple(
            verb
            for verb in verbs
            if decide(
                principal,
                Attributes(verb=verb, group=group, resource=resource, subresource=subresource, namespace=namespace),
                kinds,
            ).allowed
        )
        if allowed:
            name = f"{resource}/{subresource}" if subresource else resource
            by_verbs.setdefault((group, allowed), []).append(name)
    found: list[Document] = [
        {"verbs": list(verbs), "apiGroups": [group], "resources": resources}
        for (group, verbs), resources in by_verbs.items()
    ]
    binding = principal.binding
    if binding is not None and binding.project == namespace:
        claims: Document = {"verbs": ["create"], "apiGroups": [GROUP], "resources": ["functions/claims"]}
        found.append({**claims, "resourceNames": [binding.function]})
    return found


def user_info(principal: Principal) -> Document:
    """Who the principal is, in the words of authentication.k8s.io."""
    return {
        "username": principal.email or principal.label,
        "uid": principal.id,
        "groups": ["system:authenticated", f"{GROUP}:{principal.kind}"],
        "extra": {
            f"{GROUP}/org": [principal.org],
            f"{GROUP}/projects": sorted(principal.projects),
            f"{GROUP}/scopes": sorted(principal.scopes),
        },
    }


def _spelt_out(asked: Attributes, kinds: Mapping[str, Kind]) -> Iterator[Attributes]:
    """The request without wildcards."""
    if ANY not in (asked.verb, asked.resource):
        yield asked
        return
    for group, resource, subresource, verbs in _offered(kinds.values()):
        same_group = asked.group in (ANY, group)
        if not same_group or asked.resource not in (ANY, resource) or asked.subresource not in (ANY, subresource):
            continue
        for verb in verbs if asked.verb == ANY else (asked.verb,):
            yield Attributes(
                verb=verb,
                group=group,
                resource=resource,
                subresource=subresource,
                namespace=asked.namespace,
                name=asked.name,
            )


def _offered(kinds: Iterable[Kind]) -> Iterator[tuple[str, str, str, tuple[str, ...]]]:
    """All there is to be allowed, as (group, resource, subresource, verbs)."""
    for kind in (*kinds, *(facade.kind for facade in FACADES)):
        yield kind.group, kind.plural, "", tuple(verb.value for verb in Verb if verb in kind.verbs)
        for subresource in kind.served_subresources:
            yield kind.group, kind.plural, subresource.name, subresource.verbs
    for review in REVIEWS:
        yield review.group, review.plural, "", ("create",)


def _require(principal: Principal, asked: Attributes, kinds: Mapping[str, Kind]) -> str:
    """Why the principal may; ApiError when it may not, LookupError when there is no such thing to do."""
    if any((asked.group, asked.resource) == (review.group, review.plural) for review in REVIEWS):
        if asked.verb != "create":
            raise LookupError(f"{asked.resource} can only be created")
        return "every credential may ask about itself"
    ours = kinds.get(asked.resource) if asked.group in (GROUP, ANY) else None
    kind = ours or next((facade.kind for facade in FACADES if _names(facade.kind, asked)), None)
    if kind is None:
        raise LookupError(f'this server has no resource "{asked.resource}" in the group "{asked.group}"')
    if asked.subresource:
        return _require_subresource(principal, kind, asked)
    try:
        verb = Verb(asked.verb)
    except ValueError:
        raise LookupError(f'there is no verb "{asked.verb}"') from None
    if verb not in kind.verbs:
        raise LookupError(f"{kind.plural} do not offer {verb.value}")
    name = asked.name or (ANY if kind.is_project and verb not in _NARROWED_VERBS else "")
    require_object(principal, kind, verb, _project(principal, kind, asked, verb) or "", name)
    return f"the scopes of the credential cover {verb.value} of {kind.plural}"


def _names(kind: Kind, asked: Attributes) -> bool:
    return (kind.group, kind.plural) == (asked.group, asked.resource)


def _require_subresource(principal: Principal, kind: Kind, asked: Attributes) -> str:
    found = next((known for known in kind.served_subresources if known.name == asked.subresource), None)
    if found is None or asked.verb not in found.verbs:
        raise LookupError(f'{kind.plural} do not offer {asked.verb} of "{asked.subresource}"')
    _, access = needed(kind, found, asked.verb)
    if access is Access.CLAIM:
        require_claim(principal, asked.namespace, asked.name)
    else:
        verb = Verb.GET if access is Access.READ else Verb.UPDATE
        project = asked.name or ANY if kind.is_project else _project(principal, kind, asked, verb)
        require_subresource(principal, kind, found, asked.verb, project or "")
    return f"the scopes of the credential cover {asked.verb} of {kind.plural}/{found.name}"


def _project(principal: Principal, kind: Kind, asked: Attributes, verb: Verb) -> str | None:
    """The project whose visibility counts; only lists over all projects are narrowed to those that are visible."""
    if kind.scope is Scope.ORG:
        return None
    if not asked.namespace and (verb in (Verb.LIST, Verb.WATCH) or principal.all_projects):
        return None
    return asked.namespace or ANY
