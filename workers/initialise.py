"""What happens once per database before any process serves: its tables, the first project and the admin key."""

from __future__ import annotations

from pathlib import Path

from controlplane.clock import SystemClock
from controlplane.identity.bootstrap import bootstrap, issue_admin_key
from controlplane.settings import Settings
from controlplane.store.migrate import migrate
from workers.state import read_private, write_private
from workers.wiring import open_core


async def initialise(settings: Settings) -> str | None:
    """Migrate and bootstrap; the admin key when this call made it. Safe to call from several hosts at once."""
    await migrate(settings.database_url)
    async with open_core(settings) as core:
        return (await bootstrap(core.writer, settings, core.clock)).token


async def ensure_admin_key(settings: Settings, path: Path) -> str:
    """Initialise, and return the admin key that the file keeps between starts; a lost key is replaced by another."""
    token = await initialise(settings)
    known = read_private(path)
    if token is None and known is not None:
        return known
    if token is None:
        async with open_core(settings) as core:
            token = await issue_admin_key(core.database, settings, SystemClock())
    write_private(path, token + "\n")
    return token
