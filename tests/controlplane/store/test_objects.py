"""Lists: pages that belong to one snapshot whatever is written between them, and selectors in SQL."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import orjson
import pytest

from controlplane.errors import ApiError, Reason
from controlplane.machinery.selectors import FieldTerm, LabelOperator, LabelTerm
from controlplane.store.contract import Document, ListPage, Selection
from tests.controlplane.store.things import EVERYTHING, Put, PutDocument, Remove, Store, key, thing

TIER_A = Selection("Thing", "acme", None, labels=(LabelTerm("tier", LabelOperator.IN, ("a",)),))
NOT_RED = Selection("Thing", "acme", None, fields=(FieldTerm("spec.color", False, "red"),))
DEFAULT = Selection("Thing", "acme", "default")
VISIBLE = Selection("Thing", "acme", None, projects=frozenset({"other"}))


async def page(store: Store, selection: Selection, **options: Any) -> ListPage:
    return await store.objects.list_page(selection, **{"limit": 1000, "bytes_max": 1 << 30, **options})


def documents(*pages: ListPage) -> list[Document]:
    return [orjson.loads(document) for found in pages for document in found.documents]


def names(*pages: ListPage) -> list[str]:
    return [document["metadata"]["name"] for document in documents(*pages)]


async def write_at_random(store: Store, chance: random.Random, turns: int) -> None:
    for _ in range(turns):
        name, project = f"thing-{chance.randrange(30):02}", chance.choice(["default", "other"])
        if chance.random() < 0.3:
            await store.write(Remove(name, project))
        else:
            labels = chance.choice([{}, {"tier": "a"}, {"tier": "b"}])
            spec = {"color": chance.choice(["red", "blue"]), "turn": chance.random()}
            await store.write(Put(name, labels=labels, project=project, uid=f"{project}/{name}", spec=spec))


@pytest.mark.parametrize("selection", [EVERYTHING, TIER_A, NOT_RED, DEFAULT, VISIBLE], ids=lambda _: "")
async def test_pages_show_the_snapshot_of_the_first_whatever_happens_between_them(
    store: Store, selection: Selection
) -> None:
    chance = random.Random(7)
    await asyncio.gather(*(write_at_random(store, chance, 20) for _ in range(4)))
    whole = await page(store, selection)
    pages = [await page(store, selection, limit=3)]
    assert pages[0].rv == whole.rv
    while pages[-1].next_key is not None:
        await asyncio.gather(*(write_at_random(store, chance, 4) for _ in range(4)))
        pages.append(await page(store, selection, limit=3, after=pages[-1].next_key, at_rv=whole.rv))
    assert documents(*pages) == documents(whole)
    assert len(whole.documents) > 3
    assert {found.rv for found in pages} == {whole.rv}


async def test_the_state_at_any_revision_of_the_log_can_be_listed(store: Store) -> None:
    chance = random.Random(3)
    states: dict[int, list[Document]] = {}
    for _ in range(30):
        await write_at_random(store, chance, 1)
        now = await page(store, EVERYTHING)
        states[now.rv] = documents(now)
    for rv, expected in states.items():
        assert documents(await page(store, EVERYTHING, at_rv=rv)) == expected


async def test_what_was_removed_and_made_anew_since_is_shown_as_it_was(store: Store) -> None:
    await store.write(Put("a", uid="thg_1", spec={"color": "red"}))
    await store.write(Remove("a"))
    await store.write(Put("a", uid="thg_2"))
    then = documents(await page(store, EVERYTHING, at_rv=1))
    assert [document["metadata"]["uid"] for document in then] == ["thg_1"]
    assert documents(await page(store, EVERYTHING, at_rv=2)) == []


async def test_a_page_names_its_last_key_only_when_more_follow(store: Store) -> None:
    for name in ("a", "b", "c"):
        await store.put(name)
    first = await page(store, EVERYTHING, limit=2)
    assert (names(first), first.next_key, first.remaining) == (["a", "b"], key("b"), 1)
    second = await page(store, EVERYTHING, limit=2, after=first.next_key, at_rv=first.rv)
    assert (names(second), second.next_key) == (["c"], None)
    exact = await page(store, EVERYTHING, limit=3)
    assert (len(exact.documents), exact.next_key) == (3, None)


async def test_a_page_ends_early_when_it_holds_enough_bytes_but_is_never_empty(store: Store) -> None:
    for name in ("a", "b", "c"):
        await store.put(name, filling="x" * 1000)
    two = await page(store, EVERYTHING, bytes_max=2500)
    assert (names(two), two.next_key) == (["a", "b"], key("b"))
    one = await page(store, EVERYTHING, bytes_max=10)
    assert (names(one), one.next_key) == (["a"], key("a"))


async def test_keys_come_in_the_order_of_their_bytes(store: Store) -> None:
    for name, project in [("b", "default"), ("a-b", "default"), ("ab", "default"), ("a", "zone"), ("z", "Default")]:
        await store.write(Put(name, project=project, uid=f"{project}/{name}"))
    found = documents(await page(store, EVERYTHING))
    assert [document["metadata"]["uid"] for document in found] == [
        "Default/z",
        "default/a-b",
        "default/ab",
        "default/b",
        "zone/a",
    ]


async def test_other_organisations_and_kinds_stay_out_of_a_list(store: Store) -> None:
    await store.put("a")
    await store.write(Put("b", kind="Other"))
    assert names(await page(store, EVERYTHING)) == ["a"]
    assert names(await page(store, Selection("Thing", "elsewhere", None))) == []


async def test_a_revision_before_the_log_is_expired_and_one_to_come_is_a_timeout(store: Store) -> None:
    for name in ("a", "b", "c"):
        await store.put(name)
    await store.database.execute("UPDATE compaction SET compacted_rv = 2")
    assert names(await page(store, EVERYTHING, at_rv=2)) == ["a", "b"]
    with pytest.raises(ApiError) as expired:
        await page(store, EVERYTHING, at_rv=1)
    assert expired.value.reason is Reason.EXPIRED
    with pytest.raises(ApiError) as early:
        await page(store, EVERYTHING, at_rv=4)
    assert early.value.reason is Reason.TIMEOUT
    assert early.value.causes[0].reason == "ResourceVersionTooLarge"


async def test_a_fresh_store_lists_nothing_at_revision_zero(store: Store) -> None:
    empty = await page(store, EVERYTHING)
    assert (empty.documents, empty.rv, empty.next_key) == ([], 0, None)


async def test_objects_are_found_by_name_by_owner_and_by_deletion(store: Store) -> None:
    owned = thing("owned")
    owned["metadata"]["ownerReferences"] = [{"uid": 'thg_"own,er"'}, {"uid": "thg_2"}]
    leaving = thing("leaving")
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    for document in (owned, leaving):
        await store.write(PutDocument(document))
    assert await store.objects.owned_by('thg_"own,er"', 10) == [key("owned")]
    assert await store.objects.owned_by("thg_2", 10) == [key("owned")]
    assert await store.objects.owned_by("thg_3", 10) == []
    assert await store.objects.deleting("Thing", None, 10) == [key("leaving")]
    assert await store.objects.deleting("Thing", key("leaving"), 10) == []
    found = await store.objects.get_document(key("owned"))
    assert found is not None
    assert found["metadata"]["resourceVersion"] == "1"
    assert await store.objects.get(key("nobody")) is None
