"""Which Python interpreters this host has.

A Function names a minor version (`3.12`), and its pickles are readable only by that minor: the right interpreter or a
clear refusal, never a neighbour. `PythonLocator` finds one, proves it by running it, and remembers it;
`environments.py` builds the worker's environment on it and `sandbox.py` shows its files, read-only, to the worker.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

log = structlog.get_logger(__name__)

MINORS = ("3.10", "3.11", "3.12", "3.13")
"""Those that a Function may ask for."""
PROBE_SECONDS_MAX = 20
"""An interpreter that has not told its version by then is broken; a pyenv shim on a cold disk takes about a second."""

_PROBE = """
import json, os, platform, sys, sysconfig, tarfile
print(json.dumps({
    "implementation": sys.implementation.name,
    "version": platform.python_version(),
    "executable": os.path.realpath(getattr(sys, "_base_executable", sys.executable)),
    "prefix": os.path.realpath(sys.base_prefix),
    "platform": sysconfig.get_platform(),
    "libc": "-".join(platform.libc_ver()),
    "safe_tar": hasattr(tarfile, "data_filter"),
}))
"""


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    """One usable CPython: `executable` is the base interpreter, `prefix` the folder tree it needs to run."""

    minor: str
    version: str
    executable: Path
    prefix: Path
    platform: str
    libc: str


class PythonMissingError(Exception):
    """This host has no usable interpreter of the asked minor.

    The message is for whoever asked and names no path of the host; `looked_at` is for its operator.
    """

    def __init__(self, message: str, looked_at: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.looked_at = tuple(looked_at)


class PythonLocator:
    """Finds interpreters by minor version and remembers what it found; safe to call from several threads."""

    def __init__(self, environ: Mapping[str, str], uv: Path | None = None) -> None:
        self._environ = environ
        self._uv = uv
        self._found: dict[str, Interpreter] = {}

    def locate(self, minor: str) -> Interpreter:
        """The interpreter for `minor` such as `3.12`. Runs candidates, so call it off the event loop.

        Order: the variable `NODUS_PYTHON_3_12`, the Python of this process, PATH, pyenv's versions, what uv knows.
        A variable that is set is obeyed or refused, never passed over. Raises PythonMissingError; what was looked at
        is for the log of the node.
        """
        if not re.fullmatch(r"3\.\d{1,2}", minor):
            raise PythonMissingError(f"{minor!r} is not a Python minor version such as 3.12")
        found, rejected = self._find(minor)
        if found is not None:
            return found
        log.warning("a Python is missing", python=minor, looked_at=rejected, variable=_variable(minor))
        others = [other for other in MINORS if self._find(other)[0] is not None]
        raise PythonMissingError(_advice(minor, others), rejected)

    def _find(self, minor: str) -> tuple[Interpreter | None, list[str]]:
        """The interpreter, or what was looked at in vain."""
        known = self._found.get(minor)
        if known is not None and known.executable.exists():
            return known, []
        rejected: list[str] = []
        for candidate in self._candidates(minor):
            found = _probe(candidate, minor, self._environ)
            if isinstance(found, Interpreter):
                self._found[minor] = found
                return found, []
            rejected.append(f"{candidate} {found}")
        return None, rejected

    def _candidates(self, minor: str) -> Iterator[Path]:
        told = self._environ.get(_variable(minor))
        if told:
            yield Path(told)
            return
        if minor == f"{sys.version_info.major}.{sys.version_info.minor}":
            yield Path(sys.executable)
        name = f"python{minor}"
        folders = self._environ.get("PATH", os.defpath).split(os.pathsep)
        pyenv = Path(self._environ.get("PYENV_ROOT") or Path(self._environ.get("HOME", "/root"), ".pyenv"))
        # Newest patch first: 3.12.10 after 3.12.9 by number, not by letter.
        versions = sorted(pyenv.glob(f"versions/{minor}.*"), key=_patch_number, reverse=True)
        seen: set[Path] = set()
        for path in [*(Path(folder, name) for folder in folders if folder), *(v / "bin" / name for v in versions)]:
            if path not in seen and os.access(path, os.X_OK):
                seen.add(path)
                yield path
        yield from self._known_to_uv(minor)

    def _known_to_uv(self, minor: str) -> Iterator[Path]:
        if self._uv is None:
            return
        command = [str(self._uv), "python", "find", "--no-project", "--no-python-downloads", minor]
        answer = _run(command, self._environ)
        if answer is not None and answer.strip():
            yield Path(answer.strip().splitlines()[-1])


def find_uv(environ: Mapping[str, str]) -> Path:
    """The uv binary beside this process's Python, else on PATH; FileNotFoundError says how to get it."""
    beside = Path(sys.executable).parent / "uv"
    if os.access(beside, os.X_OK):
        return beside
    found = shutil.which("uv", path=environ.get("PATH"))
    if found is None:
        raise FileNotFoundError("uv is not installed: run `pip install uv` in the server's environment")
    return Path(found)


def _probe(candidate: Path, minor: str, environ: Mapping[str, str]) -> Interpreter | str:
    """The interpreter behind `candidate`, or why it cannot serve."""
    answer = _run([str(candidate), "-I", "-c", _PROBE], environ)
    if answer is None:
        return "does not run"
    try:
        told = json.loads(answer)
    except ValueError:
        return "does not answer like a Python"
    version: str = told["version"]
    if told["implementation"] != "cpython" or version.rsplit(".", 1)[0] != minor:
        return f"is {told['implementation']} {version}"
    if not told["safe_tar"]:
        # The worker unpacks the user's code with tarfile's data filter, which came in 3.10.12 and 3.11.4.
        return f"is {version}, too old to unpack archives safely"
    return Interpreter(
        minor=minor,
        version=version,
        executable=Path(told["executable"]),
        prefix=Path(told["prefix"]),
        platform=told["platform"],
        libc=told["libc"],
    )


def _run(command: list[str], environ: Mapping[str, str]) -> str | None:
    """Standard output of a short command, or None when it fails; it gets no variable that could change a Python."""
    kept = {
        name: environ[name]
        for name in ("PATH", "HOME", "LANG", "PYENV_ROOT", "UV_PYTHON_INSTALL_DIR")
        if name in environ
    }
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            env=kept,
            timeout=PROBE_SECONDS_MAX,
            check=True,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def _variable(minor: str) -> str:
    return "NODUS_PYTHON_" + minor.replace(".", "_")


def _patch_number(version_folder: Path) -> int:
    digits = re.match(r"\d+", version_folder.name.rsplit(".", 1)[-1])
    return int(digits.group()) if digits else -1


def _advice(minor: str, others: list[str]) -> str:
    there = f"it has {', '.join(others)}, of which `spec.python` may name one" if others else "it has no other either"
    return (
        f"Python {minor} is not on this node: {there}. Its operator may install it, or set {_variable(minor)} to the "
        "path of its interpreter."
    )
