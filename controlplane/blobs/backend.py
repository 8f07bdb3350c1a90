"""What a place for bytes must be able to do.

`disk.py` and `s3.py` are the two places. A location is chosen anew for every upload and stored with the blob's row, so
removing what one row named can never remove bytes that a later upload of the same blob has stored.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol, runtime_checkable

from controlplane.blobs.signing import BlobAddress
from controlplane.errors import ApiError, Reason

CHUNK_BYTES = 256 << 10


class BytesMissingError(Exception):
    """The location holds nothing: somebody removed bytes behind our back."""


def unavailable(error: Exception, message: str = "blobs cannot be reached now") -> ApiError:
    """The 503 for a place that failed."""
    return ApiError(Reason.UNAVAILABLE, message, retry_after_seconds=5, debug=repr(error))


@dataclass(frozen=True, slots=True)
class Found:
    """Bytes that a place keeps, and since when."""

    location: str
    modified: datetime


class ByteStream(Protocol):
    """Bytes being read from a place."""

    async def read(self) -> bytes:
        """The next bytes, at most about CHUNK_BYTES; empty at the end."""

    async def close(self) -> None:
        """Give up what the reading holds; must be called however far it got."""


class Backend(Protocol):
    """A place that keeps bytes under locations. Failures to reach it are ApiError Unavailable."""

    async def publish(self, path: Path, location: str, content_type: str) -> None:
        """Take over a verified local file; it may be moved. Durable when this returns."""

    async def open(self, location: str) -> ByteStream:
        """The bytes at a location. Raises BytesMissingError."""

    async def remove(self, location: str) -> None:
        """Delete the bytes; nothing happens when there are none."""

    async def stored(self, after: str, limit: int) -> list[Found]:
        """What is kept, in an order of the place's own, from behind the location `after`; all of it from "" on."""


@runtime_checkable
class DirectAccess(Protocol):
    """What a place adds that clients outside can reach themselves, with URLs it signs."""

    def upload_url(self, address: BlobAddress) -> str:
        """Where a client may PUT the blob without passing through us; nothing is verified there."""

    def download_url(self, location: str) -> str:
        """Where a client may GET the bytes."""

    async def adopt(self, address: BlobAddress, location: str) -> int | None:
        """Move what a client uploaded for this address to a location no client can write, and verify it there.

        The size in bytes; None, with nothing left behind, when nothing was uploaded or it is not what it claims.
        """

    async def sweep_uploads(self, before: datetime) -> int:
        """Delete uploads from before a time that nobody used; how many."""


def new_location(address: BlobAddress) -> str:
    """A location never used before."""
    return f"{address.org}/{address.project}/{address.digest[:2]}/{address.digest}.{secrets.token_hex(6)}"


def address_at(location: str) -> BlobAddress | None:
    """The blob whose bytes a location was chosen for; None for a place that `new_location` did not choose."""
    org, project, _, name = location.split("/") if location.count("/") == 3 else ("", "", "", "")
    digest, dot, _ = name.partition(".")
    return BlobAddress(org, project, digest) if dot else None
