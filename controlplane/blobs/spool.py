"""Receiving bytes: into a temporary file, hashed on the way, kept only if they are what was promised.

Memory stays flat however large the blob is. Whatever goes wrong (too many bytes, too few, other bytes, a client that
stops sending or goes away, a full disk) leaves no file behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import structlog

from controlplane.blobs.backend import unavailable
from controlplane.blobs.signing import UploadGrant
from controlplane.errors import ApiError, Cause, Reason

log = structlog.get_logger(__name__)

_WRITE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Spool:
    """A folder for uploads under way, how long one may be silent, and how long it may take."""

    folder: Path
    idle_seconds: float
    seconds_max: float

    @asynccontextmanager
    async def receive(self, grant: UploadGrant, chunks: AsyncIterator[bytes]) -> AsyncIterator[Path]:
        """The path of a file that holds exactly the granted bytes, durable on disk.

        Whoever enters may move the file away; it is deleted otherwise. Raises Invalid for other bytes than promised,
        BadRequest for a client that stopped sending, Unavailable for a disk that takes no more.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{grant.address.digest[:16]}-{secrets.token_hex(8)}"
        try:
            try:
                async with asyncio.timeout(self.seconds_max):
                    await self._fill(path, grant, chunks)
            except TimeoutError:
                raise ApiError(Reason.BAD_REQUEST, f"the body took longer than {self.seconds_max:g} seconds") from None
            except OSError as error:
                raise unavailable(error, "the blob cannot be stored now") from error
            yield path
        finally:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()

    async def _fill(self, path: Path, grant: UploadGrant, chunks: AsyncIterator[bytes]) -> None:
        digest = hashlib.sha256()
        received = 0
        waiting = bytearray()
        with path.open("xb") as file:
            while (chunk := await self._next(chunks)) is not None:
                received += len(chunk)
                if received > grant.size_bytes:
                    raise _not_as_promised("size", f"the body is larger than the {grant.size_bytes} bytes announced")
                waiting += chunk
                if len(waiting) >= _WRITE_BYTES:
                    await asyncio.to_thread(_write, file, digest, bytes(waiting))
                    waiting.clear()
            if received < grant.size_bytes:
                raise _not_as_promised("size", f"the body has {received} bytes, {grant.size_bytes} were announced")
            await asyncio.to_thread(_finish, file, digest, bytes(waiting))
        if digest.hexdigest() != grant.address.digest:
            raise _not_as_promised("sha256", f"the body has the SHA-256 digest {digest.hexdigest()}")

    async def _next(self, chunks: AsyncIterator[bytes]) -> bytes | None:
        try:
            async with asyncio.timeout(self.idle_seconds):
                return await anext(chunks, None)
        except TimeoutError:
            raise ApiError(
                Reason.BAD_REQUEST, f"the body stopped: nothing arrived for {self.idle_seconds:g} seconds"
            ) from None

    def sweep(self, before: float) -> int:
        """Delete files not written since `before` (seconds since 1970), left by a process that died; how many.

        One that cannot be deleted stays, and the others go. Raises Unavailable when the folder cannot be read.
        """
        swept = 0
        try:
            left = list(os.scandir(self.folder))
        except FileNotFoundError:
            return swept  # nothing was ever received
        except OSError as error:
            raise unavailable(error, "the folder of uploads cannot be read now") from error
        for entry in left:
            try:
                if entry.stat().st_mtime < before:
                    os.unlink(entry.path)
                    swept += 1
            except FileNotFoundError:
                continue
            except OSError as error:
                log.warning("what an upload left cannot be deleted", path=entry.path, error=repr(error))
        return swept


def _write(file: BinaryIO, digest: hashlib._Hash, content: bytes) -> None:
    file.write(content)
    digest.update(content)


def _finish(file: BinaryIO, digest: hashlib._Hash, content: bytes) -> None:
    """Write the rest and wait for the disk: the row that names the bytes is durable too, and must not outlive them."""
    _write(file, digest, content)
    file.flush()
    os.fsync(file.fileno())


def _not_as_promised(field: str, message: str) -> ApiError:
    return ApiError(
        Reason.INVALID,
        f"the blob is not stored: {message}",
        causes=(Cause(field, message),),
        fix="Send exactly the bytes whose size and digest the upload was asked for.",
    )
