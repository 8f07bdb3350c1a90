"""Calls whose call, Function or App is deleted while some of them run and others wait."""

import asyncio

import nodus

app = nodus.App("doomed")


@app.function(timeout="300s", max_workers=1, scaledown_window="20m")
async def first(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


@app.function(timeout="300s", max_workers=1, scaledown_window="20m")
async def second(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds
