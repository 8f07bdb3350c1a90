"""Bodies that are cancelled while they run: coroutines and threads, alone on their worker and beside others."""

import asyncio
import time

import nodus

app = nodus.App("stopped")


@app.function(timeout="300s", max_workers=2, scaledown_window="20m")
async def coroutine(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


@app.function(timeout="300s", max_workers=2, scaledown_window="20m", target_concurrency=8)
async def coroutines(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


@app.function(timeout="300s", max_workers=2, scaledown_window="20m")
def thread(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


@app.function(timeout="300s", max_workers=2, scaledown_window="20m", target_concurrency=8)
def threads(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


@app.function(timeout="300s", max_workers=1, scaledown_window="20m", target_concurrency=8)
async def waits_in_thread(seconds: float) -> float:
    await asyncio.to_thread(time.sleep, seconds)
    return seconds
