"""Filling the store with calls that ended, as a server that ran them for a week would have left them.

Running a million calls would take an hour, so their rows are copied into the tables. They are made by the server's own
code from calls that it created itself (`claimed`, `ended`, `select_fields`), so documents, labels, fields and owners
are what it stores. The change log holds what compaction leaves: one row of each older call, and all three (created,
claimed, ended) of the newest part, which stands for the last day. A call that ended has no row in the queue. Those
that wait are created through the API afterwards. Indexes are built at the end, so they are as tight as after REINDEX.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import asyncpg
import orjson

from controlplane.calls.decide import Finish
from controlplane.calls.transitions import Ending, claimed, ended
from controlplane.clock import format_time
from controlplane.ids import encode_base32
from controlplane.kinds.function_call import FUNCTION_CALL, MAP_LABEL
from controlplane.machinery.meta import select_fields

ORG, PROJECT = "default", "default"
BLOCK_CALLS = 1_000
"""Calls of one ordinary map."""
WIDE_MAP = "wide"
COPY_ROWS = 20_000
RETENTION_DAYS = 7
CHANGES_OF_A_CALL = 3

_OBJECT_COLUMNS = (
    "kind", "org", "project", "name", "uid", "rv", "create_rv", "deleting", "labels", "fields", "owners", "doc",
)  # fmt: skip
_CHANGE_COLUMNS = (
    "rv", "time", "type", "kind", "org", "project", "name", "uid", "prev_rv", "labels", "fields", "prev_labels",
    "prev_fields", "doc",
)  # fmt: skip

_RESULT = {"encoding": "Pickle", "inline": "gASVBAAAAAAAAABLKi4="}
_ERROR = {
    "type": "ValueError",
    "message": "the input has no rows",
    "traceback": "Traceback (most recent call last):\n"
    + "".join(f'  File "/code/app.py", line {line}, in step\n    return rows[0]\n' for line in range(12)),
}
_ENDINGS = {
    "Succeeded": Ending(finish=Finish(phase="Succeeded", reason="", message=""), result=_RESULT),
    "Failed": Ending(finish=Finish(phase="Failed", reason="RemoteError", message=""), error=_ERROR),
    "Cancelled": Ending(finish=Finish(phase="Cancelled", reason="Cancelled", message="the call was cancelled")),
}


def function_of(number: int) -> str:
    """A large Function has nine calls of ten, a medium one a tenth, a small one a hundredth."""
    block = number // BLOCK_CALLS % 100
    return "small" if block == 0 else "medium" if block <= 10 else "large"


def map_of(number: int) -> str:
    """A tenth of all calls is in one wide map, the others in maps of BLOCK_CALLS."""
    block = number // BLOCK_CALLS
    return WIDE_MAP if 11 <= block % 100 <= 20 else f"map-{block}"


def phase_of(number: int) -> str:
    """One of 25 fails, one of 100 is cancelled."""
    part = number % 100
    return "Failed" if part < 4 else "Cancelled" if part == 4 else "Succeeded"


@dataclass(frozen=True)
class Filled:
    """What is in the store now."""

    calls: int
    changes: int


async def fill(url: str, calls: int, now: datetime) -> Filled:
    """Copy `calls` ended calls into the store. No API process may run meanwhile: the counter moves at the end."""
    connection = await asyncpg.connect(url)
    try:
        templates = await _templates(connection)
        first_rv: int = await connection.fetchval("SELECT rv FROM meta") + 1
        older = calls - calls // RETENTION_DAYS
        maker = _Maker(templates, first_rv, calls, now)
        changes = 0
        rebuild = await _drop_indexes(connection)
        for begin in range(0, calls, COPY_ROWS):
            numbers = range(begin, min(begin + COPY_ROWS, calls))
            objects, log = maker.rows(numbers, older)
            changes += len(log)
            async with connection.transaction():
                await connection.copy_records_to_table("objects", records=objects, columns=_OBJECT_COLUMNS)
                await connection.copy_records_to_table("changes", records=log, columns=_CHANGE_COLUMNS)
        for statement in rebuild:
            await connection.execute(statement)
        compacted_rv = first_rv - 1 + older * CHANGES_OF_A_CALL
        await connection.execute("UPDATE compaction SET compacted_rv = $1, pruned_rv = $1", compacted_rv)
        await connection.execute("UPDATE meta SET rv = $1", first_rv - 1 + calls * CHANGES_OF_A_CALL)
        # In a week of running, autovacuum and the checkpointer would have done this many times.
        await connection.execute("VACUUM ANALYZE objects, changes")
        await connection.execute("CHECKPOINT")
        return Filled(calls, changes)
    finally:
        await connection.close()


async def _drop_indexes(connection: asyncpg.Connection[asyncpg.Record]) -> list[str]:
    """Drop the indexes of the filled tables, which would make a fill take ten times as long, and tell how to make them
    again."""
    constraints = await connection.fetch(
        "SELECT conrelid::regclass::text AS table, conname AS name, pg_get_constraintdef(oid) AS definition "
        "FROM pg_constraint WHERE conrelid IN ('objects'::regclass, 'changes'::regclass) AND contype IN ('p', 'u')"
    )
    for row in constraints:
        await connection.execute(f"ALTER TABLE {row['table']} DROP CONSTRAINT {row['name']}")
    indexes = await connection.fetch(
        "SELECT indexname AS name, indexdef AS definition FROM pg_indexes WHERE tablename IN ('objects', 'changes')"
    )
    for row in indexes:
        await connection.execute(f"DROP INDEX {row['name']}")
    return [
        "SET maintenance_work_mem = '256MB'",
        *(f"ALTER TABLE {row['table']} ADD CONSTRAINT {row['name']} {row['definition']}" for row in constraints),
        *(row["definition"] for row in indexes),
    ]


async def _templates(connection: asyncpg.Connection[asyncpg.Record]) -> dict[str, dict[str, Any]]:
    """The call that the API created for each Function, as it was stored."""
    rows = await connection.fetch("SELECT doc FROM objects WHERE kind = 'FunctionCall'")
    documents = [orjson.loads(row["doc"]) for row in rows]
    return {document["spec"]["function"]: document for document in documents}


class _Maker:
    """Makes the rows of calls from their numbers."""

    def __init__(self, templates: dict[str, dict[str, Any]], first_rv: int, calls: int, now: datetime) -> None:
        self._templates = templates
        self._first_rv = first_rv
        self._calls = calls
        self._now = now
        # The same names in every run, so that two runs read the same pages.
        self._random = random.Random(calls)

    def rows(self, numbers: Sequence[int], older: int) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
        """The rows of `objects` and of `changes`."""
        objects, log = [], []
        for number in numbers:
            created_at = self._now - timedelta(days=RETENTION_DAYS) * (1 - number / self._calls)
            states = list(self._states(number, created_at))
            objects.append(_object_row(states))
            shown = states[-1:] if number < older else states
            log += [_change_row(states, state, created_at) for state in shown]
        return objects, log

    def _states(self, number: int, created_at: datetime) -> Iterator[dict[str, Any]]:
        """The call as it was created, claimed and ended."""
        template = self._templates[function_of(number)]
        first_rv = self._first_rv + number * CHANGES_OF_A_CALL
        map_id = map_of(number)
        metadata = {
            **template["metadata"],
            "name": f"{template['spec']['function']}-{self._random.getrandbits(50):010x}",
            "uid": f"fnc_{encode_base32(self._random.getrandbits(128))}",
            "creationTimestamp": format_time(created_at),
            "labels": {**template["metadata"]["labels"], MAP_LABEL: map_id},
        }
        spec = {**template["spec"], "mapId": map_id, "mapIndex": number % BLOCK_CALLS}
        state = {**template, "metadata": metadata, "spec": spec}
        yield _at(state, first_rv)
        state = claimed(state, created_at + timedelta(seconds=1), attempt=f"att-{number % 64}", epoch=1)
        yield _at(state, first_rv + 1)
        phase = phase_of(number)
        if phase == "Cancelled":
            state = {**state, "status": {**state["status"], "phase": "Cancelling"}}
        yield _at(ended(state, created_at + timedelta(seconds=2), _ENDINGS[phase], 10), first_rv + 2)


def _at(state: dict[str, Any], rv: int) -> dict[str, Any]:
    return {**state, "metadata": {**state["metadata"], "resourceVersion": str(rv)}}


def _object_row(states: Sequence[dict[str, Any]]) -> tuple[Any, ...]:
    last = states[-1]
    metadata = last["metadata"]
    rv = int(metadata["resourceVersion"])
    owners = [owner["uid"] for owner in metadata.get("ownerReferences", ())]
    return (
        "FunctionCall", ORG, PROJECT, metadata["name"], metadata["uid"], rv, rv - len(states) + 1, False,
        _json(metadata["labels"]), _json(select_fields(FUNCTION_CALL, last)), owners, _json(last),
    )  # fmt: skip


def _change_row(states: Sequence[dict[str, Any]], state: dict[str, Any], created_at: datetime) -> tuple[Any, ...]:
    metadata = state["metadata"]
    rv, step = int(metadata["resourceVersion"]), states.index(state)
    before = states[step - 1] if step else None
    # Labels stay as they are; the log does not repeat what a write did not change.
    previous_fields = None if before is None else _json(select_fields(FUNCTION_CALL, before))
    return (
        rv, created_at + timedelta(seconds=step), "MODIFIED" if step else "ADDED", "FunctionCall", ORG, PROJECT,
        metadata["name"], metadata["uid"], rv - 1 if step else None, _json(metadata["labels"]),
        _json(select_fields(FUNCTION_CALL, state)), None, previous_fields, _json(state),
    )  # fmt: skip


def _json(value: object) -> str:
    return orjson.dumps(value).decode()
