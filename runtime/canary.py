"""The proof at a node's start that its sandboxes hold: one of them tries what user code must not be able to do.

Features of a kernel can be looked up, and the list be wrong; so the full recipe of a worker is run once, with a program
inside that tries to read the host's files, reach its network, see its processes and gain rights. What it can do is
refused at start with its name. What then holds of every worker is told as `Guarantees`: in the node's log, and in the
status of each Attempt. An operator may demand a level (`isolation_min`); a host that cannot give it runs nothing.
Where the operator has asked for workers without a sandbox, the same program tells what they can do (`look`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from runtime import sandbox
from runtime.cells import Cell
from runtime.cgroups import Cgroups, Limits
from runtime.launching import Launcher, WorkerProcess
from runtime.pipes import what_is_left
from runtime.process import Command, SandboxProcess, limited
from runtime.pythons import Interpreter
from runtime.sandbox import SandboxSpec, SandboxUnavailableError, Tools
from runtime.templates import Template
from runtime.trials import HARMLESS

Level = Literal["none", "basic", "standard", "strong"]
LEVELS: tuple[Level, ...] = ("none", "basic", "standard", "strong")
"""From weak to strong. The last three are the whole sandbox: strong adds a user for each worker and limits that hold
for all of its processes together, standard has one of the two, basic neither. None is no sandbox at all: a host never
comes to it by itself, its operator asks for it."""

_SECONDS_MAX = 30.0
_ANSWER_BYTES_MAX = 65_536
_PIDS_MAX = 16
_MANY_PROCESSES = "start many processes"
_LEVEL_BY_PARTS_MISSING: tuple[Level, ...] = ("strong", "standard", "basic")
_SHARED_USER = "workers share the node's user: run the node as root"
_SCRATCH_BYTES = 1 << 20
_TRIALS = Path(__file__).with_name("trials.py")


@dataclass(frozen=True, kw_only=True)
class Guarantees:
    """What holds of every worker of this host."""

    level: Level
    uid: Literal["per_attempt", "shared"]
    """Whether two workers are two users to the kernel."""
    memory: Literal["hard", "soft"]
    """Hard: of all its processes and files together. Soft: of the data of each process by itself."""
    pids: Literal["hard", "soft", "none"]
    """Hard: by its control group. Soft: by the number that its user may have."""
    cpu: Literal["shared", "none"]
    """Whether each gets its part of the processors when all want them."""
    filter_sha256: str | None
    """Of the seccomp program; None without one."""
    missing: tuple[str, ...] = ()
    """What keeps the host from the next level."""

    def to_json(self, *, proxied: bool = False, disk_bytes: int | None = None) -> dict[str, Any]:
        """As it is told to the API and shown in an Attempt; `proxied` for a worker that the egress proxy serves,
        `disk_bytes` for one whose folders have this size."""
        confined = self.level != "none"
        network = "proxy" if proxied else "none"
        told = {
            **asdict(self),
            "network": network if confined else "host",
            "diskBytes": disk_bytes if confined else None,
            "filterSha256": self.filter_sha256,
            "missing": list(self.missing),
        }
        del told["filter_sha256"]
        return told


async def prove(
    tools: Tools, *, uid: int | None, interpreter: Interpreter, cgroups: Cgroups, directory: Path, wanted: Level
) -> Guarantees:
    """Run the trials in a sandbox and return what they leave standing; takes about a tenth of a second.

    `uid` is one that no worker has, None when this process is not root. Raises SandboxUnavailableError with everything
    that user code could do, or with what the host lacks for `wanted`.
    """
    with _bait(directory) as bait:
        done = await _tried(tools, uid, interpreter, cgroups, bait)
    possible = sorted(name for name, outcome in done.items() if outcome == "done")
    many = _MANY_PROCESSES in possible
    if "pids" not in cgroups.limits and many:
        possible.remove(_MANY_PROCESSES)  # told as a guarantee that is missing
    if possible:
        raise SandboxUnavailableError(f"the sandbox of this host does not hold: code inside can {', '.join(possible)}")
    found = _guarantees(tools, uid, cgroups.limits, many_processes=many)
    _refuse_less(found, wanted)
    return found


async def look(
    launcher: Launcher, *, interpreter: Interpreter, cgroups: Cgroups, directory: Path, own_uid: bool, wanted: Level
) -> Guarantees:
    """What a worker without a sandbox can do on this host, by the trials that harm nobody where they succeed.

    `directory` is one that workers may pass. Raises SandboxUnavailableError when no process comes to be, or when
    `wanted` is more than level none.
    """
    limits = Limits(pids_max=_PIDS_MAX)
    folder = directory / "canary-cell"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    with _bait(directory) as bait:
        cell = Cell.open(folder, name="canary", cgroups=cgroups, own_uid=own_uid, limits=limits)
        try:
            command = limited(_command(interpreter, {**bait, "trials": HARMLESS}), limits, cgroups.limits)
            template = Template(spec=SandboxSpec(uid=None), command=command, environment=interpreter.prefix)
            command = replace(command, directory=launcher.places(template, cell).folder(None))
            done = await _outcomes(await launcher.start(template, command, cell))
        finally:
            cell.close()
            shutil.rmtree(folder, ignore_errors=True)
    possible = sorted(name for name, outcome in done.items() if outcome == "done")
    many = _MANY_PROCESSES in possible
    limited_by_group = cgroups.limits
    pids: Literal["soft", "none"] = "none" if many or not own_uid else "soft"
    walls = f"no sandbox: code inside can {', '.join(name for name in possible if name != _MANY_PROCESSES)}"
    found = Guarantees(
        level="none",
        uid="per_attempt" if own_uid else "shared",
        memory="hard" if "memory" in limited_by_group else "soft",
        pids="hard" if "pids" in limited_by_group else pids,
        cpu="shared" if "cpu" in limited_by_group else "none",
        filter_sha256=None,
        missing=(walls, *_missing(own_uid, limited_by_group), "no limit on disk: workers write to the host's own"),
    )
    _refuse_less(found, wanted)
    return found


def _refuse_less(found: Guarantees, wanted: Level) -> None:
    if LEVELS.index(found.level) < LEVELS.index(wanted):
        raise SandboxUnavailableError(
            f"workers of this host are isolated at level {found.level}, and `isolation_min` asks for {wanted}: "
            f"{'; '.join(found.missing)}"
        )


def _guarantees(tools: Tools, uid: int | None, limited_by_group: frozenset[str], *, many_processes: bool) -> Guarantees:
    missing = _missing(uid is not None, limited_by_group)
    users = [told for told in missing if told == _SHARED_USER]
    pids: Literal["soft", "none"] = "none" if many_processes else "soft"
    return Guarantees(
        level=_LEVEL_BY_PARTS_MISSING[bool(users) + bool(len(missing) - len(users))],
        uid="shared" if uid is None else "per_attempt",
        memory="hard" if "memory" in limited_by_group else "soft",
        pids="hard" if "pids" in limited_by_group else pids,
        cpu="shared" if "cpu" in limited_by_group else "none",
        filter_sha256=sha256(tools.filter).hexdigest(),
        missing=missing,
    )


def _missing(own_uid: bool, limited_by_group: frozenset[str]) -> tuple[str, ...]:
    """What a sandbox of this host would lack too."""
    limits = [
        f"no hard limit on {name}: give the node a control group with the {name} controller that it may write to"
        for name in ("memory", "pids")
        if name not in limited_by_group
    ]
    return (*([] if own_uid else [_SHARED_USER]), *limits)


@contextlib.contextmanager
def _bait(directory: Path) -> Iterator[Mapping[str, Any]]:
    """What the program inside is told to reach: a file, a port and a process of the host."""
    file = directory / "canary"
    file.write_text("a file of the host")
    file.chmod(0o644)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        try:
            yield {"file": str(file), "port": listener.getsockname()[1], "pid": os.getpid()}
        finally:
            file.unlink(missing_ok=True)


async def _tried(
    tools: Tools, uid: int | None, interpreter: Interpreter, cgroups: Cgroups, bait: Mapping[str, Any]
) -> dict[str, str]:
    """What came of each trial: "done", or the error it met."""
    prefix = interpreter.prefix
    read_only = [] if prefix.is_relative_to("/usr") else [(prefix, prefix)]
    spec = SandboxSpec(
        uid=uid, read_only=read_only, scratch_bytes_max=_SCRATCH_BYTES, shared_memory_bytes_max=_SCRATCH_BYTES
    )
    limits = Limits(pids_max=_PIDS_MAX)
    command = limited(_command(interpreter, bait), limits, cgroups.limits)
    group = cgroups.create("canary", limits)
    try:
        return await _outcomes(await SandboxProcess.start(spec, command, tools, group))
    finally:
        group.remove()


def _command(interpreter: Interpreter, bait: Mapping[str, Any]) -> Command:
    return Command(
        python=interpreter.executable,
        arguments=[str(interpreter.executable), "-I", "-S", "-c", _TRIALS.read_text(), json.dumps(bait)],
        environment={"PATH": "/usr/bin:/bin"},
        directory=str(sandbox.WORKSPACE),
    )


async def _outcomes(process: WorkerProcess) -> dict[str, str]:
    try:
        try:
            async with asyncio.timeout(_SECONDS_MAX):
                ending = await process.wait()
        except BaseException:
            process.kill()
            await process.wait()
            raise
        told, complaints = (
            what_is_left(pipe, _ANSWER_BYTES_MAX).decode(errors="replace") for pipe in (process.stdout, process.stderr)
        )
        process.close_output()
    except TimeoutError as error:
        raise SandboxUnavailableError(f"the canary did not end within {_SECONDS_MAX:g} s") from error
    if ending.exit_code != 0:
        raise SandboxUnavailableError(f"the canary ended early: {complaints.strip() or ending}")
    outcomes: dict[str, str] = json.loads(told)
    return outcomes
