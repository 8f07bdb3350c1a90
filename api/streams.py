"""Bodies that are written while they are produced: watches and followed logs.

Headers leave at once, even when nothing happens for an hour (R-WATCH-1); chunks leave as they come, each a whole number
of lines. A stream ends, cleanly between two chunks, when its source ends, its time is up, the client goes away, the
process is asked to stop, or the caller may no longer read it.
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
"""How often a running stream asks whether it may go on; a key that was revoked or has lost a scope ends its streams
within this time."""


class StreamResponse(Response):
    """Sends the chunks of an async generator; closes the generator however the stream ends."""

    def __init__(
        self,
        chunks: AsyncGenerator[bytes, None],
        *,
        media_type: str,
        seconds_max: float,
        stopping: asyncio.Event,
        recheck: Callable[[], Awaitable[None]],
        refused: Callable[[ApiError], bytes],
    ) -> None:
        """`recheck` raises the 401 or 403 that ends the stream; `refused` writes it as the stream's last chunk."""
        super().__init__(media_type=media_type, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._chunks = chunks
        self._seconds_max = seconds_max
        self._stopping = stopping
        self._recheck = recheck
        self._refused = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        pump = asyncio.create_task(self._pump(send), name="stream")
        gone = asyncio.create_task(_disconnected(receive), name="stream-disconnect")
        stopped = asyncio.create_task(self._stopping.wait(), name="stream-stop")
        try:
            refusal = await self._until_any_ends((pump, gone, stopped))
        finally:
            for task in (pump, gone, stopped):
                task.cancel()
            await asyncio.gather(pump, gone, stopped, return_exceptions=True)
        if not pump.cancelled() and (error := pump.exception()) is not None:
            # The status line is long gone; an abrupt end is the only honest answer left.
            raise error
        last = b"" if refusal is None else self._refused(refusal)
        await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _until_any_ends(self, tasks: tuple[asyncio.Task[object], ...]) -> ApiError | None:
        """Wait for the first of the tasks, the deadline, or a caller who may no longer read; then answers why."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._seconds_max
        while (remaining := deadline - loop.time()) > 0:
            done, _ = await asyncio.wait(
                tasks, timeout=min(remaining, RECHECK_SECONDS), return_when=asyncio.FIRST_COMPLETED
            )
            if done:
                return None
            try:
                await self._recheck()
            except ApiError as error:
                if error.reason.row.http_status in (401, 403):
                    log.info("stream ended: its caller may no longer read it", reason=error.message)
                    return error
        return None

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
