"""The tables and the migrations say the same."""

from __future__ import annotations

import asyncio

from controlplane.store.migrate import check, migrate


async def test_the_migrated_schema_is_the_one_the_tables_describe(database_url: str) -> None:
    await check(database_url)


async def test_processes_that_start_together_may_all_migrate(database_url: str) -> None:
    await asyncio.gather(*(migrate(database_url) for _ in range(3)))
