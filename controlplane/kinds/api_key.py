"""The APIKey kind: a credential of a member or a service account; its token is shown once, by the create.

What it may do is settled here, within what its creator may; the token itself is made in the transaction
(`identity/api_keys.py`) and no object ever holds it. Deleting the object ends the key.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from controlplane.clock import parse_time
from controlplane.errors import ApiError, Cause, Reason, invalid
from controlplane.kinds.granting import check_given, check_reachable, has, may_not
from controlplane.kinds.roles import SCOPES_OF_ROLE, Role
from controlplane.machinery.conditions import Condition, Conditions, with_condition
from controlplane.machinery.grammar import NAME_PATTERN
from controlplane.machinery.kind import (
    ALL_VERBS,
    READ_VERBS,
    AdmissionContext,
    Caller,
    Column,
    Document,
    Kind,
    Scope,
    Verb,
)
from controlplane.machinery.model import ApiModel
from controlplane.machinery.problems import NOT_FOUND
from controlplane.machinery.quantities import Time
from controlplane.machinery.scope_grammar import ALL, SCOPE_PATTERN, SCOPES_MAX, meet
from controlplane.machinery.table import AGE_COLUMN, NAME_COLUMN, text_at

PROJECTS_MAX = 100
"""Projects that one key may name; a key for more is one for all."""
ScopeText = Annotated[str, StringConstraints(pattern=SCOPE_PATTERN)]
Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
WRITE_MEMBERS = "members:write"
WRITE_SERVICE_ACCOUNTS = "serviceaccounts:write"
KEPT_BY = "nodus.dev/kept-by"
OPERATOR = "operator"
"""The value of that annotation of a key that the server reads from its settings; no client may write it."""


class APIKeySpec(ApiModel):
    """What the key is for. Only the description can change: another key is made instead."""

    description: str | None = Field(default=None, max_length=256, description="What the key is for.")
    scopes: list[ScopeText] | None = Field(
        default=None, max_length=SCOPES_MAX, description="What it may do; by default whatever its creator may."
    )
    projects: list[Name] | None = Field(
        default=None, max_length=PROJECTS_MAX, description="Projects it may reach; by default those of its creator."
    )
    expiration_time: Time | None = Field(default=None, description="When it ends; by default never.")
    member: Name | None = Field(default=None, description="The Member it belongs to; by default its creator.")
    project: Name | None = Field(default=None, description="The project of the ServiceAccount it belongs to.")
    service_account_name: Name | None = Field(default=None, description="The ServiceAccount it belongs to.")


class APIKeyStatus(ApiModel):
    """What may be known about a key without knowing it."""

    phase: str | None = Field(default=None, description="Ready, Expired or Terminating.")
    token: str | None = Field(default=None, description="The key itself, in the answer that creates it only.")
    prefix: str | None = Field(default=None, description="Its first characters, to recognise it by.")
    user: str | None = Field(default=None, description="The id of the person it belongs to.")
    scopes: list[str] | None = Field(default=None, description="What it may do, within the role of its owner.")
    projects: list[str] | None = Field(default=None, description="Projects it may reach; `*` for all.")
    last_used_time: str | None = Field(default=None, description="When it was last used, to ten minutes.")
    conditions: Conditions | None = Field(default=None, description="Ready.")


class APIKeyStrategy:
    """What keys add to the generic verbs: no key does more than its creator may."""

    async def prepare_create(self, document: Document, context: AdmissionContext) -> None:
        spec, name = document["spec"], document["metadata"].get("name", "")
        causes = _wrong(spec, context)
        if causes:
            raise invalid(API_KEY.plural, name, causes)
        if "serviceAccountName" in spec:
            user, scopes = None, _of_account(spec, context)
            projects = [spec["project"]]
        else:
            user, scopes = await _of_member(document, context)
            projects = _projects(spec, context.caller)
        check_reachable(context, projects)
        ready = Condition("Ready", "True", "Ready", "requests can be made with it", 1)
        status = {
            "phase": "Ready",
            "user": user,
            "scopes": sorted(scopes),
            "projects": projects,
            "conditions": with_condition([], ready, context.now),
        }
        document["status"] = {field: value for field, value in status.items() if value is not None}

    async def prepare_update(self, old: Document, new: Document, context: AdmissionContext) -> None:
        return None


def _wrong(spec: Document, context: AdmissionContext) -> list[Cause]:
    causes = []
    if "expirationTime" in spec and parse_time(spec["expirationTime"]) <= context.now:
        causes.append(Cause("spec.expirationTime", "must be in the future"))
    if ("project" in spec) != ("serviceAccountName" in spec):
        missing = "serviceAccountName" if "project" in spec else "project"
        causes.append(Cause(f"spec.{missing}", "must be given: a ServiceAccount is named with its project"))
    if "member" in spec and "serviceAccountName" in spec:
        causes.append(Cause("spec.member", "may not be given together with `serviceAccountName`"))
    if "serviceAccountName" in spec and spec.get("projects", [spec.get("project")]) != [spec.get("project")]:
        causes.append(Cause("spec.projects", "must be the project of the ServiceAccount, or left out"))
    return causes


def _of_account(spec: Document, context: AdmissionContext) -> frozenset[str]:
    """What a ServiceAccount's key may do, within the scopes that the account has when it is used."""
    if not has(context.caller, WRITE_SERVICE_ACCOUNTS):
        raise may_not("make keys of ServiceAccounts", WRITE_SERVICE_ACCOUNTS)
    if "scopes" not in spec:
        # Whoever may make tokens of an account mightier than themselves gets them no mightier.
        return frozenset({ALL}) if context.caller is None else context.caller.scopes
    scopes = frozenset(spec["scopes"])
    check_given(context, scopes)
    return scopes


async def _of_member(document: Document, context: AdmissionContext) -> tuple[str, frozenset[str]]:
    """Whose a person's key is, and what it may do, within the role that the person has when it is used."""
    spec, caller = document["spec"], context.caller
    wanted = frozenset(spec["scopes"]) if "scopes" in spec else None
    if "member" not in spec:
        if caller is None or caller.user_uuid is None or caller.role is None:
            raise may_not("make a key without an owner; name one in `spec.member`", WRITE_MEMBERS)
        if wanted is None:
            whole = caller.scopes == SCOPES_OF_ROLE[Role(caller.role)]
            return caller.user_uuid, frozenset({ALL}) if whole else caller.scopes
        check_given(context, wanted)
        return caller.user_uuid, wanted
    if not has(caller, WRITE_MEMBERS):
        raise may_not("make keys of others", WRITE_MEMBERS)
    member = await context.lookup.get("Member", spec["member"])
    if member is None:
        causes = [Cause("spec.member", f'there is no Member "{spec["member"]}"', NOT_FOUND)]
        raise invalid(API_KEY.plural, document["metadata"].get("name", ""), causes)
    scopes = wanted or frozenset({ALL})
    check_given(context, meet(scopes, SCOPES_OF_ROLE[Role(member["spec"]["role"])]))
    return member["status"]["user"], scopes


def _projects(spec: Document, caller: Caller | None) -> list[str]:
    if "projects" in spec:
        return sorted(set(spec["projects"]))
    return [ALL] if caller is None else sorted(caller.projects)


def is_operators(document: Document) -> bool:
    """Whether an operator keeps the key outside, from where each start takes it."""
    return bool(document["metadata"].get("annotations", {}).get(KEPT_BY) == OPERATOR)


def _scope_to_change(document: Document, caller: Caller) -> str:
    if is_operators(document):
        name = document["metadata"]["name"]
        raise ApiError(
            Reason.CONFLICT,
            f'{API_KEY.plural}.nodus.dev "{name}" is kept by the operator of this server, whose next start would bring '
            "it back",
            subject=(API_KEY.plural, name),
            fix="Have the operator change it where the server reads it (`operator_key` or `operator_key_file`).",
        )
    if "serviceAccountName" in document["spec"]:
        return WRITE_SERVICE_ACCOUNTS
    return "" if document["status"].get("user") == caller.user_uuid else WRITE_MEMBERS


API_KEY = Kind(
    kind="APIKey",
    plural="apikeys",
    uid_prefix="key",
    scope=Scope.ORG,
    # Each delete is judged by whose key it is.
    verbs=ALL_VERBS - {Verb.DELETE_COLLECTION},
    description="A credential. The create shows its token, once; the delete ends it.",
    spec=APIKeySpec,
    status=APIKeyStatus,
    columns=(
        NAME_COLUMN,
        Column("Prefix", text_at("status.prefix"), "Its first characters."),
        Column("Scopes", text_at("status.scopes"), "What it may do."),
        Column("Projects", text_at("status.projects"), "Where."),
        Column("Expires", text_at("spec.expirationTime"), "When it ends."),
        Column("Last Used", text_at("status.lastUsedTime"), "When it was last used."),
        AGE_COLUMN,
    ),
    short_names=("key",),
    selectable_fields=("spec.project", "spec.serviceAccountName", "spec.member", "status.user", "status.prefix"),
    immutable_fields=(
        "spec.scopes",
        "spec.projects",
        "spec.expirationTime",
        "spec.member",
        "spec.project",
        "spec.serviceAccountName",
    ),
    strategy=APIKeyStrategy(),
    scope_to_change=_scope_to_change,
    project_field="",
    # Each tells the projects of its owner; who may delete one is judged by whose it is.
    verbs_of_all_projects=READ_VERBS | {Verb.PATCH, Verb.UPDATE},
    scope_resource="apikeys",
)
