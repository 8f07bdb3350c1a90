"""The tables of spending limits, as SQLModel rows. Storage only; the queries are in `controlplane/ledger`."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, Column, ForeignKey, Index, Text
from sqlmodel import Field, SQLModel

from controlplane.store.columns import bigint_column, flag_column, text_column, time_column


class SpendingLimitRow(SQLModel, table=True):
    """What a Budget or a capped Function, whose uid is the id, has spent in its period and holds."""

    __tablename__ = "spending_limits"
    __table_args__ = (CheckConstraint("least(spent_micro_usd, held_micro_usd) >= 0", name="spending_limits_sums"),)

    id: str = Field(sa_column=Column(Text, primary_key=True))
    org: str = Field(sa_column=text_column())
    blocks: bool = Field(sa_column=flag_column())
    limit_micro_usd: int = Field(sa_column=bigint_column())
    spent_micro_usd: int = Field(sa_column=bigint_column())
    held_micro_usd: int = Field(sa_column=bigint_column())
    refused_micro_usd: int | None = Field(sa_column=bigint_column(nullable=True))
    period_start: datetime = Field(sa_column=time_column())
    period_end: datetime | None = Field(sa_column=time_column(nullable=True))


class SpendingReservationRow(SQLModel, table=True):
    """The most that a dispatch which runs may cost, reserved of one limit; or a worker itself, with dispatch 0."""

    __tablename__ = "spending_reservations"
    __table_args__ = (Index("spending_reservations_limit", "limit_id"),)

    call_uid: str = Field(sa_column=Column(Text, primary_key=True))
    dispatch: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    limit_id: str = Field(
        sa_column=Column(Text, ForeignKey("spending_limits.id", ondelete="CASCADE"), primary_key=True)
    )
    amount_micro_usd: int = Field(sa_column=bigint_column())
