"""The blobs of projects: what exists, and the ways in and out.

A blob exists in a project when its row does, and the row is written only after size and digest of the stored bytes
were verified. Other projects do not see it, even when they hold the same bytes. `api/blobs.py` serves uploads and
downloads; admission and claims ask `exists`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime, timedelta

import asyncpg
import structlog

from controlplane import failpoints
from controlplane.blobs.backend import Backend, BytesMissingError, ByteStream, DirectAccess, address_at, new_location
from controlplane.blobs.disk import DiskBackend
from controlplane.blobs.signing import BlobAddress, UploadGrant, UrlSigner
from controlplane.blobs.spool import Spool
from controlplane.clock import Clock
from controlplane.errors import ApiError, Reason
from controlplane.limits.storage import require_storage, storage_refusal
from controlplane.settings import Settings
from controlplane.store.database import Database

log = structlog.get_logger(__name__)

TOUCH_AFTER = timedelta(hours=1)
"""Uses are recorded this coarsely, so a blob read a thousand times an hour is written once."""

FIND = """
SELECT size_bytes, content_type, location, last_used_at FROM blobs WHERE org = $1 AND project = $2 AND digest = $3
"""
TOUCH = """
UPDATE blobs SET last_used_at = GREATEST(last_used_at, $4)
WHERE org = $1 AND project = $2 AND digest = $3 RETURNING digest
"""
# Whoever comes second keeps what the first has stored.
INSERT = """
INSERT INTO blobs (org, project, digest, size_bytes, content_type, location, created_at, last_used_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $7) ON CONFLICT (org, project, digest) DO UPDATE SET last_used_at = $7
RETURNING location
"""
FORGET = "DELETE FROM blobs WHERE org = $1 AND project = $2 AND digest = $3 AND location = $4"
IDLE = "SELECT org, project, digest FROM blobs WHERE last_used_at < $1 ORDER BY last_used_at LIMIT $2"
NAMED = """
SELECT b.location FROM unnest($1::text[], $2::text[], $3::text[]) AS w(org, project, digest)
JOIN blobs b ON b.org = w.org AND b.project = w.project AND b.digest = w.digest
"""
REMOVE_IDLE = """
DELETE FROM blobs WHERE org = $1 AND project = $2 AND digest = $3 AND last_used_at < $4 RETURNING location
"""


@dataclass(frozen=True, slots=True)
class StoredBlob:
    """A verified blob of a project."""

    address: BlobAddress
    size_bytes: int
    content_type: str
    location: str


class BlobStore:
    """Blobs over one backend. One per process."""

    def __init__(self, database: Database, backend: Backend, spool: Spool, settings: Settings, clock: Clock) -> None:
        self._database = database
        self._backend = backend
        self._spool = spool
        self._clock = clock
        self.signer = UrlSigner(settings.secret_key, clock, settings.blob_url_seconds)
        self.direct: DirectAccess | None = backend if isinstance(backend, DirectAccess) else None
        """URLs of the backend itself, for clients that can reach it."""
        self._uploads_max = settings.blob_uploads_max
        self._uploads = 0
        self._swept_to = ""
        self._verifying: dict[BlobAddress, asyncio.Task[StoredBlob | None]] = {}
        self._verifications = asyncio.Semaphore(settings.blob_verifications_max)

    async def exists(self, org: str, project: str, digest: str) -> bool:
        """Whether the project holds the blob, verified; the digest is 64 lowercase hex digits.

        The first question after a direct upload to S3 reads the whole object once.
        """
        return await self.find(BlobAddress(org, project, digest)) is not None

    async def find(self, address: BlobAddress) -> StoredBlob | None:
        """The project's blob, noted as used; None when it has none."""
        rows = await self._database.fetch(FIND, address.org, address.project, address.digest)
        now = self._clock.now()
        if rows and now - rows[0]["last_used_at"] > TOUCH_AFTER:
            # A row that garbage collection took between the two statements is not there any more.
            rows = rows if await self._database.fetch(TOUCH, *_key(address), now) else []
        if rows:
            row = rows[0]
            return StoredBlob(address, row["size_bytes"], row["content_type"], row["location"])
        if self.direct is None:
            return None
        return await self._verified_once(address, self.direct)

    async def require_room(self, address: BlobAddress, size_bytes: int) -> None:
        """QuotaExceeded when a new blob of this size does not fit the storage quotas."""
        await require_storage(self._database, address.org, address.project, size_bytes)

    async def receive(self, grant: UploadGrant, chunks: AsyncIterator[bytes]) -> None:
        """Store the granted bytes for the project. Raises what `Spool.receive` does; then nothing is stored."""
        if self._uploads >= self._uploads_max:
            raise ApiError(Reason.UNAVAILABLE, "too many uploads are under way", retry_after_seconds=1)
        self._uploads += 1
        try:
            async with self._spool.receive(grant, chunks) as path:
                location = new_location(grant.address)
                await self._backend.publish(path, location, grant.content_type)
                failpoints.reach("blob-published")
                await self._record(StoredBlob(grant.address, grant.size_bytes, grant.content_type, location))
        finally:
            self._uploads -= 1

    async def open(self, blob: StoredBlob) -> ByteStream:
        """The bytes of a blob that `find` gave; the caller closes the stream. NotFound when they are lost."""
        try:
            return await self._backend.open(blob.location)
        except BytesMissingError:
            # Without its bytes the row would keep every client from uploading them again.
            log.error("the bytes of a blob are gone", project=blob.address.project, digest=blob.address.digest)
            await self._database.execute(FORGET, *_key(blob.address), blob.location)
            raise blob_not_found(blob.address) from None

    async def read(self, org: str, project: str, digest: str, bytes_max: int) -> bytes:
        """All bytes of a blob of at most `bytes_max`; NotFound without it, RequestEntityTooLarge when larger."""
        blob = await self.find(BlobAddress(org, project, digest))
        if blob is None:
            raise blob_not_found(BlobAddress(org, project, digest))
        if blob.size_bytes > bytes_max:
            raise ApiError(Reason.REQUEST_ENTITY_TOO_LARGE, f"blob sha256:{digest} is larger than {bytes_max} bytes")
        stream = await self.open(blob)
        content = bytearray()
        try:
            while chunk := await stream.read():
                content += chunk
        finally:
            await stream.close()
        return bytes(content)

    async def idle(self, unused_since: datetime, limit: int) -> list[BlobAddress]:
        """Blobs nobody asked for since a time, for a collector that knows what still refers to them."""
        rows = await self._database.fetch(IDLE, unused_since, limit)
        return [BlobAddress(row["org"], row["project"], row["digest"]) for row in rows]

    async def remove_idle(self, address: BlobAddress, unused_since: datetime) -> bool:
        """Delete a blob unless it was used since; whether it went."""
        rows = await self._database.fetch(REMOVE_IDLE, *_key(address), unused_since)
        for row in rows:
            failpoints.reach("blob-forgotten")
            await self._backend.remove(row["location"])
        return bool(rows)

    async def touch(self, address: BlobAddress, used_at: datetime) -> None:
        """Note a use at that time, so that a blob still referred to is not looked at again until it is idle since."""
        await self._database.execute(TOUCH, *_key(address), used_at)

    async def sweep_leftovers(self, before: datetime) -> int:
        """Delete what uploads that nobody finished or used have left since before a time; how many."""
        swept = await asyncio.to_thread(self._spool.sweep, before.timestamp())
        return swept + (await self.direct.sweep_uploads(before) if self.direct else 0)

    async def sweep_orphans(self, before: datetime, limit: int) -> bool:
        """Delete bytes stored before a time whose row was never written, because a process died between the two.

        Each call looks at the next `limit` places, and begins again after the last; whether there are more.
        """
        page = await self._backend.stored(self._swept_to, limit)
        old = {
            found.location: address
            for found in page
            if found.modified < before and (address := address_at(found.location))
        }
        rows = await self._database.fetch(
            NAMED,
            [address.org for address in old.values()],
            [address.project for address in old.values()],
            [address.digest for address in old.values()],
        )
        for location in sorted(old.keys() - {row["location"] for row in rows}):
            log.warning("stored bytes that no blob names are deleted", location=location)
            try:
                await self._backend.remove(location)
            except ApiError as error:
                # The next round comes by again; the other places must not wait for this one.
                log.warning("stored bytes cannot be deleted now", location=location, told=error.debug or error.message)
        more = len(page) == limit
        self._swept_to = page[-1].location if more else ""
        return more

    async def _verified_once(self, address: BlobAddress, direct: DirectAccess) -> StoredBlob | None:
        """Verify an upload to the bucket; whoever asks meanwhile waits for the same answer."""
        task = self._verifying.get(address)
        if task is None:
            task = asyncio.create_task(self._verify(address, direct), name="verify-blob")
            self._verifying[address] = task
            task.add_done_callback(lambda done: self._verified(address, done))
        return await asyncio.shield(task)

    def _verified(self, address: BlobAddress, task: asyncio.Task[StoredBlob | None]) -> None:
        self._verifying.pop(address, None)
        if not task.cancelled():
            task.exception()  # everybody who waited may have gone; then nobody else would look

    async def _verify(self, address: BlobAddress, direct: DirectAccess) -> StoredBlob | None:
        async with self._verifications:
            location = new_location(address)
            size_bytes = await direct.adopt(address, location)
            if size_bytes is None:
                return None
            return await self._record(StoredBlob(address, size_bytes, "application/octet-stream", location))

    async def _record(self, blob: StoredBlob) -> StoredBlob:
        """Write the row; when another upload was first, drop these bytes and use its.

        Raises QuotaExceeded for a blob that no longer fits; its bytes are dropped as well.
        """
        try:
            rows = await self._database.fetch(
                INSERT, *_key(blob.address), blob.size_bytes, blob.content_type, blob.location, self._clock.now()
            )
        except asyncpg.PostgresError as error:
            refusal = storage_refusal(error, blob.address.org, blob.size_bytes)
            if refusal is None:
                raise
            await self._backend.remove(blob.location)
            raise refusal from None
        location: str = rows[0]["location"]
        if location != blob.location:
            await self._backend.remove(blob.location)
        return StoredBlob(blob.address, blob.size_bytes, blob.content_type, location)


async def open_blob_store(database: Database, settings: Settings, clock: Clock) -> BlobStore:
    """The store that the settings ask for: S3 when an endpoint is named, else files below `data_dir`."""
    folder = settings.data_dir / "blobs"
    spool = Spool(folder / "incoming", settings.blob_idle_seconds, settings.blob_upload_seconds_max)
    if not settings.s3_endpoint:
        return BlobStore(database, DiskBackend(folder / "stored"), spool, settings, clock)
    from controlplane.blobs.s3 import S3Backend  # its client library would slow the start of every other process

    backend = S3Backend(settings)
    await backend.prepare()
    return BlobStore(database, backend, spool, settings, clock)


def blob_not_found(address: BlobAddress) -> ApiError:
    """The 404 of a blob the project does not hold."""
    return ApiError(
        Reason.NOT_FOUND,
        f'blob "sha256:{address.digest}" not found in project "{address.project}"',
        subject=("blobs", address.digest),
        fix="Upload the blob to this project first.",
    )


def _key(address: BlobAddress) -> tuple[str, str, str]:
    return address.org, address.project, address.digest
