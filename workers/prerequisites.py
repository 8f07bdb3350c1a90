"""What this host must offer before user code can run: engines that start, a sandbox that holds, an environment.

A gap is one sentence.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path

from runtime.canary import Level
from runtime.environments import EnvironmentFailedError, Environments
from runtime.host import LOCK_FILE
from runtime.pythons import PythonLocator, PythonMissingError, find_uv
from runtime.sandbox import SandboxUnavailableError, check, find_tools
from runtime.uids import spare_uid
from workers.engines.postgres import StagingUnavailableError, check_staging
from workers.state import StartError

UNSANDBOXED_ADVICE = (
    "Where all code is your own and no sandbox can be made, NODUS_SERVER_UNSANDBOXED=1 runs it without one"
)


def check_host(environ: Mapping[str, str], *, unsandboxed: bool = False, isolation_min: Level = "none") -> None:
    """Raise StartError when this host cannot confine user code, because then nothing could be run; or when that is to
    run `unsandboxed`, and `isolation_min` asks for more."""
    if sys.platform != "linux":
        raise StartError("nodus-server runs on Linux: run it in a Linux container or machine")
    if unsandboxed and isolation_min != "none":
        raise StartError(
            "NODUS_SERVER_UNSANDBOXED=1 gives workers isolation level none, and NODUS_SERVER_ISOLATION_MIN asks for "
            f"{isolation_min}: unset one of them"
        )
    if unsandboxed:
        return
    try:
        tools = find_tools(environ)
        with spare_uid() as uid:
            check(tools, uid)
    except SandboxUnavailableError as error:
        raise StartError(f"user code cannot be confined on this host: {error}. {UNSANDBOXED_ADVICE}") from error


def check_engines() -> None:
    """Raise StartError when the embedded engines cannot be started by this user of this host."""
    try:
        check_staging()
    except StagingUnavailableError as error:
        raise StartError(str(error)) from error


async def build_environment(directory: Path, environ: Mapping[str, str]) -> str | None:
    """Build the environment of user code for our own Python minor if this host has none; why it could not, or None.

    The node would build it for the first call that needs it; a first start does it while an operator watches.
    """
    uv = find_uv(environ)
    environments = Environments(directory=directory, lock_file=LOCK_FILE, uv=uv, environ=environ)
    minor = f"{sys.version_info.major}.{sys.version_info.minor}"
    try:
        interpreter = await asyncio.to_thread(PythonLocator(environ, uv).locate, minor)
        await environments.ensure(interpreter, lambda step: None)
    except (PythonMissingError, EnvironmentFailedError) as error:
        return f"no environment for user code in Python {minor}: {error}"
    return None
