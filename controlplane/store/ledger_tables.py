"""The tables of the ledger, as SQLModel rows: accounts with their sums, transfers, and the holds that are open.

Storage only, like `tables.py`. Rows enter through `controlplane/ledger/transfers.py`; triggers of the migration that
made the tables keep the sums, refuse what does not balance, and refuse to change or delete what was written.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, Column, Identity, Index, SmallInteger, Text, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlmodel import Field, SQLModel

from controlplane.store.columns import bigint_column, text_column, time_column


class LedgerAccountRow(SQLModel, table=True):
    """An account: what all transfers added to its two sides. Only the ledger's own trigger moves the sums."""

    __tablename__ = "ledger_accounts"
    __table_args__ = (
        CheckConstraint("class IN ('credits', 'grants', 'revenue')", name="ledger_accounts_class"),
        CheckConstraint("id = class || '/' || org", name="ledger_accounts_id"),
        CheckConstraint(
            "least(debits_micro_usd, credits_micro_usd, held_debits_micro_usd, held_credits_micro_usd) >= 0",
            name="ledger_accounts_sums",
        ),
        CheckConstraint("class <> 'revenue' OR credits_micro_usd >= debits_micro_usd", name="ledger_accounts_refunds"),
    )

    id: str = Field(sa_column=Column(Text, primary_key=True))
    org: str = Field(sa_column=text_column())
    class_: str = Field(sa_column=Column("class", Text, nullable=False))
    floor_micro_usd: int | None = Field(sa_column=bigint_column(nullable=True))
    debits_micro_usd: int = Field(sa_column=bigint_column(default="0"))
    credits_micro_usd: int = Field(sa_column=bigint_column(default="0"))
    held_debits_micro_usd: int = Field(sa_column=bigint_column(default="0"))
    held_credits_micro_usd: int = Field(sa_column=bigint_column(default="0"))


class LedgerTransferRow(SQLModel, table=True):
    """One movement of money, for good. `seq` counts in the order of commits, since writers take turns."""

    __tablename__ = "ledger_transfers"
    __table_args__ = (
        CheckConstraint(
            "kind IN ('charge', 'grant', 'refund', 'hold', 'post', 'void', 'expire', 'lapse')",
            name="ledger_transfers_kind",
        ),
        # One row has both sides and one amount, so it balances; and no money passes from one organisation to another.
        CheckConstraint(
            "debit = CASE kind WHEN 'grant' THEN 'grants' WHEN 'refund' THEN 'revenue' ELSE 'credits' END || '/' "
            "|| org AND credit = CASE WHEN kind = 'lapse' THEN 'grants' WHEN kind IN ('grant', 'refund') "
            "THEN 'credits' ELSE 'revenue' END || '/' || org",
            name="ledger_transfers_sides",
        ),
        CheckConstraint(
            "amount_micro_usd >= 0 AND (amount_micro_usd = 0) = (kind IN ('void', 'expire'))",
            name="ledger_transfers_amount",
        ),
        CheckConstraint(
            "(refers_to IS NOT NULL) = (kind IN ('refund', 'post', 'void', 'expire'))",
            name="ledger_transfers_refers",
        ),
        CheckConstraint(
            "CASE kind WHEN 'hold' THEN expires_at IS NOT NULL WHEN 'grant' THEN true ELSE expires_at IS NULL END",
            name="ledger_transfers_expiry",
        ),
        Index("ledger_transfers_seq", "seq", unique=True),
        Index("ledger_transfers_time", "org", "created_at"),
        Index("ledger_transfers_subject", "subject_uid", postgresql_where=text("subject_uid IS NOT NULL")),
        Index("ledger_transfers_function", "function_uid", postgresql_where=text("function_uid IS NOT NULL")),
        # Whatever happens, a hold is resolved once.
        Index(
            "ledger_transfers_resolved",
            "refers_to",
            unique=True,
            postgresql_where=text("kind IN ('post', 'void', 'expire')"),
        ),
        Index("ledger_transfers_workers", "function_uid", "seq", postgresql_where=text("segment IS NOT NULL")),
        Index("ledger_transfers_grants", "org", "seq", postgresql_where=text("kind IN ('grant', 'lapse')")),
        Index("ledger_transfers_refunded", "refers_to", postgresql_where=text("kind = 'refund'")),
    )

    id: str = Field(sa_column=Column(Text, primary_key=True))
    seq: int = Field(sa_column=Column(BigInteger, Identity(always=True), nullable=False))
    org: str = Field(sa_column=text_column())
    kind: str = Field(sa_column=text_column())
    debit: str = Field(sa_column=text_column())
    credit: str = Field(sa_column=text_column())
    amount_micro_usd: int = Field(sa_column=bigint_column())
    refers_to: str | None = Field(sa_column=text_column(nullable=True))
    expires_at: datetime | None = Field(sa_column=time_column(nullable=True))
    reason: str = Field(sa_column=text_column())
    project: str | None = Field(sa_column=text_column(nullable=True))
    subject_kind: str | None = Field(sa_column=text_column(nullable=True))
    subject_name: str | None = Field(sa_column=text_column(nullable=True))
    subject_uid: str | None = Field(sa_column=text_column(nullable=True))
    function_uid: str | None = Field(sa_column=text_column(nullable=True))
    function_name: str | None = Field(sa_column=text_column(nullable=True))
    labels: dict[str, Any] | None = Field(sa_column=Column(JSONB))
    dispatch: int | None = Field(sa_column=bigint_column(nullable=True))
    period_start: datetime | None = Field(sa_column=time_column(nullable=True))
    period_end: datetime | None = Field(sa_column=time_column(nullable=True))
    rate_micro_usd_per_hour: int | None = Field(sa_column=bigint_column(nullable=True))
    shares: int | None = Field(sa_column=Column(SmallInteger))
    pricebook: str | None = Field(sa_column=text_column(nullable=True))
    created_at: datetime = Field(sa_column=time_column())
    # Of a charge for a worker itself: which part of its life, and how many seconds of the period are charged.
    segment: str | None = Field(sa_column=text_column(nullable=True))
    seconds: int | None = Field(sa_column=bigint_column(nullable=True))
    # What the worker ran on; none of charges from before workers were placed.
    offering: str | None = Field(sa_column=text_column(nullable=True))


class LedgerOpenHoldRow(SQLModel, table=True):
    """A hold that nothing has resolved yet; the ledger's trigger keeps the table."""

    __tablename__ = "ledger_open_holds"
    __table_args__ = (Index("ledger_open_holds_expiry", "expires_at"),)

    id: str = Field(sa_column=Column(Text, primary_key=True))
    expires_at: datetime = Field(sa_column=time_column())
