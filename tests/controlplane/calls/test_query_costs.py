"""Queries of a queue of any length read a few pages, also before the database has statistics of it.

A first large map meets tables that were never analysed, so plans come from the planner's defaults: an index that merely
fits may be taken for one that also sorts, and then every look reads the whole queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from controlplane.calls import explaining, inspection, queries, rows, selection
from tests.fixtures.calls import Calls
from tests.fixtures.query_costs import pages_read

if TYPE_CHECKING:
    from controlplane.store.contract import Connection

QUEUE = """
INSERT INTO calls (uid, org, project, name, function, function_uid, session, state, priority, seq, dispatches, retries,
    recoveries, charge_micro_usd, has_workflow, created_at, updated_at)
SELECT $1 || n, 'acme', 'default', $1 || n, 'f', $1, 's' || n % $2, 'queued', 1, n, 0, 0, 0, 0, $3, now(), now()
FROM generate_series(1, 50000) AS n
"""
SESSIONS = "INSERT INTO call_sessions SELECT $1, 's' || n, n FROM generate_series(0, $2 - 1) AS n"


async def fill(calls: Calls) -> Connection:
    """Fifty thousand calls in one session, as many in a thousand, as many again that the engine knows, and as many that
    ran ahead of it."""
    connection = await calls.database.connect("test")
    await connection.execute("SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off")
    for function, sessions, started in (("one", 1, False), ("many", 1_000, False), ("started", 1, True)):
        await connection.execute(QUEUE, function, sessions, started)
        await connection.execute(SESSIONS, function, sessions)
    await connection.execute(QUEUE, "ahead", 1_000, False)
    await connection.execute("UPDATE calls SET state = 'done', dispatches = 1 WHERE function_uid = 'ahead'")
    return connection


LATE = "'2100-01-01'"
QUESTIONS = {
    "one call of one session": (selection._HEADS, "'{}', '{}', '{one}', '{1}', '{9}'", 20),
    "one call of a thousand sessions": (selection._HEADS, "'{}', '{}', '{many}', '{1}', '{9}'", 80),
    "four calls of a thousand sessions": (selection._HEADS, "'{}', '{}', '{many}', '{4}', '{12}'", 100),
    "a hundred calls of one session": (selection._HEADS, "'{}', '{}', '{one}', '{100}', '{108}'", 500),
    "one call that was started": (selection._STARTED_HEADS, "'{}', '{}', '{started}', '{1}'", 20),
    "no call that was started": (selection._STARTED_HEADS, "'{}', '{}', '{one}', '{1}'", 20),
    "the lag": (selection._LAG, "2001", 2_100),
    "held claims": (selection._HEADS, "'{att_1}', '{1}', '{}', '{}', '{}'", 20),
    "a claimant": (rows.CLAIMANT.sql, "'{att_1}'", 20),
    "a call by uid": (rows.CALL_BY_UID.sql, "'{one1}'", 20),
    "a call by key": (rows.CALL_BY_KEY.sql, "'{acme/default/one1}'", 20),
    "open calls": (rows.OPEN_CALLS.sql, "'{one}'", 600),
    "calls to start": (queries._BEHIND, "32, '', '', '', 32", 400),
    "queued calls to start": (queries._QUEUED, "32, '', '', '', 32", 400),
    "one queued call to start": (queries._QUEUED, "1, 'acme', 'default', 's5', 1", 20),
    "open workflows": (queries._OPEN, "1001", 1_100),
    "calls to decide": (queries._TO_DECIDE, "32", 20),
    "calls that were started": (queries._WITHOUT_WORKFLOW, "'{one1,many1,started1}'", 20),
    "unreported outcomes": (queries._UNREPORTED, "32", 20),
    "overdue calls": (queries._OVERDUE, f"{LATE}, {LATE}, 10, {LATE}", 20),
    "silent workers of overdue calls": (queries._SILENT_ATTEMPTS, f"{LATE}, {LATE}, 10", 20),
    "workers to stop calls": (queries._TO_STOP, f"{LATE}, 1000", 20),
    "orphaned calls": (queries._ORPHANED, "10", 20),
    "silent workflows": (queries._SILENT, f"{LATE}, 10, '-infinity', ''", 20),
    "unserved calls of one session": (queries._UNSERVED, f"'one', {LATE}, 100", 600),
    "unserved calls of a thousand sessions": (queries._UNSERVED, "'many', '-infinity', 10", 600),
    "unserved calls behind a thousand empty sessions": (queries._UNSERVED, f"'ahead', {LATE}, 10", 3_500),
    "lapsed leases": (queries._LAPSED, f"{LATE}, 10", 20),
    "heads of one session": (explaining.HEADS, "'one', 16, 4", 80),
    "heads of many sessions": (explaining.HEADS, "'many', 16, 4", 400),
    "late decisions": (explaining.LATE, f"100, {LATE}", 20),
    "a call with its object": (inspection.CALL, "'acme', 'default', 'one1'", 20),
    "dispatches of a call": (inspection.DISPATCHES, "'one1', 100", 20),
    "the last dispatch of a call": (inspection.LAST_DISPATCH, "'one1'", 20),
    "the first place of a queue": (inspection.PLACE, "'one', 's0', 1, 0, 250, 1001", 20),
    "a place far behind in one session": (inspection.PLACE, "'one', 's0', 1, 40000, 250, 1001", 2_500),
    "a place behind many sessions": (inspection.PLACE, "'many', 's900', 1, 1, 250, 1001", 2_500),
    "workers of a function": (inspection.WORKERS, f"'one', {LATE}", 20),
}


ENDED = "UPDATE calls SET state = 'done', has_workflow = true"


@pytest.mark.parametrize("analysed", ["empty", "idle", "full"])
async def test_a_question_reads_a_few_pages_however_long_the_queue_is(calls: Calls, analysed: str) -> None:
    """Whatever the statistics say: of the empty tables a server starts with, of a quiet night, or of the full ones."""
    if analysed == "idle":
        await calls.database.execute(QUEUE, "early", 1_000, True)
        await calls.database.execute(f"{ENDED}; ANALYZE calls, call_sessions; TRUNCATE calls, call_sessions")
    if analysed == "empty":
        await calls.database.execute("ANALYZE calls, call_sessions")
    crowded = await fill(calls)
    if analysed == "full":
        await crowded.execute("ANALYZE calls, call_sessions")
    read = {name: await pages_read(crowded, sql, arguments) for name, (sql, arguments, _) in QUESTIONS.items()}
    excess = {name: pages for name, pages in read.items() if pages > QUESTIONS[name][2]}
    await crowded.close()
    assert excess == {}
