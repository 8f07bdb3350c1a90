"""The columns that tables are made of, in `tables.py` and `call_tables.py`."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Boolean, Column, DateTime, Text, text
from sqlalchemy.dialects.postgresql import ARRAY


def bytes_order_text() -> Text:
    """Text in byte order, so SQL, continue tokens and Python agree on what comes next."""
    return Text(collation="C")


def text_column(nullable: bool = False, default: str | None = None) -> Column[Any]:
    """Text in the order of the database's locale, which nothing depends on."""
    return Column(Text, nullable=nullable, server_default=None if default is None else text(f"'{default}'"))


def time_column(nullable: bool = False) -> Column[Any]:
    """A moment, stored in UTC."""
    return Column(DateTime(timezone=True), nullable=nullable)


def bigint_column(nullable: bool = False, default: str | None = None) -> Column[Any]:
    """A count, a revision or an amount."""
    return Column(BigInteger, nullable=nullable, server_default=text(default) if default else None)


def flag_column() -> Column[Any]:
    """A flag that is off unless it was set."""
    return Column(Boolean, nullable=False, server_default=text("false"))


def texts_column(nullable: bool = False) -> Column[Any]:
    """A list of texts, empty (or, where it may be, absent) unless it was filled."""
    return Column(ARRAY(Text), nullable=nullable, server_default=None if nullable else text("'{}'"))
