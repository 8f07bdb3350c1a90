"""Compaction: the log forgets what is old, and what a later snapshot needs stays."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import orjson
import pytest

from controlplane.errors import ApiError, Reason
from controlplane.store import compaction
from controlplane.store.compaction import compact
from tests.controlplane.store.things import EVERYTHING, Put, Remove, Store

NOW = datetime(2026, 6, 1, tzinfo=UTC)
OLD, YOUNG = NOW - timedelta(hours=30), NOW - timedelta(hours=1)


async def date_changes(store: Store, old_upto_rv: int) -> None:
    await store.database.execute(
        "UPDATE changes SET time = CASE WHEN rv <= $1 THEN $2::timestamptz ELSE $3 END", old_upto_rv, OLD, YOUNG
    )


async def log(store: Store) -> list[int]:
    return [row["rv"] for row in await store.database.fetch("SELECT rv FROM changes ORDER BY rv")]


async def state(store: Store, rv: int | None = None) -> list[bytes]:
    return (await store.objects.list_page(EVERYTHING, limit=1000, bytes_max=1 << 30, at_rv=rv)).documents


async def test_old_changes_go_except_the_last_of_what_lives(store: Store) -> None:
    await store.put("kept", turn=1)  # 1: replaced by 2
    await store.put("kept", turn=2)  # 2: what `kept` was at the point
    await store.put("gone", turn=1)  # 3: replaced by 4
    await store.write(Remove("gone"))  # 4: a delete
    await store.put("young", turn=1)  # 5: what `young` was at the point
    await store.put("young", turn=2)  # 6: young
    await date_changes(store, old_upto_rv=5)
    done = await compact(store.database, store.settings, NOW)
    assert (done.compacted_rv, done.removed_changes, done.more) == (5, 3, False)
    assert await log(store) == [2, 5, 6]
    assert [orjson.loads(document)["spec"] for document in await state(store, 5)] == [{"turn": 2}, {"turn": 1}]


@pytest.mark.parametrize("chunk", [1, 3, 2000])
async def test_every_snapshot_after_the_point_can_still_be_listed(
    store: Store, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "CHUNK_ROWS", chunk)
    chance = random.Random(chunk)
    states: dict[int, list[bytes]] = {}
    for turn in range(50):
        name = f"thing-{chance.randrange(6)}"
        await store.write(Remove(name) if chance.random() < 0.3 else Put(name, uid=name, spec={"turn": turn}))
        states[store.feed.last_rv] = await state(store)
    last = store.feed.last_rv
    for point in sorted(chance.sample(range(1, last), 3)):
        await date_changes(store, old_upto_rv=point)
        while (done := await compact(store.database, store.settings, NOW)).more:
            pass
        assert done.compacted_rv == point
        for rv in range(point, last + 1):
            assert await state(store, rv) == states[rv]
        with pytest.raises(ApiError) as expired:
            await state(store, point - 1)
        assert expired.value.reason is Reason.EXPIRED
    await date_changes(store, old_upto_rv=last)
    while (await compact(store.database, store.settings, NOW)).more:
        pass
    assert len(await log(store)) == len(states[last])


async def test_compacting_again_finds_nothing_to_do(store: Store) -> None:
    assert await compact(store.database, store.settings, NOW) == compaction.Compacted(0, 0, more=False)
    await store.put("a")
    await date_changes(store, old_upto_rv=1)
    assert (await compact(store.database, store.settings, NOW)).compacted_rv == 1
    assert await compact(store.database, store.settings, NOW) == compaction.Compacted(1, 0, more=False)
    assert await log(store) == [1]


async def test_a_list_from_the_point_itself_can_be_watched(store: Store) -> None:
    """After a quiet day the newest revision is also the compaction point: a fresh list must not be expired."""
    await store.put("a")
    await date_changes(store, old_upto_rv=1)
    await compact(store.database, store.settings, NOW)
    page = await store.objects.list_page(EVERYTHING, limit=10, bytes_max=1000)
    stream = store.watches.follow(EVERYTHING, page.rv, 0.01)
    assert [item.rv for item in await anext(stream)] == [1]
    await stream.aclose()


async def test_writers_do_not_wait_for_a_compaction_nor_it_for_them(store: Store) -> None:
    await store.put("a")
    await store.put("a", turn=2)
    await date_changes(store, old_upto_rv=2)
    async with store.database.pool.acquire() as other, other.transaction():
        await other.execute("SELECT FROM compaction FOR UPDATE")
        await store.put("b")
    async with store.database.pool.acquire() as other, other.transaction():
        await other.execute("SELECT FROM meta FOR UPDATE")
        assert (await compact(store.database, store.settings, NOW)).removed_changes == 1


async def test_idempotency_keys_are_forgotten_after_their_day(store: Store) -> None:
    for name, time in (("old", OLD), ("young", YOUNG)):
        await store.database.execute(
            "INSERT INTO idempotency (scope, key, digest, status, body, created_at) VALUES ('s', $1, '', 200, '', $2)",
            name,
            time,
        )
    await compact(store.database, store.settings, NOW)
    assert [row["key"] for row in await store.database.fetch("SELECT key FROM idempotency")] == ["young"]
