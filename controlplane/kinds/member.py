"""The Member kind: a person of an organisation, with the role that bounds all their keys.

An operator makes the first Owner with the organisation (`identity/bootstrap.py`); others are made here. The object is
what people see; who authenticates is decided by the row beside it (`identity/owners.py`).
"""

from __future__ import annotations

import uuid

from pydantic import Field

from controlplane.kinds.api_key import PROJECTS_MAX, Name
from controlplane.kinds.granting import check_given, scope_of_role
from controlplane.kinds.roles import SCOPES_OF_ROLE, Role
from controlplane.machinery.conditions import Condition, Conditions, with_condition
from controlplane.machinery.kind import (
    ALL_VERBS,
    READ_VERBS,
    AdmissionContext,
    Column,
    Document,
    Kind,
    Scope,
    Verb,
)
from controlplane.machinery.model import ApiModel
from controlplane.machinery.table import AGE_COLUMN, NAME_COLUMN, text_at


class MemberSpec(ApiModel):
    """Who it is, and what they may do."""

    email: str | None = Field(default=None, max_length=254, description="Where they are reached.")
    display_name: str | None = Field(default=None, max_length=128, description="A name for people.")
    login: str | None = Field(
        default=None,
        max_length=254,
        description="What the identity provider calls them, if that is not the address in `email`.",
    )
    projects: list[Name] | None = Field(
        default=None, max_length=PROJECTS_MAX, description="Projects that they may reach; by default all."
    )
    role: Role = Field(
        default=Role.MEMBER,
        strict=False,
        description="Viewer, Member, Admin or Owner; bounds whatever their keys may do.",
    )


class MemberStatus(ApiModel):
    """What the server made of it."""

    phase: str | None = Field(default=None, description="Ready.")
    user: str | None = Field(default=None, description="The id of the person, as `whoami` of their keys tells it.")
    conditions: Conditions | None = Field(default=None, description="Ready.")


_GIVING = ("role", "login", "email", "projects")
"""Fields of the spec by which somebody gets a right that they had not."""


class MemberStrategy:
    """What members add to the generic verbs: nobody makes somebody mightier than themselves."""

    async def prepare_create(self, document: Document, context: AdmissionContext) -> None:
        check_given(context, SCOPES_OF_ROLE[Role(document["spec"]["role"])])
        ready = Condition("Ready", "True", "Ready", "keys can be made for them", 1)
        conditions = with_condition([], ready, context.now)
        document["status"] = {"phase": "Ready", "user": str(uuid.uuid4()), "conditions": conditions}

    async def prepare_update(self, old: Document, new: Document, context: AdmissionContext) -> None:
        # Who is meant gives the role as much as the role itself: another name hands it to another person.
        if any(new["spec"].get(field) != old["spec"].get(field) for field in _GIVING):
            check_given(context, SCOPES_OF_ROLE[Role(new["spec"]["role"])])


def login_of(name: str) -> str:
    """A name as it is compared: addresses of mail without regard to capitals, all else as it is."""
    return name.lower() if "@" in name else name


MEMBER = Kind(
    kind="Member",
    plural="members",
    uid_prefix="mem",
    scope=Scope.ORG,
    # Each delete is judged by the role of the member.
    verbs=ALL_VERBS - {Verb.DELETE_COLLECTION},
    description="A person of the organisation, with the role that bounds all their keys.",
    spec=MemberSpec,
    status=MemberStatus,
    columns=(
        NAME_COLUMN,
        Column("Role", text_at("spec.role"), "What they may do."),
        Column("Email", text_at("spec.email"), "Where they are reached."),
        Column(
            "Projects", text_at("spec.projects"), "Where they may do it; everywhere when it names none.", priority=1
        ),
        Column("User", text_at("status.user"), "The id of the person.", priority=1),
        AGE_COLUMN,
    ),
    short_names=("mem",),
    selectable_fields=("spec.role", "spec.email", "spec.login", "status.user"),
    strategy=MemberStrategy(),
    scope_to_change=scope_of_role,
    project_field="",
    verbs_of_all_projects=ALL_VERBS - READ_VERBS,
    scope_resource="members",
)
