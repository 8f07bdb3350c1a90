"""Where and how one node runs workers: behind walls that were proven, or without any because its operator said so.

`open_host` opens one of the two before anything else of a node exists; both tell by `Guarantees` what holds. Without
walls the folders of workers must be ones that their users can reach, so a node of root has them apart from its private
data: environments and interpreters that all nodes of the host share, and a folder of its own for attempts.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from runtime import canary, plain, sandbox
from runtime.canary import Guarantees, Level
from runtime.cgroups import Cgroups
from runtime.egress.gate import EgressGate
from runtime.egress.limits import EgressSettings
from runtime.launching import Launcher, SandboxLauncher
from runtime.python_copies import reachable
from runtime.pythons import Interpreter, PythonLocator
from runtime.sandbox import SandboxUnavailableError, Tools
from runtime.uids import spare_uid

SOCKET_PATH_BYTES_MAX = 107
"""Of the kernel. A worker without a sandbox connects to a path of the host, not to one that is short inside."""
_LONGEST_SOCKET = "attempts/att_00000000000000000000000000/run/api.sock"

Interpreters = Callable[[str], Interpreter]
"""Finds the interpreter of a minor such as `3.12`; call it off the event loop. Raises PythonMissingError."""


@dataclass(frozen=True, kw_only=True)
class Walls:
    """What a host has that confines workers: the sandbox's tools, and the way out of it."""

    tools: Tools
    egress: EgressGate


@dataclass(frozen=True, kw_only=True)
class Site:
    """One node's place for workers; `walls` is None without a sandbox. `workers` holds the folders of attempts."""

    walls: Walls | None
    launcher: Launcher
    workers: Path
    environments: Path
    interpreters: Interpreters
    guarantees: Guarantees


async def walled_site(
    *,
    directory: Path,
    environments: Path,
    locator: PythonLocator,
    environ: Mapping[str, str],
    cgroups: Cgroups,
    egress: EgressSettings,
    wanted: Level,
) -> Site:
    """The site of a host that confines workers. Raises SandboxUnavailableError."""
    tools = sandbox.find_tools(environ)
    interpreter = await asyncio.to_thread(locator.locate, _own_minor())
    with spare_uid() as uid:
        guarantees = await canary.prove(
            tools, uid=uid, interpreter=interpreter, cgroups=cgroups, directory=directory, wanted=wanted
        )
    (directory / "attempts").mkdir(exist_ok=True, mode=0o700)
    return Site(
        walls=Walls(tools=tools, egress=EgressGate(tools, interpreter, cgroups, egress)),
        launcher=SandboxLauncher(tools),
        workers=directory,
        environments=environments,
        interpreters=locator.locate,
        guarantees=guarantees,
    )


async def plain_site(
    *,
    directory: Path,
    environments: Path,
    open_folder: Path,
    instance: str,
    locator: PythonLocator,
    cgroups: Cgroups,
    wanted: Level,
) -> Site:
    """The site of a host that runs workers as plain processes, and the end of those that a node which died left.

    A node that is not root has everything in `directory` and `environments`, as its workers are its own user; a root
    one has it in `open_folder`. Raises SandboxUnavailableError.
    """
    own_uid = os.geteuid() == 0
    workers = open_folder / instance if own_uid else directory
    _make_passable(workers, own_uid=own_uid)
    if len(bytes(workers / _LONGEST_SOCKET)) > SOCKET_PATH_BYTES_MAX:
        raise SandboxUnavailableError(
            f"the path {workers} is too long for the sockets of workers without a sandbox: it may have "
            f"{SOCKET_PATH_BYTES_MAX - len(_LONGEST_SOCKET) - 1} bytes"
        )
    # Those of attempts stay for whoever reports them lost; what ran in them does not.
    await plain.reap([*(workers / "attempts").iterdir(), *(workers / "warm").iterdir()])

    def interpreters(minor: str) -> Interpreter:
        found = locator.locate(minor)
        return reachable(found, open_folder / "pythons") if own_uid else found

    launcher = plain.PlainLauncher()
    interpreter = await asyncio.to_thread(interpreters, _own_minor())
    guarantees = await canary.look(
        launcher,
        interpreter=interpreter,
        cgroups=cgroups,
        directory=workers,
        own_uid=own_uid,
        wanted=wanted,
    )
    return Site(
        walls=None,
        launcher=launcher,
        workers=workers,
        environments=open_folder / "environments" if own_uid else environments,
        interpreters=interpreters,
        guarantees=guarantees,
    )


def _make_passable(workers: Path, *, own_uid: bool) -> None:
    """Make the folders that cells are in; with users of their own, workers pass through them and cannot list them."""
    for folder in (workers.parent, workers, workers / "attempts", workers / "warm"):
        folder.mkdir(exist_ok=True, parents=True)
    if not own_uid:
        return
    for folder in (workers.parent, workers, workers / "attempts", workers / "warm"):
        folder.chmod(0o711)
    closed = [place for place in workers.parents if not place.stat().st_mode & 0o001]
    if closed:
        raise SandboxUnavailableError(
            f"workers without a sandbox are users of their own and cannot pass {closed[-1]}: name a folder that all "
            "may reach by NODUS_SERVER_UNSANDBOXED_DIR"
        )


def _own_minor() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"
