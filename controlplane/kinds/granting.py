"""Nobody gives what they do not have: the check of every object that gives somebody a right."""

from __future__ import annotations

from collections.abc import Collection

from controlplane.errors import ApiError, Reason
from controlplane.kinds.roles import Role
from controlplane.machinery.kind import AdmissionContext, Caller, Document
from controlplane.machinery.scope_grammar import ALL, covers


def check_given(context: AdmissionContext, scopes: Collection[str]) -> None:
    """403 when the caller has not each of the scopes itself; the server gives what it wants."""
    if context.caller is None:
        return
    missing = sorted(scope for scope in scopes if not covers(context.caller.scopes, scope))
    if missing:
        raise may_not(f"give the scope `{missing[0]}`, which it does not have", missing[0])


def check_reachable(context: AdmissionContext, projects: Collection[str]) -> None:
    """403 when the caller may not act in each of the projects itself, whether they exist or not."""
    caller = context.caller
    if caller is None or ALL in caller.projects:
        return
    beyond = sorted(set(projects) - caller.projects)
    if beyond:
        told = "all projects" if beyond[0] == ALL else f'project "{beyond[0]}"'
        raise may_not(f"give access to {told}, which it does not have", ALL)


def scope_of_role(document: Document, _caller: Caller) -> str:
    """What changing an object that gives a role takes beside the right to write its kind: Owners are for Owners."""
    return ALL if document["spec"]["role"] == Role.OWNER else ""


def has(caller: Caller | None, scope: str) -> bool:
    """Whether the caller has a scope, as the server does."""
    return caller is None or covers(caller.scopes, scope)


def may_not(what: str, missing_scope: str) -> ApiError:
    """The 403 of a credential that may write a kind, but not this object or not this into it."""
    return ApiError(
        Reason.FORBIDDEN,
        f"this credential may not {what}",
        details={"missingScope": missing_scope},
        fix="Ask for less, or let somebody do it whose role allows it.",
    )
