"""Bodies that are written while they are produced: watches and followed logs.

Headers leave at once, even when nothing happens for an hour (R-WATCH-1); chunks leave as they come, each a whole number
of lines. A stream ends, cleanly between two chunks, when its source ends, its time is up, the client goes away, the
process is asked to stop, or the credential that opened it is no longer good.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from controlplane.errors import ApiError

log = structlog.get_logger("api")

RECHECK_SECONDS = 30.0
"""How often a running stream asks whether it may go on; a revoked key ends its streams within this time."""


class StreamResponse(Response):
    """Sends the chunks of an async generator; closes the generator however the stream ends."""

    def __init__(
        self,
        chunks: AsyncGenerator[bytes, None],
        *,
        media_type: str,
        seconds_max: float,
        stopping: asyncio.Event,
        recheck: Callable[[], Awaitable[object]],
    ) -> None:
        super().__init__(media_type=media_type, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._chunks = chunks
        self._seconds_max = seconds_max
        self._stopping = stopping
        self._recheck = recheck

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        pump = asyncio.create_task(self._pump(send), name="stream")
        gone = asyncio.create_task(_disconnected(receive), name="stream-disconnect")
        stopped = asyncio.create_task(self._stopping.wait(), name="stream-stop")
        try:
            await self._until_any_ends((pump, gone, stopped))
        finally:
            for task in (pump, gone, stopped):
                task.cancel()
            await asyncio.gather(pump, gone, stopped, return_exceptions=True)
        if not pump.cancelled() and (error := pump.exception()) is not None:
            # The status line is long gone; an abrupt end is the only honest answer left.
            raise error
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _until_any_ends(self, tasks: tuple[asyncio.Task[object], ...]) -> None:
        """Wait for the first of the tasks, the deadline, or a credential that was withdrawn."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._seconds_max
        while (remaining := deadline - loop.time()) > 0:
            done, _ = await asyncio.wait(
                tasks, timeout=min(remaining, RECHECK_SECONDS), return_when=asyncio.FIRST_COMPLETED
            )
            if done:
                return
            try:
                await self._recheck()
            except ApiError as error:
                if error.reason.row.http_status in (401, 403):
                    log.info("stream ended: its credential was withdrawn")
                    return

    async def _pump(self, send: Send) -> None:
        try:
            async for chunk in self._chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        finally:
            await self._chunks.aclose()


async def _disconnected(receive: Receive) -> None:
    """Returns when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
