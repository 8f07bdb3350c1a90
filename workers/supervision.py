"""Keeping processes alive: start in order, start again what dies, stop in the opposite order.

A `Unit` is one process with its own idea of "ready" (an engine of `workers/engines/`, or a `ServerProcess` below). The
supervisor learns of a death from the kernel (a pidfd), starts the unit again with growing pauses, and gives up with a
clear message when it dies too often: a process that cannot run should not look like one that does.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from workers.engines.child import start_child

DEATHS_MAX = 5
DEATHS_WINDOW_SECONDS = 60.0
PAUSE_SECONDS_FIRST = 0.2
PAUSE_SECONDS_MAX = 5.0
READY_POLL_SECONDS = 0.1
LOG_CHECK_SECONDS = 10.0
LOG_BYTES_MAX = 16 << 20
TAIL_LINES = 15


class Unit(Protocol):
    """One process that is kept alive."""

    async def start(self) -> None:
        """Start the process and return when it is ready; RuntimeError when it does not come up. May be called again."""

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The process started last."""

    def stop(self) -> None:
        """End the process in its own way and wait for its end; nothing when none runs."""


class GaveUpError(Exception):
    """A unit died too often."""


class ServerProcess:
    """One of our own processes, `python -m workers NAME`, ready when `ready` says so."""

    def __init__(
        self,
        name: str,
        *,
        environment: Mapping[str, str],
        log: Path,
        ready: Callable[[int], Awaitable[bool]],
        ready_seconds_max: float,
        stop_seconds: float,
        inherit: Sequence[int] = (),
    ) -> None:
        self.name = name
        self._environment = environment
        self._log = log
        self._ready = ready
        self._ready_seconds_max = ready_seconds_max
        self._stop_seconds = stop_seconds
        self._inherit = inherit
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The process; it must have been started."""
        assert self._process is not None, f"{self.name} was not started"
        return self._process

    async def start(self) -> None:
        """Start it and wait until it is ready; RuntimeError with the end of its log when it is not."""
        self._process = start_child(
            [sys.executable, "-m", "workers", self.name],
            environment=self._environment,
            log=self._log,
            # Nothing it holds needs a goodbye (that is what the store is for), and the folder is free again at once.
            death_signal=signal.SIGKILL,
            inherit=self._inherit,
        )
        until = time.monotonic() + self._ready_seconds_max
        # The first question comes after a pause too: whoever starts beside this one is not kept waiting by it.
        await asyncio.sleep(READY_POLL_SECONDS)
        while not await self._ready(self._process.pid):
            if self._process.poll() is not None:
                raise RuntimeError(f"{self.name} ended with code {self._process.returncode}: {tail(self._log)}")
            if time.monotonic() > until:
                self.stop()
                raise RuntimeError(f"{self.name} was not ready in {self._ready_seconds_max:g} s: {tail(self._log)}")
            await asyncio.sleep(READY_POLL_SECONDS)

    def stop(self) -> None:
        """SIGTERM, then SIGKILL to what is left of its group after `stop_seconds`."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(self._stop_seconds)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


@dataclass
class Watched:
    """A unit under supervision and how it fares."""

    name: str
    unit: Unit
    deaths: deque[float] = field(default_factory=lambda: deque(maxlen=DEATHS_MAX))


class Supervisor:
    """The units of one machine, in the order they were started."""

    def __init__(self, tell: Callable[[str], None], logs: Path) -> None:
        self._tell = tell
        self._logs = logs
        self._watched: list[Watched] = []
        self._stopping = False

    async def start(self, name: str, unit: Unit) -> None:
        """Start a unit and keep it alive from then on; RuntimeError when it does not come up."""
        self._watched.append(Watched(name=name, unit=unit))
        await unit.start()

    async def run(self) -> None:
        """Keep every started unit alive until cancelled; raises GaveUpError when one cannot be."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._bound_logs())
            for watched in self._watched:
                group.create_task(self._keep_alive(watched))

    async def stop(self, names: Sequence[str]) -> None:
        """End the named units together; those that never started are passed over."""
        self._stopping = True
        chosen = [watched.unit for watched in self._watched if watched.name in names]
        await asyncio.gather(*(asyncio.to_thread(unit.stop) for unit in chosen))

    def kill(self) -> None:
        """End every unit at once, without a goodbye."""
        for watched in self._watched:
            try:
                process = watched.unit.process
            except AssertionError:
                continue
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)

    async def _keep_alive(self, watched: Watched) -> None:
        while True:
            await ended(watched.unit.process)
            if self._stopping:
                return
            code = watched.unit.process.poll()
            self._tell(f"{watched.name} ended (code {code}), starting it again")
            await self._restart(watched)
            self._tell(f"{watched.name} is back")

    async def _restart(self, watched: Watched) -> None:
        pause = PAUSE_SECONDS_FIRST
        while True:
            self._count_death(watched)
            await asyncio.sleep(pause)
            try:
                await watched.unit.start()
                return
            except RuntimeError as error:
                self._tell(f"{watched.name} did not come back: {error}")
                pause = min(pause * 2, PAUSE_SECONDS_MAX)

    def _count_death(self, watched: Watched) -> None:
        now = time.monotonic()
        watched.deaths.append(now)
        if len(watched.deaths) == DEATHS_MAX and now - watched.deaths[0] < DEATHS_WINDOW_SECONDS:
            log = self._logs / f"{watched.name}.log"
            raise GaveUpError(
                f"{watched.name} ended {DEATHS_MAX} times within {DEATHS_WINDOW_SECONDS:g} s; its log is {log}"
            )

    async def _bound_logs(self) -> None:
        while True:
            for log in self._logs.glob("*.log"):
                bound_log(log)
            await asyncio.sleep(LOG_CHECK_SECONDS)


async def ended(process: subprocess.Popen[bytes]) -> None:
    """Return as soon as the process has ended, whoever reaps it."""
    if process.poll() is not None:
        return
    loop = asyncio.get_running_loop()
    gone = asyncio.Event()
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    loop.add_reader(descriptor, gone.set)
    try:
        await gone.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


async def run_to_end(
    argv: Sequence[str], *, environment: Mapping[str, str], log: Path, inherit: Sequence[int] = ()
) -> None:
    """Run a command that ends by itself; RuntimeError with the end of its log when it fails."""
    process = start_child(argv, environment=environment, log=log, death_signal=signal.SIGKILL, inherit=inherit)
    try:
        await ended(process)
    except asyncio.CancelledError:
        process.kill()
        raise
    finally:
        code = process.wait()
    if code != 0:
        raise RuntimeError(f"{' '.join(argv[1:4])} ended with code {code}: {tail(log)}")


def bound_log(log: Path) -> None:
    """Move a log that has grown too large aside; its writers append, so they go on at the start of the emptied file."""
    if log.stat().st_size <= LOG_BYTES_MAX:
        return
    with log.open("rb") as full, log.with_suffix(".log.1").open("wb") as old:
        old.write(full.read(2 * LOG_BYTES_MAX))
    os.truncate(log, 0)


def tail(log: Path, lines_max: int = TAIL_LINES) -> str:
    """The last lines of a log, for a message."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n".join(lines[-lines_max:]) or "no output"
