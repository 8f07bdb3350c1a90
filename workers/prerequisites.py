"""What this host must offer before anything is started; each gap is one sentence with its fix."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from runtime.sandbox import SandboxUnavailableError, check, find_tools
from workers.state import StartError

TRIAL_UID = 65_533
"""Any uid that owns nothing; the sandbox of the trial run ends at once."""


def check_host(environ: Mapping[str, str]) -> None:
    """Raise StartError when this host cannot confine user code, because then nothing could be run."""
    if sys.platform != "linux":
        raise StartError("nodus-server runs on Linux: run it in a Linux container or machine")
    try:
        check(find_tools(environ), TRIAL_UID if os.geteuid() == 0 else None)
    except SandboxUnavailableError as error:
        raise StartError(f"user code cannot be confined on this host: {error}") from error
