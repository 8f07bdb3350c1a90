"""Functions whose workers `tests/e2e/test_commanded_cancels.py` starts by a command of its own."""

import asyncio
import time

import nodus

app = nodus.App("commanded")


@app.function(timeout="300s", max_workers=1, scaledown_window="20m")
async def coroutine(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


@app.function(timeout="300s", max_workers=1, scaledown_window="20m")
def thread(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


@app.function(timeout="300s", max_workers=1, scaledown_window="20m", target_concurrency=2)
async def coroutines(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds
