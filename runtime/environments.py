"""The Python environment a worker runs in: the public SDK and its dependencies, nothing of ours.

An environment is made once per (interpreter, lock file, platform), in a temporary folder, from hash-checked wheels
only, and then renamed into place, so a folder that exists is complete and never changes again. Its files are copies,
not hard links into uv's cache: an environment can therefore not reach another one through a shared inode.
`sandbox.py` shows it to workers read-only.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from runtime.pythons import Interpreter

RECIPE = 1
"""Raise it when the way an environment is built changes; old ones are then built anew."""
BUILD_SECONDS_MAX = 900
_LOCK_POLL_SECONDS = 0.1
_MANIFEST = "nodus-environment.json"
_OUTPUT_BYTES_MAX = 4_000

Progress = Callable[[str], None]


class EnvironmentFailedError(Exception):
    """The environment could not be built; the message carries what uv said last."""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """A finished environment: its folder, the interpreter it is built on, and what an image adds to it.

    `mounts` are files that a worker sees read-only, `scratch` folders that it may write to, `variables` and `directory`
    what it starts with unless its Function says otherwise. `image` is the key of the image; `may_wait` tells whether a
    worker that is not anybody's yet may start in it.
    """

    key: str
    path: Path
    interpreter: Interpreter
    mounts: tuple[tuple[Path, Path], ...] = ()
    scratch: tuple[Path, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    directory: str | None = None
    image: str | None = None
    may_wait: bool = True


class Environments:
    """All environments under one folder; processes that share the folder build each only once."""

    def __init__(self, *, directory: Path, lock_file: Path, uv: Path, environ: Mapping[str, str]) -> None:
        self._directory = directory
        self._lock_file = lock_file
        self._uv = uv
        self._environ = _environment_for_uv(environ)

    async def ensure(self, interpreter: Interpreter, progress: Progress) -> Environment:
        """The environment for `interpreter`, built now if this host has none; milliseconds when it has.

        `progress` gets a sentence at each step. Raises EnvironmentFailedError.
        """
        key = self.key(interpreter)
        environment = Environment(key=key, path=self._directory / key, interpreter=interpreter)
        if _complete(environment.path):
            return environment
        self._directory.mkdir(parents=True, exist_ok=True)
        async with _exclusive(self._directory / f".{key}.lock", progress):
            if not _complete(environment.path):
                await self._build(environment, progress)
        return environment

    def key(self, interpreter: Interpreter) -> str:
        """The content address: everything that could make two environments differ."""
        facts = [
            RECIPE,
            interpreter.version,
            str(interpreter.executable),
            interpreter.platform,
            interpreter.libc,
            hashlib.sha256(self._lock_file.read_bytes()).hexdigest(),
        ]
        digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
        return f"py{interpreter.minor}-{digest[:20]}"

    async def _build(self, environment: Environment, progress: Progress) -> None:
        building = self._directory / f".{environment.key}.building"
        # A build that died left its folder; nobody else can be at work here, the lock is ours.
        shutil.rmtree(building, ignore_errors=True)
        interpreter = environment.interpreter
        try:
            async with asyncio.timeout(BUILD_SECONDS_MAX):
                progress(f"creating the Python {interpreter.minor} environment")
                await self._run_uv("venv", "--relocatable", "--python", str(interpreter.executable), str(building))
                await self._install(building, progress)
        except TimeoutError as error:
            raise EnvironmentFailedError(f"building took longer than {BUILD_SECONDS_MAX} s") from error
        open_for_reading(building)
        manifest = {"python": interpreter.version, "executable": str(interpreter.executable), "recipe": RECIPE}
        (building / _MANIFEST).write_text(json.dumps(manifest))
        building.rename(environment.path)
        progress(f"the Python {interpreter.minor} environment is ready")

    async def _install(self, building: Path, progress: Progress) -> None:
        command = (
            *("pip", "sync", "--python", str(building / "bin" / "python"), "--require-hashes", "--no-build"),
            *("--link-mode", "copy", "--compile-bytecode", str(self._lock_file)),
        )
        progress("installing the worker's packages")
        try:
            # What the cache holds needs no network, and asking the index again would only cost seconds.
            await self._run_uv(*command, "--offline")
        except EnvironmentFailedError:
            progress("downloading the worker's packages")
            await self._run_uv(*command)

    async def _run_uv(self, *arguments: str) -> None:
        process = await asyncio.create_subprocess_exec(
            str(self._uv),
            *arguments,
            "--no-progress",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=self._environ,
        )
        try:
            output, _ = await process.communicate()
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            raise
        if process.returncode != 0:
            said = output[-_OUTPUT_BYTES_MAX:].decode(errors="replace").strip()
            raise EnvironmentFailedError(f"`uv {arguments[0]}` failed: {said}")


@contextlib.asynccontextmanager
async def _exclusive(path: Path, progress: Progress) -> AsyncIterator[None]:
    """Hold a file lock that other processes respect and that the kernel frees when we die."""
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    told = False
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    progress("waiting for another start that builds the same environment")
                told = True
                await asyncio.sleep(_LOCK_POLL_SECONDS)
        yield
    finally:
        os.close(descriptor)


def _complete(path: Path) -> bool:
    return (path / _MANIFEST).is_file()


def open_for_reading(root: Path) -> None:
    """Let every user read the tree, since workers have uids of their own: neither wheels nor our umask decide."""
    for folder, _, files in os.walk(root):
        os.chmod(folder, 0o755)  # noqa: S103 - public packages, nothing of a user
        for name in files:
            path = Path(folder, name)
            if not path.is_symlink():
                path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)


def _environment_for_uv(environ: Mapping[str, str]) -> dict[str, str]:
    """The caller's variables less those that would redirect uv or its Python; indexes and proxies stay."""
    dropped = ("VIRTUAL_ENV", "CONDA_PREFIX", "UV_PROJECT_ENVIRONMENT", "UV_PYTHON", "UV_SYSTEM_PYTHON")
    kept = {
        name: value
        for name, value in environ.items()
        if not name.startswith(("PYTHON", "NODUS_", "LD_")) and name not in dropped
    }
    return {**kept, "UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1"}
