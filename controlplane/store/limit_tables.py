"""The tables of what operators allow, as SQLModel rows. Storage only, like `tables.py`."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import CheckConstraint, Column, Text
from sqlmodel import Field, SQLModel

from controlplane.store.columns import bigint_column, text_column, time_column


class OperatorSwitchRow(SQLModel, table=True):
    """A switch that is on: admissions of a kind are paused, or the compute of an organisation is suspended."""

    __tablename__ = "operator_switches"
    __table_args__ = (CheckConstraint("switch IN ('pause', 'suspend')", name="operator_switches_switch"),)

    switch: str = Field(sa_column=Column(Text, primary_key=True))
    subject: str = Field(sa_column=Column(Text, primary_key=True))
    reason: str = Field(sa_column=text_column())
    since: datetime = Field(sa_column=time_column())


class QuotaRow(SQLModel, table=True):
    """How much an organisation may have, or one of its projects; `project` is "" for the whole organisation."""

    __tablename__ = "quotas"
    __table_args__ = (CheckConstraint("amount_max >= 0", name="quotas_amount"),)

    org: str = Field(sa_column=Column(Text, primary_key=True))
    project: str = Field(sa_column=Column(Text, primary_key=True))
    counter: str = Field(sa_column=Column(Text, primary_key=True))
    amount_max: int = Field(sa_column=bigint_column())


class BlobUsageRow(SQLModel, table=True):
    """What the blobs of a project take, and with the project "" those of the organisation; a trigger keeps it."""

    __tablename__ = "blob_usage"
    __table_args__ = (CheckConstraint("bytes >= 0", name="blob_usage_bytes"),)

    org: str = Field(sa_column=Column(Text, primary_key=True))
    project: str = Field(sa_column=Column(Text, primary_key=True))
    bytes: int = Field(sa_column=bigint_column())
