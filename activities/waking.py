"""How a controller waits between two looks: until something changed, and no longer than its resync."""

from __future__ import annotations

import asyncio


async def woken(event: asyncio.Event, seconds: float) -> None:
    """Wait until the event, which is cleared, or until `seconds` have passed."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
    event.clear()
