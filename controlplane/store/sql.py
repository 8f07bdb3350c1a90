"""The writer's statements and the arrays they take.

Each is one round trip for a whole batch: arrays are unnested side by side. JSON goes as text, because the documents
are already serialised and PostgreSQL need not build them twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from controlplane.store.batch import Logged

LOCK_REVISION = "SELECT rv FROM meta WHERE id = 1 FOR UPDATE"

LOAD_OBJECTS = """
SELECT o.kind, o.org, o.project, o.name, o.uid, o.rv, o.create_rv, o.labels, o.fields, o.doc
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) AS k(kind, org, project, name)
JOIN objects o ON o.kind = k.kind COLLATE "C" AND o.org = k.org COLLATE "C"
    AND o.project = k.project COLLATE "C" AND o.name = k.name COLLATE "C"
"""

DELETE_OBJECTS = """
DELETE FROM objects o USING unnest($1::text[], $2::text[], $3::text[], $4::text[]) AS k(kind, org, project, name)
WHERE o.kind = k.kind COLLATE "C" AND o.org = k.org COLLATE "C"
    AND o.project = k.project COLLATE "C" AND o.name = k.name COLLATE "C"
"""

UPSERT_OBJECTS = """
INSERT INTO objects (kind, org, project, name, uid, rv, create_rv, deleting, labels, fields, owners, doc)
SELECT r.kind, r.org, r.project, r.name, r.uid, r.rv, r.create_rv, r.deleting, r.labels::jsonb, r.fields::jsonb,
    ARRAY(SELECT jsonb_array_elements_text(r.owners::jsonb)), r.doc::json
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::bigint[], $8::boolean[],
    $9::text[], $10::text[], $11::text[], $12::text[])
    AS r(kind, org, project, name, uid, rv, create_rv, deleting, labels, fields, owners, doc)
ON CONFLICT (kind, org, project, name) DO UPDATE SET uid = excluded.uid, rv = excluded.rv,
    create_rv = excluded.create_rv, deleting = excluded.deleting, labels = excluded.labels, fields = excluded.fields,
    owners = excluded.owners, doc = excluded.doc
"""

INSERT_CHANGES = """
INSERT INTO changes (time, rv, type, kind, org, project, name, uid, prev_rv, create_rv, labels, fields, prev_labels,
    prev_fields, doc)
SELECT $1, r.rv, r.type, r.kind, r.org, r.project, r.name, r.uid, r.prev_rv, r.create_rv, r.labels::jsonb,
    r.fields::jsonb, r.prev_labels::jsonb, r.prev_fields::jsonb, r.doc::json
FROM unnest($2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::bigint[],
    $10::bigint[], $11::text[], $12::text[], $13::text[], $14::text[], $15::text[])
    AS r(rv, type, kind, org, project, name, uid, prev_rv, create_rv, labels, fields, prev_labels, prev_fields, doc)
"""


def _json(value: object) -> str:
    return orjson.dumps(value).decode()


def object_columns(rows: Sequence[Logged]) -> list[list[Any]]:
    """The arrays of UPSERT_OBJECTS."""
    changes = [logged.change for logged in rows]
    return [
        [change.key.kind for change in changes],
        [change.key.org for change in changes],
        [change.key.project for change in changes],
        [change.key.name for change in changes],
        [change.uid for change in changes],
        [change.rv for change in changes],
        [logged.create_rv for logged in rows],
        [logged.deleting for logged in rows],
        [_json(change.labels) for change in changes],
        [_json(change.fields) for change in changes],
        [_json(logged.owners) for logged in rows],
        [change.document.decode() for change in changes],
    ]


def change_columns(rows: Sequence[Logged]) -> list[list[Any]]:
    """The arrays of INSERT_CHANGES, after the time."""
    changes = [logged.change for logged in rows]
    return [
        [change.rv for change in changes],
        [change.type.value for change in changes],
        [change.key.kind for change in changes],
        [change.key.org for change in changes],
        [change.key.project for change in changes],
        [change.key.name for change in changes],
        [change.uid for change in changes],
        [logged.previous_rv for logged in rows],
        [logged.create_rv for logged in rows],
        [_json(change.labels) for change in changes],
        [_json(change.fields) for change in changes],
        [None if change.previous_labels is None else _json(change.previous_labels) for change in changes],
        [None if change.previous_fields is None else _json(change.previous_fields) for change in changes],
        [change.document.decode() for change in changes],
    ]
