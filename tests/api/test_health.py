"""Readiness follows the change feed: a process that does not learn of changes is sent no requests, or ends."""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import asyncpg

from tests.fixtures.app import ServedApi, api_settings, serve
from tests.fixtures.eventually import eventually
from workers.engines.child import free_port
from workers.engines.temporal import EmbeddedTemporal
from workers.health import api_is_ready

GAP = (
    "INSERT INTO changes (rv, time, type, kind, org, project, name, uid, labels, fields, doc) "
    "SELECT rv + 1000, now(), 'ADDED', 'Thing', 'acme', 'default', 'x', 'u', '{}', '{}', '{}' FROM meta"
)
"""Something that no part of the server does; the feed must not go on over it. What the process itself writes meanwhile
does not fill it."""


async def _says(api: ServedApi, status: int, line: str) -> bool:
    answer = await api.client.get("/readyz")
    return answer.status_code == status and answer.text.splitlines()[0] == line


async def test_a_process_that_cannot_read_changes_is_not_ready_until_it_can(database_url: str, tmp_path: Path) -> None:
    settings = api_settings(database_url, tmp_path, change_stale_seconds=0.3, change_poll_seconds=0.05)
    blocker = await asyncpg.connect(database_url)
    async with serve(settings) as api:
        await eventually(lambda: _says(api, 200, "ok"))
        async with blocker.transaction():
            await blocker.execute("LOCK TABLE changes IN ACCESS EXCLUSIVE MODE")
            await eventually(lambda: _says(api, 503, "changes"))
        await eventually(lambda: _says(api, 200, "ok"))
    await blocker.close()


def start_process(name: str, settings: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    told = {f"NODUS_SERVER_{setting.upper()}": value for setting, value in settings.items()}
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "workers", name], env={**os.environ, **told}, stdout=output, stderr=output
        )


async def code_of(process: subprocess.Popen[bytes]) -> int:
    try:
        await eventually(lambda: process.poll() is not None)
    finally:
        process.kill()
    return process.wait()


async def test_an_api_whose_feed_ends_says_so_and_ends(database_url: str, tmp_path: Path) -> None:
    port = free_port()
    settings = {
        "database_url": database_url,
        "data_dir": str(tmp_path),
        "secret_key": secrets.token_hex(32),
        "http_port": str(port),
    }
    process = start_process("api", settings, tmp_path / "log")
    try:
        await eventually(lambda: api_is_ready(port))
        connection = await asyncpg.connect(database_url)
        await connection.execute(GAP)
        await connection.close()
    finally:
        code = await code_of(process)
    told = (tmp_path / "log").read_text()
    assert code == 1, told
    assert "no longer learns of changes" in told


async def test_a_control_process_whose_feed_ends_says_so_and_ends(database_url: str, tmp_path: Path) -> None:
    engine = EmbeddedTemporal(tmp_path / "temporal", log=tmp_path / "engine.log")
    await engine.start()
    settings = {
        "database_url": database_url,
        "data_dir": str(tmp_path),
        "secret_key": secrets.token_hex(32),
        "temporal_address": engine.address,
    }
    process = start_process("control", settings, tmp_path / "log")
    try:
        await eventually(lambda: "started" in (tmp_path / "log").read_text())
        connection = await asyncpg.connect(database_url)
        await connection.execute(GAP)
        await connection.close()
    finally:
        code = await code_of(process)
        await asyncio.to_thread(engine.stop)
    told = (tmp_path / "log").read_text()
    assert code == 1, told
    assert "this process ends" in told
