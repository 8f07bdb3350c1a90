"""Every table of the server, as SQLModel classes that alembic compares with the database.

The classes describe; they are not used to query. Statements are SQL text through asyncpg, because on the hot path an ORM
statement costs several times the driver's. Text that is part of a key sorts by bytes (collation "C"), which is also how
Python compares the keys in list tokens. Documents are `json`, not `jsonb`: the text goes to clients exactly as it was written,
and a user's NUL character survives. A change here needs a migration in `migrations/versions/`; a test compares the two.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Index,
    Integer,
    LargeBinary,
    SmallInteger,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlmodel import Field, SQLModel


def _text(*, key: bool = False, nullable: bool = False, default: str | None = None) -> Any:  # noqa: ANN401 - sqlmodel's
    column: Column[Any] = Column(
        Text(collation="C"), primary_key=key, nullable=nullable, server_default=None if default is None else default
    )
    return Field(sa_column=column)


def _column(kind: Any, *, key: bool = False, nullable: bool = False, default: str | None = None) -> Any:  # noqa: ANN401
    server_default = None if default is None else text(default)
    return Field(sa_column=Column(kind, primary_key=key, nullable=nullable, server_default=server_default))


def _time(*, nullable: bool = False) -> Any:  # noqa: ANN401
    return _column(DateTime(timezone=True), nullable=nullable)


def _bigint(*, key: bool = False, nullable: bool = False, default: str | None = None) -> Any:  # noqa: ANN401
    # `autoincrement` would make a sequence of a bigint key; revisions and chunk numbers are given.
    server_default = None if default is None else text(default)
    column: Column[Any] = Column(
        BigInteger, primary_key=key, nullable=nullable, server_default=server_default, autoincrement=False
    )
    return Field(sa_column=column)


class ObjectRow(SQLModel, table=True):
    """The present version of every object."""

    __tablename__ = "objects"
    __table_args__ = (
        Index("objects_uid_key", "uid", unique=True),
        Index("objects_labels", "labels", postgresql_using="gin", postgresql_ops={"labels": "jsonb_path_ops"}),
        Index("objects_fields", "fields", postgresql_using="gin", postgresql_ops={"fields": "jsonb_path_ops"}),
        Index("objects_owners", "owners", postgresql_using="gin", postgresql_where=text("owners <> '{}'::text[]")),
        {"comment": "present version of every object", "postgresql_with": {"fillfactor": 85}},
    )

    kind: str = _text(key=True)
    org: str = _text(key=True)
    project: str = _text(key=True)
    name: str = _text(key=True)
    uid: str = _text()
    rv: int = _bigint()
    create_rv: int = _bigint()
    deleting: bool = _column(Boolean)
    labels: dict[str, str] = _column(JSONB)
    fields: dict[str, str] = _column(JSONB)
    owners: list[str] = _column(ARRAY(Text(collation="C")))
    doc: dict[str, Any] = _column(JSON)


class ChangeRow(SQLModel, table=True):
    """The change log: one row for each revision, none missing. `prev_*` that equal the new ones are NULL."""

    __tablename__ = "changes"

    rv: int = _bigint(key=True)
    time: datetime = _time()
    type: str = _text()
    kind: str = _text()
    org: str = _text()
    project: str = _text()
    name: str = _text()
    uid: str = _text()
    prev_rv: int | None = _bigint(nullable=True)
    labels: dict[str, str] = _column(JSONB)
    fields: dict[str, str] = _column(JSONB)
    prev_labels: dict[str, str] | None = _column(JSONB, nullable=True)
    prev_fields: dict[str, str] | None = _column(JSONB, nullable=True)
    doc: dict[str, Any] = _column(JSON)


class MetaRow(SQLModel, table=True):
    """The revision counter; its row lock serialises all writes."""

    __tablename__ = "meta"
    __table_args__ = (CheckConstraint("id = 1", name="meta_one_row"), {"postgresql_with": {"fillfactor": 10}})

    id: int = _column(Integer, key=True, default="1")
    rv: int = _bigint(default="0")


class CompactionRow(SQLModel, table=True):
    """How far the change log was compacted; apart from `meta`, so that compaction never waits for the writers' lock."""

    __tablename__ = "compaction"
    __table_args__ = (CheckConstraint("id = 1", name="compaction_one_row"),)

    id: int = _column(Integer, key=True, default="1")
    compacted_rv: int = _bigint(default="0")
    pruned_rv: int = _bigint(default="0")


class IdempotencyRow(SQLModel, table=True):
    """The first answer given under an Idempotency-Key."""

    __tablename__ = "idempotency"
    __table_args__ = (Index("idempotency_created_at", "created_at"),)

    scope: str = _text(key=True)
    key: str = _text(key=True)
    digest: str = _text()
    status: int = _column(Integer)
    etag: str | None = _text(nullable=True)
    body: bytes = _column(LargeBinary)
    created_at: datetime = _time()


class CallRow(SQLModel, table=True):
    """Bookkeeping of a call from its creation until its workflow has been told its end."""

    __tablename__ = "calls"
    __table_args__ = (
        Index("calls_queued", "function_uid", "session", "priority", "seq", postgresql_where=text("state = 'queued'")),
        Index("calls_open", "function_uid", postgresql_where=text("state <> 'done'")),
        Index("calls_running_by_attempt", "attempt", postgresql_where=text("state = 'running'")),
        Index("calls_running_by_deadline", "deadline", postgresql_where=text("state = 'running'")),
        Index("calls_deciding", "updated_at", postgresql_where=text("state = 'deciding'")),
        Index("calls_without_workflow", "created_at", "uid", postgresql_where=text("NOT has_workflow")),
        Index("calls_unreported", "updated_at", postgresql_where=text("state = 'done' AND NOT reported")),
        {"postgresql_with": {"fillfactor": 70}},
    )

    uid: str = _text(key=True)
    org: str = _text()
    project: str = _text()
    name: str = _text()
    function: str = _text()
    function_uid: str = _text()
    session: str = _text()
    state: str = _text()
    priority: int = _column(SmallInteger)
    seq: int = _bigint()
    attempt: str | None = _text(nullable=True)
    epoch: int | None = _column(Integer, nullable=True)
    deadline: datetime | None = _time(nullable=True)
    started_at: datetime | None = _time(nullable=True)
    dispatches: int = _column(Integer, default="0")
    retries: int = _column(Integer, default="0")
    recoveries: int = _column(Integer, default="0")
    charge_micro_usd: int = _bigint(default="0")
    has_workflow: bool = _column(Boolean, default="false")
    task_token: bytes | None = _column(LargeBinary, nullable=True)
    outcome: dict[str, Any] | None = _column(JSON, nullable=True)
    reported: bool = _column(Boolean, default="false")
    cancel_requested_at: datetime | None = _time(nullable=True)
    created_at: datetime = _time()
    updated_at: datetime = _time()


class CallSessionRow(SQLModel, table=True):
    """A session's place in the round of its Function; a row only while it has claimable calls."""

    __tablename__ = "call_sessions"
    __table_args__ = (
        Index("call_sessions_turn", "function_uid", "last_turn"),
        {"postgresql_with": {"fillfactor": 70}},
    )

    function_uid: str = _text(key=True)
    session: str = _text(key=True)
    last_turn: int = _bigint()


class FunctionLoadRow(SQLModel, table=True):
    """Tallies of a Function's calls, kept by every change, so nobody counts a queue."""

    __tablename__ = "function_load"
    __table_args__ = ({"postgresql_with": {"fillfactor": 50}},)

    function_uid: str = _text(key=True)
    org: str = _text()
    project: str = _text()
    function: str = _text()
    queued: int = _bigint(default="0")
    running: int = _bigint(default="0")
    pending: int = _bigint(default="0")
    charge_micro_usd: int = _bigint(default="0")
    last_end_at: datetime | None = _time(nullable=True)


class AttemptRow(SQLModel, table=True):
    """Bookkeeping of a worker attempt: what changes too often for an object."""

    __tablename__ = "attempts"
    __table_args__ = (
        Index("attempts_by_function", "function_uid", postgresql_where=text("finished_at IS NULL")),
        Index("attempts_by_node", "node", postgresql_where=text("finished_at IS NULL")),
        {"postgresql_with": {"fillfactor": 50}},
    )

    uid: str = _text(key=True)
    org: str = _text()
    project: str = _text()
    function: str = _text()
    function_uid: str = _text()
    slot: str = _text(default="")
    epoch: int = _column(Integer, default="1")
    generation: int = _bigint(default="0")
    node: str | None = _text(nullable=True)
    state: str = _text(default="")
    concurrency: int = _column(Integer, default="1")
    claim_seq: int = _bigint(default="0")
    last_claim_at: datetime | None = _time(nullable=True)
    created_at: datetime = _time()
    ready_at: datetime | None = _time(nullable=True)
    drained_at: datetime | None = _time(nullable=True)
    finished_at: datetime | None = _time(nullable=True)
    draining: bool = _column(Boolean, default="false")
    drain_reason: str | None = _text(nullable=True)
    kill_at: datetime | None = _time(nullable=True)


class TokenRow(SQLModel, table=True):
    """A credential, known only by its keyed hash."""

    __tablename__ = "tokens"
    __table_args__ = (
        Index("tokens_by_attempt", "attempt", postgresql_where=text("attempt IS NOT NULL")),
        Index("tokens_by_expiry", "expires_at", postgresql_where=text("expires_at IS NOT NULL")),
    )

    hash: bytes = _column(LargeBinary, key=True)
    kind: str = _text()
    org: str = _text()
    principal: str = _text()
    project: str | None = _text(nullable=True)
    function: str | None = _text(nullable=True)
    function_uid: str | None = _text(nullable=True)
    attempt: str | None = _text(nullable=True)
    epoch: int | None = _column(Integer, nullable=True)
    scopes: list[str] = _column(ARRAY(Text(collation="C")), default="'{}'::text[]")
    projects: list[str] | None = _column(ARRAY(Text(collation="C")), nullable=True)
    created_at: datetime = _time()
    expires_at: datetime | None = _time(nullable=True)
    revoked_at: datetime | None = _time(nullable=True)


class SecretVersionRow(SQLModel, table=True):
    """One version of a Secret's values, encrypted; the object carries none of them."""

    __tablename__ = "secret_versions"

    secret_uid: str = _text(key=True)
    version: int = _column(Integer, key=True)
    org: str = _text()
    project: str = _text()
    name: str = _text()
    keys: list[str] = _column(ARRAY(Text(collation="C")))
    digest: str = _text()
    ciphertext: bytes = _column(LargeBinary)
    created_at: datetime = _time()


class BlobRow(SQLModel, table=True):
    """A verified blob; a row exists only once its bytes are there."""

    __tablename__ = "blobs"
    __table_args__ = (Index("blobs_by_use", "last_used_at"),)

    org: str = _text(key=True)
    project: str = _text(key=True)
    digest: str = _text(key=True)
    size: int = _bigint()
    content_type: str = _text(default="application/octet-stream")
    created_at: datetime = _time()
    last_used_at: datetime = _time()


class LogChunkRow(SQLModel, table=True):
    """Lines a worker wrote; chunk numbers are the node's and contiguous for each attempt."""

    __tablename__ = "log_chunks"
    __table_args__ = (
        Index("log_chunks_by_function", "function_uid", "last_time"),
        Index("log_chunks_by_time", "last_time"),
    )

    attempt: str = _text(key=True)
    seq: int = _bigint(key=True)
    org: str = _text()
    project: str = _text()
    function_uid: str = _text()
    first_time: datetime = _time()
    last_time: datetime = _time()
    lines: list[Any] = _column(JSON)


class EngineRow(SQLModel, table=True):
    """Which Temporal database our workflows live in; another one knows none of them."""

    __tablename__ = "engine"
    __table_args__ = (CheckConstraint("id = 1", name="engine_one_row"),)

    id: int = _column(Integer, key=True, default="1")
    incarnation: str | None = _text(nullable=True)


metadata = SQLModel.metadata
