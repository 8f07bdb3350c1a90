"""Uploads that clients make to the bucket themselves, against a server that checks signatures."""

from __future__ import annotations

import asyncio
import os

import httpx
import pytest

from controlplane.blobs.service import BlobStore, open_blob_store
from controlplane.blobs.signing import UploadGrant
from controlplane.errors import ApiError, Reason
from controlplane.settings import Settings
from controlplane.store.database import Database
from tests.controlplane.blobs.conftest import GrantFor
from tests.fixtures.moving_clock import MovingClock


def upload_url(store: BlobStore, grant: UploadGrant) -> str:
    assert store.direct is not None
    return store.direct.upload_url(grant.address)


@pytest.mark.parametrize("size", [0, 65_537, 1_000_000])
async def test_a_presigned_upload_counts_after_it_was_verified_and_comes_back(
    s3_store: BlobStore, grant_for: GrantFor, size: int
) -> None:
    content = os.urandom(size)
    grant = grant_for(content)
    assert not await s3_store.exists("acme", "default", grant.address.digest)
    async with httpx.AsyncClient() as bare:
        put = await bare.put(upload_url(s3_store, grant), content=content, headers={"Content-Type": "application/gzip"})
        assert put.status_code == 200, put.text
        blob = await s3_store.find(grant.address)
        assert blob is not None
        assert blob.size_bytes == size
        assert s3_store.direct is not None
        got = await bare.get(s3_store.direct.download_url(blob.location))
        assert got.status_code == 200
        assert got.content == content


async def test_clients_are_sent_to_the_public_address_where_it_is_another(
    database: Database, s3_settings: Settings, clock: MovingClock, grant_for: GrantFor
) -> None:
    public = f"http://localhost:{s3_settings.s3_endpoint.rpartition(':')[2]}"
    store = await open_blob_store(database, s3_settings.model_copy(update={"s3_public_url": public}), clock)
    grant = grant_for(b"from outside")
    async with httpx.AsyncClient() as bare:
        url = upload_url(store, grant)
        assert url.startswith(f"{public}/")
        # The name of the host is part of what was signed.
        assert (await bare.put(url.replace("localhost", "127.0.0.1"), content=b"from outside")).status_code == 403
        assert (await bare.put(url, content=b"from outside")).status_code == 200
        blob = await store.find(grant.address)
        assert blob is not None
        assert store.direct is not None
        got = await bare.get(store.direct.download_url(blob.location))
    assert got.content == b"from outside"
    assert str(got.url).startswith(f"{public}/")


async def test_a_changed_presigned_url_is_refused_by_the_server(s3_store: BlobStore, grant_for: GrantFor) -> None:
    url = upload_url(s3_store, grant_for(b"abc"))
    async with httpx.AsyncClient() as bare:
        put = await bare.put(url.replace("X-Amz-Expires=900", "X-Amz-Expires=9000"), content=b"abc")
    assert put.status_code == 403


async def test_a_presigned_upload_of_other_bytes_never_counts(s3_store: BlobStore, grant_for: GrantFor) -> None:
    grant = grant_for(b"right")
    async with httpx.AsyncClient() as bare:
        await bare.put(upload_url(s3_store, grant), content=b"wrong")
        assert not await s3_store.exists("acme", "default", grant.address.digest)
        await bare.put(upload_url(s3_store, grant), content=b"right")
    assert await s3_store.exists("acme", "default", grant.address.digest)


async def test_an_upload_after_the_check_changes_nothing(s3_store: BlobStore, grant_for: GrantFor) -> None:
    grant = grant_for(b"right")
    url = upload_url(s3_store, grant)
    async with httpx.AsyncClient() as bare:
        await bare.put(url, content=b"right")
        assert await s3_store.exists("acme", "default", grant.address.digest)
        await bare.put(url, content=b"wrong")
    assert await s3_store.read("acme", "default", grant.address.digest, 100) == b"right"


async def test_whoever_asks_at_once_shares_one_verification(s3_store: BlobStore, grant_for: GrantFor) -> None:
    content = os.urandom(500_000)
    grant = grant_for(content)
    async with httpx.AsyncClient() as bare:
        await bare.put(upload_url(s3_store, grant), content=content)
    found = await asyncio.gather(*[s3_store.find(grant.address) for _ in range(8)])
    assert len({blob.location for blob in found if blob is not None}) == 1
    assert None not in found


async def test_uploads_that_nobody_used_are_swept(s3_store: BlobStore, clock: MovingClock, grant_for: GrantFor) -> None:
    grant = grant_for(b"unused")
    async with httpx.AsyncClient() as bare:
        await bare.put(upload_url(s3_store, grant), content=b"unused")
    clock.advance(-365 * 86_400)
    assert await s3_store.sweep_leftovers(clock.now()) == 0
    clock.advance(3 * 365 * 86_400)
    assert await s3_store.sweep_leftovers(clock.now()) == 1
    assert not await s3_store.exists("acme", "default", grant.address.digest)


async def test_an_unreachable_service_is_told_as_unavailable(
    database: Database, s3_settings: Settings, clock: MovingClock
) -> None:
    with pytest.raises(ApiError) as refused:
        await open_blob_store(database, s3_settings.model_copy(update={"s3_endpoint": "127.0.0.1:9"}), clock)
    assert refused.value.reason is Reason.UNAVAILABLE
