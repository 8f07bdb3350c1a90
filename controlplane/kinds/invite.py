"""The Invite kind: somebody who may become a Member, and as what.

They become one by signing in as whom the invite names, with a token of the identity provider, or on the page of a login
with the invite's own token, which the create shows once (`identity/joining.py`). Deleting an invite revokes it.
"""

from __future__ import annotations

from datetime import timedelta

from pydantic import Field

from controlplane.clock import format_time, parse_time
from controlplane.errors import Cause, invalid
from controlplane.kinds.api_key import PROJECTS_MAX, Name
from controlplane.kinds.granting import check_given, check_reachable, scope_of_role
from controlplane.kinds.member import login_of
from controlplane.kinds.roles import SCOPES_OF_ROLE, Role
from controlplane.machinery.conditions import Condition, Conditions, with_condition
from controlplane.machinery.kind import (
    READ_VERBS,
    AdmissionContext,
    Column,
    Document,
    Kind,
    Scope,
    Verb,
)
from controlplane.machinery.model import ApiModel
from controlplane.machinery.quantities import Time
from controlplane.machinery.scope_grammar import ALL
from controlplane.machinery.table import AGE_COLUMN, NAME_COLUMN, text_at

INVITE_DAYS = 7
"""How long an invite works by default: over a weekend and a holiday."""
INVITE_DAYS_MAX = 30
"""The longest: a link in an old mail should be worth nothing."""
PENDING = "Pending"
ACCEPTED = "Accepted"
EXPIRED = "Expired"
_SHORT_FIELDS = ("email", "role", "projects", "expirationTime")


class InviteSpec(ApiModel):
    """Whom it is for, and what they would be."""

    email: str = Field(
        min_length=1, max_length=254, description="Who may accept it: what the identity provider calls them."
    )
    role: Role = Field(default=Role.MEMBER, strict=False, description="Viewer, Member, Admin or Owner.")
    projects: list[Name] | None = Field(
        default=None, max_length=PROJECTS_MAX, description="Projects that they would reach; by default all."
    )
    expiration_time: Time | None = Field(
        default=None, description=f"When it ends; by default in {INVITE_DAYS} days, and in {INVITE_DAYS_MAX} at most."
    )


class InviteStatus(ApiModel):
    """What became of it."""

    phase: str | None = Field(default=None, description="Pending, Accepted or Expired.")
    token: str | None = Field(default=None, description="Accepts it once; in the answer that creates it only.")
    prefix: str | None = Field(default=None, description="The token's first characters, to recognise it by.")
    expiration_time: Time | None = Field(default=None, description="When it ends.")
    member: str | None = Field(default=None, description="The Member that came of it.")
    conditions: Conditions | None = Field(default=None, description="Ready.")


class InviteStrategy:
    """What invites add to the generic verbs: nobody invites somebody mightier than themselves."""

    async def prepare_create(self, document: Document, context: AdmissionContext) -> None:
        spec = document["spec"]
        spec["email"] = login_of(spec["email"])
        latest = context.now + timedelta(days=INVITE_DAYS_MAX)
        ends = parse_time(spec["expirationTime"]) if "expirationTime" in spec else None
        if ends is not None and not context.now < ends <= latest:
            causes = [Cause("spec.expirationTime", f"must be in the next {INVITE_DAYS_MAX} days")]
            raise invalid(INVITE.plural, document["metadata"].get("name", ""), causes)
        check_given(context, SCOPES_OF_ROLE[Role(spec["role"])])
        check_reachable(context, spec.get("projects") or (ALL,))
        ready = Condition("Ready", "True", "Ready", "it can be accepted", 1)
        document["status"] = {
            "phase": PENDING,
            "expirationTime": format_time(ends or context.now + timedelta(days=INVITE_DAYS)),
            "conditions": with_condition([], ready, context.now),
        }

    async def prepare_update(self, old: Document, new: Document, context: AdmissionContext) -> None:
        return None


def _shorthand(body: Document) -> Document:
    """`nodus create invite` sends the fields of the spec alone."""
    if "spec" in body or "email" not in body:
        return body
    spec = {name: body[name] for name in _SHORT_FIELDS if name in body}
    rest = {name: value for name, value in body.items() if name not in _SHORT_FIELDS}
    return {"metadata": {"generateName": "invite-"}, **rest, "spec": spec}


INVITE = Kind(
    kind="Invite",
    plural="invites",
    uid_prefix="inv",
    scope=Scope.ORG,
    # Another invite is made instead of changing one; each delete is judged by the role it gives.
    verbs=READ_VERBS | {Verb.CREATE, Verb.DELETE},
    description="Somebody who may become a Member. The create shows its token, once; the delete revokes it.",
    spec=InviteSpec,
    status=InviteStatus,
    columns=(
        NAME_COLUMN,
        Column("Email", text_at("spec.email"), "Who may accept it."),
        Column("Role", text_at("spec.role"), "As what."),
        Column("Phase", text_at("status.phase"), "Pending, Accepted or Expired."),
        Column("Expires", text_at("status.expirationTime"), "When it ends."),
        AGE_COLUMN,
    ),
    short_names=("inv",),
    selectable_fields=("spec.email", "spec.role", "status.phase"),
    shorthand=_shorthand,
    strategy=InviteStrategy(),
    scope_to_change=scope_of_role,
    project_field="",
    verbs_of_all_projects=frozenset({Verb.CREATE, Verb.DELETE}),
    scope_resource="members",
)
