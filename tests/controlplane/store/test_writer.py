"""The write path under concurrency: revisions without gaps, refusals without traces, equal writes without effect."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from controlplane.errors import ApiError, Reason
from controlplane.settings import Settings
from controlplane.store.changes import ChangeFeed
from controlplane.store.contract import ChangeType, Loader, Reads, Tx
from controlplane.store.database import Database
from controlplane.store.writer import Writer
from tests.controlplane.store.things import KINDS, Do, Put, Remove, Store, key, open_store, thing
from tests.fixtures.eventually import eventually
from tests.fixtures.moving_clock import MovingClock

SESSIONS = Loader(
    "sessions of a function",
    "SELECT function_uid AS key, session, last_turn FROM call_sessions WHERE function_uid = ANY($1::text[])",
)
ADD_SESSION = "INSERT INTO call_sessions (function_uid, session, last_turn) VALUES ($1, $2, $3)"


async def test_sixteen_writers_on_two_replicas_leave_no_gap_in_any_feed(store: Store, replica: Store) -> None:
    async def write_many(target: Store, number: int) -> None:
        for turn in range(25):
            await target.put(f"thing-{number}-{turn % 5}", color=f"{turn}")

    await asyncio.gather(*(write_many(store if n % 2 else replica, n) for n in range(16)))
    for target in (store, replica):
        assert await target.feed.wait_until(400, 60)
        assert [change.rv for change in target.seen] == list(range(1, 401))
    assert store.seen == replica.seen
    stored = await store.database.fetch("SELECT rv FROM changes ORDER BY rv")
    assert [row["rv"] for row in stored] == list(range(1, 401))


async def test_writers_that_race_for_one_object_all_see_what_came_before(store: Store, replica: Store) -> None:
    def count(tx: Tx) -> None:
        document = tx.get(key("counter"))
        tx.put(key("counter"), thing("counter", count=document["spec"]["count"] + 1 if document else 1))

    await asyncio.gather(
        *(target.write(Do(count, names=("counter",))) for _ in range(100) for target in (store, replica))
    )
    document = await store.objects.get_document(key("counter"))
    assert document is not None
    assert document["spec"] == {"count": 200}


async def test_a_refused_mutation_leaves_no_trace_and_takes_no_revision(store: Store) -> None:
    def refuse(tx: Tx) -> None:
        tx.put(key("b"), thing("b"))
        tx.execute(ADD_SESSION, ("f", "s", 1))
        raise ApiError(Reason.CONFLICT, "no")

    results = await asyncio.gather(
        store.put("a"), store.write(Do(refuse, names=("b",))), store.put("c"), return_exceptions=True
    )
    assert isinstance(results[1], ApiError)
    assert [(change.rv, change.key.name) for change in store.seen] == [(1, "a"), (2, "c")]
    assert await store.objects.get(key("b")) is None
    assert await store.database.fetch("SELECT 1 FROM call_sessions") == []
    assert store.writer.stats.refused == 1


async def test_a_bug_in_one_mutation_is_an_internal_error_for_its_caller_only(store: Store) -> None:
    def break_down(tx: Tx) -> None:
        tx.put(key("b"), thing("b"))
        raise ZeroDivisionError

    results = await asyncio.gather(
        store.put("a"), store.write(Do(break_down, names=("b",))), store.put("c"), return_exceptions=True
    )
    assert isinstance(results[1], ApiError)
    assert results[1].reason is Reason.INTERNAL_ERROR
    assert "ZeroDivisionError" in (results[1].debug or "")
    assert [change.key.name for change in store.seen] == ["a", "c"]


@pytest.mark.parametrize(
    "arguments", [("f", None, 1), ("f", "s", "not a number")], ids=["refused by a constraint", "refused by the driver"]
)
async def test_a_mutation_that_sql_refuses_fails_alone(store: Store, arguments: tuple[Any, ...]) -> None:
    def offend(tx: Tx) -> None:
        tx.put(key("bad"), thing("bad"))
        tx.execute(ADD_SESSION, arguments)

    results = await asyncio.gather(
        *(store.put(f"good-{n}") for n in range(3)),
        store.write(Do(offend, names=("bad",))),
        *(store.put(f"fine-{n}") for n in range(3)),
        return_exceptions=True,
    )
    failed = [result for result in results if isinstance(result, BaseException)]
    assert [type(result) for result in failed] == [ApiError]
    assert {change.key.name for change in store.seen} == {f"{word}-{n}" for word in ("good", "fine") for n in range(3)}
    assert [change.rv for change in store.seen] == list(range(1, 7))
    assert store.writer.stats.broken == 1


async def test_writing_an_equal_document_changes_nothing(store: Store) -> None:
    first = await store.put("a", color="red", count=1)
    second = await store.put("a", count=1, color="red")
    assert second == first
    assert len(store.seen) == 1
    assert await store.database.fetchval("SELECT rv FROM meta") == 1


async def test_a_deleted_change_carries_the_last_state_with_the_revision_of_the_delete(store: Store) -> None:
    await store.put("a", color="red")
    last = await store.write(Remove("a"))
    assert last["spec"] == {"color": "red"}
    assert last["metadata"]["resourceVersion"] == "2"
    change = store.seen[-1]
    assert (change.type, change.rv, change.previous_rv) == (ChangeType.DELETED, 2, 1)
    assert orjson.loads(change.document) == last
    assert await store.objects.get(key("a")) is None


async def test_an_object_can_be_removed_and_made_anew_in_one_batch(store: Store) -> None:
    await store.write(Put("a", uid="thg_1", spec={"color": "red"}))

    def replace(tx: Tx) -> None:
        tx.remove(key("a"))
        tx.put(key("a"), thing("a", uid="thg_2"))

    await store.write(Do(replace, names=("a",)))
    assert [(c.type.value, c.uid, c.previous_rv) for c in store.seen] == [
        ("ADDED", "thg_1", None),
        ("DELETED", "thg_1", 1),
        ("ADDED", "thg_2", None),
    ]
    rows = await store.database.fetch("SELECT uid, rv, create_rv FROM objects")
    assert [tuple(row) for row in rows] == [("thg_2", 3, 3)]


async def test_changes_read_from_the_log_equal_those_handed_over(store: Store, replica: Store) -> None:
    await store.write(Put("a", labels={"x": "1"}, spec={"color": "red"}))
    await store.write(Put("a", labels={"x": "2"}, spec={"color": "red"}))
    await store.write(Put("a", labels={"x": "2"}, spec={"color": "blue"}))
    await store.write(Put("a", labels={"x": "2"}, spec={"color": "blue", "other": "\0 and ünï"}))
    await store.write(Remove("a"))
    assert await replica.feed.wait_until(5, 60)
    assert replica.seen == store.seen


async def test_loaders_run_once_for_a_batch_and_rows_go_to_whom_they_belong(store: Store) -> None:
    for name in ("f", "g"):
        await store.database.execute(ADD_SESSION, name, f"session of {name}", 7)

    def look(argument: str) -> Do:
        reading = Reads(loads=[(SESSIONS, argument)])
        return Do(lambda tx: [dict(row) for row in tx.rows(SESSIONS, argument)], reading=reading)

    f, g, nothing = await asyncio.gather(*(store.write(look(name)) for name in ("f", "g", "h")))
    assert f == [{"key": "f", "session": "session of f", "last_turn": 7}]
    assert [row["session"] for row in g] == ["session of g"]
    assert nothing == []


async def test_statements_run_in_the_order_their_texts_were_first_used(store: Store) -> None:
    def write(number: int) -> Do:
        def apply(tx: Tx) -> None:
            tx.execute(ADD_SESSION, ("f", f"s{number}", 0))
            tx.execute("UPDATE call_sessions SET last_turn = $2 WHERE session = $1", (f"s{number}", number))

        return Do(apply)

    await asyncio.gather(*(store.write(write(number)) for number in range(5)))
    rows = await store.database.fetch("SELECT last_turn FROM call_sessions ORDER BY session")
    assert [row["last_turn"] for row in rows] == list(range(5))


async def test_mutations_of_a_batch_share_scratch_and_time(database_url: str) -> None:
    clock = MovingClock()
    settings = Settings()
    database = Database(database_url, pool_size=2)
    await database.open()
    feed = ChangeFeed(database, settings)
    writer = Writer(database=database, clock=clock, kinds=KINDS, feed=feed, settings=settings)

    def append(tx: Tx) -> list[Any]:
        shared: list[Any] = tx.scratch("test").setdefault("seen", [])
        shared.append(tx.now)
        return shared

    waiting = [asyncio.create_task(writer.write(Do(append))) for _ in range(3)]
    await eventually(lambda: writer.waiting == 3)
    await writer.start()
    first, *others = await asyncio.gather(*waiting)
    assert first == [clock.now()] * 3
    assert all(other is first for other in others)
    await writer.stop()
    await database.close()


async def test_a_thousand_objects_in_one_mutation_are_one_commit(store: Store) -> None:
    names = [f"thing-{number:04}" for number in range(1000)]

    def put_all(tx: Tx) -> None:
        for name in names:
            tx.put(key(name), thing(name))

    await store.write(Do(put_all, names=tuple(names)))
    assert store.writer.stats.batches == 1
    assert [change.key.name for change in store.seen] == names


async def test_one_commit_holds_no_more_objects_than_allowed(database_url: str) -> None:
    store = await open_store(database_url, flush_keys_max=10, flush_mutations_max=1000)
    await asyncio.gather(*(store.put(f"thing-{number}") for number in range(100)))
    assert store.writer.stats.batches >= 10
    assert store.writer.stats.batch_mutations_max <= 10
    await store.writer.stop()
    await store.feed.stop()
    await store.database.close()


async def test_a_mutation_whose_caller_left_before_its_batch_is_not_applied(database_url: str) -> None:
    settings = Settings()
    database = Database(database_url, pool_size=2)
    await database.open()
    feed = ChangeFeed(database, settings)
    writer = Writer(database=database, clock=MovingClock(), kinds=KINDS, feed=feed, settings=settings)
    gone = asyncio.create_task(writer.write(Put("gone")))
    await eventually(lambda: writer.waiting == 1)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    await writer.start()
    await writer.write(Put("here"))
    assert [row["name"] for row in await database.fetch("SELECT name FROM objects")] == ["here"]
    await writer.stop()
    await database.close()


async def test_a_full_queue_refuses_instead_of_growing(database_url: str) -> None:
    settings = Settings(write_queue_max=2)
    database = Database(database_url, pool_size=2)
    feed = ChangeFeed(database, settings)
    writer = Writer(database=database, clock=MovingClock(), kinds=KINDS, feed=feed, settings=settings)
    waiting = [asyncio.create_task(writer.write(Put(f"a{number}"))) for number in range(2)]
    await eventually(lambda: writer.waiting == 2)
    with pytest.raises(ApiError) as refused:
        await writer.write(Put("b"))
    assert refused.value.reason is Reason.UNAVAILABLE
    assert refused.value.retry_after_seconds
    await writer.stop()
    given_up = await asyncio.gather(*waiting, return_exceptions=True)
    assert [getattr(error, "reason", None) for error in given_up] == [Reason.UNAVAILABLE] * 2


async def test_stopping_commits_what_waits_and_refuses_what_comes(store: Store) -> None:
    waiting = [asyncio.create_task(store.put(f"a{number}")) for number in range(300)]
    await asyncio.sleep(0)
    await store.writer.stop()
    await asyncio.gather(*waiting)
    assert len(store.seen) == 300
    with pytest.raises(ApiError) as refused:
        await store.put("late")
    assert refused.value.reason is Reason.UNAVAILABLE
