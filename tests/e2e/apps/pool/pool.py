"""Functions whose pools are stopped, restarted, widened and watched by `tests/e2e/test_pools.py`."""

import os
import time

import nodus

app = nodus.App("pool")


@app.function(timeout="120s", max_workers=2, scaledown_window="2s")
def nap(seconds: float) -> str:
    """Sleep, and tell on which worker."""
    time.sleep(seconds)
    return os.environ["NODUS_ATTEMPT"]


@app.function(timeout="60s", max_workers=1, scaledown_window="20m")
def say(text: str) -> str:
    """Print, and tell on which worker."""
    print("said", text)
    return os.environ["NODUS_ATTEMPT"]


@app.function(timeout="60s", max_workers=1, memory="256Mi")
def eat(size_bytes: int) -> int:
    """Take memory."""
    return len(bytearray(size_bytes))
