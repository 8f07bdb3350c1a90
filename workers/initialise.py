"""What happens once per database before any process serves: its tables, the first project and the admin key.

Most starts find everything done. They learn that from one query, and load nothing of the store or of alembic for it.
"""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path

import asyncpg

from controlplane.settings import Settings
from workers.state import read_private, write_private

DATABASE_SECONDS_MAX = 60.0
POLL_SECONDS = 0.05
VERSIONS = Path(__file__).resolve().parents[1] / "migrations" / "versions"


async def initialise(settings: Settings, key_file: Path | None, operator_key: str | None = None) -> str | None:
    """Migrate and bootstrap; the admin key when this call made one, which `key_file` then holds.

    A lost key file gets another key. An `operator_key` is kept as the administrator's, and the first start then makes
    no other. Waits for a database that is just starting. Several hosts may do it at once.
    """
    if operator_key is None and key_file is not None and await is_initialised(settings, key_file):
        return None
    await (await _connected(settings.database_url)).close()
    token = await _initialise(settings, key_file, operator_key)
    if token is not None and key_file is not None:
        write_private(key_file, token + "\n")
    return token


async def is_initialised(settings: Settings, key_file: Path) -> bool:
    """Whether the database is at the newest schema and the admin key is known, so that nothing is left to do.

    Waits for a database that is just starting.
    """
    if read_private(key_file) is None:
        return False
    return await _revision(settings.database_url) == newest_revision()


async def _initialise(settings: Settings, key_file: Path | None, operator_key: str | None) -> str | None:
    from controlplane.identity.bootstrap import bootstrap, issue_admin_key, keep_operator_key
    from controlplane.store.migrate import migrate
    from workers.operators import operators_command
    from workers.wiring import open_core

    await migrate(settings.database_url)
    async with open_core(settings) as core:
        # After everything that runs in the background was started: only what is asked for here is an operator's.
        with operators_command(["init"]):
            token = (await bootstrap(core.writer, settings, core.clock, given=operator_key)).token
            if operator_key is not None:
                await keep_operator_key(core.writer, core.database, settings, operator_key)
            if token is None and key_file is not None and read_private(key_file) is None:
                token = await issue_admin_key(core.writer, core.database, settings)
    return token


def newest_revision() -> str:
    """The revision that no migration follows."""
    texts = [path.read_text() for path in VERSIONS.glob("*.py")]
    followed = {down for text in texts for down in re.findall(r"^down_revision = '(.+)'", text, flags=re.MULTILINE)}
    revisions: set[str] = {own for text in texts for own in re.findall(r"^revision = '(.+)'", text, flags=re.MULTILINE)}
    (newest,) = revisions - followed
    return newest


async def _revision(url: str) -> str | None:
    """The revision of the database, None for one without tables."""
    connection = await _connected(url)
    try:
        revision: str | None = await connection.fetchval("SELECT version_num FROM alembic_version")
    except asyncpg.UndefinedTableError:
        return None
    finally:
        await connection.close()
    return revision


async def _connected(url: str) -> asyncpg.Connection[asyncpg.Record]:
    """A connection, as soon as the database takes one: it may not be up yet, or still be being made."""
    until = time.monotonic() + DATABASE_SECONDS_MAX
    while True:
        try:
            connection: asyncpg.Connection[asyncpg.Record] = await asyncpg.connect(url, timeout=5)
            return connection
        except (OSError, TimeoutError, asyncpg.CannotConnectNowError, asyncpg.InvalidCatalogNameError):
            if time.monotonic() > until:
                raise
            await asyncio.sleep(POLL_SECONDS)
