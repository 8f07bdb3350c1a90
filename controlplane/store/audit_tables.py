"""The tables of the audit log, as SQLModel rows: events, the seals over them, and the points that retention moved to.

Storage only, like `tables.py`. Triggers of the migration that made the tables refuse to change a row, and to delete one
that no checkpoint has released.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, Column, Identity, Index, Integer, LargeBinary
from sqlalchemy.dialects.postgresql import ARRAY
from sqlmodel import Field, SQLModel

from controlplane.store.columns import bigint_column, text_column, time_column


class AuditEventRow(SQLModel, table=True):
    """Something that was done or refused. `seq` counts in the order of commits, since writers take turns."""

    __tablename__ = "audit_events"
    __table_args__ = (Index("audit_events_org", "org", "seq"), CheckConstraint("count >= 1", name="audit_events_count"))

    seq: int = Field(sa_column=Column(BigInteger, Identity(always=True), primary_key=True))
    created_at: datetime = Field(sa_column=time_column())
    org: str = Field(sa_column=text_column())
    project: str = Field(sa_column=text_column())
    kind: str = Field(sa_column=text_column())
    name: str = Field(sa_column=text_column())
    uid: str = Field(sa_column=text_column())
    subresource: str = Field(sa_column=text_column())
    verb: str = Field(sa_column=text_column())
    principal_kind: str = Field(sa_column=text_column())
    principal: str = Field(sa_column=text_column())
    key_prefix: str = Field(sa_column=text_column())
    request_id: str = Field(sa_column=text_column())
    source: str = Field(sa_column=text_column())
    code: int = Field(sa_column=Column(Integer, nullable=False))
    reason: str = Field(sa_column=text_column())
    count: int = Field(sa_column=bigint_column())
    message: str = Field(sa_column=text_column())


class AuditSealRow(SQLModel, table=True):
    """A link of the chain: the numbers and digests of some events in their order, and a hash over them and the link
    before."""

    __tablename__ = "audit_seals"
    __table_args__ = (
        CheckConstraint(
            "octet_length(digests) = 32 * cardinality(events) AND octet_length(hash) = 32", name="audit_seals_digests"
        ),
    )

    number: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    sealed_at: datetime = Field(sa_column=time_column())
    last_seq: int = Field(sa_column=bigint_column())
    events: list[int] = Field(sa_column=Column(ARRAY(BigInteger), nullable=False))
    digests: bytes = Field(sa_column=Column(LargeBinary, nullable=False))
    hash: bytes = Field(sa_column=Column(LargeBinary, nullable=False))


class AuditCheckpointRow(SQLModel, table=True):
    """How far retention has come: everything up to this seal may go, and the chain goes on from its hash."""

    __tablename__ = "audit_checkpoints"

    seal: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    created_at: datetime = Field(sa_column=time_column())
    last_seq: int = Field(sa_column=bigint_column())
    hash: bytes = Field(sa_column=Column(LargeBinary, nullable=False))
