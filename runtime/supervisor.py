"""One worker from its environment to its end.

`run` prepares the environment, opens the attempt's socket, starts the sidecars (`sidecars.py`) and then the public
worker in sandboxes, collects what they print, and waits. Others may meanwhile ask it to drain or kill it; timers do so
when the worker does not come up, does not leave after its final claim, or falls silent while draining. Whatever
happens, `run` returns a report and leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

import structlog

from runtime.cells import Cell
from runtime.cgroups import Cgroup, Limits
from runtime.disks import DiskUnavailableError
from runtime.environments import Environment, EnvironmentFailedError
from runtime.gpus import GpuUnavailableError
from runtime.grants import granted_limits, granted_template, lease_gpus, may_have_waited
from runtime.host import Host
from runtime.images import ImageMissingError
from runtime.launching import WorkerProcess
from runtime.logs import LogCollector, Sink
from runtime.places import SANDBOXED, Places
from runtime.plans import WorkerPlan
from runtime.process import Ending, limited
from runtime.proxy import AttemptProxy, ClaimEvents
from runtime.pythons import PythonMissingError
from runtime.sandbox import SandboxUnavailableError
from runtime.sidecars import SidecarFailedError, Sidecars
from runtime.unwalled import UnwalledError, admitted
from runtime.variables import worker_variables
from runtime.warm import WarmWorker

log = structlog.get_logger(__name__)

RELEASE_SECONDS = 0.3
"""Between SIGTERM and the answer to a held claim: the worker must have seen the signal first, or it polls again."""


class Phase(Enum):
    """How far a worker has come, as its node sees it."""

    PREPARING = "Preparing"
    STARTING = "Starting"
    READY = "Ready"
    DRAINING = "Draining"


@dataclass(frozen=True, kw_only=True)
class WorkerReport:
    """What became of one worker.

    `ending` is None when no process came to be. `problem` says in a sentence why there was none, or why the node
    killed it; None when it left by itself. `asked` tells that a drain had been asked for, `ready` that it had claimed
    at least once, `api_away` that the API did not answer the last request it made, `image_missing` why its image is not
    on this host, `sidecar_ended` which sidecar it could not go on without, and what became of that,
    `busy` that others use what it needs, or all that its node has.
    """

    ending: Ending | None
    problem: str | None
    asked: bool
    ready: bool
    out_of_memory: bool
    api_away: bool
    image_missing: str | None = None
    sidecar_ended: str | None = None
    busy: bool = False


class WorkerSupervisor:
    """Runs one attempt, once."""

    def __init__(self, host: Host, plan: WorkerPlan, sink: Sink, notify: Callable[[Phase], None]) -> None:
        self._host = host
        self._plan = plan
        self._sink = sink
        self._notify = notify
        self._preparation: asyncio.Task[dict[str | None, Environment]] | None = None
        self._process: WorkerProcess | None = None
        self._group: Cgroup | None = None
        self._proxy: AttemptProxy | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._asked = False
        self._ready = False
        self._over = False
        self._left = False
        self._sidecars: Sidecars | None = None
        self._problem: str | None = None
        self._image_missing: str | None = None
        self._sidecar_ended: str | None = None
        self._busy = False
        self.warm_reuse = False

    async def run(self, directory: Path) -> WorkerReport:
        """Run the worker until nothing of it is left; `directory` is a private folder, the caller's to delete."""
        self._notify(Phase.PREPARING)
        logs = LogCollector(self._sink, self._host.limits.logs)
        ending: Ending | None = None
        out_of_memory = False
        try:
            async with contextlib.AsyncExitStack() as stack:
                if not self._host.confines:
                    self._plan = admitted(self._plan, free_bytes=self._host.free_bytes)
                if self._plan.image is not None:
                    stack.enter_context(self._host.images.lease(self._plan.image))
                self._sidecars = Sidecars(self._host, self._plan, logs, self._on_sidecar_end)
                environments = await self._prepare(logs)
                self._plan = replace(self._plan, directory=self._plan.directory or environments[None].directory)
                cgroup = await self._start(environments, directory, logs, stack)
                ending = await self._wait()
                out_of_memory = cgroup.out_of_memory_kills() > 0
                await self._stop_sidecars()
        except ImageMissingError as error:
            self._problem = self._image_missing = str(error)
            logs.note(self._problem)
        except (
            *(PythonMissingError, EnvironmentFailedError, SandboxUnavailableError),
            *(DiskUnavailableError, GpuUnavailableError, SidecarFailedError, UnwalledError, _StoppedError),
        ) as error:
            self._busy = isinstance(error, GpuUnavailableError) and error.busy
            self._problem = self._problem or str(error)
            logs.note(self._problem)
        except OSError as error:
            if self._process is not None:
                raise
            # A disk, a table of the kernel or the user ids are full. No path of this host is told to its users.
            log.exception("a worker could not be started", attempt=self._plan.identity.attempt)
            self._busy = True
            self._problem = f"this node could not prepare the worker: {error.strerror or type(error).__name__}"
            logs.note(self._problem)
        finally:
            self._over = True
            self._cancel_timers()
            await logs.close()
        return WorkerReport(
            ending=ending,
            problem=self._problem,
            asked=self._asked,
            ready=self._ready,
            out_of_memory=out_of_memory,
            api_away=self._proxy is not None and self._proxy.api_away,
            image_missing=self._image_missing,
            sidecar_ended=self._sidecar_ended,
            busy=self._busy,
        )

    def drain(self, seconds_max: float | None) -> None:
        """Ask the worker to take no more calls, finish those it has and leave; SIGKILL after `seconds_max`, if given.

        Without a bound it may take as long as its calls do, provided that it keeps claiming. Repeats only shorten it.
        """
        if seconds_max is not None and not self._over:
            self._set_window(seconds_max)
        if self._asked or self._over:
            return
        self._asked = True
        if self._process is None:
            if self._preparation is not None:
                self._preparation.cancel()
            return
        self._begin_drain()

    def kill(self, reason: str) -> None:
        """End the worker now, calls and all; `reason` completes the sentence "the node killed the worker: …"."""
        if self._over:
            return
        if self._left:
            # The worker has had its end; what is left is what ran beside it.
            self._kill_sidecars()
            return
        self._problem = self._problem or f"the node killed the worker: {reason}"
        if self._process is not None:
            self._process.kill()
        else:
            self.drain(None)
            # Whatever of them has started; a start that goes on ends the next one with the worker.
            self._kill_sidecars()

    async def _wait(self) -> Ending:
        assert self._process is not None
        try:
            return await self._process.wait()
        except BaseException:
            # We are being torn down: the worker goes first.
            self._process.kill()
            await self._process.wait()
            raise

    async def _stop_sidecars(self) -> None:
        """Let what ran beside the worker leave, as long as a drained worker may take; not after a kill."""
        assert self._sidecars is not None
        self._left = True
        # The time a stopping node has counts for all of the attempt; the other timers were about the worker.
        self._cancel_timers(but="window")
        if self._problem is not None:
            self._sidecars.kill()
        await self._sidecars.stop(self._host.limits.exit_seconds_max)

    def _kill_sidecars(self) -> None:
        if self._sidecars is not None:
            self._sidecars.kill()

    def _on_sidecar_end(self, how: str) -> None:
        """The worker was made to run beside it, and its calls may hang without."""
        if self._over or self._left or self._problem is not None:
            return
        self._problem = self._sidecar_ended = how
        if self._process is not None:
            self._process.kill()

    async def _prepare(self, logs: LogCollector) -> dict[str | None, Environment]:
        """The worker's environment under None, those of sidecars by Python; a drain meanwhile raises _StoppedError."""
        if self._asked:
            raise _StoppedError
        self._preparation = asyncio.create_task(self._environments(logs))
        try:
            return await self._preparation
        except asyncio.CancelledError:
            if not self._asked or not self._preparation.cancelled():
                self._preparation.cancel()
                raise
            raise _StoppedError from None

    async def _environments(self, logs: LogCollector) -> dict[str | None, Environment]:
        plan = self._plan
        found: dict[str | None, Environment] = {None: await self._host.environment(plan.python, logs.note, plan.image)}
        for python in {sidecar.python for sidecar in plan.sidecars} - {None}:
            assert python is not None
            found[python] = await self._host.environment(python, logs.note)
        return found

    async def _start(
        self,
        environments: Mapping[str | None, Environment],
        directory: Path,
        logs: LogCollector,
        stack: contextlib.AsyncExitStack,
    ) -> Cgroup:
        """Open everything the worker needs, on `stack`, and start it."""
        environment = environments[None]
        identity, limits = self._plan.identity, self._host.limits
        caps = granted_limits(self._plan, limits)
        template = granted_template(self._plan, environment, limits)
        leased = lease_gpus(self._plan, self._host.gpus, stack)
        told = (*environment.variables, *self._plan.variables, *leased.variables.items())
        for name in self._variables(told, SANDBOXED)[1]:
            logs.note(f"the variable {name!r} was not set: names that begin with NODUS_ are the server's own")
        warm = self._host.warm
        warm.hold_back(self)
        stack.callback(warm.let_go, self)
        self._notify(Phase.STARTING)
        ready_made = environment.may_wait and may_have_waited(self._plan, template, caps, self._host.cgroups.limits)
        waiting = warm.take(template) if ready_made else None
        if waiting is None or not await self._grant(waiting, directory, told, caps, logs, stack):
            cell = Cell.open(
                directory, name=identity.attempt, cgroups=self._host.cgroups, own_uid=self._host.own_uids, limits=caps
            )
            stack.callback(cell.close)
            self._host.reach("cold-opened")
            assert self._sidecars is not None
            network = await self._sidecars.start(environments, directory, cell, caps, stack)
            await self._listen(cell, logs, stack)
            spec = replace(template.spec, devices=leased.mounts)
            if network is not None:
                spec = replace(spec, network=network)
            places = self._host.launcher.places(template, cell)
            command = limited(template.command, caps, self._host.cgroups.limits)
            command = replace(
                command,
                environment=self._variables(told, places)[0],
                directory=places.folder(self._plan.directory),
            )
            self._process = await self._host.launcher.start(
                replace(template, spec=spec), self._plan.start.applied(command), cell
            )
            self._group = cell.group
        assert self._process is not None
        assert self._group is not None
        logs.read(self._process.stdout, "stdout")
        logs.read(self._process.stderr, "stderr")
        seconds = limits.start_seconds_max + self._plan.start.init_seconds_max
        self._set_timer("start", seconds, f"it had not claimed within {seconds:g} s of its start")
        if self._problem is not None:
            self._process.kill()
        elif self._asked:
            self._begin_drain()
        return self._group

    async def _grant(
        self,
        worker: WarmWorker,
        directory: Path,
        told: Sequence[tuple[str, str]],
        caps: Limits,
        logs: LogCollector,
        stack: contextlib.AsyncExitStack,
    ) -> bool:
        """Make a warm worker this attempt's; false when it died meanwhile, and nothing of it is left then."""
        # For people who look for the processes of an attempt: its sandbox was not made in its own folder.
        link = directory / "cell"
        try:
            self._host.reach("warm-taken")
            link.symlink_to(worker.directory)
            worker.cell.group.limit(caps)
            await self._listen(worker.cell, logs, stack)
            self._host.reach("warm-joined")
            variables = self._variables(told, worker.places)[0]
            await worker.process.grant(variables, worker.places.folder(self._plan.directory))
            self._host.reach("warm-granted")
        except BaseException as error:
            await worker.end()
            link.unlink(missing_ok=True)
            if isinstance(error, OSError):
                return False
            raise
        stack.callback(worker.close)
        self._process, self._group, self.warm_reuse = worker.process, worker.cell.group, True
        return True

    async def _listen(self, cell: Cell, logs: LogCollector, stack: contextlib.AsyncExitStack) -> None:
        """Open the attempt's own ways to the API and out, which only its worker's user may take."""
        events = ClaimEvents(claimed=self._on_claim, final=self._on_final_claim)
        self._proxy = AttemptProxy(self._host.api, self._plan.token, events, direct=not self._host.confines)
        await self._proxy.listen(cell.run_directory, cell.uid)
        stack.callback(self._proxy.close)
        attempt, egress = self._plan.identity.attempt, self._plan.egress
        if egress.proxied:
            gate = self._host.egress
            await gate.open(attempt, cell.run_directory, cell.uid, egress.rules(gate.settings), logs.note)
            stack.push_async_callback(gate.close, attempt)

    def _variables(self, told: Sequence[tuple[str, str]], places: Places) -> tuple[dict[str, str], list[str]]:
        """All variables of the worker, and the names of those that it must not have."""
        return worker_variables(self._plan.identity, told, proxied=self._plan.egress.proxied, places=places)

    # What happens to a running worker.

    def _begin_drain(self) -> None:
        assert self._process is not None
        self._notify(Phase.DRAINING)
        self._process.terminate()
        loop = asyncio.get_running_loop()
        self._timers["release"] = loop.call_later(RELEASE_SECONDS, self._release)
        self._expect_claims()

    def _release(self) -> None:
        if self._proxy is not None:
            self._proxy.release_claims()

    def _on_claim(self) -> None:
        if not self._ready:
            self._ready = True
            self._drop_timer("start")
            self._host.warm.let_go(self)
            if not self._asked:
                self._notify(Phase.READY)
        if self._asked:
            self._expect_claims()

    def _on_final_claim(self) -> None:
        """The worker has nothing left to run; exit hooks and stuck threads get a bounded time."""
        seconds = self._host.limits.exit_seconds_max
        self._set_timer("exit", seconds, f"it had not left {seconds:g} s after its final claim")

    def _expect_claims(self) -> None:
        """A draining worker that claims is finishing its calls; one that does not is stuck, or the API has lost it."""
        seconds = self._host.limits.silence_seconds_max
        self._set_timer("silence", seconds, f"it was asked to leave and then silent for {seconds:g} s")

    def _set_window(self, seconds: float) -> None:
        window = self._timers.get("window")
        if window is None or window.when() > asyncio.get_running_loop().time() + seconds:
            self._set_timer("window", seconds, f"it had not left {seconds:g} s after it was asked to")

    def _set_timer(self, name: str, seconds: float, reason: str) -> None:
        self._drop_timer(name)
        self._timers[name] = asyncio.get_running_loop().call_later(seconds, self.kill, reason)

    def _drop_timer(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()

    def _cancel_timers(self, but: str | None = None) -> None:
        for name in self._timers.keys() - {but}:
            self._drop_timer(name)


class _StoppedError(Exception):
    def __str__(self) -> str:
        return "the worker was asked to leave before it had started"
