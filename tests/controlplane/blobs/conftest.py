"""A blob store over each of the two backends."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable
from itertools import count
from pathlib import Path

import pytest

from controlplane.blobs.backend import Backend
from controlplane.blobs.disk import DiskBackend
from controlplane.blobs.s3 import S3Backend
from controlplane.blobs.service import BlobStore, open_blob_store
from controlplane.blobs.signing import BlobAddress, UploadGrant
from controlplane.settings import Settings
from controlplane.store.database import Database
from tests.fixtures.moving_clock import MovingClock
from tests.fixtures.s3 import S3Server

SECRET_KEY = "5a" * 32
GrantFor = Callable[[bytes], UploadGrant]
InChunks = Callable[[bytes], AsyncIterator[bytes]]
_buckets = count()


@pytest.fixture
def clock() -> MovingClock:
    return MovingClock()


@pytest.fixture
def s3_settings(tmp_path: Path, s3_server: S3Server) -> Settings:
    return Settings(
        data_dir=tmp_path,
        secret_key=SECRET_KEY,
        s3_endpoint=s3_server.endpoint,
        s3_access_key=s3_server.access_key,
        s3_secret_key=s3_server.secret_key,
        s3_secure=False,
        s3_bucket=f"bucket-{next(_buckets)}",
    )


@pytest.fixture
def disk_settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path, secret_key=SECRET_KEY)


@pytest.fixture(params=["disk", "s3"])
def settings(request: pytest.FixtureRequest) -> Settings:
    """The settings of each backend in turn."""
    settings: Settings = request.getfixturevalue(f"{request.param}_settings")
    return settings


@pytest.fixture
async def store(database: Database, settings: Settings, clock: MovingClock) -> BlobStore:
    """An empty store over the backend of the settings."""
    return await open_blob_store(database, settings, clock)


@pytest.fixture
def backend(settings: Settings) -> Backend:
    """The backend under the store, to do what only an accident does."""
    return S3Backend(settings) if settings.s3_endpoint else DiskBackend(settings.data_dir / "blobs" / "stored")


@pytest.fixture
async def s3_store(database: Database, s3_settings: Settings, clock: MovingClock) -> BlobStore:
    """An empty store over S3."""
    return await open_blob_store(database, s3_settings, clock)


@pytest.fixture
def grant_for() -> GrantFor:
    """Makes the grant for some bytes in the project `default`."""

    def make(content: bytes) -> UploadGrant:
        digest = hashlib.sha256(content).hexdigest()
        return UploadGrant(BlobAddress("acme", "default", digest), len(content), "application/gzip")

    return make


@pytest.fixture
def in_chunks() -> InChunks:
    """Sends bytes as a body that arrives piece by piece."""

    async def send(content: bytes) -> AsyncIterator[bytes]:
        for start in range(0, len(content), 16_384):
            yield content[start : start + 16_384]

    return send
