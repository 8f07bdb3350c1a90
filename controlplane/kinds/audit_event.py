"""The AuditEvent kind: something that a principal did, or was refused.

Read only and stored nowhere as an object: `controlplane/audit/reading.py` makes it of a row of the audit log. It tells
whom, from where and what, and nothing of what was sent. A scope for all reads does not cover it
(`machinery/scope_grammar.py`): Admins and Owners read it, and keys that name it.
"""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from controlplane.machinery.documents import value_at
from controlplane.machinery.kind import Column, Document, Kind, Scope, Verb
from controlplane.machinery.model import ApiModel
from controlplane.machinery.table import NAME_COLUMN, NOTHING, age_of, text_at


class AuditPrincipal(ApiModel):
    """Somebody, or something, as the audit log names them."""

    kind: str = Field(description="User, ServiceAccount, Attempt, Node, Operator, Server, or Anonymous.")
    name: str | None = Field(default=None, description="The id of a user, or the name of another principal.")
    key_prefix: str | None = Field(default=None, description="The first characters of the key, as its APIKey has them.")


class AuditObject(ApiModel):
    """An object, or what was asked for instead of one."""

    kind: str | None = Field(default=None, description="Its kind; unset for what is no object, such as a login.")
    name: str | None = Field(default=None, description="Its name; a path or a command for what is no object.")
    uid: str | None = Field(default=None, description="Its uid, when it was changed.")
    subresource: str | None = Field(default=None, description="What below the object was asked.")


class AuditOutcome(ApiModel):
    """An answer, as far as the audit log keeps it."""

    code: int = Field(description="The status code of HTTP.")
    reason: str = Field(description="Created, Changed, Deleted, Allowed or Done; else the code of the error.")


class AuditFields(ApiModel):
    """Who did what, when, from where, and what came of it."""

    time: str = Field(description="When it happened.")
    verb: str = Field(description="What was asked for: a verb of the API, login, or what the server did.")
    principal: AuditPrincipal = Field(description="Who it was.")
    project: str | None = Field(default=None, description="The project of the object.")
    object: AuditObject = Field(description="What it was done to.")
    outcome: AuditOutcome = Field(description="What came of it.")
    request_id: str | None = Field(default=None, description="The id of the request, as its answer has it.")
    source_address: str | None = Field(default=None, description="The address that the request came from.")
    count: int = Field(default=1, description="How often it happened, where that was within a moment.")
    message: str | None = Field(default=None, description="What the server or its operator says about it.")


def _object(document: Document, now: datetime) -> str | int:
    kind, name = value_at(document, "object.kind"), value_at(document, "object.name")
    return "/".join(part for part in (str(kind or "").lower(), str(name or "")) if part) or NOTHING


def _outcome(document: Document, now: datetime) -> str | int:
    return f"{value_at(document, 'outcome.code')} {value_at(document, 'outcome.reason')}"


def _age(document: Document, now: datetime) -> str | int:
    return age_of(document.get("time"), now)


AUDIT_EVENT = Kind(
    kind="AuditEvent",
    plural="auditevents",
    uid_prefix="aud",
    scope=Scope.ORG,
    verbs=frozenset({Verb.GET, Verb.LIST}),
    description="Something that a principal did or was refused.",
    spec=None,
    status=None,
    flat=AuditFields,
    columns=(
        NAME_COLUMN,
        Column("Principal", text_at("principal.name"), "Who it was."),
        Column("Verb", text_at("verb"), "What was asked for."),
        Column("Object", _object, "What it was done to."),
        Column("Project", text_at("project"), "The project of the object."),
        Column("Outcome", _outcome, "What came of it."),
        Column("Source", text_at("sourceAddress"), "The address that it came from."),
        Column("Age", _age, "How long ago it happened."),
        Column("Key", text_at("principal.keyPrefix"), "The first characters of the key.", priority=1),
        Column("Request", text_at("requestId"), "The id of the request.", priority=1),
        Column("Count", text_at("count", 1), "How often it happened.", type="integer", priority=1),
    ),
    short_names=("aud",),
    selectable_fields=(
        "verb",
        "project",
        "principal.kind",
        "principal.name",
        "principal.keyPrefix",
        "object.kind",
        "object.name",
        "object.uid",
        "outcome.code",
        "outcome.reason",
        "requestId",
        "sourceAddress",
    ),
    project_field="project",
    scope_resource="auditevents",
)
