"""Why a call waits: the one rule, pure.

Three ask it about the same queue and must agree: the transaction that creates a call (`calls/hooks.py`), the
autoscaler, which keeps the messages at the head of each queue true (`activities/queue_explainer.py`), and `/wait`,
which tells a person everything (`calls/inspection.py`). The reason is one word out of a closed list; what is stored in
a call is a sentence without numbers, since a number would be wrong a moment later and a write for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from controlplane.capacity.function_status import MAX_COST_REACHED, NO_OFFERING, NO_ROOM_MESSAGE, QUOTA_CONDITION
from controlplane.store.contract import Document

FAILURE_CHARACTERS_MAX = 160
"""Of what a failed start left behind, in a sentence."""


class WaitReason(StrEnum):
    """What a call waits for; also the reason of its condition Scheduled."""

    FUNCTION_DELETED = "FunctionDeleted"
    FUNCTION_STOPPED = "FunctionStopped"
    MAX_COST_REACHED = "MaxCostReached"
    ENGINE_LAGGING = "EngineLagging"
    RUNS_ALONE = "RunsAlone"
    QUEUED = "Queued"
    WORKERS_BUSY = "WorkersBusy"
    ENGINE_UNAVAILABLE = "EngineUnavailable"
    STARTUP_FAILED = "StartupFailed"
    WORKERS_STARTING = "WorkersStarting"
    QUOTA_EXCEEDED = "QuotaExceeded"
    UNFUNDED = "Unfunded"
    NO_OFFERING = "NoOffering"
    NO_ROOM = "NoRoom"
    NO_WORKER = "NoWorker"
    RETRY_SCHEDULED = "RetryScheduled"
    RECOVERING = "Recovering"
    CANCELLING = "Cancelling"


@dataclass(frozen=True, kw_only=True)
class Pool:
    """What is known about whoever could take a claimable call."""

    deleting: bool = False
    stopped: bool = False
    capped: bool = False
    """The Function has reached its `maxCostUSD`."""
    ready: int = 0
    """Workers that take calls."""
    idle: int = 0
    """Those of them that hold no call."""
    free_slots: int = 0
    """Calls that the ready ones can take at once."""
    alone: bool = False
    """The calls asked about may have brought a worker down, so each takes a worker of its own (`calls/seats.py`)."""
    starting: int = 0
    starting_since: datetime | None = None
    start_failures: int = 0
    """Starts that failed since the last that succeeded."""
    last_failure: str = ""
    lacks_quota: str = ""
    """The quota that allows no other worker, with its numbers."""
    no_offering: str = ""
    """Why no host of this server will do, and what to change; empty when one will."""
    lacks_funds: bool = False
    """Another worker cannot be paid."""
    lacks_room: bool = False
    """No host has room for another worker."""
    awaits_engine: bool = False
    """A worker was ordered and the engine has not begun to start it."""
    engine_lags: bool = False
    """Only calls with a workflow are handed out, and those asked about have none."""


_RULES: Sequence[tuple[WaitReason, Callable[[Pool], bool]]] = (
    (WaitReason.FUNCTION_DELETED, lambda pool: pool.deleting),
    (WaitReason.FUNCTION_STOPPED, lambda pool: pool.stopped),
    (WaitReason.MAX_COST_REACHED, lambda pool: pool.capped),
    (WaitReason.ENGINE_LAGGING, lambda pool: pool.engine_lags),
    (WaitReason.RUNS_ALONE, lambda pool: pool.alone and pool.ready > 0 and not pool.idle),
    (WaitReason.QUEUED, lambda pool: pool.free_slots > 0),
    (WaitReason.WORKERS_BUSY, lambda pool: pool.ready > 0),
    (WaitReason.NO_OFFERING, lambda pool: bool(pool.no_offering) and not pool.starting),
    (WaitReason.ENGINE_UNAVAILABLE, lambda pool: pool.awaits_engine),
    (WaitReason.STARTUP_FAILED, lambda pool: pool.start_failures > 0),
    (WaitReason.WORKERS_STARTING, lambda pool: pool.starting > 0),
    (WaitReason.QUOTA_EXCEEDED, lambda pool: bool(pool.lacks_quota)),
    (WaitReason.UNFUNDED, lambda pool: pool.lacks_funds),
    (WaitReason.NO_ROOM, lambda pool: pool.lacks_room),
)
"""The first that holds is the reason: what must change before anything behind it matters."""


def queue_reason(pool: Pool) -> WaitReason:
    """What a claimable call waits for."""
    return next((reason for reason, holds in _RULES if holds(pool)), WaitReason.NO_WORKER)


_STORED = {
    WaitReason.FUNCTION_DELETED: "its Function is being deleted, which ends the call",
    WaitReason.FUNCTION_STOPPED: "its Function is stopped; the call runs once `spec.state` of that is Running again",
    WaitReason.MAX_COST_REACHED: "its Function has reached `spec.maxCostUSD`; the call runs once that is raised",
    WaitReason.ENGINE_LAGGING: "too many calls ran ahead of their workflows; it runs once the engine has caught up",
    WaitReason.RUNS_ALONE: "it may have brought a worker down and runs alone; every worker holds other calls",
    WaitReason.QUEUED: "waiting for a worker",
    WaitReason.WORKERS_BUSY: "every worker is busy; they take calls in turn, session by session",
    WaitReason.ENGINE_UNAVAILABLE: "no worker yet: the engine that starts them does not answer",
    WaitReason.STARTUP_FAILED: "no worker yet: the last start failed",
    WaitReason.WORKERS_STARTING: "no worker yet: one is being started",
    WaitReason.QUOTA_EXCEEDED: "no worker yet: a quota allows no other one; the Function says which",
    WaitReason.UNFUNDED: "no worker yet: the organisation lacks the credit for one; the call goes on when it has some",
    WaitReason.NO_ROOM: "no worker yet: the hosts have no room for another one",
    WaitReason.NO_WORKER: "no worker yet: one is about to be started",
}


def stored_message(reason: WaitReason, pool: Pool) -> str:
    """The sentence that a waiting call carries; it changes with the reason and with what made a start fail or keeps
    one from being tried."""
    failure = first_line(pool.last_failure)
    if reason is WaitReason.STARTUP_FAILED and failure:
        return f"{_STORED[reason]} ({failure})"
    if reason is WaitReason.QUEUED and pool.alone:
        return f"{_STORED[reason]} of its own"
    if reason is WaitReason.NO_OFFERING:
        return f"no worker yet: {pool.no_offering}"
    return _STORED[reason]


def first_line(text: str) -> str:
    """The first line of what a failed start left behind, cut: the rest is what the worker printed."""
    return text.strip().split("\n", 1)[0][:FAILURE_CHARACTERS_MAX]


def pool_of(function: Document) -> Pool:
    """The pool as the Function's own status tells it, at most a moment old: all that a create has at hand."""
    spec, status = function["spec"], function.get("status", {})
    workers, queue = status.get("workers", {}), status.get("queue", {})
    ready = workers.get("ready", 0)
    places = ready * spec.get("scaling", {}).get("targetConcurrency", 1)
    failed = _not_ready(status, "StartupFailed")
    return Pool(
        deleting="deletionTimestamp" in function["metadata"],
        stopped=spec.get("state") == "Stopped",
        capped=status.get("reason") == MAX_COST_REACHED,
        ready=ready,
        idle=workers.get("idle", 0),
        free_slots=max(workers.get("idle", 0), places - queue.get("running", 0)) if ready else 0,
        starting=workers.get("starting", 0),
        start_failures=0 if failed is None else 1,
        last_failure=failed or "",
        no_offering=_not_ready(status, NO_OFFERING) or "",
        lacks_quota=_false_because(status, QUOTA_CONDITION) or "",
        lacks_funds=_false_because(status, "Funded") is not None,
        lacks_room=status.get("message") == NO_ROOM_MESSAGE,
    )


def _false_because(status: Document, condition_type: str) -> str | None:
    """What a condition that is False says; None when it is not."""
    for condition in status.get("conditions", ()):
        if condition["type"] == condition_type and condition["status"] == "False":
            message: str = condition["message"]
            return message
    return None


def _not_ready(status: Document, reason: str) -> str | None:
    """What the condition Ready says, such as how the last start failed; None when it has another reason."""
    for condition in status.get("conditions", ()):
        if condition["type"] == "Ready" and condition["reason"] == reason:
            message: str = condition["message"]
            return message
    return None


# For people.


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a call stands in the queue of its Function. Counts of calls stop at `calls_max`."""

    position: int
    """In its session, from 1."""
    sessions_ahead: int
    calls_ahead: int
    calls_max: int
    sessions_are_cut: bool
    """More sessions may come before it than were looked at."""
    calls_are_cut: bool
    """More calls may come before it than were counted."""


def sentence(reason: WaitReason, pool: Pool, place: Place | None, now: datetime) -> str:
    """Why a claimable call waits, with its place and numbers as of now."""
    cause = _cause(reason, pool, now)
    return cause if place is None else f"{_place(place)}; {cause}"


def _place(place: Place) -> str:
    if place.position > place.calls_max:
        own = f"behind more than {place.calls_max:,} calls of its session"
    else:
        own = f"{ordinal(place.position)} in its session"
    before = place.sessions_ahead
    many = "at least " if place.sessions_are_cut else ""
    return f"{own}, {many}{before or 'no'} session{'' if before == 1 else 's'} before it"


def _cause(reason: WaitReason, pool: Pool, now: datetime) -> str:
    match reason:
        case WaitReason.QUEUED:
            return f"{_count(pool.free_slots, 'place is', 'places are')} free, its turn comes with the next claim"
        case WaitReason.WORKERS_BUSY:
            more = f", {pool.starting} more being started" if pool.starting else ""
            more += f", and {pool.lacks_quota}" if pool.lacks_quota else ""
            return f"no free worker: {_count(pool.ready, 'is', 'are all')} busy{more}"
        case WaitReason.WORKERS_STARTING:
            since = f" since {seconds_since(pool.starting_since, now)}" if pool.starting_since else ""
            return f"no free worker: {_count(pool.starting, 'is', 'are')} starting{since}"
        case WaitReason.STARTUP_FAILED:
            failed = first_line(pool.last_failure)
            times = _count(pool.start_failures, "start has", "starts have")
            return f"no worker: {times} failed in a row{f', the last because {failed}' if failed else ''}"
        case WaitReason.QUOTA_EXCEEDED:
            return f"no worker yet: {pool.lacks_quota}"
        case _:
            return stored_message(reason, pool)


def seconds_since(moment: datetime, now: datetime) -> str:
    """How long ago that was, as people write it."""
    return f"{max(0, round((now - moment).total_seconds()))} s"


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 4th, 11th …"""
    last_two = number % 100
    suffix = "th" if 10 <= last_two <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{suffix}"


def _count(number: int, one: str, several: str) -> str:
    return f"{number:,} {one if number == 1 else several}"
