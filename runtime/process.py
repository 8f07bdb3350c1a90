"""Start, signal and outlive one sandboxed process.

bubblewrap is started with an empty environment and its options in a memory file; it holds the new process until its
control group is set. `init.py` inside gets its orders the same way and reports over a pipe how the worker ended,
because bubblewrap's own exit code cannot tell `exit(137)` from a SIGKILL. Everything ends with this process:
bubblewrap and its PID 1 ask the kernel for a signal at our death, and the end of the control pipe tells init.

The kernel ties that signal to the *thread* that started bubblewrap, so start workers from a thread that lives as long
as the process: the one that runs the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from runtime import sandbox
from runtime.cgroups import Cgroup, Limits
from runtime.networks import HeldNetwork
from runtime.pipes import Descriptors, first_word, read_until_closed, readable, what_is_left, write_all
from runtime.sandbox import SandboxSpec, SandboxUnavailableError, Tools

BRIDGE_PORT = 3128
"""Loopback port inside every sandbox that leads to the API; the API names it in the blob URLs it signs for workers."""
EGRESS_PORT = 3129
"""Loopback port that leads to the egress proxy; of an attempt that may reach nothing, to nothing."""
BRIDGES: Mapping[int, Path] = {BRIDGE_PORT: sandbox.API_SOCKET, EGRESS_PORT: sandbox.EGRESS_SOCKET}
_SETUP_SECONDS_MAX = 30
INIT_SOURCE = Path(__file__).with_name("init.py").read_text()


@dataclass(frozen=True, kw_only=True)
class Command:
    """What init starts: an argv inside the sandbox, the whole environment of the worker, its folder and its limits.

    `bridges` are loopback ports and the unix sockets inside that they lead to; `inherited` are descriptors that the
    process finds under the same numbers. `preparation` is an argv that must end with 0 before, within its time.
    `processes_max`, of all that its user has, and `data_bytes_max`, of each process, stand in for a control group.
    `plain` tells that no sandbox is around it.
    """

    python: Path
    arguments: Sequence[str]
    environment: Mapping[str, str]
    directory: str
    files_max: int = 4_096
    file_bytes_max: int = 8 << 30
    processes_max: int | None = None
    data_bytes_max: int | None = None
    bridges: Mapping[int, Path] = field(default_factory=lambda: BRIDGES)
    inherited: Sequence[int] = ()
    preparation: Sequence[str] = ()
    preparation_seconds_max: int = 0
    plain: bool = False


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How the process ended: one of `exit_code` and `signal` is set.

    `unprepared` says what became of the preparation when it failed; the process itself never was then.
    """

    exit_code: int | None
    signal: int | None
    ran_seconds: float
    unprepared: str | None = None


def init_config(command: Command) -> bytes:
    """The orders of `init.py`: fields between NULs, so the interpreter inside needs no JSON. ValueError on a NUL."""
    head = [command.directory, " ".join(f"{port}={path}" for port, path in command.bridges.items())]
    head += [str(command.files_max), str(command.file_bytes_max)]
    head += ["" if value is None else str(value) for value in (command.processes_max, command.data_bytes_max)]
    head += ["plain" if command.plain else "", str(command.preparation_seconds_max)]
    head += [str(len(command.preparation)), str(len(command.arguments))]
    variables = [f"{name}={value}" for name, value in command.environment.items()]
    fields = [*head, *command.preparation, *command.arguments, *variables]
    if any("\0" in field for field in fields):
        raise ValueError("a variable or argument must not contain a NUL character")
    return "\0".join(fields).encode(errors="surrogateescape")


def limited(command: Command, limits: Limits, by_group: frozenset[str]) -> Command:
    """`command` with those of `limits` that no control group of this host can set (`Cgroups.limits`), as far as the
    kernel limits single processes and users."""
    return replace(
        command,
        processes_max=None if "pids" in by_group else limits.pids_max,
        data_bytes_max=None if "memory" in by_group else limits.memory_bytes_max,
    )


def grant_orders(environment: Mapping[str, str], directory: str) -> bytes:
    """The orders of a waiting worker: folder and variables between NULs. ValueError on a NUL inside."""
    fields = [directory, *(f"{name}={value}" for name, value in environment.items())]
    if any("\0" in field for field in fields):
        raise ValueError("a variable or folder must not contain a NUL character")
    return "\0".join(fields).encode(errors="surrogateescape")


class SandboxProcess:
    """A running sandbox. `stdout` and `stderr` are descriptors to read from; whoever takes them closes them."""

    def __init__(
        self, popen: subprocess.Popen[bytes], control: int, status: int, stdout: int, stderr: int, grant: int
    ) -> None:
        self._popen = popen
        self._pidfd = os.pidfd_open(popen.pid)
        self._inner = self._inner_pidfd = -1
        self._control = control
        self._status = status
        self._grant = grant
        self._started_at = time.monotonic()
        self._told = b""
        self.stdout = stdout
        self.stderr = stderr

    @classmethod
    async def start(cls, spec: SandboxSpec, command: Command, tools: Tools, cgroup: Cgroup | None) -> SandboxProcess:
        """Make the sandbox, put it into `cgroup`, let the worker go and return when it has begun.

        Raises SandboxUnavailableError with bubblewrap's or init's own words when it does not come so far.
        """
        return await cls._start(spec, command, tools, cgroup, Descriptors(), None)

    @classmethod
    async def start_waiting(
        cls, spec: SandboxSpec, command: Command, tools: Tools, cgroup: Cgroup | None
    ) -> SandboxProcess:
        """The same for a worker that waits for `grant`: its last argument is the descriptor to read its orders from."""
        descriptors = Descriptors()
        return await cls._start(spec, command, tools, cgroup, descriptors, descriptors.pipe_to_child())

    @classmethod
    async def _start(
        cls,
        spec: SandboxSpec,
        command: Command,
        tools: Tools,
        cgroup: Cgroup | None,
        descriptors: Descriptors,
        grant: tuple[int, int] | None,
    ) -> SandboxProcess:
        try:
            process, info, gate = _spawn(spec, command, tools, descriptors, grant)
        except BaseException:
            descriptors.close()
            raise
        descriptors.close_child_ends()
        told = asyncio.create_task(read_until_closed(info))
        try:
            async with asyncio.timeout(_SETUP_SECONDS_MAX):
                process._hold_inner(await asyncio.shield(told), cgroup)
                os.write(gate, b"g")
                await process._worker_started()
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                # Killed while it forks, bubblewrap would leave a child behind that nobody knows.
                await asyncio.wait((told,), timeout=_SETUP_SECONDS_MAX)
                with contextlib.suppress(ValueError, OSError, asyncio.InvalidStateError):
                    process._hold_inner(told.result(), None)
            process.kill()
            await process.wait()
            reason = what_is_left(process.stderr).decode(errors="replace").strip()
            process.close_output()
            if isinstance(error, (ValueError, OSError, TimeoutError)):
                # What init says itself is about the worker and not about the sandbox, which it is in already.
                said = reason.removeprefix("init: ")
                problem = said if said != reason else f"a sandbox could not be made: {reason or error}"
                raise SandboxUnavailableError(problem) from error
            raise
        finally:
            told.cancel()
            await asyncio.wait((told,))
            os.close(info)
            os.close(gate)
        return process

    def _hold_inner(self, info: bytes, cgroup: Cgroup | None) -> None:
        """Take hold of the sandbox's PID 1, which is alive until we open the gate; ValueError when there is none."""
        self._inner = int(json.loads(info)["child-pid"])
        if self._inner_pidfd < 0:
            self._inner_pidfd = os.pidfd_open(self._inner)
        if cgroup is not None:
            cgroup.add(self._inner)

    async def _worker_started(self) -> None:
        """Wait for init's first word; ValueError when the sandbox ended without one."""
        self._told = await first_word(self._status)

    @property
    def pid(self) -> int:
        """The pid of bubblewrap on the host."""
        return self._popen.pid

    @property
    def alive(self) -> bool:
        """Whether it still runs; false as soon as it has ended, however long ago."""
        return runs(self._pidfd)

    def hold_network(self, spec: SandboxSpec) -> HeldNetwork:
        """Keep the network of this sandbox, which was made of `spec`, also beyond its end, so that others may join it.

        The caller closes it. Raises OSError when the sandbox is gone.
        """
        held = HeldNetwork.of(self._inner, own_user_namespace=spec.uid is None)
        if not runs(self._inner_pidfd):
            # Its number may have been somebody else's by now.
            held.close()
            raise ProcessLookupError("the sandbox has ended")
        return held

    async def grant(self, environment: Mapping[str, str], directory: str) -> None:
        """Give a waiting worker its variables and its folder; its life counts from now. Call once.

        Raises ValueError on a NUL, OSError when the worker is gone.
        """
        orders = grant_orders(environment, directory)
        self._started_at = time.monotonic()
        await write_all(self._grant, orders)
        os.close(self._grant)
        self._grant = -1

    def terminate(self) -> None:
        """Pass SIGTERM to the worker itself; bubblewrap would die of it and take the worker along at once."""
        with contextlib.suppress(OSError):
            os.write(self._control, b"T")

    def kill(self) -> None:
        """SIGKILL everything inside: the kernel ends a pid namespace with its first process."""
        for pidfd in (self._inner_pidfd, self._pidfd):
            if pidfd >= 0:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)

    async def wait(self) -> Ending:
        """Wait until nothing of the sandbox is left, release what is held for it and tell how it ended. Call once."""
        await readable(self._pidfd)
        ran_seconds = time.monotonic() - self._started_at
        code = self._popen.wait()
        self.kill()
        if self._inner_pidfd >= 0:
            await readable(self._inner_pidfd)
        self._told += what_is_left(self._status)
        for descriptor in (self._pidfd, self._inner_pidfd, self._control, self._status, self._grant):
            if descriptor >= 0:
                os.close(descriptor)
        self._pidfd = self._inner_pidfd = self._control = self._status = self._grant = -1
        return ending_of(code, self._told.decode(errors="replace").splitlines(), ran_seconds)

    def close_output(self) -> None:
        """Close both output pipes; for callers that do not hand them to a log reader."""
        os.close(self.stdout)
        os.close(self.stderr)


def runs(pidfd: int) -> bool:
    """Whether the process behind a pidfd has not ended."""
    ended = select.poll()
    ended.register(pidfd, select.POLLIN)
    return not ended.poll(0)


def ending_of(code: int, told: Sequence[str], ran_seconds: float) -> Ending:
    """Join the exit code of bubblewrap, or of init where there is none, with what init said, which is believed only
    where the code allows it."""
    number: int | None = None
    if code < 0:
        number = -code
    elif f"signalled {code - 128}" in told:
        number = code - 128
    elif code == 128 + signal.SIGKILL and not any(line.startswith("exited") for line in told):
        # init itself was killed, by us or for want of memory, before it could say anything.
        number = signal.SIGKILL
    return Ending(
        exit_code=None if number is not None else code,
        signal=number,
        ran_seconds=ran_seconds,
        unprepared=_unprepared(told),
    )


def _unprepared(told: Sequence[str]) -> str | None:
    """What init said of a preparation that failed, as the rest of a sentence."""
    if any(line.startswith("started") for line in told):
        return None
    words = next((line.split() for line in told if line.startswith("unprepared")), [])
    match words:
        case [_, "exited", number]:
            return f"exited with code {number}"
        case [_, "signalled", number]:
            return f"was ended by signal {number}"
        case [_, "late", *_]:
            return "did not end in the time it had and was killed"
        case _:
            return None


def _spawn(
    spec: SandboxSpec, command: Command, tools: Tools, descriptors: Descriptors, grant: tuple[int, int] | None
) -> tuple[SandboxProcess, int, int]:
    """Start bubblewrap; returns the process, the descriptor it tells its child's pid on, and the one that lets go.

    `grant` is a pipe whose reading end the worker gets, told by its number.
    """
    ours, inherited = (-1, []) if grant is None else (grant[0], [grant[1]])
    command = replace(command, arguments=[*command.arguments, *map(str, inherited)])
    files = {**sandbox.identity_files(spec.uid or sandbox.UNPRIVILEGED_UID), sandbox.INIT: INIT_SOURCE.encode()}
    held = {path: descriptors.memory(content) for path, content in files.items()}
    filter_descriptor = descriptors.memory(tools.filter)
    config = descriptors.memory(init_config(command))
    info, info_child = descriptors.pipe_from_child()
    gate, gate_child = descriptors.pipe_to_child()
    control, control_child = descriptors.pipe_to_child()
    status, status_child = descriptors.pipe_from_child()
    stdout, stdout_child = descriptors.pipe_from_child()
    stderr, stderr_child = descriptors.pipe_from_child()
    options = sandbox.options(spec, held, filter_descriptor)
    options += ["--info-fd", str(info_child), "--block-fd", str(gate_child)]
    arguments = descriptors.memory("\0".join(options).encode())
    inner = [str(command.python), "-I", "-S", str(sandbox.INIT), str(config), str(status_child)]
    popen = subprocess.Popen(
        [*sandbox.launcher(spec, tools, arguments), *sandbox.command_prefix(spec, tools), *inner],
        env=sandbox.BWRAP_ENVIRONMENT,
        pass_fds=[
            *held.values(),
            filter_descriptor,
            config,
            arguments,
            info_child,
            gate_child,
            status_child,
            *inherited,
            *command.inherited,
        ],
        stdin=control_child,
        stdout=stdout_child,
        stderr=stderr_child,
    )
    return SandboxProcess(popen, control, status, stdout, stderr, ours), info, gate
