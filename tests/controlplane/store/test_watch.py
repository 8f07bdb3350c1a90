"""Watches: every later change once, in order, told in the words of the selection, or an honest end."""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial

import orjson
import pytest

from controlplane.errors import ApiError, Reason
from controlplane.machinery.selectors import FieldTerm, LabelOperator, LabelTerm
from controlplane.store.contract import Document, Selection
from controlplane.store.watch import Bookmark, WatchEvent, WatchItem
from tests.controlplane.store.things import EVERYTHING, Put, Remove, Store, close_store, open_store
from tests.fixtures.eventually import eventually

RED = Selection("Thing", "acme", "default", fields=(FieldTerm("spec.color", True, "red"),))
TIER_A = Selection("Thing", "acme", None, labels=(LabelTerm("tier", LabelOperator.IN, ("a",)),))
NOT_A = Selection("Thing", "acme", None, labels=(LabelTerm("tier", LabelOperator.NOT_IN, ("a",)),))
NAMED = Selection("Thing", "acme", None, fields=(FieldTerm("metadata.name", True, "thing-3"),))
IN_OTHER = Selection("Thing", "acme", "other")
VISIBLE = Selection("Thing", "acme", None, projects=frozenset({"other", "third"}))


@dataclass
class Watcher:
    """Follows a selection in a task and rebuilds its state from the events."""

    store: Store
    selection: Selection
    since_rv: int
    events: list[WatchEvent] = field(default_factory=list)
    bookmarks: list[int] = field(default_factory=list)
    state: dict[str, Document] = field(default_factory=dict)
    task: asyncio.Task[None] | None = None

    def start(self, bookmark_seconds: float | None = None) -> Watcher:
        self.task = asyncio.create_task(self.run(bookmark_seconds))
        return self

    async def run(self, bookmark_seconds: float | None = None) -> None:
        async with aclosing(self.store.watches.follow(self.selection, self.since_rv, bookmark_seconds)) as stream:
            async for items in stream:
                for item in items:
                    self.take(item)

    def take(self, item: WatchItem) -> None:
        if isinstance(item, Bookmark):
            self.bookmarks.append(item.rv)
            return
        assert not self.events or item.rv > self.events[-1].rv
        assert not self.bookmarks or item.rv > self.bookmarks[-1]
        self.events.append(item)
        document = orjson.loads(item.document)
        assert document["metadata"]["resourceVersion"] == str(item.rv)
        name = document["metadata"]["uid"]
        known = name in self.state
        match item.type.value:
            case "ADDED":
                assert not known
                self.state[name] = document
            case "MODIFIED":
                assert known
                self.state[name] = document
            case "DELETED":
                assert known
                del self.state[name]

    async def stop(self) -> None:
        assert self.task is not None
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    def shows(self, expected: dict[str, Document]) -> bool:
        return self.state == expected

    def told(self) -> list[tuple[int, str]]:
        return [(event.rv, event.type.value) for event in self.events]


async def listed(store: Store, selection: Selection) -> tuple[dict[str, Document], int]:
    page = await store.objects.list_page(selection, limit=10_000, bytes_max=1 << 30)
    documents = [orjson.loads(document) for document in page.documents]
    return {document["metadata"]["uid"]: document for document in documents}, page.rv


async def churn(store: Store, number: int, turns: int) -> None:
    """Create, change, relabel and remove things at random."""
    chance = random.Random(number)
    for turn in range(turns):
        name, project = f"thing-{chance.randrange(8)}", chance.choice(["default", "other"])
        if chance.random() < 0.25:
            await store.write(Remove(name, project))
        else:
            labels = chance.choice([{}, {"tier": "a"}, {"tier": "b"}, {"tier": "b", "x": "y"}])
            color = chance.choice(["red", "blue"])
            await store.write(
                Put(name, labels=labels, project=project, uid=f"{project}/{name}", spec={"color": color, "turn": turn})
            )


@pytest.mark.parametrize("memory", [50_000, 5], ids=["from memory", "from the log"])
async def test_watchers_that_start_and_stop_under_writers_end_with_what_a_list_shows(
    database_url: str, memory: int
) -> None:
    first = await open_store(database_url, ring_events_max=memory)
    second = await open_store(database_url, ring_events_max=memory)
    watchers: list[Watcher] = []

    async def watch_with_pauses(store: Store, selection: Selection, number: int) -> None:
        state, rv = await listed(store, selection)
        watcher = Watcher(store, selection, rv, state=state)
        for _ in range(5):
            watcher.start()
            await eventually(partial(moved, watcher, len(watcher.events)), every=0.005)
            await watcher.stop()
            watcher.since_rv = watcher.events[-1].rv if watcher.events else rv
        watchers.append(watcher.start())

    async def write() -> None:
        await asyncio.gather(*(churn((first, second)[number % 2], number, 30) for number in range(16)))

    def moved(watcher: Watcher, seen: int) -> bool:
        return len(watcher.events) > seen or writing.done()

    writing = asyncio.create_task(write())
    selections = [EVERYTHING, RED, TIER_A, NOT_A, NAMED, IN_OTHER, VISIBLE]
    await asyncio.gather(
        *(watch_with_pauses((first, second)[n % 2], selections[n % len(selections)], n) for n in range(14))
    )
    await writing
    for watcher in watchers:
        expected, rv = await listed(first, watcher.selection)
        assert await watcher.store.feed.wait_until(rv, 60)
        await eventually(partial(watcher.shows, expected))
        await watcher.stop()
    for store in (first, second):
        await close_store(store)


async def test_what_enters_and_leaves_a_selection_is_added_and_deleted(store: Store) -> None:
    watcher = Watcher(store, RED, 0).start()
    await store.put("a", color="blue")
    await store.put("a", color="red", size=1)
    await store.put("a", color="red", size=2)
    await store.put("a", color="green", size=3)
    await store.put("a", color="red", size=4)
    await store.write(Remove("a"))
    await eventually(lambda: len(watcher.events) == 5)
    assert watcher.told() == [(2, "ADDED"), (3, "MODIFIED"), (4, "DELETED"), (5, "ADDED"), (6, "DELETED")]
    left = orjson.loads(watcher.events[2].document)
    assert left["spec"] == {"color": "red", "size": 2}
    assert left["metadata"]["resourceVersion"] == "4"
    await watcher.stop()


async def test_a_label_that_leaves_is_told_to_those_who_selected_it(store: Store) -> None:
    watchers = [Watcher(store, selection, 0).start() for selection in (TIER_A, NOT_A)]
    await eventually(lambda: len(store.feed.subscriptions) == 2)
    for labels in ({}, {"tier": "a"}, {"tier": "b"}, {"tier": "a"}):
        await store.write(Put("x", labels=labels))
    await eventually(lambda: all(watcher.events and watcher.events[-1].rv == 4 for watcher in watchers))
    assert watchers[0].told() == [(2, "ADDED"), (3, "DELETED"), (4, "ADDED")]
    assert watchers[1].told() == [(1, "ADDED"), (2, "DELETED"), (3, "ADDED"), (4, "DELETED")]
    for watcher in watchers:
        await watcher.stop()
    assert len(store.feed.subscriptions) == 0


async def test_a_watch_of_a_revision_to_come_waits_for_what_follows_it(store: Store) -> None:
    watcher = Watcher(store, EVERYTHING, 3).start(bookmark_seconds=0.05)
    await eventually(lambda: watcher.bookmarks)
    assert set(watcher.bookmarks) == {3}
    for number in range(5):
        await store.put(f"a{number}")
    await eventually(lambda: len(watcher.events) == 2)
    assert watcher.told() == [(4, "ADDED"), (5, "ADDED")]
    await watcher.stop()


async def test_bookmarks_move_on_when_only_others_change(store: Store) -> None:
    watcher = Watcher(store, EVERYTHING, 0).start(bookmark_seconds=0.05)
    await store.write(Put("a", kind="Other"))
    await eventually(lambda: watcher.bookmarks and watcher.bookmarks[-1] == 1)
    assert watcher.events == []
    await watcher.stop()


async def test_a_revision_older_than_the_log_is_expired(database_url: str) -> None:
    store = await open_store(database_url, ring_events_max=1)
    for number in range(5):
        await store.put(f"a{number}")
    await store.database.execute("UPDATE compaction SET compacted_rv = 3")
    await Watcher(store, EVERYTHING, 4).start().stop()
    exact = Watcher(store, EVERYTHING, 3).start()
    await eventually(lambda: len(exact.events) == 2)
    await exact.stop()
    with pytest.raises(ApiError) as expired:
        await Watcher(store, EVERYTHING, 2).run()
    assert expired.value.reason is Reason.EXPIRED
    await close_store(store)


@pytest.mark.parametrize("bound", ["watch_buffer_events_max", "watch_buffer_bytes_max"])
async def test_a_watcher_that_does_not_keep_up_is_cut_and_loses_nothing_by_resuming(
    database_url: str, bound: str
) -> None:
    store = await open_store(database_url, **{bound: 10 if "events" in bound else 2000})
    stream = store.watches.follow(EVERYTHING, 0, None)
    await store.put("first")
    got: list[WatchItem] = list(await anext(stream))
    for number in range(50):
        await store.put(f"a{number:02}")
    async for items in stream:
        got += items
    assert len(got) < 51
    resumed = Watcher(store, EVERYTHING, got[-1].rv).start()
    await eventually(lambda: len(got) + len(resumed.events) >= 51)
    assert [item.rv for item in got] + [event.rv for event in resumed.events] == list(range(1, 52))
    await resumed.stop()
    await close_store(store)


async def test_stopping_the_feed_ends_its_watches(database_url: str) -> None:
    store = await open_store(database_url)
    watcher = Watcher(store, EVERYTHING, 0).start()
    await eventually(lambda: len(store.feed.subscriptions) == 1)
    await close_store(store)
    assert watcher.task is not None
    await asyncio.wait_for(watcher.task, 60)


async def test_a_lost_notification_costs_only_a_poll(store: Store, replica: Store) -> None:
    """The change is written without the notification that a writer sends."""
    watcher = Watcher(replica, EVERYTHING, 0).start()
    await store.database.execute(
        "INSERT INTO changes (rv, time, type, kind, org, project, name, uid, labels, fields, doc) VALUES "
        "(1, now(), 'ADDED', 'Thing', 'acme', 'default', 'x', 'u', '{}', '{}', $1)",
        '{"metadata":{"name":"x","uid":"u","resourceVersion":"1"}}',
    )
    await store.database.execute("UPDATE meta SET rv = 1")
    await eventually(lambda: watcher.told() == [(1, "ADDED")])
    await watcher.stop()


async def test_a_change_of_another_process_arrives_without_waiting_for_the_poll(database_url: str) -> None:
    writing = await open_store(database_url, change_poll_seconds=600)
    watching = await open_store(database_url, change_poll_seconds=600, change_stale_seconds=600)
    watcher = Watcher(watching, EVERYTHING, 0).start()
    # Two, because the first may come before the other process listens.
    await writing.put("a")
    await eventually(lambda: watching.feed.current)
    await writing.put("b")
    await eventually(lambda: watcher.told() == [(1, "ADDED"), (2, "ADDED")])
    await watcher.stop()
    for store in (writing, watching):
        await close_store(store)


async def test_a_process_that_slept_through_a_compaction_ends_its_watches_and_tells_its_listeners(
    store: Store, database_url: str
) -> None:
    sleeper = await open_store(database_url)
    losses: list[int] = []
    sleeper.feed.add_listener(lambda changes: None, lost=lambda: losses.append(sleeper.feed.last_rv))
    watcher = Watcher(sleeper, EVERYTHING, 0).start()
    await eventually(lambda: len(sleeper.feed.subscriptions) == 1)
    # As if the rows 1 to 9 had been written and compacted while this process slept.
    await store.database.execute("UPDATE compaction SET compacted_rv = 9, pruned_rv = 9")
    await store.database.execute(
        "INSERT INTO changes (rv, time, type, kind, org, project, name, uid, labels, fields, doc) VALUES "
        "(10, now(), 'ADDED', 'Thing', 'acme', 'default', 'x', 'u', '{}', '{}', '{}')"
    )
    await eventually(lambda: sleeper.feed.last_rv == 10)
    assert losses == [9]
    assert watcher.task is not None
    await asyncio.wait_for(watcher.task, 60)
    await close_store(sleeper)


_ROW = """
INSERT INTO changes (rv, time, type, kind, org, project, name, uid, labels, fields, doc) VALUES
({0}, now(), 'ADDED', 'Thing', 'acme', 'default', 'thing-{0}', 'u{0}', '{{}}', '{{}}', '{{}}');
"""


@pytest.mark.parametrize(
    ("left", "delivered"),
    [([1, 3, 5, 6], [1, 6]), ([1, 2, 4], [1, 2]), ([2], []), ([], [])],
    ids=["some of them are left", "the last of them is left", "one is left", "nothing is left"],
)
async def test_a_process_that_slept_through_a_compaction_goes_on_whatever_is_left_of_what_it_missed(
    store: Store, left: list[int], delivered: list[int]
) -> None:
    """What an object was at the compaction point stays in the log, so what is left may begin without a gap."""
    losses: list[int] = []
    store.feed.add_listener(lambda changes: None, lost=lambda: losses.append(store.feed.last_rv))
    watcher = Watcher(store, EVERYTHING, 0).start()
    await eventually(lambda: store.feed.current and len(store.feed.subscriptions) == 1)
    last_rv = max(5, *left, 0)
    rows = "".join(_ROW.format(rv) for rv in left)
    await store.database.execute(f"UPDATE compaction SET compacted_rv = 5; UPDATE meta SET rv = {last_rv}; {rows}")
    await eventually(lambda: store.feed.last_rv == last_rv)
    assert [change.rv for change in store.seen] == delivered
    assert losses == [5]
    assert watcher.task is not None
    await asyncio.wait_for(watcher.task, 60)
    await store.put("next")
    await eventually(lambda: store.seen and store.seen[-1].rv == last_rv + 1)
    await eventually(lambda: store.feed.current)


async def test_an_object_that_left_the_selection_unseen_and_was_compacted_expires_the_watch(database_url: str) -> None:
    """Its last state inside the selection is gone: a DELETED with another state would be a lie."""
    store = await open_store(database_url, ring_events_max=1)
    await store.put("a", color="red")
    stream = store.watches.follow(RED, 0, None)
    assert [item.rv for item in await anext(stream)] == [1]
    await store.put("a", color="blue")
    await store.put("b", color="blue")
    # As a compaction of both leaves it.
    await store.database.execute("UPDATE compaction SET compacted_rv = 2; DELETE FROM changes WHERE rv = 1")
    with pytest.raises(ApiError) as expired:
        await anext(stream)
    assert expired.value.reason is Reason.EXPIRED
    await close_store(store)


async def test_a_gap_in_the_log_is_an_alarm_and_not_a_lost_event(store: Store) -> None:
    watcher = Watcher(store, EVERYTHING, 0).start()
    await eventually(lambda: store.feed.current and len(store.feed.subscriptions) == 1)
    await store.database.execute(
        "INSERT INTO changes (rv, time, type, kind, org, project, name, uid, labels, fields, doc) VALUES "
        "(2, now(), 'ADDED', 'Thing', 'acme', 'default', 'x', 'u', '{}', '{}', '{}')"
    )
    assert watcher.task is not None
    await asyncio.wait_for(watcher.task, 60)
    assert not store.feed.current
    assert watcher.events == []
