"""Bodies that are written while they are produced: watches and followed logs.

Headers leave at once, even when nothing happens for an hour (R-WATCH-1); chunks leave as they come, each a whole number
of lines. A stream ends, cleanly between two chunks, when its source ends, its time is up, the client goes away, the
process is asked to stop, or the caller may no longer read it. `Streams` looks after the last two for all of them: a
thousand idle streams cost one timer and one query.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from controlplane.errors import ApiError, Reason
from controlplane.identity.principal import Principal

log = structlog.get_logger("api")

RECHECK_SECONDS = 0.5
"""How often it is asked whether the open streams may go on; a key that was revoked or has lost a scope ends its streams
within a second, whichever process took it away (R-WATCH-11)."""

Recheck = Callable[[Principal], None]
"""Raises the 401 or 403 with which the caller's request would now be refused."""
LookAgain = Callable[[Sequence[bytes]], Awaitable[Mapping[bytes, Principal | None]]]
"""From credentials to what they are now, past every cache; None for one that is good no more."""


class Streams:
    """The open streams of a process."""

    def __init__(self, look_again: LookAgain, stopping: asyncio.Event, per_credential_max: int) -> None:
        self._look_again = look_again
        self._stopping = stopping
        self._per_credential_max = per_credential_max
        self._open: dict[bytes, dict[asyncio.Future[ApiError | None], Recheck]] = {}
        self._judged: dict[bytes, Principal] = {}
        """By credential, the caller for whom all of its open streams may go on."""
        self._task: asyncio.Task[None] | None = None

    def require_room(self, credential: bytes) -> None:
        """TooManyRequests when the credential has as many open as it may."""
        if len(self._open.get(credential, ())) >= self._per_credential_max:
            raise ApiError(
                Reason.TOO_MANY_REQUESTS,
                f"this credential has {self._per_credential_max} watches and followed logs open at this server",
                fix="End some, or watch more with each: a selector covers many objects.",
            )

    @contextmanager
    def joined(self, credential: bytes, recheck: Recheck) -> Iterator[asyncio.Future[ApiError | None]]:
        """Be one of them; what is yielded is done when the stream must end, with the refusal if there is one."""
        ended: asyncio.Future[ApiError | None] = asyncio.get_running_loop().create_future()
        self._open.setdefault(credential, {})[ended] = recheck
        self._judged.pop(credential, None)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._look_after(), name="streams")
        try:
            yield ended
        finally:
            ended.cancel()
            of_credential = self._open[credential]
            del of_credential[ended]
            if not of_credential:
                del self._open[credential]
                self._judged.pop(credential, None)

    async def _look_after(self) -> None:
        """End those that must end, as long as there are any."""
        while self._open:
            with suppress(TimeoutError):
                async with asyncio.timeout(RECHECK_SECONDS):
                    await self._stopping.wait()
            if self._stopping.is_set():
                for streams in self._open.values():
                    for ended in streams:
                        _end(ended, None)
                return
            await self._recheck()

    async def _recheck(self) -> None:
        try:
            principals = await self._look_again(list(self._open))
        except ApiError:
            return  # the database is away; what nobody can check has not been taken away either
        for credential, principal in principals.items():
            if principal is not None and principal == self._judged.get(credential):
                continue
            streams = self._open.get(credential, {})
            for ended, recheck in streams.items():
                if (refusal := _refusal(principal, recheck)) is not None:
                    _end(ended, refusal)
            if principal is not None and streams:
                self._judged[credential] = principal


def _end(ended: asyncio.Future[ApiError | None], refusal: ApiError | None) -> None:
    if not ended.done():
        if refusal is not None:
            log.info("stream ended: its caller may no longer read it", reason=refusal.message)
        ended.set_result(refusal)


def _refusal(principal: Principal | None, recheck: Recheck) -> ApiError | None:
    if principal is None:
        return ApiError(Reason.UNAUTHORIZED, "the credential is unknown, expired or revoked")
    try:
        recheck(principal)
    except ApiError as error:
        return error
    return None


class StreamResponse(Response):
    """Sends the chunks of an async generator; closes the generator however the stream ends."""

    def __init__(
        self,
        chunks: AsyncGenerator[bytes, None],
        *,
        media_type: str,
        seconds_max: float,
        streams: Streams,
        credential: bytes,
        recheck: Recheck,
        refused: Callable[[ApiError], bytes],
    ) -> None:
        """`recheck` judges the caller of `credential` again and again; `refused` writes its refusal as the stream's
        last chunk."""
        super().__init__(media_type=media_type, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._chunks = chunks
        self._seconds_max = seconds_max
        self._streams = streams
        self._credential = credential
        self._recheck = recheck
        self._refused = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._streams.require_room(self._credential)
        except ApiError:
            await self._chunks.aclose()
            raise
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        if scope["method"] == "HEAD":
            # Nothing of a stream would reach the client, not even its end.
            await self._chunks.aclose()
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        pump = asyncio.create_task(self._pump(send), name="stream")
        gone = asyncio.create_task(_disconnected(receive), name="stream-disconnect")
        try:
            with self._streams.joined(self._credential, self._recheck) as ended:
                await asyncio.wait((pump, gone, ended), timeout=self._seconds_max, return_when=asyncio.FIRST_COMPLETED)
                refusal = ended.result() if ended.done() else None
        finally:
            pump.cancel()
            gone.cancel()
            await asyncio.gather(pump, gone, return_exceptions=True)
        if not pump.cancelled() and (error := pump.exception()) is not None:
            # The status line is long gone; an abrupt end is the only honest answer left.
            raise error
        last = b"" if refusal is None else self._refused(refusal)
        await send({"type": "http.response.body", "body": last, "more_body": False})

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
