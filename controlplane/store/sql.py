"""The writer's statements and the arrays they take.

Each is one round trip for a whole batch: arrays are unnested side by side, and one statement logs the changes, stores
the objects and moves the counter, so a document crosses the wire once. JSON goes as text, because the documents are
already serialised.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import orjson

from controlplane.store.batch import Logged
from controlplane.store.contract import ChangeType, Key

WRITERS_LOCK = 0x6E6F6475
"""The advisory lock that every batch holds from its begin to its end."""

# An advisory lock instead of the counter's row lock: it writes nothing, so a batch that changes nothing ends without
# waiting for the disk. It is a statement of its own because the next one must see what the last holder committed.
BEGIN = f"BEGIN; SELECT pg_advisory_xact_lock({WRITERS_LOCK})"

LOAD = """
SELECT m.rv AS counter, pg_current_xact_id()::text AS xact, k.number, o.uid, o.rv, o.create_rv, o.labels, o.fields,
    o.doc
FROM meta m LEFT JOIN (
    unnest($1::text[], $2::text[], $3::text[], $4::text[]) WITH ORDINALITY AS k(kind, org, project, name, number)
    JOIN objects o ON o.kind = k.kind AND o.org = k.org AND o.project = k.project AND o.name = k.name
) ON true WHERE m.id = 1
"""

_INPUT = """
WITH input AS MATERIALIZED (
    SELECT * FROM unnest($4::bigint[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[], $10::text[],
        $11::bigint[], $12::bigint[], $13::boolean[], $14::boolean[], $15::text[], $16::text[], $17::text[],
        $18::text[], $19::text[], $20::text[])
    AS r(rv, type, kind, org, project, name, uid, prev_rv, create_rv, deleting, latest, labels, fields, prev_labels,
        prev_fields, owners, doc)
), logged AS (
    INSERT INTO changes (rv, time, type, kind, org, project, name, uid, prev_rv, labels, fields, prev_labels,
        prev_fields, doc)
    SELECT rv, $3::timestamptz, type, kind, org, project, name, uid, prev_rv, labels::jsonb, fields::jsonb,
        prev_labels::jsonb, prev_fields::jsonb, doc::json FROM input
)"""
_STORE = """, stored AS (
    INSERT INTO objects (kind, org, project, name, uid, rv, create_rv, deleting, labels, fields, owners, doc)
    SELECT kind, org, project, name, uid, rv, create_rv, deleting, labels::jsonb, fields::jsonb, owners::text[],
        doc::json FROM input WHERE latest AND type <> 'DELETED'
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
_MOVE = "UPDATE meta SET rv = $1 WHERE id = 1 AND rv = $2"

WRITE = _INPUT + _STORE + _MOVE
WRITE_AND_REMOVE = _INPUT + _STORE + _REMOVE + _MOVE


def key_columns(keys: Sequence[Key]) -> list[list[str]]:
    """The arrays of LOAD."""
    return [
        [key.kind for key in keys],
        [key.org for key in keys],
        [key.project for key in keys],
        [key.name for key in keys],
    ]


def write_arguments(rows: Sequence[Logged], now: datetime) -> list[Any]:
    """The arguments of WRITE and WRITE_AND_REMOVE for changes in the order of their revisions."""
    changes = [logged.change for logged in rows]
    latest = {change.key: change.rv for change in changes}
    labels = [_json(change.labels) for change in changes]
    fields = [_json(change.fields) for change in changes]
    return [
        changes[-1].rv,
        changes[0].rv - 1,
        now,
        [change.rv for change in changes],
        [change.type.value for change in changes],
        *key_columns([change.key for change in changes]),
        [change.uid for change in changes],
        [change.previous_rv for change in changes],
        [logged.create_rv for logged in rows],
        [logged.deleting for logged in rows],
        [latest[change.key] == change.rv for change in changes],
        labels,
        fields,
        # What did not change is not stored twice: see `changes.change_of`.
        [_unless_same(change.previous_labels, change.labels) for change in changes],
        [_unless_same(change.previous_fields, change.fields) for change in changes],
        [_text_array(logged.owners) for logged in rows],
        [change.document.decode() for change in changes],
    ]


def removes(rows: Sequence[Logged]) -> bool:
    """Whether any of the changes is a delete."""
    return any(logged.change.type is ChangeType.DELETED for logged in rows)


def _json(value: object) -> str:
    return orjson.dumps(value).decode()


def _unless_same(previous: object, present: object) -> str | None:
    return None if previous is None or previous == present else _json(previous)


def _text_array(values: Sequence[str]) -> str:
    """PostgreSQL's literal of a text array, since arrays of arrays cannot be unnested by rows."""
    quoted = ('"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"' for value in values)
    return "{" + ",".join(quoted) + "}"
