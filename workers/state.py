"""The folder in which one machine keeps everything: its locks, secrets and ports.

`up` owns the folder. Secrets are made once, readable by the owner alone, and reach other processes through their
environment, because command lines are readable by every user of the host. Ports are remembered, so yesterday's
`export` lines still work today. Next: `up.py`, which starts the engines and processes on it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from workers.engines.child import free_port, is_free

LEFTOVER_SECONDS_MAX = 20.0
FREE_BYTES_MIN = 512 << 20
SECRET_BYTES = 32
SECRETS = ("secret_key", "node_token", "database_password")
PORTS = ("http", "https", "postgres", "temporal")


class StartError(Exception):
    """Something the operator must change before the system can start; the message is one sentence with its fix."""


class StateFolder:
    """`DIR` of `up --data-dir DIR`."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.logs = self.path / "logs"
        self.postgres = self.path / "postgres"
        self.temporal = self.path / "temporal"
        self.tls = self.path / "tls"
        self.environments = self.path / "environments"
        self.admin_key = self.path / "admin.key"
        self.client_env = self.path / "client.env"
        self.kubeconfig = self.path / "kubeconfig"

    def create(self) -> None:
        """Make the folder, private to its owner. Raises StartError when it cannot be used."""
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            if self.path.stat().st_uid == os.geteuid():
                self.path.chmod(0o700)
            self.logs.mkdir(exist_ok=True, mode=0o700)
            probe = self.path / ".writable"
            probe.write_bytes(b"")
            probe.unlink()
        except OSError as error:
            raise StartError(
                f"{self.path} cannot be written ({error.strerror}): choose a folder of yours with --data-dir"
            ) from error
        free_bytes = shutil.disk_usage(self.path).free
        if free_bytes < FREE_BYTES_MIN:
            raise StartError(
                f"the disk of {self.path} has {free_bytes >> 20} MB left and {FREE_BYTES_MIN >> 20} MB are needed: "
                "free some space, or choose another folder with --data-dir"
            )

    @contextlib.contextmanager
    def locked(self) -> Iterator[int]:
        """Hold the folder; yields a descriptor that every child must inherit.

        Two locks: one says that a supervisor is here, the other is shared with the children and says that one of them
        still lives. After `kill -9` of a supervisor the kernel ends its children, and this waits for that.
        """
        with (self.path / "supervisor.lock").open("a") as mine, (self.path / "processes.lock").open("a") as shared:
            if not _lock(mine.fileno()):
                raise StartError(
                    f"another nodus-server runs on {self.path}: stop it, or choose another folder with --data-dir"
                )
            # Of a run that was killed: scripts take it for the word that everything is up.
            self.client_env.unlink(missing_ok=True)
            until = time.monotonic() + LEFTOVER_SECONDS_MAX
            while not _lock(shared.fileno()):
                if time.monotonic() > until:
                    pids = " ".join(map(str, holders(self.path / "processes.lock")))
                    raise StartError(f"processes of an earlier run still use {self.path}: end them with `kill {pids}`")
                time.sleep(0.05)
            yield shared.fileno()

    def secrets(self) -> dict[str, str]:
        """The secrets of this installation, made at the first start."""
        path = self.path / "secrets.json"
        known: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
        missing = [name for name in SECRETS if not known.get(name)]
        if missing:
            known |= {name: secrets.token_hex(SECRET_BYTES) for name in missing}
            write_private(path, json.dumps(known, indent=2) + "\n")
        return known

    def recorded(self) -> tuple[Mapping[str, str], Mapping[str, int]]:
        """Secrets and ports of the installation as `up` last wrote them; StartError where it never did."""
        try:
            return (
                json.loads((self.path / "secrets.json").read_text()),
                json.loads((self.path / "ports.json").read_text()),
            )
        except FileNotFoundError:
            raise StartError(
                f"{self.path} holds no installation: name the folder that was given to `up --data-dir`"
            ) from None
        except PermissionError as error:
            raise StartError(f"{error.filename} cannot be read: be the user who runs `up`") from None

    def ports(self, http_port: int | None) -> dict[str, int]:
        """A port for each listener: those of the last run where they are free, `http_port` when given."""
        path = self.path / "ports.json"
        last: Mapping[str, int] = json.loads(path.read_text()) if path.exists() else {}
        if http_port is not None and not is_free(http_port):
            raise StartError(f"port {http_port} is in use by another program: choose another with --port")
        chosen = {"http": http_port} if http_port is not None else {}
        for name in PORTS:
            if name not in chosen:
                chosen[name] = self._port(last.get(name), taken=set(chosen.values()))
        write_private(path, json.dumps(chosen, indent=2) + "\n")
        return chosen

    @staticmethod
    def _port(last: int | None, taken: set[int]) -> int:
        if last is not None and last not in taken and is_free(last):
            return last
        while (port := free_port()) in taken:
            pass
        return port


def write_private(path: Path, text: str) -> None:
    """Replace the file at once, readable by its owner alone from its first byte on."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    temporary.replace(path)


def read_private(path: Path) -> str | None:
    """The file's text without its last line break, or None when there is none."""
    return path.read_text().rstrip("\n") if path.exists() else None


def holders(path: Path) -> list[int]:
    """The processes that have the file open, as far as this user may see."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            with contextlib.suppress(OSError):
                if any(path.samefile(link) for link in (process / "fd").iterdir() if link.is_file()):
                    found.append(int(process.name))
    return sorted(found)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
