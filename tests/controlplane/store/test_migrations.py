"""The tables and the migrations say the same."""

from __future__ import annotations

import asyncio
import re

import asyncpg
from alembic import command

from controlplane.ledger.invariants import verify
from controlplane.store.database import Database
from controlplane.store.migrate import _run, check, migrate
from tests.fixtures.postgres import drop_database
from workers.engines.postgres import EmbeddedPostgres


async def test_the_migrated_schema_is_the_one_the_tables_describe(database_url: str) -> None:
    await check(database_url)


async def test_processes_that_start_together_may_all_migrate(database_url: str) -> None:
    await asyncio.gather(*(migrate(database_url) for _ in range(3)))


async def test_what_was_charged_before_there_was_a_ledger_opens_it(postgres: EmbeddedPostgres) -> None:
    admin = await asyncpg.connect(postgres.url, database="postgres")
    await admin.execute("CREATE DATABASE older")
    url = re.sub(r"/nodus$", "/older", postgres.url)
    await _run(url, lambda config: command.upgrade(config, "0001"))
    database = Database(url, pool_size=1)
    await database.open()
    columns = "function_uid, org, project, function, queued, running, alone, pending, charge_micro_usd"
    await database.execute(
        f"INSERT INTO function_load ({columns}) VALUES ('fn_1', 'acme', 'default', 'f', 0, 0, 0, 0, 70), "
        "('fn_2', 'acme', 'default', 'g', 0, 0, 0, 0, 0)"
    )
    await migrate(url)
    rows = await database.fetch("SELECT id, amount_micro_usd FROM ledger_transfers")
    assert [tuple(row) for row in rows] == [("opening/fn_1", 70)]
    assert await verify(database) == []
    await database.close()
    await _run(url, lambda config: command.downgrade(config, "0001"))
    await drop_database(admin, "older")
    await admin.close()
