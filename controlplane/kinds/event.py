"""The Event kind: something that happened to an object, told to people. Read only; its fields are top-level."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from controlplane.machinery.documents import value_at
from controlplane.machinery.kind import READ_VERBS, Column, Document, Kind, Scope
from controlplane.machinery.model import ApiModel
from controlplane.machinery.table import AGE_COLUMN, NAME_COLUMN, age_of, text_at


class InvolvedObject(ApiModel):
    """The object an event is about."""

    kind: str = Field(description="Its kind.")
    namespace: str | None = Field(default=None, description="Its project.")
    name: str = Field(description="Its name.")
    uid: str | None = Field(default=None, description="Its uid.")


class EventFields(ApiModel):
    """What happened, to what, and when."""

    type: str = Field(description="Normal or Warning.")
    reason: str = Field(description="What happened, in one CamelCase word.")
    message: str = Field(description="What happened, in a sentence.")
    involved_object: InvolvedObject = Field(description="What it happened to.")
    first_time: str | None = Field(default=None, description="When it happened first.")
    last_time: str = Field(description="When it happened last.")
    count: int | None = Field(default=None, description="How often it happened.")


def _last_seen(document: Document, now: datetime) -> str | int:
    return age_of(document.get("lastTime"), now)


def _object_cell(document: Document, now: datetime) -> str | int:
    kind, name = value_at(document, "involvedObject.kind"), value_at(document, "involvedObject.name")
    return f"{str(kind).lower()}/{name}"


EVENT = Kind(
    kind="Event",
    plural="events",
    uid_prefix="evt",
    scope=Scope.ORG,
    verbs=READ_VERBS,
    description="Something that happened to an object.",
    spec=None,
    status=None,
    flat=EventFields,
    columns=(
        Column("Last Seen", _last_seen, "How long ago it happened last."),
        Column("Type", text_at("type"), "Normal or Warning."),
        Column("Reason", text_at("reason"), "What happened, in one word."),
        Column("Object", _object_cell, "What it happened to."),
        Column("Message", text_at("message"), "What happened, in a sentence."),
        Column("Count", text_at("count", 1), "How often it happened.", type="integer", priority=1),
        Column(NAME_COLUMN.name, NAME_COLUMN.read, NAME_COLUMN.description, format="name", priority=1),
        Column(AGE_COLUMN.name, AGE_COLUMN.read, AGE_COLUMN.description, priority=1),
    ),
    short_names=("evt",),
    selectable_fields=(
        "type",
        "reason",
        "involvedObject.kind",
        "involvedObject.name",
        "involvedObject.namespace",
        "involvedObject.uid",
    ),
    project_field="involvedObject.namespace",
    scope_resource=None,
)
