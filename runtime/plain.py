"""Workers without a sandbox: isolation level none, for hosts that can make none and code that may see its host.

A worker is then a process of the host like any other, under `init.py` as in a sandbox: same orders, same limits, same
pipes, same drain. It has a private folder instead of a file tree, the node's network instead of none, and, where the
node is root, a user of its own; it cannot gain rights by programs that would give them. `strays.py` ends what it leaves
behind. What cannot be kept without walls is refused in `unwalled.py`. A node does this only where its operator has
allowed it (docs/decisions/0037-level-none-must-be-asked-for.md).

When the node dies, the end of the control pipe tells init, which ends the worker and its descendants; a next node ends
what escaped (`reap`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import structlog

from runtime import sandbox, strays, trees
from runtime.cells import Cell
from runtime.networks import HeldNetwork
from runtime.pipes import Descriptors, first_word, readable, what_is_left, write_all
from runtime.places import Places
from runtime.process import INIT_SOURCE, Command, Ending, ending_of, grant_orders, init_config, runs
from runtime.sandbox import SandboxSpec, SandboxUnavailableError
from runtime.templates import Template
from runtime.uids import LEASE_FOLDER, take_uid

START_SECONDS_MAX = 30
_HOME = "home"
_RECORD = "process"
"""Of a cell: which process it holds, for a node that starts after ours has died."""

log = structlog.get_logger(__name__)


class PlainLauncher:
    """Starts workers as plain processes."""

    def places(self, template: Template, cell: Cell) -> Places:
        """Folders of the host that are the worker's alone, beside the one of its sockets."""
        home = _home(cell)
        return Places(
            environment=template.environment,
            code=home / "code",
            workspace=home / "workspace",
            run=cell.run_directory,
            temporary=home / "tmp",
        )

    async def start(self, template: Template, command: Command, cell: Cell) -> PlainProcess:
        """See Launcher. What a sandbox would mount is not there; accelerators are the host's devices."""
        descriptors = Descriptors()
        return await self._start(template, command, cell, descriptors, None)

    async def start_waiting(self, template: Template, command: Command, cell: Cell) -> PlainProcess:
        """See Launcher."""
        descriptors = Descriptors()
        return await self._start(template, command, cell, descriptors, descriptors.pipe_to_child())

    async def _start(
        self,
        template: Template,
        command: Command,
        cell: Cell,
        descriptors: Descriptors,
        grant: tuple[int, int] | None,
    ) -> PlainProcess:
        ours, inherited = (-1, []) if grant is None else (grant[0], [grant[1]])
        command = _outside(template, command, cell, inherited)
        try:
            orders = init_config(command)
            _make_home(self.places(template, cell), cell)
            process, config = _spawn(command, cell, descriptors, (ours, inherited))
        except BaseException as error:
            descriptors.close()
            if isinstance(error, (ValueError, OSError)):
                raise SandboxUnavailableError(f"a worker could not be started: {error}") from error
            raise
        descriptors.close_child_ends()
        try:
            try:
                async with asyncio.timeout(START_SECONDS_MAX):
                    cell.group.add(process.pid)
                    _record(cell, process.pid)
                    # Only now, when it is in its group and on record, init learns what to start.
                    await write_all(config, orders)
            finally:
                os.close(config)
            async with asyncio.timeout(START_SECONDS_MAX):
                await process.begun()
        except BaseException as error:
            process.kill()
            await process.wait()
            reason = what_is_left(process.stderr).decode(errors="replace").strip()
            process.close_output()
            if isinstance(error, (ValueError, OSError, TimeoutError)):
                raise SandboxUnavailableError(
                    reason.removeprefix("init: ") or f"a worker could not be started: {error}"
                ) from error
            raise
        return process


class PlainProcess:
    """A worker without a sandbox; its verbs are those of `SandboxProcess`."""

    def __init__(
        self,
        popen: subprocess.Popen[bytes],
        cell: Cell,
        control: int,
        status: int,
        stdout: int,
        stderr: int,
        grant: int,
    ) -> None:
        self._popen = popen
        self._pidfd = os.pidfd_open(popen.pid)
        self._cell = cell
        self._control, self._status, self._grant = control, status, grant
        self._started_at = time.monotonic()
        self._told = b""
        self.stdout = stdout
        self.stderr = stderr

    async def begun(self) -> None:
        """Wait for init's first word; ValueError when it ended without one."""
        self._told = await first_word(self._status)

    @property
    def pid(self) -> int:
        """The pid of init."""
        return self._popen.pid

    @property
    def alive(self) -> bool:
        """Whether init runs still."""
        return runs(self._pidfd)

    def hold_network(self, spec: SandboxSpec) -> HeldNetwork | None:
        """None: all are in the host's."""
        return None

    async def grant(self, environment: Mapping[str, str], directory: str) -> None:
        """Give a waiting worker its variables and its folder. Raises ValueError on a NUL, OSError when it is gone."""
        orders = grant_orders(environment, directory)
        self._started_at = time.monotonic()
        await write_all(self._grant, orders)
        os.close(self._grant)
        self._grant = -1

    def terminate(self) -> None:
        """Pass SIGTERM to the worker itself."""
        with contextlib.suppress(OSError):
            os.write(self._control, b"T")

    def kill(self) -> None:
        """SIGKILL the worker and everything it has started, init last: it adopts what loses its parent meanwhile."""
        if self._pidfd >= 0:
            strays.kill(self.pid, self._cell.uid)
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    async def wait(self) -> Ending:
        """Wait until init has ended and nothing of the worker is left, its folders included. Call once."""
        await readable(self._pidfd)
        ran_seconds = time.monotonic() - self._started_at
        if self._popen.returncode is None:
            # Until it is waited for, no other process has its number.
            left = await strays.gone(self.pid, self._cell.uid)
            if left:
                log.error("processes of a worker would not end", pids=left)
        code = self._popen.wait()
        await trees.to_end(_remove_home, self._cell)
        self._told += what_is_left(self._status)
        for descriptor in (self._pidfd, self._control, self._status, self._grant):
            if descriptor >= 0:
                os.close(descriptor)
        self._pidfd = self._control = self._status = self._grant = -1
        return ending_of(code, self._told.decode(errors="replace").splitlines(), ran_seconds)

    def close_output(self) -> None:
        """Close both output pipes; for callers that do not hand them to a log reader."""
        os.close(self.stdout)
        os.close(self.stderr)


def _spawn(
    command: Command, cell: Cell, descriptors: Descriptors, grant: tuple[int, list[int]]
) -> tuple[PlainProcess, int]:
    """Start init as the worker's user, in a session of its own; returns the process and where its orders go."""
    config, config_child = descriptors.pipe_to_child()
    control, control_child = descriptors.pipe_to_child()
    status, status_child = descriptors.pipe_from_child()
    stdout, stdout_child = descriptors.pipe_from_child()
    stderr, stderr_child = descriptors.pipe_from_child()
    ours, inherited = grant
    popen = subprocess.Popen(
        [str(command.python), "-I", "-S", "-c", INIT_SOURCE, str(config_child), str(status_child)],
        env=sandbox.BWRAP_ENVIRONMENT,
        pass_fds=[config_child, status_child, *inherited, *command.inherited],
        stdin=control_child,
        stdout=stdout_child,
        stderr=stderr_child,
        cwd="/",
        start_new_session=True,
        umask=0o077,
        user=cell.uid,
        group=cell.uid,
        extra_groups=None if cell.uid is None else [],
    )
    return PlainProcess(popen, cell, control, status, stdout, stderr, ours), config


def _outside(template: Template, command: Command, cell: Cell, inherited: Iterable[int]) -> Command:
    """The command as it is outside: on the environment where that lies, and without ports of its own.

    Processes of the node's user are counted with those of the server, so where they share one no limit is set.
    """
    python = command.python
    if python.is_relative_to(sandbox.ENVIRONMENT):
        python = template.environment / python.relative_to(sandbox.ENVIRONMENT)
    arguments = [str(python) if word == str(command.python) else word for word in command.arguments]
    return replace(
        command,
        python=python,
        arguments=[*arguments, *map(str, inherited)],
        bridges={},
        processes_max=None if cell.uid is None else command.processes_max,
        plain=True,
    )


def _home(cell: Cell) -> Path:
    return cell.run_directory.parent / _HOME


def _make_home(places: Places, cell: Cell) -> None:
    """Make the worker's folders, for its user alone, below one that others may pass but not list."""
    home = _home(cell)
    home.parent.chmod(0o711)
    home.mkdir(mode=0o711)
    home.chmod(0o711)
    for folder in (places.code, places.workspace, places.temporary):
        assert folder is not None
        folder.mkdir(mode=0o700)
        if cell.uid is not None:
            os.chown(folder, cell.uid, cell.uid)


def _remove_home(cell: Cell) -> None:
    home = str(_home(cell))
    try:
        # A worker that is the node's own user may have closed folders of its own to it.
        subprocess.run(["chmod", "-R", "u+rwX", "--", home], check=True, stdin=subprocess.DEVNULL, capture_output=True)
        trees.remove(_home(cell))
    except subprocess.CalledProcessError as error:
        log.warning("a worker's folder was not removed", folder=home, problem=error.stderr.decode().strip())


def _record(cell: Cell, pid: int) -> None:
    uid = "" if cell.uid is None else cell.uid
    record = cell.run_directory.parent / _RECORD
    record.touch(mode=0o600)
    record.write_text(f"{pid} {strays.started_at(pid)} {uid}".strip())


async def reap(folders: Iterable[Path], leases: Path = LEASE_FOLDER) -> None:
    """End what workers of a node that died have left in these folders of cells, and remove their homes."""
    for folder in folders:
        for record in (*folder.glob(_RECORD), *folder.glob(f"*/{_RECORD}")):
            await _reap(record.read_text().split(), leases)
        for home in (*folder.glob(_HOME), *folder.glob(f"*/{_HOME}")):
            await trees.to_end(shutil.rmtree, home, True)


async def _reap(recorded: list[str], leases: Path) -> None:
    match recorded:
        case [pid, started, *uids] if pid.isdigit():
            # Another server of this host may have the uid by now; then nothing of ours has it.
            lease = take_uid(int(uids[0]), leases) if uids else None
            try:
                if strays.started_at(int(pid)) == started:
                    strays.kill(int(pid), None)
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)
                if lease is not None:
                    await strays.gone(None, lease.uid)
            finally:
                if lease is not None:
                    lease.release()
        case _:
            pass  # It died before it had written it: init had no orders yet, and ended.
