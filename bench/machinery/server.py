"""The system under test: an embedded PostgreSQL and API processes on a scratch folder, and what they use up.

Nothing here needs the engine: pages and watches are served by `api` processes alone, started as in production
(`python -m workers api`). CPU and memory are read from /proc, so a busy machine falsifies neither.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import asyncpg

from controlplane.settings import Settings
from workers.engines.child import free_port, start_child, stop_child
from workers.engines.postgres import EmbeddedPostgres
from workers.initialise import initialise

READY_SECONDS_MAX = 120
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Installation:
    """A database with an admin's key, and the settings that its API processes share."""

    folder: Path
    postgres: EmbeddedPostgres
    settings: Settings
    key: str

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}

    def database_cpu_seconds(self) -> float:
        """What PostgreSQL has used so far, backends that ended included."""
        pid = self.postgres.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return _cpu_seconds(pid, ended_children=True) + sum(_cpu_seconds(int(child)) for child in children)


async def install(folder: Path) -> Installation:
    """Start PostgreSQL on the folder and make the tables and the key."""
    server = EmbeddedPostgres(folder / "postgres", port=free_port(), password="bench", log=folder / "postgres.log")
    await server.start()
    # Only this tells when a change was committed; it costs a few bytes a transaction and needs a restart.
    admin = await asyncpg.connect(server.url)
    await admin.execute("ALTER SYSTEM SET track_commit_timestamp = on")
    # What it does in the background would be counted to whichever page is asked for then; the fill does that work.
    await admin.execute("ALTER SYSTEM SET autovacuum = off")
    await admin.close()
    server.stop()
    await server.start()
    settings = Settings(
        database_url=server.url,
        data_dir=folder,
        secret_key=secrets.token_hex(32),
        node_token=secrets.token_hex(32),
        # Nobody starts workflows here, so the calls of a fill must not count as lagging.
        engine_lag_calls_max=1_000_000,
        engine_lag_seconds_max=86_400,
    )
    key_file = folder / "admin.key"
    await initialise(settings, key_file)
    return Installation(folder, server, settings, key_file.read_text().strip())


@dataclass(frozen=True)
class ApiProcess:
    """One running API process."""

    process: subprocess.Popen[bytes]
    url: str

    def cpu_seconds(self) -> float:
        return _cpu_seconds(self.process.pid)

    def memory_bytes(self) -> int:
        """Its resident memory."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise RuntimeError("the API process has ended")


@contextmanager
def api_process(installation: Installation, name: str) -> Iterator[ApiProcess]:
    """An API process until the block is left; call `ready` before it is used."""
    settings, port = installation.settings, free_port()
    chosen = {
        "database_url": settings.database_url,
        "data_dir": str(settings.data_dir),
        "secret_key": settings.secret_key.get_secret_value(),
        "node_token": settings.node_token.get_secret_value(),
        "engine_lag_calls_max": str(settings.engine_lag_calls_max),
        "engine_lag_seconds_max": str(settings.engine_lag_seconds_max),
        "http_port": str(port),
    }
    environment = {f"NODUS_SERVER_{field.upper()}": value for field, value in chosen.items()}
    process = start_child(
        [sys.executable, "-m", "workers", "api"],
        environment={**os.environ, **environment},
        log=installation.folder / f"{name}.log",
    )
    try:
        yield ApiProcess(process, f"http://127.0.0.1:{port}")
    finally:
        stop_child(process)


async def ready(process: ApiProcess) -> None:
    """Wait until the process serves."""
    until = time.monotonic() + READY_SECONDS_MAX
    async with aiohttp.ClientSession() as client:
        while True:
            try:
                async with client.get(f"{process.url}/readyz") as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientConnectionError:
                pass
            if process.process.poll() is not None or time.monotonic() > until:
                raise RuntimeError("an API process did not become ready; see its log in the bench's folder")
            await asyncio.sleep(0.05)


def _cpu_seconds(pid: int, *, ended_children: bool = False) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(map(int, fields[11 : 15 if ended_children else 13])) / _TICKS
