"""The write path under concurrency: revisions without gaps, refusals without traces, hooks inside the commit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from controlplane.clock import SystemClock
from controlplane.errors import ApiError, Reason
from controlplane.machinery.kind import ALL_VERBS, Kind, Scope
from controlplane.settings import Settings
from controlplane.store.changes import ChangeFeed
from controlplane.store.contract import Change, ChangeType, Document, Key, Reads, Tx
from controlplane.store.database import Database
from controlplane.store.objects import Objects
from controlplane.store.writer import Writer
from tests.fixtures.eventually import eventually

THING = Kind(
    kind="Thing",
    plural="things",
    uid_prefix="thg",
    scope=Scope.PROJECT,
    verbs=ALL_VERBS,
    description="An object of the tests.",
    spec=None,
    status=None,
    columns=(),
    selectable_fields=("spec.color",),
)
KINDS = {"Thing": THING}


def key(name: str) -> Key:
    return Key("Thing", "acme", "default", name)


def thing(name: str, **spec: Any) -> Document:
    return {"kind": "Thing", "metadata": {"name": name, "uid": f"thg_{name}", "labels": {}}, "spec": spec}


@dataclass
class Put:
    name: str
    spec: dict[str, Any]

    def reads(self) -> Reads:
        return Reads(keys=[key(self.name)])

    def apply(self, tx: Tx) -> Document:
        return tx.put(key(self.name), thing(self.name, **self.spec))


@dataclass
class Refused:
    name: str

    def reads(self) -> Reads:
        return Reads(keys=[key(self.name)])

    def apply(self, tx: Tx) -> None:
        tx.put(key(self.name), thing(self.name, color="never"))
        tx.execute("INSERT INTO call_sessions VALUES ($1, 's', 1)", (self.name,))
        raise ApiError(Reason.CONFLICT, "no")


@dataclass
class Remove:
    name: str

    def reads(self) -> Reads:
        return Reads(keys=[key(self.name)])

    def apply(self, tx: Tx) -> Document:
        return tx.remove(key(self.name))


@dataclass
class BadStatement:
    name: str

    def reads(self) -> Reads:
        return Reads(keys=[key(self.name)])

    def apply(self, tx: Tx) -> None:
        tx.put(key(self.name), thing(self.name))
        tx.execute("INSERT INTO call_sessions VALUES ($1, NULL, 1)", (self.name,))


@dataclass
class Store:
    database: Database
    feed: ChangeFeed
    writer: Writer
    seen: list[Change]


async def open_store(url: str) -> Store:
    settings = Settings(change_poll_seconds=0.2)
    database = Database(url, pool_size=4)
    await database.open()
    feed = ChangeFeed(database, settings)
    writer = Writer(database=database, clock=SystemClock(), kinds=KINDS, feed=feed, settings=settings)
    await feed.start()
    await writer.start()
    seen: list[Change] = []
    feed.add_listener(seen.extend)
    return Store(database, feed, writer, seen)


async def close_store(store: Store) -> None:
    await store.writer.stop()
    await store.feed.stop()
    await store.database.close()


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[Store]:
    opened = await open_store(database_url)
    yield opened
    await close_store(opened)


@pytest.fixture
async def replica(database_url: str, store: Store) -> AsyncIterator[Store]:
    opened = await open_store(database_url)
    yield opened
    await close_store(opened)


async def test_sixteen_writers_on_two_replicas_leave_no_gap_in_any_feed(store: Store, replica: Store) -> None:
    async def write_many(target: Store, number: int) -> None:
        for turn in range(25):
            await target.writer.write(Put(f"thing-{number}-{turn % 5}", {"color": f"{turn}"}))

    await asyncio.gather(*(write_many(store if n % 2 else replica, n) for n in range(16)))
    for target in (store, replica):
        assert await target.feed.wait_until(400, 10)
        assert [change.rv for change in target.seen] == list(range(1, 401))
    assert [c.document for c in store.seen] == [c.document for c in replica.seen]


async def test_a_refused_mutation_leaves_no_trace_and_takes_no_revision(store: Store) -> None:
    results = await asyncio.gather(
        store.writer.write(Put("a", {})),
        store.writer.write(Refused("b")),
        store.writer.write(Put("c", {})),
        return_exceptions=True,
    )
    assert isinstance(results[1], ApiError)
    assert [change.key.name for change in store.seen] == ["a", "c"]
    assert [change.rv for change in store.seen] == [1, 2]
    assert await Objects(store.database).get(key("b")) is None
    assert await store.database.fetch("SELECT 1 FROM call_sessions") == []


async def test_a_mutation_that_sql_refuses_fails_alone(store: Store) -> None:
    results = await asyncio.gather(
        *(store.writer.write(Put(f"good-{n}", {})) for n in range(3)),
        store.writer.write(BadStatement("bad")),
        *(store.writer.write(Put(f"fine-{n}", {})) for n in range(3)),
        return_exceptions=True,
    )
    failed = [result for result in results if isinstance(result, BaseException)]
    assert [type(result) for result in failed] == [ApiError]
    assert len(await store.database.fetch("SELECT 1 FROM objects")) == 6
    assert [change.rv for change in store.seen] == list(range(1, 7))


async def test_writing_an_equal_document_changes_nothing(store: Store) -> None:
    first = await store.writer.write(Put("a", {"color": "red"}))
    second = await store.writer.write(Put("a", {"color": "red"}))
    assert second == first
    assert len(store.seen) == 1


async def test_a_deleted_event_carries_the_last_state_with_the_revision_of_the_delete(store: Store) -> None:
    await store.writer.write(Put("a", {"color": "red"}))
    last = await store.writer.write(Remove("a"))
    assert last["spec"] == {"color": "red"}
    assert last["metadata"]["resourceVersion"] == "2"
    assert store.seen[-1].type is ChangeType.DELETED
    assert store.seen[-1].rv == 2


async def test_a_lost_notification_costs_only_a_poll(store: Store, replica: Store) -> None:
    await store.database.execute(
        "INSERT INTO changes SELECT 1, now(), 'ADDED', 'Thing', 'acme', 'default', 'x', 'u', "
        "NULL, '{}', '{}', NULL, NULL, '{}'"
    )
    await store.database.execute("UPDATE meta SET rv = 1")
    await eventually(lambda: replica.feed.last_rv == 1 and store.feed.last_rv == 1)


async def test_writers_go_on_after_the_database_dropped_their_connections(store: Store) -> None:
    await store.writer.write(Put("a", {}))
    await store.database.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
        "AND datname = current_database()"
    )
    await store.writer.write(Put("b", {}))
    assert await store.feed.wait_until(2, 10)
    assert [change.key.name for change in store.seen] == ["a", "b"]


async def test_a_full_queue_refuses_instead_of_growing(database_url: str) -> None:
    settings = Settings(write_queue_max=2)
    database = Database(database_url, pool_size=2)
    writer = Writer(
        database=database, clock=SystemClock(), kinds=KINDS, feed=ChangeFeed(database, settings), settings=settings
    )
    waiting = [asyncio.create_task(writer.write(Put(f"a{n}", {}))) for n in range(2)]
    await eventually(lambda: writer.waiting == 2)
    with pytest.raises(ApiError) as refused:
        await writer.write(Put("b", {}))
    assert refused.value.reason is Reason.UNAVAILABLE
    for task in waiting:
        task.cancel()
