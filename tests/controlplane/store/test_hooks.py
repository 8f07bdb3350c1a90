"""Hooks: work that joins a batch before it commits, and knows what became of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from controlplane.errors import ApiError, Reason
from controlplane.store.contract import Tx
from controlplane.store.hooks import differing_paths
from tests.controlplane.store.things import Do, Store, key, thing

SESSIONS = "SELECT count(*) FROM call_sessions"
ADD_SESSION = "INSERT INTO call_sessions (function_uid, session, last_turn) VALUES ($1, $2, 0)"


class Recorder:
    """Runs `work` before each commit and notes what happened."""

    def __init__(self, work: Any = None) -> None:
        self.work = work
        self.calls: list[str] = []

    async def before_commit(self, tx: Tx, connection: Any) -> None:
        self.calls.append("before")
        if self.work is not None:
            await self.work(tx, connection)

    def committed(self) -> None:
        self.calls.append("committed")

    def rolled_back(self) -> None:
        self.calls.append("rolled back")


async def test_a_hook_sees_its_batch_before_it_is_written_and_adds_to_the_same_commit(store: Store) -> None:
    await store.put("elsewhere", color="red")
    found: list[Any] = []

    async def dispatch(tx: Tx, connection: Any) -> None:
        found.append(await connection.fetchval("SELECT count(*) FROM objects"))
        found.append(await connection.fetchval(SESSIONS))
        found.append(tx.get(key("a")) is not None)
        await tx.load([key("elsewhere"), key("a")])
        document = tx.get(key("a"))
        assert document is not None
        tx.put(key("a"), {**document, "spec": {"color": "taken"}})
        tx.put(key("elsewhere"), thing("elsewhere", uid="thg_Thing_default_elsewhere", color="blue"))
        tx.execute(ADD_SESSION, ("f", "from the hook"))

    def create(tx: Tx) -> None:
        tx.put(key("a"), thing("a", color="new"))
        tx.execute(ADD_SESSION, ("f", "from the mutation"))

    hook = Recorder(dispatch)
    store.writer.add_hook(hook)
    await store.write(Do(create, names=("a",)))
    assert found == [1, 0, True]
    assert hook.calls == ["before", "committed"]
    assert [(c.rv, c.key.name, c.type.value, c.previous_rv) for c in store.seen[1:]] == [
        (2, "a", "ADDED", None),
        (3, "a", "MODIFIED", 2),
        (4, "elsewhere", "MODIFIED", 1),
    ]
    assert await store.database.fetchval(SESSIONS) == 2
    stored = await store.objects.get_document(key("a"))
    assert stored is not None
    assert stored["spec"] == {"color": "taken"}


async def test_a_later_hook_sees_what_an_earlier_one_put_and_wrote(store: Store) -> None:
    async def write(tx: Tx, connection: Any) -> None:
        await tx.load([key("b")])
        tx.put(key("b"), thing("b"))
        await connection.execute(ADD_SESSION, "f", "directly")

    seen: list[Any] = []

    async def look(tx: Tx, connection: Any) -> None:
        seen.append(tx.get(key("b")) is not None)
        seen.append(await connection.fetchval(SESSIONS))

    store.writer.add_hook(Recorder(write))
    store.writer.add_hook(Recorder(look))
    await store.put("a")
    assert seen == [True, 1]


async def test_parts_are_written_with_the_objects_of_their_batch_and_not_without_them(store: Store) -> None:
    """Rows of one text are one query of the statement, whoever joined them; a refused mutation leaves none."""
    part = """INSERT INTO call_sessions (function_uid, session, last_turn)
        SELECT function_uid, session, last_turn FROM json_populate_recordset(NULL::call_sessions, $rows)"""

    def joining(session: str, *, refused: bool = False) -> Any:
        def apply(tx: Tx) -> None:
            tx.join(part, {"function_uid": "f", "session": session, "last_turn": tx.put(key(session), thing(session))})
            if refused:
                raise ApiError(Reason.CONFLICT, "refused after it joined")

        return apply

    with pytest.raises(ApiError):
        await store.write(Do(joining("never", refused=True), names=("never",)))
    await store.write(Do(lambda tx: tx.join(part, {"function_uid": "f", "session": "alone", "last_turn": 1})))
    assert [record["session"] for record in await store.database.fetch("SELECT session FROM call_sessions")] == [
        "alone"
    ]
    assert await store.database.fetchval("SELECT count(*) FROM objects") == 0


async def test_a_hook_takes_an_object_that_it_read_itself(store: Store) -> None:
    await store.put("a", color="red")
    found: list[Any] = []

    async def read(tx: Tx, connection: Any) -> None:
        [record] = await connection.fetch(
            "SELECT uid AS o_uid, rv AS o_rv, create_rv AS o_create_rv, labels AS o_labels, fields AS o_fields, "
            "doc AS o_doc FROM objects"
        )
        tx.remember(key("a"), record, "o_")
        document = tx.get(key("a"))
        assert document is not None
        found.append(document["spec"])
        tx.put(key("a"), {**document, "spec": {"color": "blue"}})
        tx.remember(key("a"), record, "o_")
        found.append((tx.get(key("a")) or {})["spec"])

    store.writer.add_hook(Recorder(read))
    await store.write(Do(lambda tx: None))
    assert found == [{"color": "red"}, {"color": "blue"}]
    stored = await store.objects.get_document(key("a"))
    assert stored is not None
    assert (stored["spec"], stored["metadata"]["resourceVersion"]) == ({"color": "blue"}, "2")


async def test_a_batch_that_only_hooks_write_is_committed(store: Store) -> None:
    """As when a dispatcher is woken by an empty mutation and writes on the connection itself."""

    async def write(tx: Tx, connection: Any) -> None:
        await connection.execute(ADD_SESSION, "f", "directly")

    store.writer.add_hook(Recorder(write))
    await store.write(Do(lambda tx: None))
    assert await store.database.fetchval(SESSIONS) == 1


async def test_a_failing_hook_rolls_everything_back_and_says_so(store: Store) -> None:
    async def fail(tx: Tx, connection: Any) -> None:
        await connection.execute(ADD_SESSION, "f", "never")
        raise ZeroDivisionError

    first, failing = Recorder(), Recorder(fail)
    store.writer.add_hook(first)
    store.writer.add_hook(failing)
    with pytest.raises(ApiError) as failed:
        await store.put("a")
    assert failed.value.reason is Reason.INTERNAL_ERROR
    assert first.calls == failing.calls == ["before", "rolled back"]
    assert await store.database.fetchval(SESSIONS) == 0
    assert store.seen == []
    failing.work = None
    await store.put("a")
    assert [change.rv for change in store.seen] == [1]


async def test_a_hook_that_one_mutation_makes_fail_does_not_fail_the_others(store: Store) -> None:
    async def fail_for_the_bad(tx: Tx, connection: Any) -> None:
        await tx.load([key("bad")])
        if tx.get(key("bad")) is not None:
            raise ZeroDivisionError

    store.writer.add_hook(Recorder(fail_for_the_bad))
    results = await asyncio.gather(*(store.put(name) for name in ("a", "bad", "b")), return_exceptions=True)
    assert [isinstance(result, ApiError) for result in results] == [False, True, False]
    assert [change.key.name for change in store.seen] == ["a", "b"]


async def test_a_hook_that_fails_after_the_commit_cannot_undo_or_repeat_it(store: Store) -> None:
    class Broken(Recorder):
        def committed(self) -> None:
            raise ZeroDivisionError

    store.writer.add_hook(Broken())
    await store.put("a")
    assert [change.rv for change in store.seen] == [1]


@pytest.mark.parametrize(
    ("stored", "proposed", "differing"),
    [
        ({"a": 1}, {"a": 1, "list": [], "object": {"list": [], "object": {}}}, []),
        ({"a": {"b": 1}}, {"a": {"b": 1, "c": []}}, []),
        ({"items": [{"name": "x"}]}, {"items": [{"name": "x", "keys": []}]}, []),
        (None, {"list": []}, []),
        ({}, {"text": "", "number": 0, "flag": False}, ["spec.flag", "spec.number", "spec.text"]),
        ({"items": [{}]}, {"items": []}, ["spec.items"]),
        ({"items": ["b", "a"]}, {"items": ["a", "b"]}, ["spec.items"]),
        ({"a": {"b": 1}}, {"a": {"b": 2}}, ["spec.a.b"]),
    ],
)
def test_an_empty_list_or_object_is_no_difference_from_none(stored: Any, proposed: Any, differing: list[str]) -> None:
    assert differing_paths(stored, proposed, "spec") == differing
    assert differing_paths(proposed, stored, "spec") == differing
