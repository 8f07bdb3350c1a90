"""The writer's statements and what they take.

Each is one round trip for a whole batch: one statement logs the changes, stores the objects, writes the rows that go
with them (`Tx.join`) and moves the counter, so a document crosses the wire once. The columns of all rows are one JSON
parameter (half the driver's time of an array for each column), beside an array of the documents, which are serialised
already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

import orjson

from controlplane.store.batch import Logged
from controlplane.store.contract import ChangeType, Key

WRITERS_LOCK = 0x6E6F6475
"""The advisory lock that every batch holds from its begin to its end."""

# An advisory lock instead of the counter's row lock: it writes nothing, so a batch that changes nothing ends without
# waiting for the disk. It is a statement of its own because the next one must see what the last holder committed.
BEGIN = f"BEGIN; SELECT pg_advisory_xact_lock({WRITERS_LOCK})"

_LOAD = """
SELECT m.rv AS counter, pg_current_xact_id()::text AS xact, k.number, o.uid, o.rv, o.create_rv, o.labels, o.fields,
    o.doc, NULL::int AS loader, NULL::json AS loaded
FROM meta m LEFT JOIN (
    unnest($1::text[], $2::text[], $3::text[], $4::text[]) WITH ORDINALITY AS k(kind, org, project, name, number)
    JOIN objects o ON o.kind = k.kind AND o.org = k.org AND o.project = k.project AND o.name = k.name
) ON true WHERE m.id = 1
"""
_LOAD_PARAMETERS = 4
"""Of the key columns, before those of the loaders."""
_LOADED = """
UNION ALL SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, $number, row_to_json(r) FROM ($query) AS r
"""


@lru_cache(maxsize=64)
def load(queries: tuple[str, ...] = ()) -> str:
    """The statement that reads the counter, objects by `key_columns`, and what these queries of loaders find.

    Each query takes an array of its arguments after the key columns. A row is an object (`number` is its key's, from
    1), one of the rows of a loader (`loader` is its index, `loaded` the row), or, first and alone, only the counter.
    """
    joined = [
        _LOADED.replace("$number", str(number)).replace(
            "$query", query.replace("$1", f"${_LOAD_PARAMETERS + number + 1}")
        )
        for number, query in enumerate(queries)
    ]
    return _LOAD + "".join(joined)


_INPUT = """
WITH input AS MATERIALIZED (
    SELECT * FROM ROWS FROM (
        json_to_recordset($4::text::json) AS (rv bigint, type text, kind text, org text, project text, name text,
            uid text, prev_rv bigint, create_rv bigint, deleting boolean, latest boolean, labels jsonb, fields jsonb,
            prev_labels jsonb, prev_fields jsonb, owners text[]),
        unnest($5::text[])
    ) AS r(rv, type, kind, org, project, name, uid, prev_rv, create_rv, deleting, latest, labels, fields, prev_labels,
        prev_fields, owners, doc)
), logged AS (
    INSERT INTO changes (rv, time, type, kind, org, project, name, uid, prev_rv, labels, fields, prev_labels,
        prev_fields, doc)
    SELECT rv, $3::timestamptz, type, kind, org, project, name, uid, prev_rv, labels, fields, prev_labels,
        prev_fields, doc::json FROM input
)"""
_STORE = """, stored AS (
    INSERT INTO objects (kind, org, project, name, uid, rv, create_rv, deleting, labels, fields, owners, doc)
    SELECT kind, org, project, name, uid, rv, create_rv, deleting, labels, fields, owners, doc::json
    FROM input WHERE latest AND type <> 'DELETED'
    ON CONFLICT (kind, org, project, name) DO UPDATE SET uid = excluded.uid, rv = excluded.rv,
        create_rv = excluded.create_rv, deleting = excluded.deleting, labels = excluded.labels,
        fields = excluded.fields, owners = excluded.owners, doc = excluded.doc
)"""
_REMOVE = """, removed AS (
    DELETE FROM objects o USING input r
    WHERE r.latest AND r.type = 'DELETED' AND o.kind = r.kind AND o.org = r.org AND o.project = r.project
        AND o.name = r.name
)"""
# Only a bug can have moved the counter since it was read: the fence turns that into an error before the commit.
_MOVE = " UPDATE meta SET rv = $1 WHERE id = 1 AND rv = $2"

_WRITE_PARAMETERS = 5
"""Of `_INPUT` and `_MOVE`, before those of the parts."""


@lru_cache(maxsize=64)
def write(*, removes: bool, parts: tuple[str, ...]) -> str:
    """The statement that writes changes, which `write_arguments` describes, and these parts with a JSON array each.

    The few combinations that occur stay in the driver's cache of prepared statements.
    """
    joined = "".join(f", {part}" for part in _named(parts, _WRITE_PARAMETERS))
    return _INPUT + _STORE + (_REMOVE if removes else "") + joined + _MOVE


@lru_cache(maxsize=64)
def together(parts: tuple[str, ...]) -> str:
    """One statement of data-modifying parts alone; each takes a JSON array of its rows."""
    return f"WITH {', '.join(_named(parts, 0))} SELECT"


def _named(parts: Sequence[str], parameters: int) -> list[str]:
    texts = [part.replace("$rows", f"${parameters + number}::text::json") for number, part in enumerate(parts, 1)]
    return [f"part_{number} AS ({text})" for number, text in enumerate(texts, 1)]


def key_columns(keys: Sequence[Key]) -> list[list[str]]:
    """The arrays of `load`."""
    return [
        [key.kind for key in keys],
        [key.org for key in keys],
        [key.project for key in keys],
        [key.name for key in keys],
    ]


def write_arguments(rows: Sequence[Logged], now: datetime) -> list[Any]:
    """The first arguments of `write` for changes in the order of their revisions."""
    latest = {logged.change.key: logged.change.rv for logged in rows}
    first, last = rows[0].change, rows[-1].change
    records = [_record(logged, latest[logged.change.key] == logged.change.rv) for logged in rows]
    documents = [logged.change.document.decode() for logged in rows]
    return [last.rv, first.rv - 1, now, orjson.dumps(records).decode(), documents]


def removes(rows: Sequence[Logged]) -> bool:
    """Whether any of the changes is a delete."""
    return any(logged.change.type is ChangeType.DELETED for logged in rows)


def _record(logged: Logged, latest: bool) -> dict[str, Any]:
    change = logged.change
    key = change.key
    return {
        "rv": change.rv,
        "type": change.type.value,
        "kind": key.kind,
        "org": key.org,
        "project": key.project,
        "name": key.name,
        "uid": change.uid,
        "prev_rv": change.previous_rv,
        "create_rv": logged.create_rv,
        "deleting": logged.deleting,
        "latest": latest,
        "labels": change.labels,
        "fields": change.fields,
        # What did not change is not stored twice: see `changes.change_of`.
        "prev_labels": _unless_same(change.previous_labels, change.labels),
        "prev_fields": _unless_same(change.previous_fields, change.fields),
        "owners": logged.owners,
    }


def _unless_same(previous: Mapping[str, str] | None, present: Mapping[str, str]) -> Mapping[str, str] | None:
    return None if previous == present else previous
