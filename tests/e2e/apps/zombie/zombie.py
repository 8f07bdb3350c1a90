"""Calls that are to be stopped while they run: threads that nobody can stop, a coroutine, and one that never yields."""

import asyncio
import time

import nodus

app = nodus.App("zombie")


@app.function(timeout="300s", max_workers=2, scaledown_window="20m")
def tick(ticks: int) -> int:
    for number in range(ticks):
        print(f"tick {number}", flush=True)
        time.sleep(0.5)
    return ticks


@app.function(timeout="10s", retries=3, max_workers=1, scaledown_window="20m")
def late(ticks: int) -> int:
    for number in range(ticks):
        print(f"tick {number}", flush=True)
        time.sleep(0.5)
    return ticks


@app.function(timeout="300s", max_workers=1, scaledown_window="20m")
async def rest(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


@app.function(timeout="8s", retries=3, max_workers=1, scaledown_window="20m")
async def block(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


@app.function(timeout="300s", max_workers=1, scaledown_window="20m")
async def block_long(seconds: float) -> float:
    time.sleep(seconds)
    return seconds
