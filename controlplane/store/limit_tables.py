"""The tables of what operators allow, as SQLModel rows. Storage only, like `tables.py`."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import CheckConstraint, Column, Text
from sqlmodel import Field, SQLModel

from controlplane.store.columns import text_column, time_column


class OperatorSwitchRow(SQLModel, table=True):
    """A switch that is on: admissions of a kind are paused, or the compute of an organisation is suspended."""

    __tablename__ = "operator_switches"
    __table_args__ = (CheckConstraint("switch IN ('pause', 'suspend')", name="operator_switches_switch"),)

    switch: str = Field(sa_column=Column(Text, primary_key=True))
    subject: str = Field(sa_column=Column(Text, primary_key=True))
    reason: str = Field(sa_column=text_column())
    since: datetime = Field(sa_column=time_column())
