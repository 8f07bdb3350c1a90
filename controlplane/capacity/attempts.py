"""Changes of workers: decide to start some, ask some to go, close one that is gone.

Each is a mutation, so it sees the truth of its commit: a plan that was made on older facts starts nothing it should
not. Row and Attempt object move together; only a claim's bookkeeping (`calls/claims.py`) touches the row alone. Who
asks: `activities/autoscaler.py`, `activities/sweeper.py` and, at the end of a worker's process,
`activities/attempts.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from controlplane.capacity.endings import AttemptEnd, WorkerEnd, attempt_end, interruption_trigger
from controlplane.capacity.rows import COLUMNS, LOST, AttemptState, WorkerRow
from controlplane.clock import format_time
from controlplane.identity.tokens import REVOKE_ATTEMPT
from controlplane.ids import new_uid
from controlplane.kinds.quotes import within_quote
from controlplane.ledger.accounts import BALANCE
from controlplane.ledger.limits import Limit
from controlplane.ledger.pricing import WorkerPrice
from controlplane.ledger.reservations import LIMIT_ROWS
from controlplane.ledger.worker_accounts import FundingRules, WorkerAccount, open_account
from controlplane.limits.worker_quotas import WORKER_QUOTAS, WorkerRoom, amounts_of, project_key
from controlplane.machinery.kind import API_VERSION
from controlplane.machinery.quantities import format_money
from controlplane.placement.capacity import Capacity
from controlplane.placement.demand import NO_DEMAND, Demand
from controlplane.placement.placing import Placed
from controlplane.store.contract import Document, Key, Loader, Reads, Tx
from controlplane.store.events import WARNING, Happening, tell

_WORKER = Loader(
    "worker",
    f"SELECT a.uid AS key, {COLUMNS} FROM attempts a WHERE a.uid = ANY($1::text[])",  # noqa: S608 - constants
)
_SLOTS = Loader(
    "slots of a function",
    """SELECT function_uid AS key, slot, max(epoch) AS epoch, bool_or(state <> 'finished') AS taken,
        (array_agg(reason ORDER BY epoch DESC))[1] AS last_reason
    FROM attempts WHERE function_uid = ANY($1::text[]) GROUP BY function_uid, slot""",
)
_LIVE_UIDS = Loader(
    "live workers of a function",
    "SELECT function_uid AS key, uid FROM attempts WHERE function_uid = ANY($1::text[]) AND state <> 'finished'",
)
_NODE_LOAD = Loader(
    "live workers of a node",
    """SELECT node AS key, count(*) AS live FROM attempts
    WHERE node = ANY($1::text[]) AND state <> 'finished' GROUP BY node""",
)

_INSERT = """ INSERT INTO attempts (uid, org, project, function, function_uid, slot, epoch, pool, state, concurrency,
node, created_at, rate_micro_usd_per_hour, pricebook, offering, cpu_milli, memory_bytes, gpus)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, 'starting', $9, $10, $11, $12, $13, $14, $15, $16, $17)
"""
# The first reason and the earliest kill stay.
_DRAIN = """
UPDATE attempts SET draining = true, drain_reason = COALESCE(drain_reason, $2), drained_at = COALESCE(drained_at, $3),
    kill_at = LEAST(kill_at, $4)
WHERE uid = $1 AND state <> 'finished'
"""
_CLOSE = """
UPDATE attempts SET state = 'finished', finished_at = COALESCE(finished_at, $2), draining = true,
    reason = $3, message = $4
WHERE uid = $1
"""


@dataclass(frozen=True, kw_only=True)
class StartOrder:
    """Workers to start for one Function.

    `seen` are the live workers the plan was made on: if there are others by now, the plan is void and nothing starts.
    """

    function_key: Key
    function_uid: str
    revision: str
    count: int
    node: str
    node_workers_max: int
    seen: frozenset[str]
    capacity: Capacity
    """What each runs on, and costs if the Function is bound to no lower quote."""
    funding: FundingRules
    demand: Demand = NO_DEMAND
    """What each takes of quotas."""
    limits: Sequence[Limit] = ()
    """Of spending, that cover these workers; each has a row."""


class StartWorkers:
    """Creates the rows and Attempt objects of new workers; the result is their rows, perhaps none.

    Each that costs something gets an account with a first hold; where the money or a quota reaches for no further one,
    no further worker is started.
    """

    def __init__(self, order: StartOrder) -> None:
        self._order = order
        # Also the names of the objects, which may hold no underscore.
        self._uids = [new_uid("att").replace("_", "-") for _ in range(order.count)]
        self._project = project_key(order.function_key.org, order.function_key.project)

    def reads(self) -> Reads:
        order = self._order
        objects = (Key("Attempt", order.function_key.org, order.function_key.project, uid) for uid in self._uids)
        loads = [
            (_SLOTS, order.function_uid),
            (_LIVE_UIDS, order.function_uid),
            (_NODE_LOAD, order.node),
            (WORKER_QUOTAS, self._project),
        ]
        if order.capacity.rate_micro_usd_per_hour:
            loads.append((BALANCE, order.function_key.org))
            loads += [(LIMIT_ROWS, limit.id) for limit in order.limits]
        return Reads(keys=(order.function_key, *objects), loads=loads)

    def apply(self, tx: Tx) -> list[WorkerRow]:
        order = self._order
        function = tx.get(order.function_key)
        live = {record["uid"] for record in tx.rows(_LIVE_UIDS, order.function_uid)}
        started = tx.scratch("workers started")
        if function is None or not _wants_workers(function, order.function_uid) or live - order.seen:
            return []
        if order.function_uid in started:
            return []
        load = sum(record["live"] for record in tx.rows(_NODE_LOAD, order.node)) + started.get(order.node, 0)
        slots = tx.rows(_SLOTS, order.function_uid)
        taken = {record["slot"] for record in slots if record["taken"]}
        last = {record["slot"]: record for record in slots}
        rows: list[WorkerRow] = []
        quotas = WorkerRoom(tx.rows(WORKER_QUOTAS, self._project), tx.scratch("worker quotas"))
        within = quotas.fit(self._project, order.demand).more
        for uid in self._uids[: max(0, order.node_workers_max - load)][:within]:
            slot = _free_slot(taken)
            before = last.get(slot, {"epoch": 0, "last_reason": None})
            if not self._fund(tx, function, uid, restores=before["last_reason"] == LOST):
                break
            taken.add(slot)
            rows.append(self._start(tx, function, uid, slot, before["epoch"] + 1))
        quotas.take(self._project, order.demand, len(rows))
        started[order.function_uid] = True
        started[order.node] = started.get(order.node, 0) + len(rows)
        return rows

    def _fund(self, tx: Tx, function: Document, uid: str, *, restores: bool) -> bool:
        """Whether the worker may be started: it costs nothing, or has an account with a hold now."""
        order, price = self._order, self._price(function)
        if not price.rate_micro_usd_per_hour:
            return True
        account = WorkerAccount(
            uid=uid,
            org=order.function_key.org,
            project=order.function_key.project,
            function=order.function_key.name,
            function_uid=order.function_uid,
            **vars(price),
            billing_increment_seconds=order.capacity.billing.increment_seconds,
            billing_minimum_seconds=order.capacity.billing.minimum_seconds,
            shares=function["spec"]["scaling"]["targetConcurrency"],
            restores=restores,
            funded_until=tx.now,
            look_at=tx.now,
        )
        return open_account(tx, account, order.funding, order.limits)

    def _price(self, function: Document) -> WorkerPrice:
        """What a worker costs, to a Function that may be bound to a quote."""
        price = self._order.capacity.price
        return replace(price, rate_micro_usd_per_hour=within_quote(function, price.rate_micro_usd_per_hour))

    def _start(self, tx: Tx, function: Document, uid: str, slot: str, epoch: int) -> WorkerRow:
        order, price = self._order, self._price(function)
        row = WorkerRow(
            uid=uid,
            org=order.function_key.org,
            project=order.function_key.project,
            function=order.function_key.name,
            function_uid=order.function_uid,
            slot=slot,
            epoch=epoch,
            pool=order.revision,
            state=AttemptState.STARTING,
            draining=False,
            drain_reason=None,
            has_workflow=False,
            concurrency=function["spec"]["scaling"]["targetConcurrency"],
            **vars(price),
            node=order.node,
            created_at=tx.now,
            ready_at=None,
            last_claim_at=None,
            last_busy_at=None,
            drained_at=None,
            kill_at=None,
            finished_at=None,
            reason=None,
            message=None,
        )
        tx.execute(
            _INSERT,
            (
                row.uid, row.org, row.project, row.function, row.function_uid, row.slot, row.epoch, row.pool,
                row.concurrency, row.node, row.created_at, row.rate_micro_usd_per_hour, row.pricebook, row.offering,
                *amounts_of(order.demand),
            ),
        )  # fmt: skip
        tx.put(row.key, _attempt_document(function, row, order.capacity.placed))
        return row


class DrainWorkers:
    """Marks workers as leaving: no more calls, and their workflows will be told. `kill_at` bounds their patience."""

    def __init__(self, uids: Sequence[str], reason: str, kill_at: datetime | None = None) -> None:
        self._uids = tuple(uids)
        self._reason = reason
        self._kill_at = kill_at

    def reads(self) -> Reads:
        return Reads()

    def apply(self, tx: Tx) -> None:
        for uid in self._uids:
            tx.execute(_DRAIN, (uid, self._reason, tx.now, self._kill_at))


class CloseAttempt:
    """Writes for good how a worker ended: row, object and token; the result is the end, None if there is no such
    worker.

    What it still held must have been given back before (`calls/recovery.py`); a second close changes nothing.
    """

    def __init__(self, key: Key, end: WorkerEnd) -> None:
        self._key = key
        self._end = end

    def reads(self) -> Reads:
        return Reads(keys=(self._key,), loads=((_WORKER, self._key.name),))

    def apply(self, tx: Tx) -> AttemptEnd | None:
        records = tx.rows(_WORKER, self._key.name)
        if not records:
            return None
        row = WorkerRow.from_record(records[0])
        end = attempt_end(self._end, was_ready=row.ready_at is not None, drain_reason=row.drain_reason)
        if row.reason is not None:
            return end
        finished_at = row.finished_at or tx.now
        tx.execute(_CLOSE, (row.uid, finished_at, end.reason, end.message))
        tx.execute(REVOKE_ATTEMPT, (row.uid, tx.now))
        document = tx.get(self._key)
        if document is not None:
            trigger = interruption_trigger(
                self._end, end, was_ready=row.ready_at is not None, drain_reason=row.drain_reason
            )
            tx.put(self._key, _closed_document(document, row, end, trigger, finished_at))
        if end.phase == "Failed":
            tell(tx, _failure(row, end))
        return end


def _failure(row: WorkerRow, end: AttemptEnd) -> Happening:
    """What people are told of the Function: one Event for each way in which its workers fail."""
    function = Key("Function", row.org, row.project, row.function)
    message = f"worker {row.uid}: {end.message}"
    return Happening(key=function, uid=row.function_uid, type=WARNING, reason=end.reason, message=message)


def _wants_workers(function: Document, uid: str) -> bool:
    metadata = function["metadata"]
    return (
        metadata["uid"] == uid
        and "deletionTimestamp" not in metadata
        and function["spec"].get("state", "Running") == "Running"
    )


def _free_slot(taken: set[str]) -> str:
    number = 1
    while f"w{number}" in taken:
        number += 1
    return f"w{number}"


def _attempt_document(function: Document, row: WorkerRow, placed: Placed) -> Document:
    """The Attempt object of a worker that is about to be started."""
    created = format_time(row.created_at)
    labels = {"nodus.dev/function": row.function}
    app = function["metadata"].get("labels", {}).get("nodus.dev/app")
    if app:
        labels["nodus.dev/app"] = app
    owner = {
        "apiVersion": API_VERSION,
        "kind": "Function",
        "name": row.function,
        "uid": row.function_uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    metadata = {
        "name": row.uid,
        "namespace": row.project,
        "uid": row.uid,
        "generation": 1,
        "creationTimestamp": created,
        "labels": labels,
        "ownerReferences": [owner],
    }
    status = {
        "phase": "Provisioning",
        "message": "the worker is being started",
        "placement": {
            "offering": row.offering,
            "rateUSDPerHour": format_money(row.rate_micro_usd_per_hour),
            **placed.told(),
        },
        "progress": {"stage": "Starting"},
        "timings": {"queuedTime": created, "acquiredTime": created},
    }
    spec = {"slot": row.slot, "epoch": row.epoch}
    return {"apiVersion": API_VERSION, "kind": "Attempt", "metadata": metadata, "spec": spec, "status": status}


_STAGES = {"Succeeded": "Succeeded", "Failed": "Failed", "Cancelled": "Stopped"}


def _closed_document(
    document: Document, row: WorkerRow, end: AttemptEnd, trigger: str | None, finished_at: datetime
) -> Document:
    """The Attempt object in its last phase."""
    status = {
        **document["status"],
        "phase": end.phase,
        "reason": end.reason,
        "message": end.message,
        "progress": {"stage": "Lost" if end.reason == "NodeLost" else _STAGES[end.phase]},
    }
    if end.exit_code is not None:
        status["exitCode"] = end.exit_code
    if end.signal is not None:
        status["signal"] = end.signal
    timings = {**status.get("timings", {}), "finishedTime": format_time(finished_at)}
    timings["deletionProvenTime"] = timings["finishedTime"]
    if row.ready_at is not None:
        timings["bootSeconds"] = max(0, round((row.ready_at - row.created_at).total_seconds()))
    status["timings"] = timings
    if trigger is not None:
        status["interruption"] = {"trigger": trigger, "time": format_time(finished_at)}
    return {**document, "status": status}
