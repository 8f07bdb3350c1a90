"""How much later than asked this process was woken: time that says nothing about the system under test.

A harness that shares its cores sees every answer late. Whoever measures a wait against a promise takes this off.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

TICK_SECONDS = 0.05


class Lateness:
    """Sums up delays while it is entered; `seconds` only grows."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._ticking: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Lateness:
        self._ticking = asyncio.create_task(self._tick())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ticking is not None:
            self._ticking.cancel()

    async def _tick(self) -> None:
        now = asyncio.get_running_loop().time
        while True:
            asleep_at = now()
            await asyncio.sleep(TICK_SECONDS)
            self.seconds += now() - asleep_at - TICK_SECONDS
