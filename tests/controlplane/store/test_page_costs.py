"""A page of a large list reads about as many pages of the database as it shows objects, whatever most objects share.

The plans must be right before the database has statistics: a first large map meets tables that were never analysed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from controlplane.machinery.selectors import FieldTerm, LabelOperator, LabelTerm
from controlplane.store.contract import Key, Selection
from controlplane.store.database import Database
from controlplane.store.objects import BY_KEYS, WRITTEN_MAX, Query, current_query, past_query
from tests.fixtures.query_costs import pages_read

if TYPE_CHECKING:
    from controlplane.store.contract import Connection

OBJECTS, LIMIT = 10_000, 50
PAGES_MAX = 3 * LIMIT
"""A page of the index or two, and one of the table for each object, with room for a tree's height."""
PAST_PAGES_MAX = 8 * LIMIT
"""Two changes of each object in the index and the table, and the one before them by its revision."""

# Names begin with the function, as those of calls do: the few of one function lie behind all of the other.
FILL = f"""
INSERT INTO objects (kind, org, project, name, uid, rv, create_rv, labels, fields, doc)
SELECT 'FunctionCall', 'acme', 'p', f || '-' || md5(n::text), 'fnc_' || n, n, n,
    jsonb_build_object('nodus.dev/function', f, 'nodus.dev/map', m),
    jsonb_build_object('spec.function', f, 'status.phase', CASE WHEN n % 50 = 0 THEN 'Failed' ELSE 'Succeeded' END),
    json_build_object('metadata', json_build_object('name', n), 'spec', repeat('x', 900))
FROM (
    SELECT n, CASE WHEN n % 100 = 0 THEN 'small' ELSE 'large' END AS f, CASE WHEN n % 3 = 0 THEN 'wide' ELSE n::text END AS m
    FROM generate_series(1, {OBJECTS}) AS n
) AS numbered
"""  # noqa: E501 - a constant


def labelled(key: str, value: str) -> tuple[LabelTerm, ...]:
    return (LabelTerm(f"nodus.dev/{key}", LabelOperator.IN, (value,)),)


def in_phase(phase: str) -> tuple[FieldTerm, ...]:
    return (FieldTerm("status.phase", True, phase),)


QUESTIONS = {
    "all": Selection("FunctionCall", "acme", "p"),
    "all of all projects": Selection("FunctionCall", "acme", None),
    "a large function": Selection("FunctionCall", "acme", "p", labels=labelled("function", "large")),
    "a small function": Selection("FunctionCall", "acme", "p", labels=labelled("function", "small")),
    "a function of all projects": Selection("FunctionCall", "acme", None, labels=labelled("function", "large")),
    "a wide map": Selection("FunctionCall", "acme", "p", labels=labelled("map", "wide")),
    "a map of one call": Selection("FunctionCall", "acme", "p", labels=labelled("map", "7")),
    "a common phase": Selection("FunctionCall", "acme", "p", fields=in_phase("Succeeded")),
    "a rare phase": Selection("FunctionCall", "acme", "p", fields=in_phase("Failed")),
    "a phase of all projects": Selection("FunctionCall", "acme", None, fields=in_phase("Succeeded")),
    "a function's phase": Selection(
        "FunctionCall", "acme", "p", labels=labelled("function", "large"), fields=in_phase("Succeeded")
    ),
}
AFTER = Key("FunctionCall", "acme", "p", "large-8")


@pytest.mark.parametrize("analysed", ["empty", "full"])
async def test_a_page_reads_what_it_shows_however_many_objects_match(database: Database, analysed: str) -> None:
    connection = await database.connect("test")
    try:
        await connection.execute("SET plan_cache_mode = force_custom_plan")
        if analysed == "empty":
            await connection.execute("ANALYZE objects")
        await connection.execute(FILL)
        if analysed == "full":
            await connection.execute("ANALYZE objects")
        read = {
            (name, after): await _cost(connection, current_query(selection, after, None, LIMIT))
            for name, selection in QUESTIONS.items()
            for after in (None, AFTER)
        }
    finally:
        await connection.close()
    assert {asked: pages for asked, pages in read.items() if pages > PAGES_MAX} == {}


async def _cost(connection: Connection, query: Query) -> int:
    text, arguments = query
    return await pages_read(connection, text, ", ".join(f"'{argument}'" for argument in arguments))


# Each object was created, and changed once; the changes after the first revisions come in another order than the names.
LOG = f"""
INSERT INTO changes (rv, time, type, kind, org, project, name, uid, prev_rv, labels, fields, doc)
SELECT rv + later, now(), CASE later WHEN 0 THEN 'ADDED' ELSE 'MODIFIED' END, kind, org, project, name, uid,
    CASE later WHEN 0 THEN NULL ELSE rv END, labels, fields, doc
FROM objects, unnest(ARRAY[0, {OBJECTS}]) AS later
"""


@pytest.mark.parametrize("analysed", ["empty", "full"])
async def test_a_page_of_the_past_reads_what_was_written_in_its_range_or_since(
    database: Database, analysed: str
) -> None:
    """Whether everything was written since the snapshot, half of it or next to nothing."""
    connection = await database.connect("test")
    read = {}
    try:
        await connection.execute("SET plan_cache_mode = force_custom_plan")
        if analysed == "empty":
            await connection.execute("ANALYZE objects, changes")
        await connection.execute(FILL)
        await connection.execute(LOG)
        if analysed == "full":
            await connection.execute("VACUUM ANALYZE objects, changes")
        for after in (None, AFTER):
            names = await connection.fetch(
                "SELECT name FROM objects WHERE name > $1 ORDER BY name LIMIT $2", after.name if after else "", LIMIT
            )
            upto = Key("FunctionCall", "acme", "p", names[-1]["name"])
            for since in (OBJECTS, OBJECTS + OBJECTS // 2, 2 * OBJECTS - LIMIT):
                query = past_query(QUESTIONS["all"], after, upto, since, LIMIT)
                async with connection.transaction():
                    if 2 * OBJECTS - since > WRITTEN_MAX:
                        await connection.execute(BY_KEYS)
                    read[after, since] = await _cost(connection, query)
    finally:
        await connection.close()
    assert {asked: pages for asked, pages in read.items() if pages > PAST_PAGES_MAX} == {}
