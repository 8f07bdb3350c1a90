"""The tables, as SQLModel rows.

They describe storage only: no validation, no behaviour. Queries are SQL text elsewhere in `store/`, `calls/`,
`identity/` and `capacity/`; `migrations/versions` makes these tables, and a test holds the two together (`alembic
check`). Every table carries the organisation and, where it applies, the project. Those of calls are in
`call_tables.py`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    LargeBinary,
    SmallInteger,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlmodel import Field, SQLModel

from controlplane.store.columns import (
    bigint_column,
    bytes_order_text,
    flag_column,
    text_column,
    texts_column,
    time_column,
)


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

    kind: str = Field(sa_column=Column(bytes_order_text(), primary_key=True))
    org: str = Field(sa_column=Column(bytes_order_text(), primary_key=True))
    project: str = Field(sa_column=Column(bytes_order_text(), primary_key=True))
    name: str = Field(sa_column=Column(bytes_order_text(), primary_key=True))
    uid: str = Field(sa_column=Column(Text, nullable=False, unique=True))
    rv: int = Field(sa_column=bigint_column())
    create_rv: int = Field(sa_column=bigint_column())
    deleting: bool = Field(sa_column=flag_column())
    labels: dict[str, Any] = Field(sa_column=Column(JSONB, nullable=False))
    fields_: dict[str, Any] = Field(sa_column=Column("fields", JSONB, nullable=False))
    owners: list[str] = Field(sa_column=texts_column())
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
    time: datetime = Field(sa_column=time_column())
    type: str = Field(sa_column=text_column())
    kind: str = Field(sa_column=Column(bytes_order_text(), nullable=False))
    org: str = Field(sa_column=Column(bytes_order_text(), nullable=False))
    project: str = Field(sa_column=Column(bytes_order_text(), nullable=False))
    name: str = Field(sa_column=Column(bytes_order_text(), nullable=False))
    uid: str = Field(sa_column=text_column())
    prev_rv: int | None = Field(sa_column=bigint_column(nullable=True))
    labels: dict[str, Any] = Field(sa_column=Column(JSONB, nullable=False))
    fields_: dict[str, Any] = Field(sa_column=Column("fields", JSONB, nullable=False))
    prev_labels: dict[str, Any] | None = Field(sa_column=Column(JSONB))
    prev_fields: dict[str, Any] | None = Field(sa_column=Column(JSONB))
    doc: dict[str, Any] = Field(sa_column=Column(JSON, nullable=False))


class MetaRow(SQLModel, table=True):
    """One row: the revision counter, which moves with every write."""

    __tablename__ = "meta"

    id: int = Field(sa_column=Column(SmallInteger, primary_key=True, autoincrement=False))
    rv: int = Field(sa_column=bigint_column())


class CompactionRow(SQLModel, table=True):
    """One row: changes up to `compacted_rv` are no longer complete, and up to `pruned_rv` they are gone. Apart from
    `meta`, so that compaction and writers never wait for each other."""

    __tablename__ = "compaction"

    id: int = Field(sa_column=Column(SmallInteger, primary_key=True, autoincrement=False))
    compacted_rv: int = Field(sa_column=bigint_column())
    pruned_rv: int = Field(sa_column=bigint_column())


class IdempotencyRow(SQLModel, table=True):
    """The first answer to a keyed request, replayed for a day."""

    __tablename__ = "idempotency"
    __table_args__ = (Index("idempotency_created", "created_at"),)

    scope: str = Field(sa_column=Column(Text, primary_key=True))
    key: str = Field(sa_column=Column(Text, primary_key=True))
    digest: str = Field(sa_column=text_column())
    status: int = Field(sa_column=Column(SmallInteger, nullable=False))
    body: str = Field(sa_column=text_column())
    created_at: datetime = Field(sa_column=time_column())


class AttemptRow(SQLModel, table=True):
    """The bookkeeping of one worker: what changes too often for an object."""

    __tablename__ = "attempts"
    __table_args__ = (
        Index("attempts_live", "function_uid", "state", postgresql_where=text("state <> 'finished'")),
        Index("attempts_lease", "last_claim_at", postgresql_where=text("state = 'ready'")),
        Index("attempts_history", "function_uid", "created_at"),
        Index("attempts_ended", "finished_at", postgresql_where=text("state = 'finished'")),
        Index("attempts_of_project", "org", "project", postgresql_where=text("state <> 'finished'")),
    )

    uid: str = Field(sa_column=Column(Text, primary_key=True))
    org: str = Field(sa_column=text_column())
    project: str = Field(sa_column=text_column())
    function: str = Field(sa_column=text_column())
    function_uid: str = Field(sa_column=text_column())
    slot: str = Field(sa_column=text_column())
    epoch: int = Field(sa_column=bigint_column())
    pool: str = Field(sa_column=text_column())
    state: str = Field(sa_column=text_column())
    draining: bool = Field(sa_column=flag_column())
    drain_reason: str | None = Field(sa_column=text_column(nullable=True))
    has_workflow: bool = Field(sa_column=flag_column())
    concurrency: int = Field(sa_column=Column(SmallInteger, nullable=False))
    # What it costs, from its start to its end.
    rate_micro_usd_per_hour: int = Field(sa_column=bigint_column(default="0"))
    pricebook: str = Field(sa_column=text_column(default=""))
    offering: str = Field(sa_column=text_column(default="local"))
    node: str | None = Field(sa_column=text_column(nullable=True))
    cpu_milli: int = Field(sa_column=bigint_column(default="0"))
    memory_bytes: int = Field(sa_column=bigint_column(default="0"))
    gpus: int = Field(sa_column=bigint_column(default="0"))
    created_at: datetime = Field(sa_column=time_column())
    ready_at: datetime | None = Field(sa_column=time_column(nullable=True))
    last_claim_at: datetime | None = Field(sa_column=time_column(nullable=True))
    last_busy_at: datetime | None = Field(sa_column=time_column(nullable=True))
    claim_seq: int = Field(sa_column=bigint_column(default="0"))
    drained_at: datetime | None = Field(sa_column=time_column(nullable=True))
    kill_at: datetime | None = Field(sa_column=time_column(nullable=True))
    finished_at: datetime | None = Field(sa_column=time_column(nullable=True))
    reason: str | None = Field(sa_column=text_column(nullable=True))
    message: str | None = Field(sa_column=text_column(nullable=True))


class TokenRow(SQLModel, table=True):
    """A credential: only a keyed hash is kept."""

    __tablename__ = "tokens"
    __table_args__ = (
        Index("tokens_attempt", "attempt", postgresql_where=text("attempt IS NOT NULL")),
        # A key without a role could do nothing, or everything: neither may come about by forgetting one.
        CheckConstraint("kind <> 'apikey' OR role IS NOT NULL OR owner IS NOT NULL", name="tokens_role"),
        Index("tokens_owner", "owner", postgresql_where=text("owner IS NOT NULL")),
        Index("tokens_uid", "uid", unique=True, postgresql_where=text("uid IS NOT NULL")),
    )

    hash: bytes = Field(sa_column=Column(LargeBinary, primary_key=True))
    kind: str = Field(sa_column=text_column())
    org: str = Field(sa_column=text_column())
    principal: str = Field(sa_column=text_column())
    name: str = Field(sa_column=text_column())
    project: str | None = Field(sa_column=text_column(nullable=True))
    function: str | None = Field(sa_column=text_column(nullable=True))
    function_uid: str | None = Field(sa_column=text_column(nullable=True))
    attempt: str | None = Field(sa_column=text_column(nullable=True))
    epoch: int | None = Field(sa_column=bigint_column(nullable=True))
    scopes: list[str] = Field(sa_column=texts_column())
    projects: list[str] = Field(sa_column=texts_column())
    created_at: datetime = Field(sa_column=time_column())
    expires_at: datetime | None = Field(sa_column=time_column(nullable=True))
    revoked_at: datetime | None = Field(sa_column=time_column(nullable=True))
    role: str | None = Field(sa_column=text_column(nullable=True))
    owner: str | None = Field(sa_column=text_column(nullable=True))
    uid: str | None = Field(sa_column=text_column(nullable=True))
    last_used_at: datetime | None = Field(sa_column=time_column(nullable=True))
    shown_used_at: datetime | None = Field(sa_column=time_column(nullable=True))


class CredentialOwnerRow(SQLModel, table=True):
    """A Member or ServiceAccount, and what bounds its credentials: a role, or scopes."""

    __tablename__ = "credential_owners"
    __table_args__ = (
        CheckConstraint("(role IS NULL) <> (scopes IS NULL)", name="credential_owners_bound"),
        Index("credential_owners_org", "org", "role"),
        Index("credential_owners_login", "login", postgresql_where=text("login IS NOT NULL")),
    )

    uid: str = Field(sa_column=Column(Text, primary_key=True))
    org: str = Field(sa_column=text_column())
    kind: str = Field(sa_column=text_column())
    name: str = Field(sa_column=text_column())
    user_uuid: str | None = Field(sa_column=text_column(nullable=True))
    role: str | None = Field(sa_column=text_column(nullable=True))
    scopes: list[str] | None = Field(sa_column=texts_column(nullable=True))
    login: str | None = Field(sa_column=text_column(nullable=True))
    projects: list[str] | None = Field(sa_column=texts_column(nullable=True))


class SecretVersionRow(SQLModel, table=True):
    """The sealed values of one version of a Secret."""

    __tablename__ = "secret_versions"

    secret_uid: str = Field(sa_column=Column(Text, primary_key=True))
    version: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    org: str = Field(sa_column=text_column())
    project: str = Field(sa_column=text_column())
    name: str = Field(sa_column=text_column())
    digest: str = Field(sa_column=text_column())
    ciphertext: bytes = Field(sa_column=Column(LargeBinary, nullable=False))
    created_at: datetime = Field(sa_column=time_column())


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
    size_bytes: int = Field(sa_column=bigint_column())
    content_type: str = Field(sa_column=text_column())
    location: str = Field(sa_column=text_column())
    created_at: datetime = Field(sa_column=time_column())
    last_used_at: datetime = Field(sa_column=time_column())


class LogChunkRow(SQLModel, table=True):
    """Lines of one attempt, as its node sent them: `lines` is a list of [time_ns, stream, text]."""

    __tablename__ = "log_chunks"
    __table_args__ = (
        Index("log_chunks_function", "function_uid", "received_at"),
        Index("log_chunks_time", "received_at"),
    )

    attempt: str = Field(sa_column=Column(Text, primary_key=True))
    seq: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    org: str = Field(sa_column=text_column())
    project: str = Field(sa_column=text_column())
    function_uid: str = Field(sa_column=text_column())
    first_time: datetime = Field(sa_column=time_column())
    last_time: datetime = Field(sa_column=time_column())
    received_at: datetime = Field(sa_column=time_column())
    size_bytes: int = Field(sa_column=bigint_column())
    end_bytes: int = Field(sa_column=bigint_column())
    lines: list[Any] = Field(sa_column=Column(JSON, nullable=False))


class EngineRow(SQLModel, table=True):
    """One row: which Temporal database our workflows live in, to notice when it was lost."""

    __tablename__ = "engine"

    id: int = Field(sa_column=Column(SmallInteger, primary_key=True, autoincrement=False))
    incarnation: str = Field(sa_column=text_column())
