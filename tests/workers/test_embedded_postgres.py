"""The embedded PostgreSQL as `up` uses it: in a folder that nobody else may enter, through every kind of end."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import psutil
import pytest

from controlplane.store.migrate import migrate
from tests.fixtures.eventually import eventually
from workers.engines.child import free_port
from workers.engines.postgres import EmbeddedPostgres
from workers.state import StateFolder

PASSWORD = "a b'c"
START = """
import asyncio, sys
from pathlib import Path
from workers.engines.postgres import EmbeddedPostgres
from workers.state import StateFolder

folder = StateFolder(Path(sys.argv[1]))
folder.create()
with folder.locked() as lock:
    server = EmbeddedPostgres(folder.postgres, port=1, password="x", log=folder.logs / "log", inherit=(lock,))
    asyncio.run(server.start())
"""


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedPostgres]:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    started = EmbeddedPostgres(closed / "postgres", port=free_port(), password=PASSWORD, log=tmp_path / "log")
    await started.start()
    yield started
    started.stop()


async def rows(server: EmbeddedPostgres, sql: str) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(
        host="127.0.0.1", port=server.port, user="nodus", password=PASSWORD, database="nodus"
    )
    try:
        found: list[asyncpg.Record] = await connection.fetch(sql)
        return found
    finally:
        await connection.close()


def has_program(pid: int) -> bool:
    try:
        return bool(Path(f"/proc/{pid}/exe").readlink())
    except OSError:
        return False


async def test_it_runs_without_root_and_with_no_capability(server: EmbeddedPostgres) -> None:
    status = dict(
        line.split(":", 1)
        for line in Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
        if ":" in line
    )
    assert status["Uid"].split()[0] != "0"
    assert int(status["CapEff"], 16) == 0


async def test_what_was_committed_survives_a_kill_and_a_stop(server: EmbeddedPostgres) -> None:
    await rows(server, "CREATE TABLE kept (value int)")
    await rows(server, "INSERT INTO kept VALUES (1)")
    server.process.kill()
    server.process.wait()
    await server.start()
    await rows(server, "INSERT INTO kept VALUES (2)")
    server.stop()
    assert server.process.returncode == 0
    await server.start()
    assert [row["value"] for row in await rows(server, "SELECT value FROM kept ORDER BY value")] == [1, 2]


async def test_a_backend_that_outlived_a_killed_server_does_not_stop_the_next(server: EmbeddedPostgres) -> None:
    """As one in the middle of a query does, which does not look around."""
    [row] = await rows(server, "SELECT pid AS value FROM pg_stat_activity WHERE backend_type = 'checkpointer'")
    psutil.Process(row["value"]).suspend()
    server.process.kill()
    server.process.wait()
    await server.start()
    assert await rows(server, "SELECT 1 AS value")
    assert not has_program(row["value"])


async def test_a_pid_file_whose_process_is_another_program_does_not_stop_it(server: EmbeddedPostgres) -> None:
    server.process.kill()
    server.process.wait()
    lines = (server.folder / "postmaster.pid").read_text().splitlines()
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        (server.folder / "postmaster.pid").write_text("\n".join([str(other.pid), *lines[1:]]) + "\n")
        await server.start()
        assert await rows(server, "SELECT 1 AS value")
    finally:
        other.communicate(b"\n")


async def test_the_password_is_asked_for_and_on_no_command_line(server: EmbeddedPostgres) -> None:
    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncpg.connect(host="127.0.0.1", port=server.port, user="nodus", password="no", database="nodus")
    assert PASSWORD.encode() not in Path(f"/proc/{server.process.pid}/cmdline").read_bytes()


async def test_a_port_that_is_taken_is_told_with_the_servers_own_words(
    tmp_path: Path, server: EmbeddedPostgres
) -> None:
    second = EmbeddedPostgres(tmp_path / "second", port=server.port, password="x", log=tmp_path / "second.log")
    with pytest.raises(RuntimeError, match=r"PostgreSQL did not start: .*could not create any TCP/IP sockets"):
        await second.start()


def test_only_root_needs_another_user() -> None:
    # The other branch runs wherever the suite runs without root; both must keep working.
    assert (os.geteuid() == 0) == bool(EmbeddedPostgres(Path("x"), port=1, password="", log=Path("y"))._account)


async def test_a_creation_that_was_killed_halfway_does_not_stop_the_next_start(tmp_path: Path) -> None:
    half = tmp_path / "postgres.new"
    (half / "base").mkdir(parents=True)
    (half / "PG_VERSION").write_text("18\n")
    started = EmbeddedPostgres(tmp_path / "postgres", port=free_port(), password=PASSWORD, log=tmp_path / "log")
    await started.start()
    try:
        assert await rows(started, "SELECT 1 AS value")
        assert not half.exists()
    finally:
        started.stop()


async def test_a_killed_creation_has_ended_before_the_folder_is_free_for_the_next(tmp_path: Path) -> None:
    maker = subprocess.Popen([sys.executable, "-c", START, str(tmp_path / "data")])
    making: list[psutil.Process] = []

    def at_work() -> bool:
        making[:] = psutil.Process(maker.pid).children(recursive=True)
        return any(
            "PG_VERSION" in name for _, _, names in os.walk(tmp_path / "data" / "postgres.new") for name in names
        )

    await eventually(at_work)
    maker.kill()
    maker.wait()
    folder = StateFolder(tmp_path / "data")
    with folder.locked() as lock:
        assert making
        # One that is about to be gone holds nothing any more, no program either.
        assert [one for one in making if has_program(one.pid)] == []
        started = EmbeddedPostgres(
            folder.postgres, port=free_port(), password=PASSWORD, log=folder.logs / "log", inherit=(lock,)
        )
        await started.start()
        try:
            assert await rows(started, "SELECT 1 AS value")
        finally:
            started.stop()


async def test_processes_of_this_machine_reach_it_over_a_socket(server: EmbeddedPostgres) -> None:
    connection = await asyncpg.connect(server.local_url)
    try:
        assert await connection.fetchval("SELECT inet_client_addr() IS NULL")
    finally:
        await connection.close()
    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncpg.connect(server.local_url, password="no")
    assert "%2F" in server.local_url
    await migrate(server.local_url)


def test_a_folder_whose_path_is_too_long_for_a_socket_is_reached_over_tcp(tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path / ("x" * 100), port=free_port(), password=PASSWORD, log=tmp_path / "log")
    assert server.local_url == server.url
