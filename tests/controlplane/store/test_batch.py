"""What a write means, decided in memory: equality, revisions, and what a mutation may touch."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from controlplane.store.batch import Batch, Live
from controlplane.store.contract import Document, Key, Reads
from tests.controlplane.store.things import KINDS, key, thing


async def nothing(_keys: Sequence[Key]) -> None:
    return None


def batch_with(*documents: Document) -> Batch:
    batch = Batch(now=datetime(2026, 1, 1, tzinfo=UTC), kinds=KINDS, loader=nothing, rv=10)
    batch.live = {key(name): None for name in ("a", "b", "c")}
    for document in documents:
        metadata = document["metadata"]
        batch.live[key(metadata["name"])] = Live(
            raw=orjson.dumps({**document, "metadata": {**metadata, "resourceVersion": "7"}}),
            rv=7,
            create_rv=3,
            uid=metadata["uid"],
            labels=metadata["labels"],
            fields={},
        )
    batch.begin(Reads(keys=[key("a"), key("b")]))
    return batch


@pytest.mark.parametrize(
    ("stored", "offered"),
    [
        ({"value": 1}, {"value": True}),
        ({"value": 1}, {"value": 1.0}),
        ({"value": [0]}, {"value": [False]}),
        ({"value": 1}, {"value": 1, "other": None}),
        ({"value": [1, 2]}, {"value": [2, 1]}),
    ],
)
def test_documents_that_json_tells_apart_are_different(stored: Any, offered: Any) -> None:
    batch = batch_with(thing("a", **stored))
    written = batch.put(key("a"), thing("a", **offered))
    assert written["metadata"]["resourceVersion"] == "11"
    assert len(batch.log) == 1


def test_the_order_of_names_in_a_document_makes_no_difference() -> None:
    batch = batch_with(thing("a", one=1, two={"x": 1, "y": 2}))
    written = batch.put(key("a"), thing("a", two={"y": 2, "x": 1}, one=1))
    assert written["metadata"]["resourceVersion"] == "7"
    assert batch.log == []


def test_a_document_changed_in_place_is_a_bug_that_shows_at_once() -> None:
    batch = batch_with(thing("a", color="red"))
    document = batch.get(key("a"))
    assert document is not None
    document["spec"]["color"] = "green"
    with pytest.raises(AssertionError, match="in place"):
        batch.put(key("a"), document)


def test_a_mutation_may_not_touch_what_it_did_not_say_it_reads() -> None:
    batch = batch_with()
    with pytest.raises(LookupError):
        batch.get(key("c"))
    with pytest.raises(LookupError):
        batch.put(key("c"), thing("c"))


def test_an_object_cannot_change_its_uid() -> None:
    batch = batch_with(thing("a", uid="thg_1"))
    with pytest.raises(AssertionError, match="remove it first"):
        batch.put(key("a"), thing("a", uid="thg_2"))


def test_each_put_of_one_object_is_a_change_of_its_own() -> None:
    batch = batch_with()
    batch.put(key("a"), thing("a", color="red"))
    batch.put(key("a"), thing("a", color="blue"))
    assert [(logged.change.rv, logged.change.previous_rv, logged.create_rv) for logged in batch.log] == [
        (11, None, 11),
        (12, 11, 11),
    ]


def test_undoing_a_mutation_gives_its_revisions_to_the_next() -> None:
    batch = batch_with(thing("b", color="red"))
    batch.put(key("a"), thing("a"))
    mark = batch.begin(Reads(keys=[key("a"), key("b")]))
    batch.put(key("a"), thing("a", color="blue"))
    batch.remove(key("b"))
    batch.join("SELECT $rows", {})
    batch.execute("SELECT 1", ())
    batch.undo(mark)
    batch.begin(Reads(keys=[key("a"), key("b")]))
    assert batch.get(key("a")) == {**thing("a"), "metadata": {**thing("a")["metadata"], "resourceVersion": "11"}}
    assert batch.get(key("b")) is not None
    assert batch.put(key("b"), thing("b", color="green"))["metadata"]["resourceVersion"] == "12"
    assert (batch.grouped_parts, batch.grouped_statements) == ({}, {})
    assert [logged.change.rv for logged in batch.log] == [11, 12]


def test_the_callers_document_keeps_its_own_revision() -> None:
    batch = batch_with()
    mine = thing("a")
    batch.put(key("a"), mine)
    assert "resourceVersion" not in mine["metadata"]
