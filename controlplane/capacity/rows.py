"""The rows of `attempts`, and what controllers ask about them.

A row is one worker from the decision to start it to the proof that it is gone. Claims change it several times a second
(`calls/claims.py`), so it is kept apart from the Attempt object, which changes with its phase only. Queries here are
one indexed read each and may be out of date when used; the mutations in `capacity/attempts.py` look again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

import orjson

from controlplane.store.contract import Key
from controlplane.store.database import Database


class AttemptState(StrEnum):
    """Where a worker is in its life; draining is a wish beside it."""

    STARTING = "starting"
    READY = "ready"
    FINISHED = "finished"


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerRow:
    """One worker. `uid` is also the name of its Attempt object."""

    uid: str
    org: str
    project: str
    function: str
    function_uid: str
    slot: str
    epoch: int
    pool: str
    state: str
    draining: bool
    drain_reason: str | None
    has_workflow: bool
    concurrency: int
    rate_micro_usd_per_hour: int
    """What it costs, from its start to its end."""
    pricebook: str
    offering: str
    node: str | None
    created_at: datetime
    ready_at: datetime | None
    last_claim_at: datetime | None
    last_busy_at: datetime | None
    drained_at: datetime | None
    kill_at: datetime | None
    finished_at: datetime | None
    reason: str | None
    message: str | None

    @property
    def key(self) -> Key:
        """The address of its Attempt object."""
        return Key("Attempt", self.org, self.project, self.uid)

    @property
    def function_key(self) -> Key:
        """The address of the Function it serves."""
        return Key("Function", self.org, self.project, self.function)

    @classmethod
    def from_record(cls, record: Any) -> WorkerRow:  # noqa: ANN401 - a driver row
        """The row from a query's record that has all its columns."""
        return cls(**{name: record[name] for name in _COLUMN_NAMES})


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveWorker:
    """A worker that is not finished, and how many calls it holds."""

    row: WorkerRow
    busy: int


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeLoad:
    """The workers of one node: all that are not finished, and those of them that take no calls yet."""

    live: int = 0
    starting: int = 0
    staying: Mapping[str, int] = field(default_factory=dict)
    """Those that were not asked to leave, by `org/project`."""

    @property
    def leaving(self) -> int:
        """Those that were."""
        return self.live - sum(self.staying.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class StartRecord:
    """What became of the starts of one Function's present revision, and of its last worker of any revision."""

    failures: int
    """Starts that failed since the last one that succeeded; one whose worker soon ended by itself did not."""
    last_failure_at: datetime | None
    last_failure_uid: str | None
    last_failure_message: str | None
    lost_starts: int
    """Starts that the platform lost since the last one that succeeded; no fault of the Function."""
    last_lost_at: datetime | None
    lost_worker: bool
    """The last worker that ended was lost or crashed after it had been ready."""


_COLUMN_NAMES = tuple(WorkerRow.__dataclass_fields__)
COLUMNS = ", ".join(f"a.{name}" for name in _COLUMN_NAMES)

START_FAILURES = ("CustomerExit", "OutOfMemory", "StartupTimeout", "StartFailed")
"""Reasons of attempts that ended before their first claim and count against their revision: the environment, the
sandbox or the user's code would refuse the next one too. What the platform lost (`LOST`) is only tried again."""
EARLY_ENDS = ("CustomerExit", "OutOfMemory", "Exited")
"""Reasons of attempts that ended by themselves. Soon after their first claim, and if no call had been theirs, they
count as starts that failed: a sidecar that exits, or a thread of the user's that ends the process, does it again."""
EARLY_END_SECONDS_MAX = 600.0
"""What idled for longer had started. Kubernetes forgets the crashes of a container after as long."""
LOST = "NodeLost"
LOSSES = (LOST, "CustomerExit", "OutOfMemory")

_LIVE = f"""
SELECT {COLUMNS}, (SELECT count(*) FROM calls c WHERE c.attempt = a.uid AND c.state = 'running') AS busy
FROM attempts a WHERE a.state <> 'finished' AND a.function_uid = ANY($1::text[]) ORDER BY a.created_at
"""  # noqa: S608 - constants

_NODE_LOAD = """
SELECT org || '/' || project AS project, count(*) AS live, count(*) FILTER (WHERE NOT draining) AS staying,
    count(*) FILTER (WHERE state = 'starting' AND NOT draining) AS starting
FROM attempts WHERE state <> 'finished' AND node = $1 GROUP BY org, project
"""

_COUNT_BY_STATE = "SELECT state, count(*) AS workers FROM attempts WHERE state <> 'finished' GROUP BY state"

_FUNCTIONS_WITH_WORKERS = "SELECT DISTINCT function_uid FROM attempts WHERE state <> 'finished'"

_WITHOUT_WORKFLOW = f"""
SELECT {COLUMNS} FROM attempts a WHERE a.state <> 'finished' AND NOT a.has_workflow ORDER BY a.created_at LIMIT $1
"""  # noqa: S608

_WITH_WORKFLOW = f"""
SELECT {COLUMNS} FROM attempts a WHERE a.state <> 'finished' AND a.has_workflow ORDER BY a.created_at LIMIT $1
"""  # noqa: S608

# Only the newest ends matter: one success ends the count, and the count is bounded.
_ENDS = """
SELECT f.function_uid, e.* FROM unnest($1::text[], $2::text[]) AS f(function_uid, pool)
CROSS JOIN LATERAL (
    SELECT uid, pool = f.pool AS current, ready_at, last_busy_at, finished_at, drain_reason, reason, message
    FROM attempts WHERE function_uid = f.function_uid ORDER BY created_at DESC LIMIT $3
) AS e
"""

_STARTS = """
SELECT percentile_disc(ARRAY[0.5, 0.9]) WITHIN GROUP (ORDER BY ready_at - created_at) AS quantiles FROM (
    SELECT ready_at, created_at FROM attempts
    WHERE function_uid = $1 AND ready_at IS NOT NULL ORDER BY created_at DESC LIMIT $2) AS newest
"""

# What runs on a worker beside the call that condemned it may finish; its own deadline bounds that.
_STUCK = f"""
SELECT {COLUMNS} FROM attempts a
WHERE a.state <> 'finished' AND (a.kill_at < $1 OR (a.state = 'starting' AND a.created_at < $2) OR a.drained_at < $3)
    AND NOT EXISTS (SELECT 1 FROM calls c WHERE c.attempt = a.uid AND c.state = 'running' AND c.let_go_at IS NULL)
ORDER BY a.created_at LIMIT $4
"""  # noqa: S608

_ROWS = f"SELECT {COLUMNS} FROM attempts a WHERE a.uid = ANY($1::text[]) AND a.state <> 'finished'"  # noqa: S608

_ENDED_BEFORE = f"""
SELECT {COLUMNS} FROM attempts a WHERE a.state = 'finished' AND a.finished_at < $1 ORDER BY a.finished_at LIMIT $2
"""  # noqa: S608

_LAST_OUTPUT = "SELECT lines FROM log_chunks WHERE attempt = $1 ORDER BY seq DESC LIMIT $2"

_MARK_STARTED = "UPDATE attempts SET has_workflow = true WHERE uid = $1"
_FORGET = "DELETE FROM attempts WHERE uid = ANY($1::text[]) AND state = 'finished'"

OUTPUT_CHUNKS = 4
OUTPUT_LINES = 20
OUTPUT_CHARACTERS = 2_000
ENDS_READ = 12
STARTS_READ = 20


class WorkerQueries:
    """The questions, asked of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def live(self, function_uids: Sequence[str]) -> dict[str, list[LiveWorker]]:
        """The workers of these Functions that are not finished, oldest first."""
        found: dict[str, list[LiveWorker]] = {uid: [] for uid in function_uids}
        for record in await self._database.fetch(_LIVE, list(function_uids)):
            found[record["function_uid"]].append(LiveWorker(row=WorkerRow.from_record(record), busy=record["busy"]))
        return found

    async def node_load(self, node: str) -> NodeLoad:
        """How many workers a node runs, whoever they are for."""
        records = await self._database.fetch(_NODE_LOAD, node)
        return NodeLoad(
            live=sum(record["live"] for record in records),
            starting=sum(record["starting"] for record in records),
            staying={record["project"]: record["staying"] for record in records if record["staying"]},
        )

    async def count_by_state(self) -> dict[str, int]:
        """How many live workers are in each state that any is in."""
        return {record["state"]: record["workers"] for record in await self._database.fetch(_COUNT_BY_STATE)}

    async def functions_with_workers(self) -> set[str]:
        """Uids of Functions that have a live worker, whether they still exist or not."""
        return {record["function_uid"] for record in await self._database.fetch(_FUNCTIONS_WITH_WORKERS)}

    async def with_workflow(self, limit: int) -> list[WorkerRow]:
        """Up to `limit` live workers that a workflow looks after, oldest first."""
        return [WorkerRow.from_record(record) for record in await self._database.fetch(_WITH_WORKFLOW, limit)]

    async def without_workflow(self, limit: int) -> list[WorkerRow]:
        """Live workers that no workflow looks after yet."""
        return [WorkerRow.from_record(record) for record in await self._database.fetch(_WITHOUT_WORKFLOW, limit)]

    async def start_records(self, revisions: Mapping[str, str]) -> dict[str, StartRecord]:
        """For each Function uid with its present revision, how its starts went."""
        records = await self._database.fetch(_ENDS, list(revisions), list(revisions.values()), ENDS_READ)
        by_function: dict[str, list[Any]] = {uid: [] for uid in revisions}
        for record in records:
            by_function[record["function_uid"]].append(record)
        return {uid: _start_record(ends) for uid, ends in by_function.items()}

    async def start_seconds(self, function_uid: str) -> tuple[float, float] | None:
        """Median and 90th percentile of the last starts, from the decision to the first claim; None without any."""
        quantiles: list[timedelta] | None = await self._database.fetchval(_STARTS, function_uid, STARTS_READ)
        return None if not quantiles else (quantiles[0].total_seconds(), quantiles[1].total_seconds())

    async def last_output(self, uid: str) -> str:
        """The last lines that a worker printed, for people; empty when it printed nothing."""
        chunks = await self._database.fetch(_LAST_OUTPUT, uid, OUTPUT_CHUNKS)
        lines = [text for chunk in reversed(chunks) for _, _, text in orjson.loads(chunk["lines"])]
        return "\n".join(lines[-OUTPUT_LINES:])[-OUTPUT_CHARACTERS:]

    async def rows(self, uids: Sequence[str]) -> list[WorkerRow]:
        """Those of these workers that are not finished."""
        return [WorkerRow.from_record(record) for record in await self._database.fetch(_ROWS, list(uids))]

    async def stuck(self, now: datetime, start_seconds_max: int, drain_seconds: int, limit: int) -> list[WorkerRow]:
        """Workers that hold no call and must end: past their `kill_at`, not ready in time, or drained and still
        there."""
        records = await self._database.fetch(
            _STUCK, now, now - timedelta(seconds=start_seconds_max), now - timedelta(seconds=drain_seconds), limit
        )
        return [WorkerRow.from_record(record) for record in records]

    async def ended_before(self, before: datetime, limit: int) -> list[WorkerRow]:
        """Workers that finished before a time, oldest first."""
        return [WorkerRow.from_record(record) for record in await self._database.fetch(_ENDED_BEFORE, before, limit)]

    async def mark_started(self, uid: str) -> None:
        """Note that a workflow looks after the worker."""
        await self._database.execute(_MARK_STARTED, uid)

    async def forget(self, uids: Sequence[str]) -> None:
        """Drop the rows of finished workers; epochs of their slots may be used again, their uids never are."""
        await self._database.execute(_FORGET, list(uids))


def _start_record(ends: Sequence[Any]) -> StartRecord:
    """What the newest attempts of a Function, newest first, say about its starts."""
    failures: list[Any] = []
    lost: list[Any] = []
    for end in ends:
        if not end["current"] or (end["ready_at"] is not None and not _ended_early(end)):
            break
        if end["ready_at"] is not None or end["reason"] in START_FAILURES:
            failures.append(end)
        elif end["reason"] == LOST:
            lost.append(end)
    ended = next((end for end in ends if end["finished_at"] is not None), None)
    newest = failures[0] if failures else None
    return StartRecord(
        failures=len(failures),
        last_failure_at=newest["finished_at"] if newest else None,
        last_failure_uid=newest["uid"] if newest else None,
        last_failure_message=newest["message"] if newest else None,
        lost_starts=len(lost),
        last_lost_at=max((end["finished_at"] for end in lost), default=None),
        lost_worker=ended is not None and ended["ready_at"] is not None and ended["reason"] in LOSSES,
    )


def _ended_early(end: Any) -> bool:  # noqa: ANN401 - a driver row
    """Whether a worker that had been ready ended by itself, soon and before any call was its to run. What ends with a
    call in its hands is held against that (`calls/recovery.py`), which ends with its recoveries."""
    if end["reason"] not in EARLY_ENDS or end["drain_reason"] is not None or end["last_busy_at"] is not None:
        return False
    ready_seconds: float = (end["finished_at"] - end["ready_at"]).total_seconds()
    return ready_seconds <= EARLY_END_SECONDS_MAX
