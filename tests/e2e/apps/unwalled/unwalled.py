"""Functions that run on a node without a sandbox, for `tests/e2e/test_unsandboxed.py`."""

import os
import subprocess
import sys
import time

import nodus

app = nodus.App("unwalled")

DETACHED = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(3600)
"""


@app.function(timeout="120s", max_workers=1, scaledown_window="20m")
def act(how: str) -> int:
    """Do one of the things that a call may do; which user it is."""
    if how == "raise":
        raise LookupError("no such thing")
    if how == "sleep":
        time.sleep(600)
    if how == "detach":
        subprocess.run([sys.executable, "-c", DETACHED], check=True)
    return os.getuid()


@app.function(timeout="2s", max_workers=1)
async def late() -> None:
    """Outlast its deadline."""
    import asyncio

    await asyncio.sleep(600)
