"""Bringing a database to the current schema.

`migrate` may be called by several processes at once: an advisory lock lets one work while the others wait and then
find nothing to do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

SCRIPTS = Path(__file__).resolve().parents[2] / "migrations"
LOCK = 0x6E6F647573  # any constant that is ours


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS))
    config.set_main_option("path_separator", "os")
    return config


async def _run(url: str, action: Callable[[Config], Any]) -> None:
    # The driver reads the URL itself, as it does for every other connection: it knows forms that SQLAlchemy does not.
    connect = partial(asyncpg.connect, url)
    engine = create_async_engine("postgresql+asyncpg://", async_creator=connect, poolclass=NullPool)

    def work(connection: Connection) -> None:
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
        config = _config()
        config.attributes["connection"] = connection
        action(config)

    try:
        async with engine.begin() as connection:
            await connection.run_sync(work)
    finally:
        await engine.dispose()


async def migrate(url: str) -> None:
    """Upgrade the database at `url` (postgresql://…) to the newest revision."""
    await _run(url, lambda config: command.upgrade(config, "head"))


async def check(url: str) -> None:
    """Raise alembic's CommandError when the tables and the migrations disagree."""
    await _run(url, command.check)


async def generate(url: str, message: str, revision: str) -> None:
    """Write a new revision with the difference between the tables and the database."""
    await _run(url, lambda config: command.revision(config, message=message, autogenerate=True, rev_id=revision))
