"""The tables of what workers cost, as SQLModel rows: an account for each that lives, and sums by Function.

Storage only, like `tables.py`. A worker without a price has no row here.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Column, Index, Text
from sqlmodel import Field, SQLModel

from controlplane.store.columns import bigint_column, flag_column, text_column, time_column


class WorkerAccountRow(SQLModel, table=True):
    """A worker that costs something, from its start until all of it is charged. Money in micro-USD."""

    __tablename__ = "worker_accounts"
    __table_args__ = (
        Index("worker_accounts_function", "function_uid"),
        Index("worker_accounts_funding", "look_at"),
    )

    uid: str = Field(sa_column=Column(Text, primary_key=True))
    org: str = Field(sa_column=text_column())
    project: str = Field(sa_column=text_column())
    function: str = Field(sa_column=text_column())
    function_uid: str = Field(sa_column=text_column())
    rate_micro_usd_per_hour: int = Field(sa_column=bigint_column())
    shares: int = Field(sa_column=bigint_column())
    pricebook: str = Field(sa_column=text_column())
    offering: str = Field(sa_column=text_column(default="local"))
    billing_increment_seconds: int = Field(sa_column=bigint_column(default="1"))
    billing_minimum_seconds: int = Field(sa_column=bigint_column(default="1"))
    restores: bool = Field(sa_column=flag_column())
    started_at: datetime | None = Field(sa_column=time_column(nullable=True))
    # What its calls took and cost. Only the parts of a batch add to these, and only settlements change the others.
    call_seconds: int = Field(sa_column=bigint_column(default="0"))
    covered_call_seconds: int = Field(sa_column=bigint_column(default="0"))
    call_micro_usd: int = Field(sa_column=bigint_column(default="0"))
    calls_until: datetime | None = Field(sa_column=time_column(nullable=True))
    settlements: int = Field(sa_column=bigint_column(default="0"))
    settled_seconds: int = Field(sa_column=bigint_column(default="0"))
    settled_call_seconds: int = Field(sa_column=bigint_column(default="0"))
    idle_micro_usd: int = Field(sa_column=bigint_column(default="0"))
    hold: int = Field(sa_column=bigint_column(default="0"))
    held_micro_usd: int = Field(sa_column=bigint_column(default="0"))
    reserved_micro_usd: int = Field(sa_column=bigint_column(default="0"))
    funded_until: datetime = Field(sa_column=time_column())
    # When a controller must renew the hold.
    look_at: datetime = Field(sa_column=time_column())


class FunctionSegmentRow(SQLModel, table=True):
    """What the workers of a Function came to in one segment, without what their calls were charged."""

    __tablename__ = "function_segments"

    function_uid: str = Field(sa_column=Column(Text, primary_key=True))
    segment: str = Field(sa_column=Column(Text, primary_key=True))
    org: str = Field(sa_column=text_column())
    amount_micro_usd: int = Field(sa_column=bigint_column(default="0"))
    seconds: int = Field(sa_column=bigint_column(default="0"))
    covered_seconds: int = Field(sa_column=bigint_column(default="0"))
