"""Interpreters for workers that are other users than the node and have no sandbox (`plain.py`).

In a sandbox an interpreter is shown to its worker wherever it lies. Without one, a Python below a private home, where
uv and pyenv put those of root, cannot be reached by the worker's user. Such a one is copied to a folder that all may
pass, without the packages that were installed into it. CPython finds its modules beside itself, but the system finds
the shared library of one that has any where it was built for: the copy is told to look beside itself too.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

import structlog

from runtime.environments import open_for_reading
from runtime.pythons import Interpreter, PythonMissingError

_LEFT_OUT = ("site-packages", "dist-packages", "test", "tests", "idlelib", "*.a", "share")
_OTHERS_MAY_PASS = 0o001
NOBODY = 65_534
PROVE_SECONDS_MAX = 60

log = structlog.get_logger(__name__)


def reachable(interpreter: Interpreter, folder: Path) -> Interpreter:
    """The interpreter, or a copy of it in `folder`, made now if there is none. Call it off the event loop."""
    if _open_to_all(interpreter.executable) and _open_to_all(interpreter.prefix):
        return interpreter
    facts = f"{interpreter.version} {interpreter.prefix}"
    prefix = folder / f"python-{interpreter.version}-{hashlib.sha256(facts.encode()).hexdigest()[:12]}"
    if not prefix.is_dir():
        _copy(interpreter.prefix, interpreter.executable.relative_to(interpreter.prefix), prefix)
    return replace(
        interpreter, executable=prefix / interpreter.executable.relative_to(interpreter.prefix), prefix=prefix
    )


def _open_to_all(path: Path) -> bool:
    return all(place.stat().st_mode & _OTHERS_MAY_PASS for place in (path, *path.parents))


def _look_beside(executable: Path, libraries: Path) -> None:
    """Replace the folder that the loader looks for libraries in by the one beside the executable, which is shorter."""
    built_for, beside = bytes(libraries) + b"\0", b"$ORIGIN/../lib\0"
    content = executable.read_bytes()
    if built_for in content and len(beside) <= len(built_for):
        executable.write_bytes(content.replace(built_for, beside.ljust(len(built_for), b"\0")))


def _prove(executable: Path) -> None:
    """Run it as a user who has no rights, with what the public worker needs. Raises PythonMissingError."""
    try:
        subprocess.run(
            [str(executable), "-I", "-c", "import ctypes, hashlib, ssl"],
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            cwd="/",
            env={},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROVE_SECONDS_MAX,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        log.warning("other users cannot use a Python", executable=str(executable), problem=str(error))
        raise PythonMissingError(
            "workers without a sandbox are users of their own and cannot use the Python of this node. Its operator may "
            "install one where all users may read it, and name it by NODUS_PYTHON_3_x"
        ) from error


def _copy(prefix: Path, executable: Path, target: Path) -> None:
    """Copy and then rename, so that a folder that exists is whole; who comes second to that keeps the first one's."""
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    target.parent.chmod(0o755)
    copying = Path(tempfile.mkdtemp(prefix=".copying-", dir=target.parent))
    try:
        shutil.copytree(prefix, copying, symlinks=True, ignore=shutil.ignore_patterns(*_LEFT_OUT), dirs_exist_ok=True)
        open_for_reading(copying)
        executable = copying / executable
        _look_beside(executable, prefix / "lib")
        _prove(executable)
        try:
            copying.rename(target)
        except OSError:
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(copying, ignore_errors=True)
