"""What the latest calls of some Functions took: the history that estimates are made from.

Calls that ended by themselves, newest first, with the seconds that each of their dispatches is charged for. Both
queries read a bounded number of rows whatever the history is: the newest ends of the server, and for a Function that
these crowd out a stretch of its own calls in the order of their names, which say nothing about how long they took.
Dispatches that the platform lost are free and left out, as in docs/decisions/0024.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from controlplane.store.contract import Key
from controlplane.store.database import Database

ENDS_READ = 2_000
"""Latest ends looked at; a page holds a handful, so it is what a list of as many calls costs."""
SAMPLES_MAX = 200
"""Calls of one Function: their 90th percentile is known to two points, and more would be of older versions."""

_SECONDS = """
CROSS JOIN LATERAL (
    SELECT array_agg(GREATEST(1, ceil(extract(epoch FROM d.ended_at - d.started_at)))::bigint ORDER BY d.number)
        AS seconds
    FROM call_dispatches d
    WHERE d.call_uid = c.uid AND d.call_created_at >= c.since
        AND (d.charge_micro_usd > 0 OR d.cause NOT IN ('lost', 'undelivered'))
) AS ran WHERE ran.seconds IS NOT NULL
"""

LATEST = f"""
WITH ended AS MATERIALIZED (
    SELECT uid, org, project, labels ->> 'nodus.dev/function' AS function, fields ->> 'status.phase' AS phase, time
    FROM changes
    WHERE kind = 'FunctionCall' AND fields ->> 'status.phase' IN ('Succeeded', 'Failed', 'Cancelled')
    ORDER BY time DESC, rv DESC LIMIT $5
), c AS (
    SELECT e.uid, f.function, f.since, max(e.time) AS time,
        row_number() OVER (PARTITION BY f.function ORDER BY max(e.time) DESC) AS place
    FROM ended e JOIN unnest($3::text[], $4::timestamptz[]) AS f(function, since) ON f.function = e.function
    WHERE e.org = $1 AND e.project = $2 AND e.phase <> 'Cancelled' GROUP BY e.uid, f.function, f.since
)
SELECT c.function, ran.seconds FROM (SELECT * FROM c WHERE place <= $6) AS c {_SECONDS} ORDER BY c.time DESC
"""  # noqa: S608 - constants

# The function is bound as text, so that its index is recognised (`store/selection.py`).
KEPT = f"""
WITH c AS MATERIALIZED (
    SELECT uid, fields ->> 'status.phase' AS phase, $4::timestamptz AS since FROM objects
    WHERE kind = 'FunctionCall' AND org = $1 AND labels ->> 'nodus.dev/function' = $3 AND project = $2
    ORDER BY project, name LIMIT $5
)
SELECT ran.seconds FROM c {_SECONDS} AND c.phase IN ('Succeeded', 'Failed') LIMIT $6
"""  # noqa: S608 - constants


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """A Function whose calls are asked for; those from before `since` belong to another one of that name."""

    name: str
    since: datetime


async def latest_calls(
    database: Database, project: Key, functions: Sequence[Sampled]
) -> Mapping[str, Sequence[Sequence[int]]]:
    """By Function of the project that `project` lies in, the seconds of the dispatches of its latest ended calls."""
    names, since = [each.name for each in functions], [each.since for each in functions]
    rows = await database.fetch(LATEST, project.org, project.project, names, since, ENDS_READ, SAMPLES_MAX)
    found: dict[str, list[Sequence[int]]] = {}
    for row in rows:
        found.setdefault(row["function"], []).append(row["seconds"])
    return found


async def kept_calls(database: Database, project: Key, function: Sampled) -> Sequence[Sequence[int]]:
    """The same of calls of one Function that are not among the latest of the server."""
    rows = await database.fetch(
        KEPT, project.org, project.project, function.name, function.since, ENDS_READ, SAMPLES_MAX
    )
    return [row["seconds"] for row in rows]
