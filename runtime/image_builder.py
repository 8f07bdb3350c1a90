"""Builds one image: its steps, each in a sandbox of its own, and then the seal.

A build starts from a copy of the worker's environment (`environments.py`). Every command of every step runs as a user
of its own, with the worker's filter, limits and empty network; only what installs packages gets a socket to the
package index (`index_proxy.py`). What commands leave behind is taken from their user, hashed and renamed into place
(`images.py`), so that a build that dies at any moment leaves a folder that the next start removes. What a step prints
goes to the build's log.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from runtime import image_layout, image_steps, sandbox, trees
from runtime.cgroups import Cgroup, Limits
from runtime.environments import Environment, EnvironmentFailedError
from runtime.host import Host
from runtime.image_steps import Step, StepCommand
from runtime.images import ImageMissingError, ImagesFullError, Manifest, image_digest
from runtime.index_proxy import IndexProxy
from runtime.logs import LogCollector, Sink
from runtime.package_indexes import PYTHON_PRESET
from runtime.process import BRIDGE_PORT, Command, SandboxProcess
from runtime.pythons import PythonMissingError
from runtime.sandbox import SandboxSpec
from runtime.start_hooks import start_hooks
from runtime.uids import lease_uid

RECIPE = 2
"""Raise it when the way images are built changes; old ones are then built anew."""
WATCH_SECONDS = 1.0
CPUS_LEAST = 1.0
"""What a build gets beside workers that want all processors, as if it were a worker of one."""
_CERTIFICATES = Path("/nodus/certificates.pem")
_SYSTEM_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
_WORKER_CHECK = "import nodus._worker"

_UNWALLED = (
    "this node runs workers without a sandbox (isolation level none), and the steps of an Image run in sandboxes: give "
    "the node one, or install what the Function needs in its code"
)

Fetch = Callable[[str, Path], Awaitable[None]]
"""Writes the bytes of a blob (`sha256:…`) to a file; raises whatever may pass by itself."""


class Stage(Enum):
    """How far a build has come."""

    QUEUED = "Queued"
    BUILDING = "Building"
    PUSHING = "Pushing"


@dataclass(frozen=True, kw_only=True)
class BuildLimits:
    """Bounds of every build of this node."""

    builds_max: int
    seconds_max: float
    disk_bytes_max: int
    images_disk_bytes_max: int
    memory_bytes_max: int


@dataclass(frozen=True, kw_only=True)
class BuiltImage:
    """A finished image; `cached` when this node had it already."""

    key: str
    digest: str
    size_bytes: int
    cached: bool


class ImageFailedError(Exception):
    """The image cannot be built as it is written. `reason` is the protocol's word, the message the node's sentence."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(kw_only=True)
class _Work:
    """One build while it runs."""

    folder: Path
    environment: Environment
    tops: Sequence[str]
    logs: LogCollector
    uid: int | None
    cgroup: Cgroup
    variables: dict[str, str] = field(default_factory=dict)
    directory: str | None = None
    process: SandboxProcess | None = None
    too_large: bool = False


class ImageBuilder:
    """Builds images on one node."""

    def __init__(self, host: Host, limits: BuildLimits, environ: Mapping[str, str]) -> None:
        self._host = host
        self._limits = limits
        self._free = asyncio.Semaphore(limits.builds_max)
        certificates = environ.get("SSL_CERT_FILE") or _SYSTEM_CERTIFICATES
        self._certificates = Path(certificates).resolve() if Path(certificates).is_file() else None

    async def key(self, python: str, steps: Sequence[Step]) -> str:
        """The name of what these steps make on that Python of this host.

        Raises ImageFailedError when the host has no such Python.
        """
        try:
            environment_key = await self._host.environment_key(python)
        except PythonMissingError as error:
            raise ImageFailedError("BaseNotFound", str(error)) from error
        facts = [RECIPE, environment_key, [[step.kind, step.fields] for step in steps]]
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        return f"image-{digest[:20]}"

    async def build(
        self, python: str, steps: Sequence[Step], fetch: Fetch, sink: Sink, tell: Callable[[Stage], None]
    ) -> BuiltImage:
        """The image, built now if this node has none of its key.

        Raises ImageFailedError when the fault is in the image; anything else may pass if it is tried again.
        """
        logs = LogCollector(sink, self._host.limits.logs)
        try:
            if not self._host.confines:
                raise ImageFailedError("ImageBuildUnavailable", _UNWALLED)
            tell(Stage.QUEUED)
            key = await self.key(python, steps)
            async with self._free, self._host.images.build_lock(key):
                return await self._in_time(self._ensure(key, python, steps, fetch, logs, tell))
        except ImageFailedError as error:
            logs.note(str(error))
            raise
        finally:
            await logs.close()

    async def _in_time(self, building: Awaitable[BuiltImage]) -> BuiltImage:
        deadline = asyncio.timeout(self._limits.seconds_max)
        try:
            async with deadline:
                return await building
        except TimeoutError as error:
            if not deadline.expired():
                raise
            told = f"the build took longer than the {self._limits.seconds_max:g} s that this server allows"
            raise ImageFailedError("BuildTimeout", told) from error

    async def _ensure(
        self,
        key: str,
        python: str,
        steps: Sequence[Step],
        fetch: Fetch,
        logs: LogCollector,
        tell: Callable[[Stage], None],
    ) -> BuiltImage:
        store = self._host.images
        with store.lease(key), contextlib.suppress(ImageMissingError):
            found = await store.manifest(key)
            logs.note(f"nothing to do: {key} was built before")
            return BuiltImage(key=key, digest=found.digest, size_bytes=found.size_bytes, cached=True)
        tell(Stage.BUILDING)
        building = store.building(key)
        await trees.to_end(trees.remove, building)
        try:
            manifest = await self._build(building, python, steps, fetch, logs)
            tell(Stage.PUSHING)
            await store.publish_within(self._limits.images_disk_bytes_max, key, manifest)
        except ImagesFullError as error:
            trees.remove(building)
            raise ImageFailedError("StepFailed", _no_room(str(error))) from error
        except BaseException:
            # Not in a thread: a build that is cancelled must have cleared its disk before the next one begins.
            trees.remove(building)
            raise
        logs.note(f"built {key}: {manifest.digest}, {manifest.size_bytes} bytes")
        return BuiltImage(key=key, digest=manifest.digest, size_bytes=manifest.size_bytes, cached=False)

    async def _build(
        self, building: Path, python: str, steps: Sequence[Step], fetch: Fetch, logs: LogCollector
    ) -> Manifest:
        try:
            environment = await self._host.environment(python, logs.note)
        except EnvironmentFailedError as error:
            raise OSError(f"the environment that images start from: {error}") from error
        async with self._work(building, environment, steps, logs) as work:
            await self._fetch_blobs(work, steps, fetch)
            for step in steps:
                logs.note(f"{step.label}")
                await self._run_step(work, step)
            await self._check_worker(work)
        return await trees.to_end(self._seal, work)

    @contextlib.asynccontextmanager
    async def _work(
        self, building: Path, environment: Environment, steps: Sequence[Step], logs: LogCollector
    ) -> AsyncIterator[_Work]:
        """Everything that commands need; on the way out none of them is left."""
        tops = image_steps.tops_of(steps)
        async with contextlib.AsyncExitStack() as stack:
            lease = lease_uid() if self._host.own_uids else None
            if lease is not None:
                stack.callback(lease.release)
            uid = lease.uid if lease else None
            await trees.to_end(image_layout.lay_out, building, environment, tops, uid)
            limits = self._host.limits
            cgroup = self._host.cgroups.create(
                building.name.strip("."),
                Limits(memory_bytes_max=self._limits.memory_bytes_max, pids_max=limits.pids_max, cpus_least=CPUS_LEAST),
            )
            stack.callback(cgroup.remove)
            hosts = await self._host.indexes.hosts([PYTHON_PRESET])
            proxy = IndexProxy(hosts, lambda host: logs.note(_refusal(host, hosts)))
            await proxy.listen(building / "online", uid)
            stack.callback(proxy.close)
            work = _Work(folder=building, environment=environment, tops=tops, logs=logs, uid=uid, cgroup=cgroup)
            watching = asyncio.create_task(self._watch_disk(work))
            stack.callback(watching.cancel)
            yield work

    async def _fetch_blobs(self, work: _Work, steps: Sequence[Step], fetch: Fetch) -> None:
        for reference in image_steps.blobs_of(steps):
            await fetch(reference, work.folder / "inputs" / image_steps.blob_file(reference).name)

    async def _run_step(self, work: _Work, step: Step) -> None:
        if step.kind == "env":
            work.variables.update(step.fields)
        for command in image_steps.commands_of(step):
            code = await self._run(work, command)
            if work.too_large:
                raise ImageFailedError(
                    "StepFailed",
                    f"{step.label} was ended: the build needs more than the {self._limits.disk_bytes_max} bytes of "
                    "disk that this server allows",
                )
            if code != 0:
                killed = work.cgroup.out_of_memory_kills() > 0
                why = "used more memory than it may" if killed else f"ended with exit code {code}"
                raise ImageFailedError("StepFailed", f"{step.label} {why}")
        if step.kind == "workdir":
            work.directory = str(step.fields)

    async def _check_worker(self, work: _Work) -> None:
        """Steps may have replaced what the worker itself needs; that is better said now than by each worker."""
        check = StepCommand(arguments=(str(image_steps.PYTHON), "-I", "-c", _WORKER_CHECK))
        if await self._run(work, check) != 0:
            raise ImageFailedError(
                "StepFailed",
                f"with these packages the worker of {image_layout.WORKER_PACKAGE} cannot be imported any more; the log "
                "says why",
            )

    async def _run(self, work: _Work, command: StepCommand) -> int:
        """Run one command to its end; its exit code, 128 + n for signal n."""
        if any("\0" in word for word in (*command.arguments, *work.variables.values())):
            raise ImageFailedError("StepFailed", "a step contains a NUL character, which no program can be given")
        process = await SandboxProcess.start(
            self._sandbox(work, command), self._command(work, command), self._host.tools, work.cgroup
        )
        work.process = process
        work.logs.read(process.stdout, "stdout")
        work.logs.read(process.stderr, "stderr")
        try:
            ending = await process.wait()
        except BaseException:
            process.kill()
            await process.wait()
            raise
        finally:
            work.process = None
        return 128 + ending.signal if ending.signal is not None else ending.exit_code or 0

    def _sandbox(self, work: _Work, command: StepCommand) -> SandboxSpec:
        folder, prefix = work.folder, work.environment.interpreter.prefix
        read_only = [
            (folder / ("online" if command.network else "offline"), sandbox.RUN),
            (folder / "inputs", image_steps.INPUTS),
            (self._host.uv, image_steps.UV),
        ]
        if not prefix.is_relative_to("/usr"):
            read_only.append((prefix, prefix))
        if self._certificates is not None:
            read_only.append((self._certificates, _CERTIFICATES))
        writable = [(folder / "tree" / "files" / top, Path("/", top)) for top in work.tops]
        writable += [(folder / "tree" / "env", sandbox.ENVIRONMENT)]
        writable += [(folder / "cache", image_steps.CACHE), (folder / "project", image_steps.PROJECT)]
        return SandboxSpec(
            uid=work.uid,
            read_only=read_only,
            writable=writable,
            scratch_bytes_max=self._host.limits.scratch_bytes_max,
            hostname="nodus-build",
        )

    def _command(self, work: _Work, command: StepCommand) -> Command:
        interpreter = work.environment.interpreter.executable
        return Command(
            # The environment is the build's own to write, so init runs on the interpreter below it.
            python=interpreter,
            arguments=command.arguments,
            environment={**_BUILD_VARIABLES, **work.variables, **self._reserved(command)},
            directory=command.directory or work.directory or str(sandbox.WORKSPACE),
        )

    def _reserved(self, command: StepCommand) -> dict[str, str]:
        """Variables that steps cannot set for commands of ours."""
        if not command.network:
            return {}
        way_out = f"http://127.0.0.1:{BRIDGE_PORT}"
        told = {"HTTPS_PROXY": way_out, "https_proxy": way_out, "NO_PROXY": "", "no_proxy": ""}
        index_url = self._host.indexes.settings.python_url
        if index_url:
            told["UV_DEFAULT_INDEX"] = index_url
        if self._certificates is not None:
            told["SSL_CERT_FILE"] = str(_CERTIFICATES)
        return told

    async def _watch_disk(self, work: _Work) -> None:
        """End the running command when the build has grown beyond its budget; the disk has no quota of its own."""
        while not work.too_large:
            await asyncio.sleep(WATCH_SECONDS)
            used = await asyncio.to_thread(trees.disk_bytes, work.folder)
            if used > self._limits.disk_bytes_max:
                work.too_large = True
                if work.process is not None:
                    work.process.kill()

    def _seal(self, work: _Work) -> Manifest:
        for name in ("online", "offline", "inputs", "cache", "project"):
            trees.remove(work.folder / name)
        try:
            sealed = trees.seal(work.folder / "tree")
        except trees.TreeRefusedError as error:
            raise ImageFailedError("StepFailed", f"what the steps left cannot be an image: {error}") from error
        interpreter = work.environment.interpreter
        return Manifest(
            digest=image_digest(sealed.digest, work.variables, work.directory),
            size_bytes=sealed.size_bytes,
            python_version=interpreter.version,
            executable=str(interpreter.executable),
            variables=work.variables,
            directory=work.directory,
            scratch=[
                top for top in work.tops if top != sandbox.WORKSPACE.name and image_layout.is_empty(work.folder, top)
            ],
            start_hooks=start_hooks(work.folder / "tree" / "env", work.environment.path),
        )


_BUILD_VARIABLES = {
    "PATH": f"{sandbox.ENVIRONMENT}/bin:/usr/local/bin:/usr/bin:/bin",
    "HOME": str(sandbox.TEMPORARY),
    "LANG": "C.UTF-8",
    "PYTHONUNBUFFERED": "1",
    "VIRTUAL_ENV": str(sandbox.ENVIRONMENT),
    "UV_PROJECT_ENVIRONMENT": str(sandbox.ENVIRONMENT),
    "UV_CACHE_DIR": str(image_steps.CACHE),
    "UV_PYTHON_DOWNLOADS": "never",
    "UV_NO_PROGRESS": "1",
    "UV_NO_CONFIG": "1",
    "PYC_INVALIDATION_MODE": "CHECKED_HASH",
}
"""What commands of a build start with; nothing of the node's own."""


def _no_room(problem: str) -> str:
    return (
        f"every step succeeded, and the node has no room for the image: {problem} that this server allows; delete "
        "Functions with large images, or have NODUS_SERVER_IMAGES_DISK_BYTES_MAX raised, and ask for the build again"
    )


def _refusal(host: str, hosts: Sequence[str]) -> str:
    return (
        f"{host} is not among the package indexes of this server ({', '.join(hosts) or 'none answers'}); "
        "whoever runs it can add it to NODUS_SERVER_IMAGE_INDEX_HOSTS"
    )
