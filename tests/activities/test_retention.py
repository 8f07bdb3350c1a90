"""Forgetting at the pace at which the server works, on tables filled by SQL."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from controlplane.store.compaction import CHUNK_ROWS, compact
from controlplane.store.garbage import BEGINNING, UNCHANGED, Garbage
from tests.fixtures.calls import ORG, PROJECT, Calls
from tests.fixtures.query_costs import pages_read
from tests.fixtures.sweeping import Sweeping

_CALLS = """
WITH numbered AS (
    SELECT n, $3 || n AS name, ('{"metadata": {"name": "' || $3 || n || '", "namespace": "' || $2 || '", "uid": "fnc_'
        || $3 || n || '", "labels": {}}, "spec": {"function": "f"}, "status": {"phase": "Succeeded"}}')::json AS doc
    FROM generate_series(1, $4::int) AS n
), made AS (
    INSERT INTO objects (kind, org, project, name, uid, rv, create_rv, labels, fields, doc)
    SELECT 'FunctionCall', $1, $2, name, 'fnc_' || name, $5 + n, $5 + n, '{}', '{"status.phase": "Succeeded"}', doc
    FROM numbered
)
INSERT INTO changes (rv, time, type, kind, org, project, name, uid, labels, fields, doc)
SELECT $5 + n, $6, 'ADDED', 'FunctionCall', $1, $2, name, 'fnc_' || name, '{}', '{"status.phase": "Succeeded"}', doc
FROM numbered
"""


async def ended(calls: Calls, count: int, at: datetime, prefix: str) -> None:
    """Calls that ended then, each with the one change that the log keeps of it; their revisions are taken."""
    rv = await calls.database.fetchval("SELECT rv FROM meta")
    await calls.database.execute(_CALLS, ORG, PROJECT, prefix, count, rv, at)
    await calls.database.execute("UPDATE meta SET rv = rv + $1", count)


async def left(calls: Calls) -> int:
    count: int = await calls.database.fetchval("SELECT count(*) FROM objects WHERE kind = 'FunctionCall'")
    return count


async def test_one_turn_forgets_all_calls_whose_time_is_over_however_many(sweeping: Sweeping) -> None:
    """Two hundred calls may end every second; a turn begins every minute."""
    calls = sweeping.calls
    await ended(calls, 4_500, calls.clock.now() - timedelta(days=8), "old-")
    await ended(calls, 10, calls.clock.now() - timedelta(days=6), "young-")
    await sweeping.retention.forget_calls()
    assert await left(calls) == 10
    calls.clock.advance(2 * 86_400)
    await sweeping.retention.forget_calls()
    assert await left(calls) == 0


async def test_a_call_that_owns_something_takes_it_along_and_one_that_was_replaced_stays(sweeping: Sweeping) -> None:
    calls = sweeping.calls
    await ended(calls, 2, calls.clock.now() - timedelta(days=8), "old-")
    await calls.database.execute(
        "UPDATE objects SET owners = '{fnc_old-1}', doc = jsonb_set(doc::jsonb, '{metadata,ownerReferences}', "
        """'[{"kind": "FunctionCall", "name": "old-1", "uid": "fnc_old-1"}]')::json WHERE name = 'old-2'"""
    )
    garbage = Garbage(calls.database)
    walk = await garbage.unchanged("FunctionCall", calls.clock.now(), BEGINNING, 10)
    assert [found.has_dependents for found in walk.found] == [True, False]
    resources = sweeping.retention._deleter
    await resources.forget([replace(found, uid="fnc_another") for found in walk.found])
    assert await left(calls) == 2
    await resources.forget(walk.found[:1])
    assert await left(calls) == 0


@pytest.mark.parametrize("analysed", [False, True])
async def test_a_look_for_old_calls_reads_a_few_pages_however_many_there_are(calls: Calls, analysed: bool) -> None:
    now = calls.clock.now()
    await ended(calls, 5_000, now - timedelta(days=8), "old-")
    await ended(calls, 20_000, now - timedelta(days=6), "young-")
    connection = await calls.database.connect("test")
    await connection.execute("SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off")
    if analysed:
        await connection.execute("ANALYZE objects, changes")
    for sql in UNCHANGED.values():
        arguments = f"'{(now - timedelta(days=7)).isoformat()}', '-infinity', 0, 50"
        assert await pages_read(connection, sql, arguments) < 600
    await connection.close()


async def test_one_turn_forgets_all_idempotency_keys_whose_time_is_over(calls: Calls) -> None:
    await calls.database.execute(
        "INSERT INTO idempotency (scope, key, digest, status, body, created_at) "
        "SELECT 's', n::text, '', 200, '', $1 FROM generate_series(1, $2::int) AS n",
        calls.clock.now() - timedelta(hours=25), 3 * CHUNK_ROWS,
    )  # fmt: skip
    assert not (await compact(calls.database, calls.settings, calls.clock.now())).more
    assert await calls.database.fetchval("SELECT count(*) FROM idempotency") == 0
