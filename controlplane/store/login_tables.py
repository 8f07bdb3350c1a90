"""The table of logins under way, as an SQLModel row. Storage only, like `tables.py`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, Column, Index, Integer, LargeBinary, Text
from sqlalchemy.dialects.postgresql import JSONB
from sqlmodel import Field, SQLModel

from controlplane.store.columns import text_column, time_column


class LoginRow(SQLModel, table=True):
    """A program that waits for a person to give it a key. Of its codes only keyed hashes are kept."""

    __tablename__ = "logins"
    __table_args__ = (
        CheckConstraint("state IN ('pending', 'approved', 'denied')", name="logins_state"),
        CheckConstraint("(state = 'approved') = (grants IS NOT NULL)", name="logins_grants"),
        Index("logins_expires", "expires_at"),
    )

    secret_hash: bytes = Field(sa_column=Column(LargeBinary, primary_key=True))
    user_code_hash: bytes | None = Field(sa_column=Column(LargeBinary, nullable=True, unique=True))
    challenge: str | None = Field(sa_column=text_column(nullable=True))
    client: str = Field(sa_column=text_column())
    host: str = Field(sa_column=text_column())
    address: str = Field(sa_column=text_column())
    state: str = Field(sa_column=Column(Text, nullable=False))
    grants: list[dict[str, Any]] | None = Field(sa_column=Column(JSONB, nullable=True))
    interval_seconds: int = Field(sa_column=Column(Integer, nullable=False))
    created_at: datetime = Field(sa_column=time_column())
    expires_at: datetime = Field(sa_column=time_column())
    polled_at: datetime | None = Field(sa_column=time_column(nullable=True))
    redeemed_with: bytes | None = Field(sa_column=Column(LargeBinary, nullable=True))
