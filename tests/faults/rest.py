"""Waiting until a system under faults has come to rest, and reading what is left, for `checker.py`."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import replace

import asyncpg

from controlplane.ledger.invariants import SPENT_RULE, verify
from controlplane.machinery.quantities import parse_money
from controlplane.store.database import Database
from tests.faults.checker import Logged, Remains, counters_agree, nothing_is_left_open
from tests.faults.cluster import Cluster, setting

REST_SECONDS_MAX = 180.0
RECOUNT_SECONDS_MAX = 150
"""Twice as long as the keeper of Budgets takes to compare all of them with the ledger, and a start of it."""
OPEN_WORKFLOWS = "ExecutionStatus = 'Running' AND WorkflowType IN ('FunctionCallWorkflow', 'WorkerAttemptWorkflow')"

LOG = """
SELECT rv, time, type, name, doc FROM changes
WHERE kind = 'FunctionCall' AND fields ->> 'spec.function' = ANY($1) ORDER BY rv
"""
ROWS = "SELECT name || ' (' || state || ')' AS name FROM calls WHERE function = ANY($1)"
ATTEMPTS = "SELECT uid || ' (' || state || ')' AS name FROM attempts WHERE function = ANY($1) AND state <> 'finished'"
LOADS = """
SELECT function, queued, running, pending, charge_micro_usd, (
    SELECT COALESCE(sum(t.amount_micro_usd), 0)::bigint FROM ledger_transfers t
    WHERE t.function_uid = l.function_uid AND t.segment IS NOT NULL) AS worker_micro_usd
FROM function_load l WHERE function = ANY($1)
"""
HOLDS = """
SELECT uid AS name FROM worker_accounts WHERE function = ANY($1)
UNION SELECT o.id FROM ledger_open_holds o JOIN ledger_transfers t ON t.id = o.id
JOIN objects f ON f.uid = t.function_uid
WHERE f.kind = 'Function' AND f.name = ANY($1)
"""
DOCUMENTS = "SELECT doc FROM objects WHERE kind = 'Function' AND name = ANY($1)"


async def come_to_rest(cluster: Cluster, functions: Sequence[str]) -> Remains:
    """Wait until the workers, rows and workflows of Functions that were stopped are gone and their status says so.

    Returns what is left. What never comes to rest is told by the checker, which knows more about it.
    """
    names = list(functions)
    until = time.monotonic() + REST_SECONDS_MAX
    connection = await cluster.connect()
    try:
        while True:
            is_last = time.monotonic() > until
            found = await _read_state(cluster, connection, names)
            if is_last or _is_at_rest(found):
                break
            await asyncio.sleep(0.2)
        log = [
            Logged(rv=row["rv"], time=row["time"], type=row["type"], name=row["name"], document=json.loads(row["doc"]))
            for row in await connection.fetch(LOG, names)
        ]
        return replace(found, log=log, ledger_breaches=await ledger_breaches(cluster))
    finally:
        await connection.close()


async def _read_state(
    cluster: Cluster, connection: asyncpg.Connection[asyncpg.Record], names: Sequence[str]
) -> Remains:
    """What there is of these Functions now, without the history of their calls."""
    documents = [json.loads(row["doc"]) for row in await connection.fetch(DOCUMENTS, names)]
    loads = {row["function"]: {key: row[key] for key in row.keys() if key != "function"}  # noqa: SIM118 - a Record
             for row in await connection.fetch(LOADS, names)}  # fmt: skip
    return Remains(
        log=(),
        functions=documents,
        loads=loads,
        concurrency={one["metadata"]["name"]: one["spec"]["scaling"]["targetConcurrency"] for one in documents},
        rate_micro_usd_per_hour=parse_money(setting(cluster, "worker_rate_usd_per_hour")),
        open_rows=[row["name"] for row in await connection.fetch(ROWS, names)],
        open_attempts=[row["name"] for row in await connection.fetch(ATTEMPTS, names)],
        open_holds=[row["name"] for row in await connection.fetch(HOLDS, names)],
        open_workflows=await open_workflows(cluster),
        processes=[f"worker {pid}" for pid in cluster.workers()],
    )


def _is_at_rest(found: Remains) -> bool:
    """Whether nothing is left to be done. A status is written a moment after what it tells of has changed."""
    is_stopped = all(function["status"]["phase"] == "Stopped" for function in found.functions)
    return is_stopped and not [*nothing_is_left_open((), found), *counters_agree((), found)]


async def ledger_breaches(cluster: Cluster) -> list[str]:
    """What an operator's `ledger verify` tells, once limits had time to count what a process without news spent."""
    database = Database(cluster.postgres.url, pool_size=1)
    until = time.monotonic() + RECOUNT_SECONDS_MAX
    await database.open()
    try:
        breaches = await verify(database)
        while any(breach.rule == SPENT_RULE for breach in breaches) and time.monotonic() < until:
            await asyncio.sleep(1)
            breaches = await verify(database)
        return [f"{breach.rule}, but {breach.told}" for breach in breaches]
    finally:
        await database.close()


async def open_workflows(cluster: Cluster) -> list[str]:
    """Ids of workflows of calls and attempts that run."""
    return [found.id async for found in cluster.client.list_workflows(OPEN_WORKFLOWS)]
