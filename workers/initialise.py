"""What happens once per database before any process serves: its tables, the first project and the admin key."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import asyncpg

from controlplane.identity.bootstrap import bootstrap, issue_admin_key
from controlplane.settings import Settings
from controlplane.store.database import is_passing
from controlplane.store.migrate import migrate
from workers.state import read_private, write_private
from workers.wiring import open_core

DATABASE_SECONDS_MAX = 60.0
POLL_SECONDS = 0.05


async def initialise(settings: Settings, key_file: Path | None) -> str | None:
    """Migrate and bootstrap; the admin key when this call made one, which `key_file` then holds.

    A lost key file gets another key. Waits for a database that is just starting. Several hosts may do it at once.
    """
    await _database_answers(settings.database_url)
    await migrate(settings.database_url)
    async with open_core(settings) as core:
        token = (await bootstrap(core.writer, settings, core.clock)).token
        if token is None and key_file is not None and read_private(key_file) is None:
            token = await issue_admin_key(core.database, settings, core.clock)
    if token is not None and key_file is not None:
        write_private(key_file, token + "\n")
    return token


async def _database_answers(url: str) -> None:
    until = time.monotonic() + DATABASE_SECONDS_MAX
    while True:
        try:
            connection = await asyncpg.connect(url, timeout=5)
        except (OSError, TimeoutError, asyncpg.PostgresError) as error:
            # A database that is still being made does not exist yet.
            waits = is_passing(error) or isinstance(error, asyncpg.InvalidCatalogNameError)
            if not waits or time.monotonic() > until:
                raise
            await asyncio.sleep(POLL_SECONDS)
        else:
            await connection.close()
            return
