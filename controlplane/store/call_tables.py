"""The tables of calls, as SQLModel rows: the queue, the history, whose turn it is, and the sums of each Function.

Storage only, like `tables.py`. The queries that need their indexes are in `controlplane/calls/`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Column, Float, Index, LargeBinary, SmallInteger, Text, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlmodel import Field, SQLModel

from controlplane.store.columns import bigint_column, flag_column, text_column, time_column


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
        Index(
            "calls_ahead",
            "updated_at",
            postgresql_where=text("NOT has_workflow AND state <> 'queued' AND dispatches > 0"),
        ),
        Index("calls_undecided", "seq", postgresql_where=text("NOT has_workflow AND state IN ('deciding', 'waiting')")),
        Index(
            "calls_starting_fairly",
            "org",
            "project",
            "session",
            "seq",
            postgresql_where=text("NOT has_workflow AND state <> 'queued' AND priority >= 0"),
        ),
        Index(
            "calls_queued_fairly",
            "org",
            "project",
            "session",
            "seq",
            postgresql_where=text("NOT has_workflow AND state = 'queued' AND priority >= 0"),
        ),
        Index("calls_open", "seq", postgresql_where=text("has_workflow AND seq >= 0")),
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
    org: str = Field(sa_column=text_column())
    project: str = Field(sa_column=text_column())
    name: str = Field(sa_column=text_column())
    function: str = Field(sa_column=text_column())
    function_uid: str = Field(sa_column=text_column())
    session: str = Field(sa_column=text_column())
    state: str = Field(sa_column=text_column())
    priority: int = Field(sa_column=Column(SmallInteger, nullable=False))
    seq: int = Field(sa_column=bigint_column())
    attempt: str | None = Field(sa_column=text_column(nullable=True))
    epoch: int | None = Field(sa_column=bigint_column(nullable=True))
    concurrency: int | None = Field(sa_column=Column(SmallInteger))
    # What its present dispatch is charged at.
    rate_micro_usd_per_hour: int = Field(sa_column=bigint_column(default="0"))
    pricebook: str = Field(sa_column=text_column(default=""))
    offering: str = Field(sa_column=text_column(default=""))
    started_at: datetime | None = Field(sa_column=time_column(nullable=True))
    deadline: datetime | None = Field(sa_column=time_column(nullable=True))
    dispatches: int = Field(sa_column=bigint_column())
    retries: int = Field(sa_column=Column(SmallInteger, nullable=False))
    recoveries: int = Field(sa_column=Column(SmallInteger, nullable=False))
    suspect: bool = Field(sa_column=flag_column())
    excused: bool = Field(sa_column=flag_column())
    charge_micro_usd: int = Field(sa_column=bigint_column())
    reserved_micro_usd: int = Field(sa_column=bigint_column(default="0"))
    function_labels: dict[str, Any] | None = Field(sa_column=Column(JSONB))
    cancel_requested_at: datetime | None = Field(sa_column=time_column(nullable=True))
    let_go_at: datetime | None = Field(sa_column=time_column(nullable=True))
    outcome: dict[str, Any] | None = Field(sa_column=Column(JSONB))
    has_workflow: bool = Field(sa_column=flag_column())
    task_token: bytes | None = Field(sa_column=Column(LargeBinary))
    created_at: datetime = Field(sa_column=time_column())
    updated_at: datetime = Field(sa_column=time_column())


class DispatchRow(SQLModel, table=True):
    """One dispatch of a call that has ended, kept exactly as long as the call's object: its timeline."""

    __tablename__ = "call_dispatches"

    call_uid: str = Field(sa_column=Column(Text, primary_key=True))
    number: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    org: str = Field(sa_column=text_column())
    project: str = Field(sa_column=text_column())
    attempt: str = Field(sa_column=text_column())
    epoch: int = Field(sa_column=bigint_column())
    call_created_at: datetime = Field(sa_column=time_column())
    started_at: datetime = Field(sa_column=time_column())
    cancel_requested_at: datetime | None = Field(sa_column=time_column(nullable=True))
    ended_at: datetime = Field(sa_column=time_column())
    cause: str = Field(sa_column=text_column())
    reported: bool = Field(sa_column=flag_column())
    told: str = Field(sa_column=text_column())
    charge_micro_usd: int = Field(sa_column=bigint_column())
    decision: str = Field(sa_column=text_column())
    delay_seconds: float | None = Field(sa_column=Column(Float))
    applied_at: datetime | None = Field(sa_column=time_column(nullable=True))


class CallSessionRow(SQLModel, table=True):
    """When each caller session of a Function was last served, in revisions."""

    __tablename__ = "call_sessions"
    __table_args__ = (Index("call_sessions_turn", "function_uid", "last_turn"),)

    function_uid: str = Field(sa_column=Column(Text, primary_key=True))
    session: str = Field(sa_column=Column(Text, primary_key=True))
    last_turn: int = Field(sa_column=bigint_column())


class FunctionLoadRow(SQLModel, table=True):
    """The calls of a Function by state and what all of them were charged, kept as sums so that nothing is counted."""

    __tablename__ = "function_load"

    function_uid: str = Field(sa_column=Column(Text, primary_key=True))
    org: str = Field(sa_column=text_column())
    project: str = Field(sa_column=text_column())
    function: str = Field(sa_column=text_column())
    queued: int = Field(sa_column=bigint_column())
    running: int = Field(sa_column=bigint_column())
    alone: int = Field(sa_column=bigint_column())
    pending: int = Field(sa_column=bigint_column())
    charge_micro_usd: int = Field(sa_column=bigint_column())
    last_end_at: datetime | None = Field(sa_column=time_column(nullable=True))
