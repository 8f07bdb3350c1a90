"""The tables, as SQLModel rows.

They describe storage only: no validation, no behaviour. Queries are SQL text elsewhere in `store/`, `calls/`,
`identity/` and `capacity/`; `migrations/versions` makes these tables, and a test holds the two together (`alembic
check`). Every table carries the organisation and, where it applies, the project.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Float,
    ForeignKey,
    Index,
    LargeBinary,
    SmallInteger,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlmodel import Field, SQLModel


def _bytes_order_text() -> Text:
    """Text in byte order, so SQL, continue tokens and Python agree on what comes next."""
    return Text(collation="C")


def _text(nullable: bool = False) -> Column[Any]:
    return Column(Text, nullable=nullable)


def _time(nullable: bool = False) -> Column[Any]:
    return Column(DateTime(timezone=True), nullable=nullable)


def _bigint(nullable: bool = False, default: str | None = None) -> Column[Any]:
    return Column(BigInteger, nullable=nullable, server_default=text(default) if default else None)


def _flag() -> Column[Any]:
    return Column(Boolean, nullable=False, server_default=text("false"))


def _texts() -> Column[Any]:
    return Column(ARRAY(Text), nullable=False, server_default=text("'{}'"))


def _ordered_by(name: str, value: str) -> Index:
    """An index of the objects that have a value, in the order of lists for each."""
    where = text(f"({value}) IS NOT NULL")
    return Index(name, "kind", "org", text(f"({value})"), "project", "name", postgresql_where=where)


class ObjectRow(SQLModel, table=True):
    """The latest state of every object. `doc` is the wire form, byte for byte."""

    __tablename__ = "objects"
    __table_args__ = (
        Index("objects_labels", "labels", postgresql_using="gin", postgresql_ops={"labels": "jsonb_path_ops"}),
        Index("objects_fields", "fields", postgresql_using="gin", postgresql_ops={"fields": "jsonb_path_ops"}),
        Index("objects_owners", "owners", postgresql_using="gin", postgresql_where=text("owners <> '{}'")),
        Index("objects_deleting", "kind", postgresql_where=text("deleting")),
        # What may be most of a million calls, in the order of lists: see `selection.ORDERED_LABELS`. Only their own
        # queries imply the condition; others could be planned to read all of one and sort it, for want of statistics.
        _ordered_by("objects_by_function", "labels ->> 'nodus.dev/function'"),
        _ordered_by("objects_by_map", "labels ->> 'nodus.dev/map'"),
        _ordered_by("objects_by_phase", "fields ->> 'status.phase'"),
    )

    kind: str = Field(sa_column=Column(_bytes_order_text(), primary_key=True))
    org: str = Field(sa_column=Column(_bytes_order_text(), primary_key=True))
    project: str = Field(sa_column=Column(_bytes_order_text(), primary_key=True))
    name: str = Field(sa_column=Column(_bytes_order_text(), primary_key=True))
    uid: str = Field(sa_column=Column(Text, nullable=False, unique=True))
    rv: int = Field(sa_column=_bigint())
    create_rv: int = Field(sa_column=_bigint())
    deleting: bool = Field(sa_column=_flag())
    labels: dict[str, Any] = Field(sa_column=Column(JSONB, nullable=False))
    fields_: dict[str, Any] = Field(sa_column=Column("fields", JSONB, nullable=False))
    owners: list[str] = Field(sa_column=_texts())
    doc: dict[str, Any] = Field(sa_column=Column(JSON, nullable=False))


class ChangeRow(SQLModel, table=True):
    """The change log: one row a write, numbered without gaps in commit order. `prev_labels` and `prev_fields` are NULL
    when the write left them as they were."""

    __tablename__ = "changes"
    __table_args__ = (
        Index("changes_object", "kind", "org", "project", "name", "rv"),
        # What may be forgotten, oldest first: one entry for each call that ended and each event.
        Index(
            "changes_ended_calls",
            "time",
            "rv",
            postgresql_where=text(
                "kind = 'FunctionCall' AND fields ->> 'status.phase' IN ('Succeeded', 'Failed', 'Cancelled')"
            ),
        ),
        Index("changes_events", "time", "rv", postgresql_where=text("kind = 'Event'")),
    )

    rv: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    time: datetime = Field(sa_column=_time())
    type: str = Field(sa_column=_text())
    kind: str = Field(sa_column=Column(_bytes_order_text(), nullable=False))
    org: str = Field(sa_column=Column(_bytes_order_text(), nullable=False))
    project: str = Field(sa_column=Column(_bytes_order_text(), nullable=False))
    name: str = Field(sa_column=Column(_bytes_order_text(), nullable=False))
    uid: str = Field(sa_column=_text())
    prev_rv: int | None = Field(sa_column=_bigint(nullable=True))
    labels: dict[str, Any] = Field(sa_column=Column(JSONB, nullable=False))
    fields_: dict[str, Any] = Field(sa_column=Column("fields", JSONB, nullable=False))
    prev_labels: dict[str, Any] | None = Field(sa_column=Column(JSONB))
    prev_fields: dict[str, Any] | None = Field(sa_column=Column(JSONB))
    doc: dict[str, Any] = Field(sa_column=Column(JSON, nullable=False))


class MetaRow(SQLModel, table=True):
    """One row: the revision counter, which moves with every write."""

    __tablename__ = "meta"

    id: int = Field(sa_column=Column(SmallInteger, primary_key=True, autoincrement=False))
    rv: int = Field(sa_column=_bigint())


class CompactionRow(SQLModel, table=True):
    """One row: changes up to `compacted_rv` are no longer complete, and up to `pruned_rv` they are gone. Apart from
    `meta`, so that compaction and writers never wait for each other."""

    __tablename__ = "compaction"

    id: int = Field(sa_column=Column(SmallInteger, primary_key=True, autoincrement=False))
    compacted_rv: int = Field(sa_column=_bigint())
    pruned_rv: int = Field(sa_column=_bigint())


class IdempotencyRow(SQLModel, table=True):
    """The first answer to a keyed request, replayed for a day."""

    __tablename__ = "idempotency"
    __table_args__ = (Index("idempotency_created", "created_at"),)

    scope: str = Field(sa_column=Column(Text, primary_key=True))
    key: str = Field(sa_column=Column(Text, primary_key=True))
    digest: str = Field(sa_column=_text())
    status: int = Field(sa_column=Column(SmallInteger, nullable=False))
    body: str = Field(sa_column=_text())
    created_at: datetime = Field(sa_column=_time())


class CallRow(SQLModel, table=True):
    """A call from its creation until its workflow knows its end: the queue, and what fences workers."""

    __tablename__ = "calls"
    __table_args__ = (
        # An index has a condition that only the query it is made for repeats (`seq` and `priority` are never negative).
        # Otherwise the planner may take another one that fits as well and sort what it reads, for as long as the
        # statistics say that there is next to nothing to read; and the table is empty until the first large map.
        Index(
            "calls_queued",
            "function_uid",
            "session",
            "priority",
            "seq",
            postgresql_where=text("state = 'queued' AND seq >= 0"),
        ),
        # The same for calls whose workflow exists: all that may be claimed while the engine lags.
        Index(
            "calls_queued_started",
            "function_uid",
            "session",
            "priority",
            "seq",
            postgresql_where=text("state = 'queued' AND has_workflow"),
        ),
        Index("calls_held", "function_uid", postgresql_where=text("state IN ('running', 'deciding', 'waiting')")),
        Index("calls_attempt", "attempt", postgresql_where=text("state = 'running'")),
        Index("calls_deadline", "deadline", postgresql_where=text("state = 'running'")),
        Index(
            "calls_cancelling",
            "cancel_requested_at",
            postgresql_where=text("state = 'running' AND cancel_requested_at IS NOT NULL"),
        ),
        Index("calls_starting", "seq", postgresql_where=text("NOT has_workflow AND seq >= 0")),
        Index("calls_undecided", "seq", postgresql_where=text("NOT has_workflow AND state IN ('deciding', 'waiting')")),
        Index(
            "calls_starting_fairly",
            "org",
            "project",
            "session",
            "seq",
            postgresql_where=text("NOT has_workflow AND priority >= 0"),
        ),
        Index(
            "calls_silent",
            "updated_at",
            "uid",
            postgresql_where=text("state IN ('deciding', 'waiting', 'done') AND has_workflow AND task_token IS NULL"),
        ),
        Index(
            "calls_reporting",
            "state",
            "seq",
            postgresql_where=text("state IN ('deciding', 'done') AND task_token IS NOT NULL"),
        ),
    )

    uid: str = Field(sa_column=Column(Text, primary_key=True))
    org: str = Field(sa_column=_text())
    project: str = Field(sa_column=_text())
    name: str = Field(sa_column=_text())
    function: str = Field(sa_column=_text())
    function_uid: str = Field(sa_column=_text())
    session: str = Field(sa_column=_text())
    state: str = Field(sa_column=_text())
    priority: int = Field(sa_column=Column(SmallInteger, nullable=False))
    seq: int = Field(sa_column=_bigint())
    attempt: str | None = Field(sa_column=_text(nullable=True))
    epoch: int | None = Field(sa_column=_bigint(nullable=True))
    concurrency: int | None = Field(sa_column=Column(SmallInteger))
    started_at: datetime | None = Field(sa_column=_time(nullable=True))
    deadline: datetime | None = Field(sa_column=_time(nullable=True))
    dispatches: int = Field(sa_column=_bigint())
    retries: int = Field(sa_column=Column(SmallInteger, nullable=False))
    recoveries: int = Field(sa_column=Column(SmallInteger, nullable=False))
    suspect: bool = Field(sa_column=_flag())
    excused: bool = Field(sa_column=_flag())
    charge_micro_usd: int = Field(sa_column=_bigint())
    cancel_requested_at: datetime | None = Field(sa_column=_time(nullable=True))
    outcome: dict[str, Any] | None = Field(sa_column=Column(JSONB))
    has_workflow: bool = Field(sa_column=_flag())
    task_token: bytes | None = Field(sa_column=Column(LargeBinary))
    created_at: datetime = Field(sa_column=_time())
    updated_at: datetime = Field(sa_column=_time())


class DispatchRow(SQLModel, table=True):
    """One dispatch of a call that has ended, kept exactly as long as the call's object: its timeline."""

    __tablename__ = "call_dispatches"

    call_uid: str = Field(sa_column=Column(Text, primary_key=True))
    number: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    org: str = Field(sa_column=_text())
    project: str = Field(sa_column=_text())
    attempt: str = Field(sa_column=_text())
    epoch: int = Field(sa_column=_bigint())
    call_created_at: datetime = Field(sa_column=_time())
    started_at: datetime = Field(sa_column=_time())
    cancel_requested_at: datetime | None = Field(sa_column=_time(nullable=True))
    ended_at: datetime = Field(sa_column=_time())
    cause: str = Field(sa_column=_text())
    reported: bool = Field(sa_column=_flag())
    told: str = Field(sa_column=_text())
    charge_micro_usd: int = Field(sa_column=_bigint())
    decision: str = Field(sa_column=_text())
    delay_seconds: float | None = Field(sa_column=Column(Float))
    applied_at: datetime | None = Field(sa_column=_time(nullable=True))


class CallSessionRow(SQLModel, table=True):
    """When each caller session of a Function was last served, in revisions."""

    __tablename__ = "call_sessions"
    __table_args__ = (Index("call_sessions_turn", "function_uid", "last_turn"),)

    function_uid: str = Field(sa_column=Column(Text, primary_key=True))
    session: str = Field(sa_column=Column(Text, primary_key=True))
    last_turn: int = Field(sa_column=_bigint())


class FunctionLoadRow(SQLModel, table=True):
    """The calls of a Function by state and what all of them were charged, kept as sums so that nothing is counted."""

    __tablename__ = "function_load"

    function_uid: str = Field(sa_column=Column(Text, primary_key=True))
    org: str = Field(sa_column=_text())
    project: str = Field(sa_column=_text())
    function: str = Field(sa_column=_text())
    queued: int = Field(sa_column=_bigint())
    running: int = Field(sa_column=_bigint())
    alone: int = Field(sa_column=_bigint())
    pending: int = Field(sa_column=_bigint())
    charge_micro_usd: int = Field(sa_column=_bigint())
    last_end_at: datetime | None = Field(sa_column=_time(nullable=True))


class AttemptRow(SQLModel, table=True):
    """The bookkeeping of one worker: what changes too often for an object."""

    __tablename__ = "attempts"
    __table_args__ = (
        Index("attempts_live", "function_uid", "state", postgresql_where=text("state <> 'finished'")),
        Index("attempts_lease", "last_claim_at", postgresql_where=text("state = 'ready'")),
        Index("attempts_history", "function_uid", "created_at"),
        Index("attempts_ended", "finished_at", postgresql_where=text("state = 'finished'")),
    )

    uid: str = Field(sa_column=Column(Text, primary_key=True))
    org: str = Field(sa_column=_text())
    project: str = Field(sa_column=_text())
    function: str = Field(sa_column=_text())
    function_uid: str = Field(sa_column=_text())
    slot: str = Field(sa_column=_text())
    epoch: int = Field(sa_column=_bigint())
    pool: str = Field(sa_column=_text())
    state: str = Field(sa_column=_text())
    draining: bool = Field(sa_column=_flag())
    drain_reason: str | None = Field(sa_column=_text(nullable=True))
    has_workflow: bool = Field(sa_column=_flag())
    concurrency: int = Field(sa_column=Column(SmallInteger, nullable=False))
    node: str | None = Field(sa_column=_text(nullable=True))
    created_at: datetime = Field(sa_column=_time())
    ready_at: datetime | None = Field(sa_column=_time(nullable=True))
    last_claim_at: datetime | None = Field(sa_column=_time(nullable=True))
    last_busy_at: datetime | None = Field(sa_column=_time(nullable=True))
    claim_seq: int = Field(sa_column=_bigint(default="0"))
    drained_at: datetime | None = Field(sa_column=_time(nullable=True))
    kill_at: datetime | None = Field(sa_column=_time(nullable=True))
    finished_at: datetime | None = Field(sa_column=_time(nullable=True))
    reason: str | None = Field(sa_column=_text(nullable=True))
    message: str | None = Field(sa_column=_text(nullable=True))


class TokenRow(SQLModel, table=True):
    """A credential: only a keyed hash is kept."""

    __tablename__ = "tokens"
    __table_args__ = (Index("tokens_attempt", "attempt", postgresql_where=text("attempt IS NOT NULL")),)

    hash: bytes = Field(sa_column=Column(LargeBinary, primary_key=True))
    kind: str = Field(sa_column=_text())
    org: str = Field(sa_column=_text())
    principal: str = Field(sa_column=_text())
    name: str = Field(sa_column=_text())
    project: str | None = Field(sa_column=_text(nullable=True))
    function: str | None = Field(sa_column=_text(nullable=True))
    function_uid: str | None = Field(sa_column=_text(nullable=True))
    attempt: str | None = Field(sa_column=_text(nullable=True))
    epoch: int | None = Field(sa_column=_bigint(nullable=True))
    scopes: list[str] = Field(sa_column=_texts())
    projects: list[str] = Field(sa_column=_texts())
    created_at: datetime = Field(sa_column=_time())
    expires_at: datetime | None = Field(sa_column=_time(nullable=True))
    revoked_at: datetime | None = Field(sa_column=_time(nullable=True))


class SecretVersionRow(SQLModel, table=True):
    """The sealed values of one version of a Secret."""

    __tablename__ = "secret_versions"

    secret_uid: str = Field(sa_column=Column(Text, primary_key=True))
    version: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    org: str = Field(sa_column=_text())
    project: str = Field(sa_column=_text())
    name: str = Field(sa_column=_text())
    digest: str = Field(sa_column=_text())
    ciphertext: bytes = Field(sa_column=Column(LargeBinary, nullable=False))
    created_at: datetime = Field(sa_column=_time())


class AttemptSecretRow(SQLModel, table=True):
    """A version of a Secret that a worker was started with."""

    __tablename__ = "attempt_secrets"
    __table_args__ = (Index("attempt_secrets_version", "secret_uid", "version"),)

    attempt: str = Field(sa_column=Column(Text, ForeignKey("attempts.uid", ondelete="CASCADE"), primary_key=True))
    secret_uid: str = Field(sa_column=Column(Text, primary_key=True))
    version: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))


class BlobRow(SQLModel, table=True):
    """A blob a project holds: its bytes were verified against the digest and size."""

    __tablename__ = "blobs"
    __table_args__ = (Index("blobs_idle", "last_used_at"),)

    org: str = Field(sa_column=Column(Text, primary_key=True))
    project: str = Field(sa_column=Column(Text, primary_key=True))
    digest: str = Field(sa_column=Column(Text, primary_key=True))
    size_bytes: int = Field(sa_column=_bigint())
    content_type: str = Field(sa_column=_text())
    location: str = Field(sa_column=_text())
    created_at: datetime = Field(sa_column=_time())
    last_used_at: datetime = Field(sa_column=_time())


class LogChunkRow(SQLModel, table=True):
    """Lines of one attempt, as its node sent them: `lines` is a list of [time_ns, stream, text]."""

    __tablename__ = "log_chunks"
    __table_args__ = (
        Index("log_chunks_function", "function_uid", "received_at"),
        Index("log_chunks_time", "received_at"),
    )

    attempt: str = Field(sa_column=Column(Text, primary_key=True))
    seq: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    org: str = Field(sa_column=_text())
    project: str = Field(sa_column=_text())
    function_uid: str = Field(sa_column=_text())
    first_time: datetime = Field(sa_column=_time())
    last_time: datetime = Field(sa_column=_time())
    received_at: datetime = Field(sa_column=_time())
    size_bytes: int = Field(sa_column=_bigint())
    end_bytes: int = Field(sa_column=_bigint())
    lines: list[Any] = Field(sa_column=Column(JSON, nullable=False))


class EngineRow(SQLModel, table=True):
    """One row: which Temporal database our workflows live in, to notice when it was lost."""

    __tablename__ = "engine"

    id: int = Field(sa_column=Column(SmallInteger, primary_key=True, autoincrement=False))
    incarnation: str = Field(sa_column=_text())
