"""The bookkeeping rows of calls and workers, and the queries that load them into a batch.

A call has one row from its creation until its workflow has been told its end: what the queue, the claims and the
controllers look at, kept apart from the object so that a document is parsed only when it changes. The row and the
object always move in one transaction. `calls/book.py` keeps the rows of a batch and writes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

import orjson

from controlplane.ledger.pricing import WorkerPrice
from controlplane.store.contract import Key, Loader


class CallState(StrEnum):
    """What may happen to a call next."""

    QUEUED = "queued"
    """A worker may claim it."""
    RUNNING = "running"
    """The worker in (attempt, epoch) holds it."""
    DECIDING = "deciding"
    """A dispatch ended without ending the call, and its workflow does not know yet."""
    WAITING = "waiting"
    """Its workflow knows and will offer it again, after a backoff for instance."""
    DONE = "done"
    """It ended; the row stays until its workflow knows."""


PENDING_STATES = frozenset({CallState.DECIDING, CallState.WAITING})

LET_GO_GRACES = 2
"""A call that its worker let go ends at the latest this many graces after its cancel: the worker is killed after one,
but not while it runs other calls, and those may take as long as they like."""

PRIORITY_REOFFERED = 0
PRIORITY_NEW = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class CallRow:
    """One row of `calls`."""

    uid: str
    org: str
    project: str
    name: str
    function: str
    function_uid: str
    session: str
    state: CallState
    priority: int
    seq: int
    attempt: str | None = None
    epoch: int | None = None
    concurrency: int | None = None
    """Of the worker it was last given to: its places share the worker's price."""
    rate_micro_usd_per_hour: int = 0
    """What that worker costs, within the call's quote: its present dispatch is charged at it, whatever prices do."""
    pricebook: str = ""
    offering: str = ""
    deadline: datetime | None = None
    started_at: datetime | None = None
    dispatches: int = 0
    retries: int = 0
    recoveries: int = 0
    suspect: bool = False
    """A worker died in a way that this call may have caused, so it shares no worker any more."""
    excused: bool = False
    """One of its recoveries does not count: others ran beside it, and nobody knows which of them did it."""
    charge_micro_usd: int = 0
    reserved_micro_usd: int = 0
    """The most that its present dispatch may cost; what limits of spending hold for it."""
    function_labels: dict[str, str] | None = None
    """Labels of its Function when it was last given to a worker: what it costs is added up by them as by its own."""
    has_workflow: bool = False
    task_token: bytes | None = None
    outcome: dict[str, Any] | None = None
    cancel_requested_at: datetime | None = None
    let_go_at: datetime | None = None
    """When its worker reported it cancelled. A thread cannot be stopped, so its body may run on until the worker is
    gone; the call is held, and charged, until then."""
    created_at: datetime
    updated_at: datetime

    @property
    def key(self) -> Key:
        """The address of the call's object."""
        return Key("FunctionCall", self.org, self.project, self.name)

    @property
    def function_key(self) -> Key:
        """The address of its Function."""
        return Key("Function", self.org, self.project, self.function)

    @property
    def cancel_requested(self) -> bool:
        """Whether a cancel was asked for while it ran."""
        return self.cancel_requested_at is not None

    @property
    def waiting_since(self) -> datetime:
        """When a queued call began to wait for a worker; a report of its workflow may move it for one that waits again.
        `_UNSERVED` in `calls/queries.py` says the same."""
        return self.updated_at if self.dispatches else self.created_at

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> CallRow:
        """The row from a query's record."""
        values = {name: record[name] for name in _CALL_COLUMNS}
        values["state"] = CallState(values["state"])
        values["outcome"] = cls.outcome_of(values)
        labels = values["function_labels"]
        values["function_labels"] = None if labels is None else orjson.loads(labels)
        return cls(**values)

    @classmethod
    def from_json(cls, record: Mapping[str, Any], prefix: str = "") -> CallRow:
        """The row from a loader's record whose keys start with `prefix`."""
        values = {name: record[prefix + name] for name in _CALL_COLUMNS}
        for name in _CALL_TIMES:
            values[name] = _time(values[name])
        values["state"] = CallState(values["state"])
        token = values["task_token"]
        values["task_token"] = None if token is None else bytes.fromhex(token.removeprefix("\\x"))
        return cls(**values)

    @staticmethod
    def outcome_of(record: Any) -> dict[str, Any] | None:  # noqa: ANN401 - a driver row or a dict
        """The `outcome` column of a record, which the driver gives as text."""
        return None if record["outcome"] is None else orjson.loads(record["outcome"])

    def to_json(self) -> dict[str, Any]:
        """The row as `json_populate_recordset` reads it."""
        values = {name: getattr(self, name) for name in _CALL_COLUMNS}
        values["task_token"] = None if self.task_token is None else f"\\x{self.task_token.hex()}"
        return values


_CALL_COLUMNS = tuple(CallRow.__dataclass_fields__)
_CALL_TIMES = ("deadline", "started_at", "cancel_requested_at", "let_go_at", "created_at", "updated_at")


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptRow:
    """The columns of `attempts` that claims need: one worker, from its creation to the end of its process."""

    uid: str
    org: str
    project: str
    function: str
    function_uid: str
    epoch: int
    concurrency: int
    rate_micro_usd_per_hour: int
    pricebook: str
    offering: str
    claim_seq: int
    """Counts its claims; a long poll left over from an earlier claim is recognised by it."""
    last_claim_at: datetime | None
    ready_at: datetime | None
    finished_at: datetime | None
    draining: bool
    drain_reason: str | None
    kill_at: datetime | None
    """When it was, or is, to be killed at the earliest."""

    @property
    def key(self) -> Key:
        """The address of the worker's Attempt object, which is named by its uid."""
        return Key("Attempt", self.org, self.project, self.uid)

    @property
    def price(self) -> WorkerPrice:
        """What the worker costs."""
        return WorkerPrice(
            rate_micro_usd_per_hour=self.rate_micro_usd_per_hour, pricebook=self.pricebook, offering=self.offering
        )

    @classmethod
    def from_json(cls, record: Mapping[str, Any], prefix: str) -> AttemptRow:
        """The row from a loader's record whose keys start with `prefix`."""
        values = {name: record[prefix + name] for name in _ATTEMPT_COLUMNS}
        for name in _ATTEMPT_TIMES:
            values[name] = _time(values[name])
        return cls(**values)


_ATTEMPT_COLUMNS = tuple(AttemptRow.__dataclass_fields__)
_ATTEMPT_TIMES = ("last_claim_at", "ready_at", "finished_at", "kill_at")


@dataclass(frozen=True, kw_only=True)
class CallRef:
    """A call as workflows and controllers name it: enough to read its row and its object."""

    uid: str
    org: str
    project: str
    name: str

    @property
    def key(self) -> Key:
        """The address of the call's object."""
        return Key("FunctionCall", self.org, self.project, self.name)

    @classmethod
    def from_record(cls, record: Any) -> CallRef:  # noqa: ANN401 - a driver row
        """The reference from a record with its four columns."""
        return cls(uid=record["uid"], org=record["org"], project=record["project"], name=record["name"])


def _time(value: str | None) -> datetime | None:
    return None if value is None else datetime.fromisoformat(value)


def _prefixed(alias: str, names: tuple[str, ...], prefix: str) -> str:
    return ", ".join(f"{alias}.{name} AS {prefix}{name}" for name in names)


CALL_BY_UID = Loader("call by uid", "SELECT c.uid AS key, c.* FROM calls c WHERE c.uid = ANY($1::text[])", as_json=True)

CALL_BY_KEY = Loader(
    # Through the objects' primary key: rows of calls that ended may share a name with the present object.
    "call by key",
    """SELECT k.key, c.*
    FROM unnest($1::text[]) AS k(key)
    JOIN objects o ON o.kind = 'FunctionCall' AND o.org = split_part(k.key, '/', 1) COLLATE "C"
        AND o.project = split_part(k.key, '/', 2) COLLATE "C" AND o.name = split_part(k.key, '/', 3) COLLATE "C"
    JOIN calls c ON c.uid = o.uid""",
    as_json=True,
)

CLAIMANT = Loader(
    "attempt with the calls it holds and the length of its Function's queue",
    """SELECT a.uid AS key, COALESCE(f.queued, 0) AS function_queued, $attempt, $call
    FROM attempts a LEFT JOIN function_load f ON f.function_uid = a.function_uid
    LEFT JOIN calls c ON c.attempt = a.uid AND c.state = 'running'
    WHERE a.uid = ANY($1::text[])""".replace("$attempt", _prefixed("a", _ATTEMPT_COLUMNS, "attempt_")).replace(
        "$call", _prefixed("c", _CALL_COLUMNS, "call_")
    ),
    as_json=True,
)

CALLS_PER_WALK = 500

# The lock keeps the incarnation as it is until the commit, so nobody starts workflows in the next one before.
CALLS_OF_INCARNATION = Loader(
    "calls after one while the engine is known by an identity",
    """SELECT k.key, c.*
    FROM unnest($1::text[]) AS k(key)
    JOIN engine e ON e.id = 1 AND e.incarnation = split_part(k.key, '/', 1)
    CROSS JOIN LATERAL (
        SELECT * FROM calls WHERE uid > split_part(k.key, '/', 2) ORDER BY uid LIMIT $limit
    ) AS c
    ORDER BY c.uid FOR SHARE OF e""".replace("$limit", str(CALLS_PER_WALK)),
)

OPEN_CALLS_PER_READ = 500

OPEN_CALLS = Loader(
    "open calls of a function",
    """SELECT c.function_uid AS key, c.*
    FROM unnest($1::text[]) AS f(key)
    CROSS JOIN LATERAL (
        (SELECT * FROM calls WHERE function_uid = f.key AND state = 'queued' AND seq >= 0 LIMIT $limit)
        UNION ALL
        (SELECT * FROM calls
        WHERE function_uid = f.key AND state IN ('running', 'deciding', 'waiting') LIMIT $limit)
    ) AS c""".replace("$limit", str(OPEN_CALLS_PER_READ)),
    as_json=True,
)


def key_argument(key: Key) -> str:
    """The argument of `CALL_BY_KEY`; the slash is in no organisation, project or name."""
    return f"{key.org}/{key.project}/{key.name}"


def claimant_rows(records: list[Mapping[str, Any]]) -> tuple[AttemptRow | None, list[CallRow]]:
    """The attempt and its running calls from the records of `CLAIMANT`; None when there is no such attempt."""
    if not records:
        return None, []
    attempt = AttemptRow.from_json(records[0], "attempt_")
    held = [CallRow.from_json(record, "call_") for record in records if record["call_uid"] is not None]
    return attempt, held
