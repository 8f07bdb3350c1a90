"""What both backends must do: verify, keep projects apart, forget safely."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest

from controlplane.blobs.backend import Backend, new_location
from controlplane.blobs.disk import DiskBackend
from controlplane.blobs.service import BlobStore, open_blob_store
from controlplane.blobs.signing import BlobAddress, UploadGrant
from controlplane.errors import ApiError, Reason
from controlplane.settings import Settings
from controlplane.store.database import Database
from tests.controlplane.blobs.conftest import GrantFor, InChunks
from tests.fixtures.moving_clock import MovingClock


@pytest.mark.parametrize("size", [0, 1, 65_536, 65_537, 6_000_001])
async def test_stored_bytes_are_read_back(
    store: BlobStore, grant_for: GrantFor, in_chunks: InChunks, size: int
) -> None:
    content = os.urandom(size)
    grant = grant_for(content)
    await store.receive(grant, in_chunks(content))
    assert await store.exists("acme", "default", grant.address.digest)
    assert await store.read("acme", "default", grant.address.digest, 10_000_000) == content


async def test_a_blob_of_another_project_does_not_exist(
    store: BlobStore, grant_for: GrantFor, in_chunks: InChunks
) -> None:
    grant = grant_for(b"mine")
    await store.receive(grant, in_chunks(b"mine"))
    assert not await store.exists("acme", "other", grant.address.digest)
    assert not await store.exists("other", "default", grant.address.digest)


@pytest.mark.parametrize(("sent", "field"), [(b"abcd", "size"), (b"ab", "size"), (b"abd", "sha256"), (b"", "size")])
async def test_other_bytes_than_promised_are_refused_and_leave_nothing(
    store: BlobStore, settings: Settings, grant_for: GrantFor, in_chunks: InChunks, sent: bytes, field: str
) -> None:
    grant = grant_for(b"abc")
    with pytest.raises(ApiError) as refused:
        await store.receive(grant, in_chunks(sent))
    assert refused.value.reason is Reason.INVALID
    assert [cause.field for cause in refused.value.causes] == [field]
    assert not await store.exists("acme", "default", grant.address.digest)
    assert [path for path in settings.data_dir.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("limit", ["blob_idle_seconds", "blob_upload_seconds_max"])
async def test_a_client_that_stops_sending_is_given_up(
    database: Database, disk_settings: Settings, clock: MovingClock, grant_for: GrantFor, limit: str
) -> None:
    store = await open_blob_store(database, disk_settings.model_copy(update={limit: 0.05}), clock)

    async def stalls() -> AsyncIterator[bytes]:
        yield b"a"
        await asyncio.Event().wait()

    with pytest.raises(ApiError) as refused:
        await store.receive(grant_for(b"abc"), stalls())
    assert refused.value.reason is Reason.BAD_REQUEST


async def test_uploads_of_the_same_bytes_at_once_all_succeed(
    store: BlobStore, grant_for: GrantFor, in_chunks: InChunks
) -> None:
    content = os.urandom(300_000)
    grant = grant_for(content)
    await asyncio.gather(*[store.receive(grant, in_chunks(content)) for _ in range(6)])
    assert await store.read("acme", "default", grant.address.digest, 1 << 20) == content


async def test_more_uploads_than_allowed_are_told_to_come_back(
    database: Database, settings: Settings, clock: MovingClock, grant_for: GrantFor, in_chunks: InChunks
) -> None:
    store = await open_blob_store(database, settings.model_copy(update={"blob_uploads_max": 0}), clock)
    with pytest.raises(ApiError) as refused:
        await store.receive(grant_for(b"abc"), in_chunks(b"abc"))
    assert refused.value.reason is Reason.UNAVAILABLE


async def test_an_idle_blob_is_removed_and_can_be_stored_again(
    store: BlobStore, clock: MovingClock, grant_for: GrantFor, in_chunks: InChunks
) -> None:
    grant = grant_for(b"old")
    await store.receive(grant, in_chunks(b"old"))
    clock.advance(10)
    assert await store.idle(clock.now(), 10) == [grant.address]
    assert await store.remove_idle(grant.address, clock.now())
    assert not await store.exists("acme", "default", grant.address.digest)
    await store.receive(grant, in_chunks(b"old"))
    assert await store.read("acme", "default", grant.address.digest, 10) == b"old"


async def test_a_blob_used_since_is_not_removed(
    store: BlobStore, clock: MovingClock, grant_for: GrantFor, in_chunks: InChunks
) -> None:
    grant = grant_for(b"old")
    await store.receive(grant, in_chunks(b"old"))
    clock.advance(7 * 86_400)
    cutoff = clock.now()
    assert await store.exists("acme", "default", grant.address.digest)
    assert not await store.remove_idle(grant.address, cutoff)
    assert await store.idle(cutoff, 10) == []


async def test_a_blob_whose_bytes_were_lost_can_be_uploaded_again(
    store: BlobStore, backend: Backend, grant_for: GrantFor, in_chunks: InChunks
) -> None:
    grant = grant_for(b"lost")
    await store.receive(grant, in_chunks(b"lost"))
    blob = await store.find(grant.address)
    assert blob is not None
    await backend.remove(blob.location)
    with pytest.raises(ApiError) as missing:
        await store.open(blob)
    assert missing.value.reason is Reason.NOT_FOUND
    assert not await store.exists("acme", "default", grant.address.digest)


async def test_a_blob_larger_than_the_reader_takes_is_refused(
    store: BlobStore, grant_for: GrantFor, in_chunks: InChunks
) -> None:
    grant = grant_for(b"12345")
    await store.receive(grant, in_chunks(b"12345"))
    with pytest.raises(ApiError) as refused:
        await store.read("acme", "default", grant.address.digest, 4)
    assert refused.value.reason is Reason.REQUEST_ENTITY_TOO_LARGE


async def test_leftovers_of_a_dead_process_are_swept(store: BlobStore, settings: Settings, clock: MovingClock) -> None:
    folder = settings.data_dir / "blobs" / "incoming"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "old").write_bytes(b"x")
    os.utime(folder / "old", (0, 0))
    (folder / "new").write_bytes(b"x")
    clock.advance(-3600)
    assert await store.sweep_leftovers(clock.now()) == 1
    assert [path.name for path in folder.iterdir()] == ["new"]


async def test_what_cannot_be_deleted_keeps_nothing_else(
    store: BlobStore, settings: Settings, clock: MovingClock
) -> None:
    incoming, stored = (settings.data_dir / "blobs" / name for name in ("incoming", "stored"))
    for name in ("a", "c"):
        (incoming / name).mkdir(parents=True)
        os.utime(incoming / name, (0, 0))
    (incoming / "b").write_bytes(b"x")
    os.utime(incoming / "b", (0, 0))
    assert await store.sweep_leftovers(clock.now()) == 1
    assert {path.name for path in incoming.iterdir()} == {"a", "c"}
    backend = DiskBackend(stored)
    (stored / "folder").mkdir(parents=True)
    with pytest.raises(ApiError) as refused:
        await backend.remove("folder")
    assert refused.value.reason is Reason.UNAVAILABLE
    shutil.rmtree(incoming)
    incoming.write_bytes(b"no folder")
    with pytest.raises(ApiError) as refused:
        await store.sweep_leftovers(clock.now())
    assert refused.value.reason is Reason.UNAVAILABLE


async def sweep_all(store: BlobStore, before: datetime, limit: int) -> int:
    """Sweep from the first place to the last; how many passes it took."""
    passes = 1
    while await store.sweep_orphans(before, limit):
        passes += 1
    return passes


@pytest.mark.parametrize("limit", [2, 100])
async def test_bytes_whose_row_was_never_written_are_swept_once_they_are_old(
    store: BlobStore, backend: Backend, grant_for: GrantFor, in_chunks: InChunks, tmp_path: Path, limit: int
) -> None:
    contents = [f"{number}".encode() for number in range(4)]
    for content in contents:
        await store.receive(grant_for(content), in_chunks(content))
    orphans = []
    # As if the process had died after the bytes were in place; one of them beside the blob that was uploaded again.
    for content in (contents[0], b"never recorded", b"nor this"):
        source = tmp_path / "upload"
        source.write_bytes(content)
        orphans.append(new_location(grant_for(content).address))
        await backend.publish(source, orphans[-1], "application/gzip")
    now = datetime.now(UTC)
    await sweep_all(store, now - timedelta(hours=1), limit)
    assert len(await backend.stored("", 100)) == 7
    assert await sweep_all(store, now + timedelta(hours=1), limit) == (1 if limit == 100 else 4)
    kept = [found.location for found in await backend.stored("", 100)]
    assert len(kept) == 4
    assert not set(orphans) & set(kept)
    for content in contents:
        assert await store.read("acme", "default", grant_for(content).address.digest, 10) == content
    assert await sweep_all(store, now + timedelta(hours=1), limit) == (1 if limit == 100 else 3)


async def test_a_store_without_anything_has_nothing_to_sweep(store: BlobStore) -> None:
    assert await store.sweep_orphans(datetime.now(UTC), 10) is False


async def test_a_url_is_good_for_its_own_method_blob_and_size_until_it_expires(
    store: BlobStore, clock: MovingClock
) -> None:
    grant = UploadGrant(BlobAddress("acme", "default", "ab" * 32), 10, "application/gzip")
    query = dict(parse_qsl(urlsplit(store.signer.upload_path(grant)).query))
    assert store.signer.check_upload(grant.address, query) == grant
    for changed in ({"size": "11"}, {"type": "text/html"}, {"expires": "9999999999"}, {"signature": "00" * 32}):
        with pytest.raises(ApiError, match="signature"):
            store.signer.check_upload(grant.address, {**query, **changed})
    with pytest.raises(ApiError, match="signature"):
        store.signer.check_upload(replace(grant.address, project="other"), query)
    with pytest.raises(ApiError, match="signature"):
        store.signer.check_download(grant.address, query)
    with pytest.raises(ApiError, match="signature"):
        store.signer.check_upload(grant.address, {})
    clock.advance(900)
    with pytest.raises(ApiError, match="expired"):
        store.signer.check_upload(grant.address, query)
