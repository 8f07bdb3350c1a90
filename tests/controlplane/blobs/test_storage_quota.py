"""The quota on storage: exact however many store at once, and given back by whatever removes blobs."""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta

import pytest

from controlplane.blobs.service import BlobStore, open_blob_store
from controlplane.blobs.signing import BlobAddress
from controlplane.errors import ApiError, Reason
from controlplane.limits.quotas import Counter, Quota, set_quota
from controlplane.settings import Settings
from controlplane.store.database import Database
from tests.controlplane.blobs.conftest import GrantFor, InChunks
from tests.fixtures.moving_clock import MovingClock


async def limit(database: Database, amount: int, project: str = "", org: str = "acme") -> None:
    await set_quota(database, Quota(org=org, project=project, counter=Counter.STORAGE, amount_max=amount))


async def usage(database: Database) -> dict[str, int]:
    rows = await database.fetch("SELECT project, bytes FROM blob_usage WHERE org = 'acme'")
    return {row["project"]: row["bytes"] for row in rows}


@pytest.mark.parametrize("project", ["", "default"])
async def test_uploads_at_once_in_two_processes_take_what_fits_and_no_more(
    database: Database,
    store: BlobStore,
    settings: Settings,
    clock: MovingClock,
    grant_for: GrantFor,
    in_chunks: InChunks,
    project: str,
) -> None:
    other = await open_blob_store(database, settings, clock)
    await limit(database, 5_500, project)
    contents = [os.urandom(1_000) for _ in range(12)]

    told = await asyncio.gather(
        *(into.receive(grant_for(one), in_chunks(one)) for one, into in zip(contents, [store, other] * 6, strict=True)),
        return_exceptions=True,
    )
    refusals = [one for one in told if isinstance(one, ApiError)]
    assert told.count(None) == 5
    assert [(one.reason, one.details, one.retry_after_seconds) for one in refusals] == [
        (Reason.QUOTA_EXCEEDED, {"quota": "storage"}, None)
    ] * 7
    assert await usage(database) == {"": 5_000, "default": 5_000}
    refused = contents[told.index(refusals[0])]
    assert not await store.exists("acme", "default", grant_for(refused).address.digest)
    # The bytes of those that were refused are not kept either.
    kept = [path for path in (settings.data_dir / "blobs").rglob("*") if path.is_file()]
    assert settings.s3_endpoint or len(kept) == 5
    # What is there already is not another blob, and needs no place.
    again = contents[told.index(None)]
    await store.receive(grant_for(again), in_chunks(again))
    assert await usage(database) == {"": 5_000, "default": 5_000}


async def test_a_client_is_told_before_it_sends_and_a_place_that_became_free_is_taken_again(
    database: Database, store: BlobStore, clock: MovingClock, grant_for: GrantFor, in_chunks: InChunks
) -> None:
    content = os.urandom(1_024)
    address = grant_for(content).address
    await limit(database, 1_536)
    await store.receive(grant_for(content), in_chunks(content))
    with pytest.raises(ApiError) as refused:
        await store.require_room(BlobAddress("acme", "another", "0" * 64), 1_024)
    assert refused.value.reason is Reason.QUOTA_EXCEEDED
    assert (
        refused.value.message
        == 'the organisation "acme" may have 1536 storage and its blobs take 1Ki: 1Ki more do not fit'
    )
    await store.require_room(address, 512)
    await limit(database, 0, org="other")
    await store.require_room(BlobAddress("third", "p", "0" * 64), 1 << 40)
    assert await store.remove_idle(address, clock.now() + timedelta(days=2))
    assert await usage(database) == {"": 0, "default": 0}
    await store.require_room(BlobAddress("acme", "another", "0" * 64), 1_024)
