"""The helpers of one worker: started before it, watched beside it, stopped after it.

Each sidecar has a sandbox, a user and a file system of its own. What they share with the worker is its network, which
is made with the first of them and held until the last is gone, and its control group, so that the resources of a
Function bound all of them together. The API's socket is the worker's alone; to whatever the Function may reach, each
has a way of its own, on a loopback port that its proxy variables name. `supervisor.py` ends the worker when one ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from runtime import sandbox
from runtime.cells import Cell
from runtime.cgroups import Limits
from runtime.environments import Environment
from runtime.host import Host
from runtime.launching import WorkerProcess
from runtime.logs import LogCollector
from runtime.networks import HeldNetwork
from runtime.plans import SidecarPlan, WorkerPlan
from runtime.process import EGRESS_PORT, Command, Ending, limited
from runtime.sandbox import SandboxSpec, SandboxUnavailableError
from runtime.templates import Template, worker_template
from runtime.variables import sidecar_variables


class SidecarFailedError(Exception):
    """A sidecar did not come up; the message names it and says why."""


@dataclass(frozen=True, kw_only=True)
class _Running:
    plan: SidecarPlan
    process: WorkerProcess
    over: asyncio.Task[Ending]


class Sidecars:
    """Those of one attempt. `ended` is told, once for each, of one that ends before it was to: which, and how."""

    def __init__(self, host: Host, plan: WorkerPlan, logs: LogCollector, ended: Callable[[str], None]) -> None:
        self._host = host
        self._plan = plan
        self._logs = logs
        self._ended = ended
        self._running: list[_Running] = []
        self._stopping = False
        self._group_kills: Callable[[], int] = lambda: 0

    async def start(
        self,
        environments: Mapping[str | None, Environment],
        directory: Path,
        worker: Cell,
        limits: Limits,
        stack: contextlib.AsyncExitStack,
    ) -> HeldNetwork | None:
        """Start one after the other, and return the network that the worker is to share; None without sidecars.

        `environments` are by Python minor, the worker's own under None; `worker` is the cell of the worker, `limits`
        are those of both, `directory` is a private folder. What is opened goes with `stack`. Raises SidecarFailedError.
        """
        network: HeldNetwork | None = None
        self._group_kills = worker.group.out_of_memory_kills
        for number, plan in enumerate(self._plan.sidecars):
            if self._stopping:
                raise SidecarFailedError("the worker was killed before it had started")
            folder = directory / f"sidecar-{number}"
            folder.mkdir(mode=0o700)
            cell = worker.beside(folder)
            stack.callback(cell.close)
            port = EGRESS_PORT + 1 + number
            try:
                async with asyncio.timeout(plan.start_seconds_max):
                    await self._open_way_out(plan, cell, stack)
                    template, command = self._made_of(plan, environments[plan.python], cell, port)
                    if network is not None:
                        template = replace(template, spec=replace(template.spec, network=network))
                    command = limited(command, limits, self._host.cgroups.limits)
                    process = await self._host.launcher.start(template, command, cell)
            except TimeoutError as error:
                took = f"had not started within {plan.start_seconds_max:g} s"
                raise SidecarFailedError(f"its sidecar {plan.name!r} {took}") from error
            except (SandboxUnavailableError, OSError) as error:
                raise SidecarFailedError(f"its sidecar {plan.name!r} could not be started: {error}") from error
            running = self._keep(plan, process, stack)
            if network is None:
                network = await self._held(running, replace(template.spec, uid=cell.uid))
                if network is not None:
                    stack.callback(network.close)
            self._host.reach("cold-sidecar")
        return network

    async def stop(self, seconds_max: float) -> None:
        """Ask them to leave, the last one first, and each when the one after it has gone; SIGKILL after this time."""
        self._stopping = True
        try:
            async with asyncio.timeout(seconds_max):
                for running in reversed(self._running):
                    running.process.terminate()
                    await asyncio.wait([running.over])
        except TimeoutError:
            self._logs.note(f"its sidecars had not left within {seconds_max:g} s and were killed")
        finally:
            self.kill()
        await self._gone()

    def kill(self) -> None:
        """SIGKILL all of them; `stop`, or the end of their stack, waits until they are gone."""
        self._stopping = True
        for running in self._running:
            if not running.over.done():
                running.process.kill()

    async def _gone(self) -> None:
        if self._running:
            await asyncio.wait([running.over for running in self._running])

    async def _open_way_out(self, plan: SidecarPlan, cell: Cell, stack: contextlib.AsyncExitStack) -> None:
        egress = self._plan.egress
        if egress.proxied:
            gate = self._host.egress
            key = f"{self._plan.identity.attempt}/{plan.name}"
            note = self._note(plan)
            await gate.open(key, cell.run_directory, cell.uid, egress.rules(gate.settings), note)
            stack.push_async_callback(gate.close, key)

    def _made_of(self, plan: SidecarPlan, environment: Environment, cell: Cell, port: int) -> tuple[Template, Command]:
        template = worker_template(environment, self._host.limits.scratch_bytes_max)
        places = self._host.launcher.places(template, cell)
        proxied = self._plan.egress.proxied
        variables, refused = sidecar_variables(
            self._plan.identity,
            (*environment.variables, *plan.variables),
            proxy_port=port if proxied else None,
            places=places,
        )
        for name in refused:
            self._note(plan)(f"the variable {name!r} was not set: names that begin with NODUS_ are the server's own")
        command = Command(
            python=template.command.python,
            arguments=plan.command,
            environment=variables,
            directory=places.folder(environment.directory),
            bridges={port: sandbox.EGRESS_SOCKET} if proxied else {},
        )
        return template, command

    def _keep(self, plan: SidecarPlan, process: WorkerProcess, stack: contextlib.AsyncExitStack) -> _Running:
        self._logs.read(process.stdout, "stdout", f"[{plan.name}] ")
        self._logs.read(process.stderr, "stderr", f"[{plan.name}] ")
        over = asyncio.create_task(process.wait())
        over.add_done_callback(lambda task: self._on_end(plan, task))
        running = _Running(plan=plan, process=process, over=over)
        self._running.append(running)
        # Wherever the start fails after this, it is gone before its cell is closed.
        stack.push_async_callback(self._gone)
        stack.callback(self.kill)
        return running

    async def _held(self, running: _Running, spec: SandboxSpec) -> HeldNetwork | None:
        try:
            return running.process.hold_network(spec)
        except OSError as error:
            # One that ends at once has often gone before this looks: how it ended is told all the same.
            over, _ = await asyncio.wait([running.over], timeout=self._host.limits.exit_seconds_max)
            why = self._how(running.over.result()) if over else f"let nobody join its network: {error.strerror}"
            raise SidecarFailedError(f"its sidecar {running.plan.name!r} {why}") from error

    def _note(self, plan: SidecarPlan) -> Callable[[str], None]:
        return lambda text: self._logs.note(f"[{plan.name}] {text}")

    def _on_end(self, plan: SidecarPlan, over: asyncio.Task[Ending]) -> None:
        if not self._stopping and not over.cancelled():
            self._ended(f"its sidecar {plan.name!r} {self._how(over.result())}")

    def _how(self, ending: Ending) -> str:
        return how(ending, out_of_memory=self._group_kills() > 0)


def how(ending: Ending, *, out_of_memory: bool) -> str:
    """The end of a sidecar as the rest of a sentence about it; `out_of_memory` tells of its whole control group."""
    if ending.signal is None:
        return f"exited with code {ending.exit_code}"
    if out_of_memory and ending.signal == signal.SIGKILL:
        return "was ended because it and the worker needed more memory than `spec.resources.memory` grants"
    return f"was ended by signal {ending.signal}"
