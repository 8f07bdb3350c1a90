"""How a host starts a worker: behind walls (here), or as a plain process (`plain.py`).

A node has one `Launcher` for all of its workers, chosen when its host is opened. Everything that starts user code on
behalf of an attempt asks it, and handles what it gets by the same few verbs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from runtime import sandbox
from runtime.cells import Cell
from runtime.networks import HeldNetwork
from runtime.places import SANDBOXED, Places
from runtime.process import Command, Ending, SandboxProcess
from runtime.sandbox import SandboxSpec, Tools
from runtime.templates import Template


class WorkerProcess(Protocol):
    """A running worker or sidecar. `stdout` and `stderr` are descriptors to read from; whoever takes them closes them.

    `SandboxProcess` says what each verb does.
    """

    stdout: int
    stderr: int

    @property
    def pid(self) -> int: ...
    @property
    def alive(self) -> bool: ...
    async def grant(self, environment: Mapping[str, str], directory: str) -> None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...
    async def wait(self) -> Ending: ...
    def close_output(self) -> None: ...
    def hold_network(self, spec: SandboxSpec) -> HeldNetwork | None:
        """The network that others are to join; None where all have the host's."""
        ...


class Launcher(Protocol):
    """Starts what `Template` describes. Both starts raise SandboxUnavailableError when nothing came to be."""

    def places(self, template: Template, cell: Cell) -> Places:
        """Where a worker of this template in this cell finds its things."""
        ...

    async def start(self, template: Template, command: Command, cell: Cell) -> WorkerProcess:
        """Start `command` and return when it has begun."""
        ...

    async def start_waiting(self, template: Template, command: Command, cell: Cell) -> WorkerProcess:
        """The same for a worker that waits for `grant`."""
        ...


class SandboxLauncher:
    """Starts everything in a sandbox of its own."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    def places(self, template: Template, cell: Cell) -> Places:
        """The same in all sandboxes."""
        return SANDBOXED

    async def start(self, template: Template, command: Command, cell: Cell) -> WorkerProcess:
        """See Launcher."""
        return await SandboxProcess.start(_placed(template.spec, cell), command, self._tools, cell.group)

    async def start_waiting(self, template: Template, command: Command, cell: Cell) -> WorkerProcess:
        """See Launcher."""
        return await SandboxProcess.start_waiting(_placed(template.spec, cell), command, self._tools, cell.group)


def _placed(spec: SandboxSpec, cell: Cell) -> SandboxSpec:
    """The sandbox of a worker that has its cell."""
    return replace(spec, uid=cell.uid, read_only=(*spec.read_only, (cell.run_directory, sandbox.RUN)))
