"""What a principal may do: what each request needs, and the refusal when it is missing.

What a request needs is in the table of kinds and nowhere else: `Kind.scope_resource` and `Subresource.scope`, read by
`needed` and `access_of`. What a principal has are its scopes (`machinery/scope_grammar.py`), within those of its role
(`kinds/roles.py`). The edge asks `require_object` and `require_subresource` for every route of a kind, and one of the
other questions for the routes beside them; the reviews ask the same.

The rule for what is refused how, in this order, so that no answer tells whether something exists that the caller may
not see (docs/decisions/0029):

1. 401: no credential, or one that is unknown, expired or revoked.
2. 404 or 405: a path or verb that this server does not serve; discovery tells everybody which it does.
3. 403: a scope is missing, or the project is none of the credential's, whether it exists or not.
   So is an object of a kind that the credential may write and not read: when it may not change it, and when there is
   none.
4. 404: the project or the object does not exist; an object about a project that the caller may not see, and anything of
   another organisation, do not exist for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from controlplane.errors import ApiError, Reason
from controlplane.identity.principal import AttemptBinding, Principal, PrincipalKind
from controlplane.machinery.kind import READ_VERBS, Document, Kind, Subresource, Verb
from controlplane.machinery.scope_grammar import ALL, covers


class Access(StrEnum):
    """The second half of a scope."""

    READ = "read"
    WRITE = "write"
    CLAIM = "claim"


ATTEMPT_SCOPES = frozenset(
    {"functions:read", "functions:claim", "functioncalls:read", "functioncalls:write", "apps:read"}
)
"""What a worker may do, in its own project: learn about itself, take calls of its Function, and call other members."""
ACCOUNT_WORKER_SCOPES = frozenset({"functions:read", "functions:claim"})
"""What a worker may do whose Function names a ServiceAccount, beside what that may: what its work takes."""

_BLOB_RESOURCES = ("functioncalls", "apps", "functions", "images")
"""Whoever may write (read) one of these may upload (download) blobs, which have no scope word of their own."""

_READ_WORDS = frozenset(verb.value for verb in READ_VERBS)


def access_of(verb: Verb) -> Access:
    """The access a verb needs."""
    return Access.READ if verb in READ_VERBS else Access.WRITE


def allows(scopes: frozenset[str], resource: str | None, access: Access) -> bool:
    """Whether the scopes cover an access; `resource` None is what any key may read and only `*` may write."""
    if resource is None:
        return access is Access.READ or ALL in scopes
    return covers(scopes, f"{resource}:{access}")


def needed(kind: Kind, subresource: Subresource, verb: str) -> tuple[str | None, Access]:
    """The (resource, access) that a subresource asks for: a scope of its own, or the one of its kind."""
    if subresource.scope:
        resource, _, access = subresource.scope.partition(":")
        return resource, Access(access)
    return kind.scope_resource, Access.READ if verb in _READ_WORDS else Access.WRITE


def require_active(principal: Principal) -> None:
    """401 for a token whose attempt has ended; only the claims route may answer it otherwise."""
    if principal.revoked:
        raise ApiError(Reason.UNAUTHORIZED, "the credential of this worker was revoked: its attempt has ended")


def require(principal: Principal, resource: str | None, verb: Verb, project: str | None) -> None:
    """Refuse with 403 Forbidden unless the principal may do `verb` to `resource` in `project`.

    `project` is None for kinds of the organisation and for lists over all projects; the latter must be narrowed to
    `principal.projects` by the caller. `details.missingScope` names the scope that would have helped.
    """
    require_access(principal, ((resource, access_of(verb)),), project)


def require_object(principal: Principal, kind: Kind, verb: Verb, project: str, name: str) -> None:
    """Refuse unless the principal may do `verb` to what a path addresses; `project` and `name` are empty when it has
    none. A project is visible to those who may act in it."""
    require(principal, kind.scope_resource, verb, (name if kind.is_project else project) or None)
    if verb in kind.verbs_of_all_projects and not principal.all_projects:
        raise ApiError(
            Reason.FORBIDDEN,
            f"this credential is limited to projects, so it may not {verb.value} {kind.plural}",
            details={"missingScope": f"{kind.scope_resource}:{access_of(verb)}"},
            fix="Use a key for all projects.",
        )


def require_change(principal: Principal, kind: Kind, name: str, document: Document | None) -> None:
    """Refuse unless the principal may change or delete this object, given that it may those of its kind; what belongs
    to others is for credentials of all projects. Whoever may not read the kind gets one refusal, whether the object is
    not theirs to change or not there (None), so it tells nothing; to others what is not there is no refusal."""
    may_read = allows(principal.scopes, kind.scope_resource, Access.READ) and (
        principal.all_projects or Verb.GET not in kind.verbs_of_all_projects
    )
    try:
        _check_change(principal, kind, document)
    except ApiError:
        if may_read:
            raise
    else:
        if document is not None or may_read:
            return
    missing = f"{kind.scope_resource}:{Access.READ}"
    told = f'this credential may not change {kind.plural}.{kind.group} "{name}", or see whether there is one'
    raise _forbidden(told, missing)


def _check_change(principal: Principal, kind: Kind, document: Document | None) -> None:
    scope = kind.scope_to_change(document, principal) if document and kind.scope_to_change is not None else ""
    if document and scope and not (principal.all_projects and covers(principal.scopes, scope)):
        name = document["metadata"]["name"]
        raise _forbidden(f'this credential may not change {kind.plural}.{kind.group} "{name}"', scope)


def require_subresource(principal: Principal, kind: Kind, subresource: Subresource, verb: str, project: str) -> None:
    """Refuse unless the principal may do `verb` to a subresource; who claims must also be bound (`require_claim`)."""
    require_access(principal, (needed(kind, subresource, verb),), project or None)


def require_access(principal: Principal, any_of: Sequence[tuple[str | None, Access]], project: str | None) -> None:
    """Refuse with 403 Forbidden unless one of the (resource, access) pairs is covered, and the project as well."""
    require_active(principal)
    first, first_access = any_of[0]
    missing = f"{first or ALL}:{first_access}"
    if project is not None and not principal.sees_project(project):
        raise _forbidden(f'this credential may not act in project "{project}"', missing)
    for resource, access in any_of:
        # Kinds that any key of the organisation may read are not meant for workers and nodes.
        if resource is None and principal.kind in (PrincipalKind.ATTEMPT, PrincipalKind.NODE):
            continue
        if allows(principal.scopes, resource, access):
            return
    raise _forbidden(f"this credential lacks the scope `{missing}`", missing)


def require_upload(principal: Principal, project: str) -> None:
    """Refuse unless the principal may store blobs in the project; every worker stores the results of its calls."""
    any_of = [(resource, Access.WRITE) for resource in _BLOB_RESOURCES]
    if principal.binding is not None:
        any_of.append(("functions", Access.CLAIM))
    require_access(principal, any_of, project)


def require_download(principal: Principal, project: str) -> None:
    """Refuse unless the principal may read blobs of the project."""
    require_access(principal, [(resource, Access.READ) for resource in _BLOB_RESOURCES], project)


def require_claim(principal: Principal, project: str, function: str) -> AttemptBinding:
    """The binding of a worker that claims calls of its own Function; 403 WorkerNotAllowed for anyone else.

    A revoked token passes, so that the route can answer it 404: the caller must look at `principal.revoked`.
    """
    binding = principal.binding
    if binding is None or (binding.project, binding.function) != (project, function):
        raise ApiError(
            Reason.WORKER_NOT_ALLOWED,
            f'only a worker of Function "{function}" may claim its calls',
            details={"missingScope": "functions:claim"},
        )
    return binding


def require_worker(principal: Principal) -> AttemptBinding:
    """The binding of a worker's credential; 403 for anyone else."""
    require_active(principal)
    if principal.binding is None:
        raise _forbidden("this route answers workers only", "functions:claim")
    return principal.binding


def require_node(principal: Principal) -> None:
    """Refuse anyone but a node of this installation."""
    if principal.kind is not PrincipalKind.NODE:
        raise _forbidden("this route answers the nodes of this server only", "nodes:connect")


def _forbidden(message: str, missing_scope: str) -> ApiError:
    return ApiError(Reason.FORBIDDEN, message, details={"missingScope": missing_scope})
