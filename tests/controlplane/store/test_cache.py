"""The cache of slow-moving objects: what was written is there, what was removed never comes back."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from controlplane.store.cache import ObjectCache
from controlplane.store.contract import Document
from tests.controlplane.store.things import EVERYTHING, Put, Remove, Store, key
from tests.fixtures.eventually import eventually
from tests.fixtures.postgres import away


async def open_cache(store: Store) -> ObjectCache:
    cache = ObjectCache(store.database, store.feed, frozenset({"Thing"}))
    await cache.start()
    return cache


def held(cache: ObjectCache) -> dict[str, Document]:
    return {place.name: document for place, document in cache.of_kind("Thing")}


async def test_what_was_there_and_what_came_later_is_held_and_what_left_is_not(store: Store) -> None:
    await store.put("before")
    cache = await open_cache(store)
    await store.put("after", color="red")
    await store.put("after", color="blue")
    await store.put("gone")
    await store.write(Remove("gone"))
    await store.write(Put("x", kind="Other"))
    assert held(cache).keys() == {"before", "after"}
    document = cache.get(key("after"))
    assert document is not None
    assert document["spec"] == {"color": "blue"}
    assert cache.by_uid(document["metadata"]["uid"]) is document
    assert cache.get(key("gone")) is None


async def test_an_object_made_anew_is_found_by_its_new_uid_only(store: Store) -> None:
    cache = await open_cache(store)
    await store.write(Put("a", uid="thg_1"))
    await store.write(Remove("a"))
    await store.write(Put("a", uid="thg_2"))
    assert cache.by_uid("thg_1") is None
    assert cache.by_uid("thg_2") is cache.get(key("a"))


@pytest.mark.parametrize("round_number", range(3))
async def test_caches_loaded_while_others_write_end_with_what_a_list_shows(
    store: Store, replica: Store, round_number: int
) -> None:
    async def write(target: Store, number: int) -> None:
        for turn in range(40):
            name = f"thing-{(number + turn) % 5}"
            await target.write(
                Remove(name) if turn % 3 == 0 else Put(name, uid=name, spec={"turn": turn, "by": number})
            )

    writing = asyncio.gather(*(write((store, replica)[number % 2], number) for number in range(8)))
    caches: list[ObjectCache] = []
    while not writing.done():
        caches.append(await open_cache((store, replica)[len(caches) % 2]))
        await asyncio.sleep(0)
    await writing
    page = await store.objects.list_page(EVERYTHING, limit=100, bytes_max=1 << 20)
    expected = [orjson.loads(document) for document in page.documents]
    for target in (store, replica):
        assert await target.feed.wait_until(page.rv, 60)
    for cache in caches:
        assert held(cache) == {document["metadata"]["name"]: document for document in expected}


async def test_what_another_process_just_wrote_can_be_read_before_the_feed_brings_it(
    store: Store, replica: Store
) -> None:
    cache = await open_cache(replica)
    for number in range(20):
        await store.put(f"a{number}")
        assert await cache.read(key(f"a{number}")) is not None
    assert await cache.read(key("nobody")) is None


async def test_a_cache_begins_anew_when_its_feed_missed_changes(store: Store) -> None:
    cache = await open_cache(store)
    await store.put("a")
    await store.database.execute("UPDATE objects SET name = 'b', doc = replace(doc::text, '\"a\"', '\"b\"')::json")
    for lost in store.feed._losses:
        lost()
    await eventually(lambda: held(cache).keys() == {"b"})


async def test_a_cache_that_cannot_begin_anew_tries_until_the_database_is_back(store: Store) -> None:
    cache = await open_cache(store)
    await store.put("a")
    async with away(store.database, "objects cannot be loaded, trying again"):
        for lost in store.feed._losses:
            lost()
    await eventually(lambda: held(cache).keys() == {"a"})
