"""What creates, cancels and deletes of calls do to their rows."""

from __future__ import annotations

import orjson
import pytest

from controlplane.calls.engine import AttachWorkflow
from controlplane.errors import ApiError, Reason
from controlplane.kinds.registry import KINDS
from controlplane.resources.mutations import Update
from controlplane.store.contract import Key, Reads, Tx
from tests.fixtures.calls import Calls, PutObject, said, succeeded


class RemoveObject:
    """Takes an object away without asking anybody."""

    def __init__(self, key: Key) -> None:
        self.key = key

    def reads(self) -> Reads:
        return Reads(keys=[self.key])

    def apply(self, tx: Tx) -> None:
        tx.remove(self.key)


def call_key(name: str) -> Key:
    return Key("FunctionCall", "acme", "default", name)


async def test_a_call_of_a_function_that_went_away_meanwhile_is_refused(calls: Calls) -> None:
    with pytest.raises(ApiError) as refusal:
        await calls.create(function="never-was")
    assert refusal.value.reason is Reason.FUNCTION_NOT_FOUND
    function = await calls.function()
    deleting = {**function, "metadata": {**function["metadata"], "deletionTimestamp": "2026-11-29T12:00:00Z"}}
    await calls.writer.write(PutObject(Key("Function", "acme", "default", "f"), deleting))
    with pytest.raises(ApiError) as refusal:
        await calls.create()
    assert refusal.value.reason is Reason.FUNCTION_NOT_FOUND
    assert await calls.database.fetch("SELECT * FROM calls") == []


async def test_a_call_created_cancelled_has_ended(calls: Calls) -> None:
    await calls.function()
    [name] = await calls.create(state="Cancelled")
    assert (await calls.status(name))["phase"] == "Cancelled"
    assert await calls.row(name) is None


async def test_labels_of_a_call_may_change_and_its_row_does_not(calls: Calls) -> None:
    await calls.function()
    [name] = await calls.create()
    before = await calls.row(name)
    old = await calls.get("FunctionCall", name)
    new = {**old, "metadata": {**old["metadata"], "labels": {"team": "blue"}}}
    await calls.writer.write(Update(KINDS["FunctionCall"], call_key(name), old, new, calls.hooks))
    assert await calls.row(name) == before
    assert await calls.phase(name) == "Queued"


async def test_a_session_may_hold_any_character(calls: Calls) -> None:
    await calls.function()
    [name] = await calls.create("a\0b")
    assert await (await calls.worker()).take() == [name]


async def test_deleting_a_call_that_is_being_cancelled_waits_for_the_worker_too(calls: Calls) -> None:
    await calls.function()
    [name] = await calls.create()
    worker = await calls.worker()
    await worker.take()
    await calls.cancel(name)
    stays = await calls.delete(name)
    assert stays is not None
    assert stays["status"]["phase"] == "Cancelling"
    await worker.claim(said(name, "Cancelled"), take=0)
    assert await calls.phase(name) == "Cancelling"
    await worker.exits()
    assert await calls.database.fetch("SELECT * FROM objects WHERE name = $1", name) == []


async def test_a_finished_call_is_deleted_and_its_workflow_still_told(calls: Calls) -> None:
    await calls.function()
    [name] = await calls.create()
    await calls.writer.write(AttachWorkflow(await calls.ref(name), b"t"))
    worker = await calls.worker()
    await worker.take()
    await worker.claim(succeeded(name), take=0)
    assert await calls.delete(name) is None
    [unreported] = await calls.queries.unreported(10)
    assert unreported.outcome.ended is not None
    assert unreported.outcome.ended.phase == "Succeeded"


async def test_a_finalizer_taken_off_by_hand_lets_the_call_go_and_its_worker_is_told(calls: Calls) -> None:
    await calls.function()
    [name] = await calls.create()
    worker = await calls.worker()
    await worker.take()
    await calls.delete(name)
    old = await calls.get("FunctionCall", name)
    metadata = {part: value for part, value in old["metadata"].items() if part != "finalizers"}
    await calls.writer.write(
        Update(KINDS["FunctionCall"], call_key(name), old, {**old, "metadata": metadata}, calls.hooks)
    )
    assert await calls.row(name) is None
    assert await worker.claim(take=0) == ([], [name])


async def test_a_queued_call_whose_object_vanished_is_passed_over(calls: Calls) -> None:
    await calls.function()
    first, second = await calls.create("s", "s")
    await calls.writer.write(RemoveObject(call_key(first)))
    worker = await calls.worker()
    assert await worker.take() == [second]
    assert await calls.row(first) is None


async def test_an_outcome_of_a_call_whose_object_vanished_ends_its_row(calls: Calls) -> None:
    await calls.function(retries={"maxRetries": 1})
    first, second = await calls.create("s", "s")
    worker = await calls.worker(concurrency=2)
    await worker.take(2)
    for name in (first, second):
        await calls.writer.write(RemoveObject(call_key(name)))
    await worker.claim(said(first, "RemoteError"), take=0, running=[])
    assert await calls.database.fetch("SELECT * FROM calls") == []


async def test_a_deleted_call_that_runs_stays_until_its_worker_let_go(calls: Calls) -> None:
    await calls.function()
    [name] = await calls.create()
    worker = await calls.worker()
    await worker.take()
    stays = await calls.delete(name)
    assert stays is not None
    assert stays["metadata"]["finalizers"] == ["nodus.dev/call"]
    assert await worker.claim(take=0) == ([], [name])
    await worker.claim(said(name, "Cancelled"), take=0)
    assert await calls.phase(name) == "Cancelling"
    await worker.exits()
    assert (name, "Cancelled") in calls.changes
    assert await calls.database.fetch("SELECT * FROM objects WHERE kind = 'FunctionCall'") == []
    assert await calls.row(name) is None


async def test_deleting_a_queued_call_removes_it_at_once(calls: Calls) -> None:
    await calls.function()
    first, second = await calls.create("s", "s")
    assert await calls.delete(first) is None
    assert await calls.row(first) is None
    assert await (await calls.worker()).take() == [second]


@pytest.mark.case("a-deleted-call-ends")
async def test_whoever_watches_a_queued_call_that_is_deleted_sees_it_end(calls: Calls) -> None:
    await calls.function()
    [name] = await calls.create()
    await calls.delete(name)
    assert calls.changes == [(name, "Queued"), (name, "Cancelled"), (name, "Cancelled")]
    rows = await calls.database.fetch("SELECT type, doc FROM changes WHERE name = $1 ORDER BY rv", name)
    assert [row["type"] for row in rows] == ["ADDED", "MODIFIED", "DELETED"]
    assert "completionTime" in orjson.loads(rows[-1]["doc"])["status"]


async def test_a_deleted_call_whose_workflow_waits_is_still_reported(calls: Calls) -> None:
    await calls.function()
    [name] = await calls.create()
    ref = await calls.ref(name)
    assert await calls.writer.write(AttachWorkflow(ref, b"t")) is None
    assert await calls.delete(name) is None
    [unreported] = await calls.queries.unreported(10)
    assert unreported.outcome.ended is not None
    assert unreported.outcome.ended.phase == "Cancelled"
