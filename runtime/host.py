"""What all workers of one node share: the sandbox's tools, environments, control groups, connections to the API.

A node opens its `Host` once, before it takes work. Opening proves that this host confines workers (`canary.py`), and
clears away what a node that was killed could not. `supervisor.py` then runs each attempt on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from runtime.canary import Level
from runtime.cgroups import Cgroups, Limits, open_cgroups
from runtime.egress.gate import EgressGate
from runtime.egress.limits import EgressSettings
from runtime.environments import Environment, Environments, Progress
from runtime.gpus import NO_GPUS, Gpus
from runtime.images import ImageStore
from runtime.logs import LogLimits
from runtime.package_indexes import IndexSettings, PackageIndexes
from runtime.pythons import PythonLocator, find_uv
from runtime.sandbox import SandboxUnavailableError, Tools
from runtime.sites import Site, Walls, plain_site, walled_site
from runtime.upstream import ApiPool
from runtime.warm import WarmPool

LOCK_FILE = Path(__file__).with_name("worker-requirements.lock")


@dataclass(frozen=True, kw_only=True)
class HostLimits:
    """Bounds of every worker of this node. None leaves memory to the kernel's own judgement."""

    scratch_bytes_max: int
    pids_max: int
    worker_memory_bytes_max: int | None
    all_memory_bytes_max: int | None
    start_seconds_max: float
    exit_seconds_max: float
    silence_seconds_max: float
    isolation_min: Level
    logs: LogLimits
    egress: EgressSettings
    indexes: IndexSettings = field(default_factory=IndexSettings)
    warm_workers_max: int = 0

    @property
    def worker_memory_bytes_most(self) -> int | None:
        """What one worker has at most, alone on this host; None where nothing bounds it."""
        caps = [cap for cap in (self.worker_memory_bytes_max, self.all_memory_bytes_max) if cap is not None]
        return min(caps, default=None)


class HostInUseError(Exception):
    """Another node process works in the same folder."""


class Host:
    """One node's share of this host. Open it with `open_host`."""

    def __init__(
        self,
        *,
        site: Site,
        environments: Environments,
        images: ImageStore,
        uv: Path,
        cgroups: Cgroups,
        api: ApiPool,
        indexes: PackageIndexes,
        gpus: Gpus,
        limits: HostLimits,
        lock: int,
        reach: Callable[[str], None],
    ) -> None:
        self.reach = reach
        self.launcher = site.launcher
        self.guarantees = site.guarantees
        self.images = images
        self.uv = uv
        self.cgroups = cgroups
        self.api = api
        self.indexes = indexes
        self.gpus = gpus
        self.limits = limits
        self.own_uids = os.geteuid() == 0
        self.warm = WarmPool(
            directory=site.workers / "warm",
            launcher=self.launcher,
            cgroups=cgroups,
            own_uids=self.own_uids,
            pids_max=limits.pids_max,
            size_max=limits.warm_workers_max,
            lease=images.lease,
            reach=reach,
        )
        self._walls = site.walls
        self._let_pass(site.workers / "warm")
        self._attempts = site.workers / "attempts"
        self._interpreters = site.interpreters
        self._environments = environments
        self._lock = lock

    async def environment(self, minor: str, progress: Progress, image: str | None = None) -> Environment:
        """The environment for a Python minor such as `3.12`, built if need be, or that of an image of this node.

        Raises PythonMissingError, EnvironmentFailedError or ImageMissingError.
        """
        interpreter = await asyncio.to_thread(self._interpreters, minor)
        if image is not None:
            return await self.images.environment(image, interpreter)
        return await self._environments.ensure(interpreter, progress)

    async def environment_key(self, minor: str) -> str:
        """What tells the environment for a Python minor from all others; PythonMissingError without that Python."""
        return self._environments.key(await asyncio.to_thread(self._interpreters, minor))

    def _let_pass(self, folder: Path) -> None:
        """Let workers that are other users through to what is theirs in it, where no sandbox shows them that."""
        if not self.confines and self.own_uids:
            folder.chmod(0o711)

    @property
    def confines(self) -> bool:
        """Whether workers are in sandboxes."""
        return self._walls is not None

    @property
    def tools(self) -> Tools:
        """What makes a sandbox. Raises SandboxUnavailableError where none is made."""
        return self._walled.tools

    @property
    def egress(self) -> EgressGate:
        """The way out of sandboxes. Raises SandboxUnavailableError where none is made."""
        return self._walled.egress

    @property
    def _walled(self) -> Walls:
        if self._walls is None:
            raise SandboxUnavailableError("this node runs workers without a sandbox (isolation level none)")
        return self._walls

    @property
    def free_bytes(self) -> int:
        """What is left of the disk that the folders of attempts are on."""
        return shutil.disk_usage(self._attempts).free

    def attempt_directory(self, attempt: str) -> Path:
        """The private folder of one attempt, made at the first call."""
        if "/" in attempt or attempt.startswith("."):
            raise ValueError(f"{attempt!r} cannot be an attempt's uid")
        directory = self._attempts / attempt
        directory.mkdir(mode=0o700, exist_ok=True)
        self._let_pass(directory)
        return directory

    def remove_directory(self, attempt: str) -> None:
        """Delete the folder of an attempt that is over."""
        shutil.rmtree(self._attempts / attempt, ignore_errors=True)

    def leftovers(self) -> list[Path]:
        """Folders of attempts that a previous node process was running when it died; their processes died with it."""
        return sorted(entry for entry in self._attempts.iterdir() if entry.is_dir())

    async def close(self) -> None:
        """Give everything back; no worker may be left."""
        if self._walls is not None:
            await self._walls.egress.stop()
        self.api.close()
        self.cgroups.close()
        os.close(self._lock)


async def open_host(
    *,
    directory: Path,
    environments: Path,
    api_url: str,
    environ: Mapping[str, str],
    limits: HostLimits,
    reach: Callable[[str], None] = lambda point: None,
    gpus: Gpus = NO_GPUS,
    unsandboxed: Path | None = None,
) -> Host:
    """Take `directory` for this node process and make the host ready.

    `unsandboxed` asks for workers without a sandbox, and is where a node of root has their folders (`sites.py`).
    `gpus` are what it may give out. `reach` is told each point of a start at which this
    process might die and leave half of it (docs/faults.md).
    Raises SandboxUnavailableError when this host cannot confine workers, HostInUseError when another node has the
    folder.
    """
    lock = _take(directory / "node.lock")
    try:
        cgroups = open_cgroups(instance_name(directory))
        cgroups.reap()
        # All workers together weigh what the host has: without this they would be one process among many.
        cgroups.limit_all(Limits(memory_bytes_max=limits.all_memory_bytes_max, cpus_least=os.cpu_count()))
        uv = find_uv(environ)
        locator = PythonLocator(environ, uv)
        images = ImageStore(environments)
        await asyncio.to_thread(images.sweep)
        site = await _open_site(directory, environments, locator, environ, cgroups, limits, unsandboxed)
        return Host(
            site=site,
            environments=Environments(directory=site.environments, lock_file=LOCK_FILE, uv=uv, environ=environ),
            images=images,
            uv=uv,
            cgroups=cgroups,
            api=ApiPool(api_url),
            indexes=PackageIndexes(uv, environ, limits.indexes),
            gpus=gpus,
            limits=limits,
            lock=lock,
            reach=reach,
        )
    except BaseException:
        with contextlib.suppress(OSError):
            os.close(lock)
        raise


async def _open_site(
    directory: Path,
    environments: Path,
    locator: PythonLocator,
    environ: Mapping[str, str],
    cgroups: Cgroups,
    limits: HostLimits,
    unsandboxed: Path | None,
) -> Site:
    if unsandboxed is None:
        return await walled_site(
            directory=directory,
            environments=environments,
            locator=locator,
            environ=environ,
            cgroups=cgroups,
            egress=limits.egress,
            wanted=limits.isolation_min,
        )
    return await plain_site(
        directory=directory,
        environments=environments,
        open_folder=unsandboxed,
        instance=instance_name(directory),
        locator=locator,
        cgroups=cgroups,
        wanted=limits.isolation_min,
    )


def instance_name(directory: Path) -> str:
    """A name for this node on its host: two servers have folders of their own, so their groups never mix."""
    return hashlib.sha256(str(directory.resolve()).encode()).hexdigest()[:12]


def _take(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise HostInUseError(f"another node process is using {path.parent}: give each its own data folder") from error
    return descriptor
