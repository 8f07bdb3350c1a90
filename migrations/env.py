"""Alembic's entry: runs the migrations on the URL that `controlplane.store.migrate` sets."""

from __future__ import annotations

from alembic import context
from sqlalchemy import create_engine, pool
from sqlmodel import SQLModel

from controlplane.store import audit_tables as audit_tables  # registers its tables in SQLModel.metadata
from controlplane.store import call_tables as call_tables  # as well
from controlplane.store import ledger_tables as ledger_tables  # as well
from controlplane.store import limit_tables as limit_tables  # as well
from controlplane.store import login_tables as login_tables
from controlplane.store import spending_tables as spending_tables
from controlplane.store import tables as tables  # as well
from controlplane.store import worker_tables as worker_tables  # as well

config = context.config


def run() -> None:
    connection = config.attributes.get("connection")
    if connection is not None:
        context.configure(connection=connection, target_metadata=SQLModel.metadata, compare_server_default=True)
        with context.begin_transaction():
            context.run_migrations()
        return
    engine = create_engine(config.get_main_option("sqlalchemy.url") or "", poolclass=pool.NullPool)
    with engine.connect() as made:
        context.configure(connection=made, target_metadata=SQLModel.metadata)
        with context.begin_transaction():
            context.run_migrations()


run()
