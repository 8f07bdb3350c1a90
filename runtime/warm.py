"""Workers that are confined and started before anybody asks for one.

Most of a cold start is the interpreter and the imports of the public worker. A warm worker has done both, in a sandbox
of its own, with a uid of its own, and waits for its orders on a pipe (`worker_start.py`); whoever takes it makes the
attempt's socket in its folder, sets its limits and grants it variables and folder (`process.py`). It is used once. No
attempt, token, Secret or variable of a Function exists in it before that, and nothing of it is ever copied: a second
worker is a second process from the beginning.

The pool keeps what the last starts of this host asked for, makes one at a time, and makes none while a worker that
somebody waits for is starting. When the node dies, the kernel ends these sandboxes as it ends all others, and the next
start of the node clears away their groups and folders.

Workers of built images wait as well, unless their image runs something of its own when an interpreter starts
(`start_hooks.py`). Each holds a lease of its image, and goes when no Function names that any more. Nobody pays for what
an image does in a worker that waits, so it gets little until it is granted.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from runtime.cells import Cell
from runtime.cgroups import Cgroups, Limits
from runtime.launching import Launcher, WorkerProcess
from runtime.places import Places
from runtime.process import limited
from runtime.sandbox import SandboxUnavailableError
from runtime.templates import Template
from runtime.variables import base_variables

QUIET_SECONDS_MAX = 30.0
"""A worker that loads a model may take minutes to its first claim; the pool is not kept empty for all of them."""
FAILED_PAUSE_SECONDS = 30.0
"""After a sandbox could not be made; attempts meet the same fault and report it."""
IMAGE_MEMORY_BYTES_MAX = 512 << 20
"""Of a worker that waits in an image; ten times what the imports of the public worker take."""
IMAGE_CPUS_LEAST = 0.1
"""Its share beside workers that somebody pays for."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class WarmWorker:
    """One that waits. Whoever takes it grants it orders and closes it when its process is gone, or ends it."""

    template: Template
    directory: Path
    cell: Cell
    places: Places
    process: WorkerProcess
    held: contextlib.ExitStack
    """What goes with it: its cell, its folder, the lease of its image."""

    def close(self) -> None:
        """Give back what it held of the host; its process must be gone."""
        self.held.close()

    async def end(self) -> None:
        """End it unused, and close it. Whoever is cancelled meanwhile waits until nothing of it is left."""
        ending = asyncio.ensure_future(self._end())
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            await asyncio.wait([ending])
            raise

    async def _end(self) -> None:
        self.process.kill()
        await self.process.wait()
        self.process.close_output()
        self.close()


class WarmPool:
    """The warm workers of one node, at most `size_max`."""

    def __init__(
        self,
        *,
        directory: Path,
        launcher: Launcher,
        cgroups: Cgroups,
        own_uids: bool,
        pids_max: int,
        size_max: int,
        lease: Callable[[str], contextlib.AbstractContextManager[None]],
        reach: Callable[[str], None],
    ) -> None:
        self._directory = directory
        self._launcher = launcher
        self._cgroups = cgroups
        self._own_uids = own_uids
        self._pids_max = pids_max
        self._lease = lease
        self._reach = reach
        self._wanted: deque[Template] = deque(maxlen=size_max)
        self._waiting: list[WarmWorker] = []
        self._starting: set[object] = set()
        self._numbers = itertools.count(1)
        self._changed = asyncio.Event()
        # What a node that was killed left; its processes died with it.
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(mode=0o700)

    @property
    def waiting(self) -> int:
        """How many wait to be taken."""
        return len(self._waiting)

    def expect(self, template: Template) -> None:
        """Fill the pool for starts of this kind, until others are asked for."""
        self._wanted.extend([template] * (self._wanted.maxlen or 0))
        self._changed.set()

    def take(self, template: Template) -> WarmWorker | None:
        """A worker of this kind, the caller's from now on; None when none waits. Either way, more will be made."""
        self._wanted.append(template)
        self._changed.set()
        for worker in self._waiting:
            if worker.template == template and worker.process.alive:
                self._waiting.remove(worker)
                return worker
        return None

    def forget_images(self, kept: Collection[str]) -> None:
        """Keep no worker of an image that is not among these."""
        forgotten = [template for template in self._wanted if template.image is not None and template.image not in kept]
        self._forget(forgotten)

    def hold_back(self, start: object) -> None:
        """Make no worker while this start goes on; a start is anything that can tell itself from others."""
        self._starting.add(start)

    def let_go(self, start: object) -> None:
        """This start is over; said again, it changes nothing."""
        self._starting.discard(start)
        self._changed.set()

    async def run(self) -> None:
        """Keep the pool filled until cancelled; then end all that wait."""
        try:
            while True:
                self._changed.clear()
                await self._quiet()
                try:
                    done = await self._step()
                except _NotMadeError as error:
                    log.warning("no worker was started ahead", image=error.template.image, problem=str(error))
                    if error.template.image is None:
                        await asyncio.sleep(FAILED_PAUSE_SECONDS)
                    else:
                        # The image's own fault, or it is gone; whoever starts from it the next time is told.
                        self._forget([error.template])
                    continue
                if not done:
                    await self._changed.wait()
        finally:
            self._wanted = deque(maxlen=0)
            while self._waiting:
                await self._waiting.pop().end()

    async def _quiet(self) -> None:
        """Wait until no worker starts that somebody asked for, but not for ever."""
        try:
            async with asyncio.timeout(QUIET_SECONDS_MAX):
                while self._starting:
                    await self._changed.wait()
                    self._changed.clear()
        except TimeoutError:
            pass

    async def _step(self) -> bool:
        """End one worker that is dead or no longer wanted, or make one that is missing; false when all is well."""
        missing = list(self._wanted)
        for worker in self._waiting:
            if worker.template in missing and worker.process.alive:
                missing.remove(worker.template)
            else:
                self._waiting.remove(worker)
                await worker.end()
                return True
        if not missing:
            return False
        self._waiting.append(await self._make(missing[-1]))
        return True

    def _forget(self, templates: Collection[Template]) -> None:
        kept = [template for template in self._wanted if template not in templates]
        self._wanted = deque(kept, maxlen=self._wanted.maxlen)
        self._changed.set()

    async def _make(self, template: Template) -> WarmWorker:
        name = f"warm-{next(self._numbers)}"
        directory = self._directory / name
        with contextlib.ExitStack() as stack:
            try:
                if template.image is not None:
                    stack.enter_context(self._lease(template.image))
                directory.mkdir(mode=0o700)
                stack.callback(shutil.rmtree, directory, ignore_errors=True)
                limits = self._limits_of(template)
                cell = Cell.open(directory, name=name, cgroups=self._cgroups, own_uid=self._own_uids, limits=limits)
                stack.callback(cell.close)
                self._reach("warm-opened")
                places = self._launcher.places(template, cell)
                command = limited(template.command, limits, self._cgroups.limits)
                command = replace(command, environment=base_variables(places), directory=places.folder(None))
                process = await self._launcher.start_waiting(template, command, cell)
                self._reach("warm-made")
            except (SandboxUnavailableError, OSError) as error:
                raise _NotMadeError(template) from error
            return WarmWorker(
                template=template, directory=directory, cell=cell, places=places, process=process, held=stack.pop_all()
            )

    def _limits_of(self, template: Template) -> Limits:
        """Those of a worker that waits; whoever takes one of an image replaces every one of them."""
        if template.image is None:
            return Limits(pids_max=self._pids_max)
        return Limits(memory_bytes_max=IMAGE_MEMORY_BYTES_MAX, pids_max=self._pids_max, cpus_least=IMAGE_CPUS_LEAST)


class _NotMadeError(Exception):
    """A worker of this template could not be started; the cause says why."""

    def __init__(self, template: Template) -> None:
        super().__init__(template)
        self.template = template

    def __str__(self) -> str:
        return str(self.__cause__)
