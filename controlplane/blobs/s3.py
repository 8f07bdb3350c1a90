"""Blobs in an S3 bucket, reached with the `minio` client.

The client is synchronous, so each request runs in a small pool of threads of its own. Clients outside upload to and
download from the bucket themselves, with presigned URLs. A presigned PUT promises nothing about the bytes and stays
usable until it expires, so it only ever writes below `uploads/`; the first use of such a blob copies it, inside the
bucket, to a location no URL can write, and hashes it there.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any, ParamSpec, TypeVar
from urllib.parse import urlsplit

import urllib3
from minio import Minio
from minio.commonconfig import CopySource
from minio.error import MinioException, S3Error

from controlplane.blobs.backend import CHUNK_BYTES, BytesMissingError, Found, unavailable
from controlplane.blobs.signing import BlobAddress
from controlplane.errors import ApiError
from controlplane.settings import Settings

_THREADS = 16
_CONNECT_SECONDS = 5.0
_READ_SECONDS = 60.0
_STORED = "blobs/"
_UPLOADED = "uploads/"
_MISSING = frozenset({"NoSuchKey", "NoSuchObject", "ResourceNotFound"})
_BUCKET_EXISTS = frozenset({"BucketAlreadyOwnedByYou", "BucketAlreadyExists"})

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


class S3Backend:
    """Keeps blobs below `blobs/` of one bucket; uploads of clients wait below `uploads/`."""

    def __init__(self, settings: Settings) -> None:
        self._bucket = settings.s3_bucket
        self._bytes_max = settings.blob_bytes_max
        self._url_lifetime = timedelta(seconds=settings.blob_url_seconds)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="s3")
        self._client = _client(settings, settings.s3_endpoint, secure=settings.s3_secure)
        self._public = self._client
        if settings.s3_public_url:
            origin = urlsplit(settings.s3_public_url)
            self._public = _client(settings, origin.netloc, secure=origin.scheme == "https")

    async def prepare(self) -> None:
        """Make the bucket if it is missing; Unavailable when the service cannot be reached."""
        if not await self._run(self._client.bucket_exists, self._bucket):
            try:
                await self._run(self._client.make_bucket, self._bucket)
            except S3Error as error:
                if error.code not in _BUCKET_EXISTS:
                    raise

    async def close(self) -> None:
        """Wait for requests under way and end the threads."""
        await asyncio.to_thread(self._threads.shutdown)

    async def publish(self, path: Path, location: str, content_type: str) -> None:
        """Upload the file; parts of large ones are retried by the client."""
        await self._run(self._client.fput_object, self._bucket, _STORED + location, str(path), content_type)

    async def open(self, location: str) -> ObjectStream:
        """The object, its request under way."""
        return await self._open(_STORED + location)

    async def remove(self, location: str) -> None:
        """Delete the object if it is there."""
        await self._run(self._client.remove_object, self._bucket, _STORED + location)

    async def stored(self, after: str, limit: int) -> list[Found]:
        """Stored objects in the order of their names."""
        return await self._run(self._stored, after, limit)

    def _stored(self, after: str, limit: int) -> list[Found]:
        begin = _STORED + after if after else None
        listed = self._client.list_objects(self._bucket, prefix=_STORED, recursive=True, start_after=begin)
        return [
            Found(found.object_name.removeprefix(_STORED), found.last_modified)
            for found in islice(listed, limit)
            if found.object_name and found.last_modified
        ]

    def upload_url(self, address: BlobAddress) -> str:
        """A presigned PUT below `uploads/`."""
        return self._public.presigned_put_object(self._bucket, _uploaded(address), self._url_lifetime)

    def download_url(self, location: str) -> str:
        """A presigned GET of a stored object."""
        return self._public.presigned_get_object(self._bucket, _STORED + location, self._url_lifetime)

    async def adopt(self, address: BlobAddress, location: str) -> int | None:
        """Copy an upload out of the clients' reach, hash the copy, and drop whichever of the two is of no use."""
        uploaded = _uploaded(address)
        try:
            found = await self._run(self._client.stat_object, self._bucket, uploaded)
        except BytesMissingError:
            return None
        if found.size is None or found.size > self._bytes_max:
            await self._run(self._client.remove_object, self._bucket, uploaded)
            return None
        try:
            source = CopySource(self._bucket, uploaded)
            await self._run(self._client.copy_object, self._bucket, _STORED + location, source)
            size_bytes, digest = await self._hash(_STORED + location)
        except BytesMissingError:
            return None
        if digest != address.digest:
            await self.remove(location)
        await self._run(self._client.remove_object, self._bucket, uploaded)
        return size_bytes if digest == address.digest else None

    async def sweep_uploads(self, before: datetime) -> int:
        """Delete uploads from before a time."""
        return await self._run(self._sweep, before)

    def _sweep(self, before: datetime) -> int:
        swept = 0
        for found in self._client.list_objects(self._bucket, prefix=_UPLOADED, recursive=True):
            if found.object_name and found.last_modified and found.last_modified < before:
                self._client.remove_object(self._bucket, found.object_name)
                swept += 1
        return swept

    async def _hash(self, name: str) -> tuple[int, str]:
        stream = await self._open(name)
        digest = hashlib.sha256()
        size_bytes = 0
        try:
            while chunk := await stream.read():
                size_bytes += len(chunk)
                await self._run(digest.update, chunk)
        finally:
            await stream.close()
        return size_bytes, digest.hexdigest()

    async def _open(self, name: str) -> ObjectStream:
        try:
            return ObjectStream(await self._run(self._client.get_object, self._bucket, name), self._run)
        except ApiError:
            # The client cannot read every server's 404 to a GET; a HEAD has no body to misread.
            await self._run(self._client.stat_object, self._bucket, name)
            raise

    async def _run(
        self, call: Callable[Arguments, Answer], *arguments: Arguments.args, **named: Arguments.kwargs
    ) -> Answer:
        """Run one blocking request in a thread and say what its failure means."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, lambda: call(*arguments, **named))
        except S3Error as error:
            if error.code in _MISSING:
                raise BytesMissingError(str(error)) from error
            if error.code in _BUCKET_EXISTS:
                raise
            raise unavailable(error) from error
        except (MinioException, urllib3.exceptions.HTTPError, OSError) as error:
            raise unavailable(error) from error


class ObjectStream:
    """Reads an object in chunks while it arrives."""

    def __init__(self, response: Any, run: Callable[..., Any]) -> None:  # noqa: ANN401 - the client's response
        self._response = response
        self._run = run

    async def read(self) -> bytes:
        """The next chunk; empty at the end."""
        content: bytes = await self._run(self._response.read, CHUNK_BYTES)
        return content

    async def close(self) -> None:
        """Give the connection back, or drop it when not everything was read."""
        self._response.close()
        self._response.release_conn()


def _client(settings: Settings, endpoint: str, *, secure: bool) -> Minio:
    timeout = urllib3.Timeout(connect=_CONNECT_SECONDS, read=_READ_SECONDS)
    retries = urllib3.Retry(total=3, backoff_factor=0.2, status_forcelist=[500, 502, 503, 504])
    return Minio(
        endpoint,
        access_key=settings.s3_access_key.get_secret_value(),
        secret_key=settings.s3_secret_key.get_secret_value(),
        secure=secure,
        region=settings.s3_region,
        http_client=urllib3.PoolManager(timeout=timeout, maxsize=_THREADS, retries=retries),
    )


def _uploaded(address: BlobAddress) -> str:
    return f"{_UPLOADED}{address.org}/{address.project}/{address.digest}"
