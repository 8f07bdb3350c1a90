"""The status of a FunctionCallWait, from what one snapshot showed: pure.

A call that may be claimed waits for a worker, by the rule in `calls/waits.py`; one between two dispatches waits for its
workflow, which wakes it after a backoff or a lost worker. `calls/inspection.py` looks and asks for it here.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from controlplane.calls.history import Followed
from controlplane.calls.rows import PENDING_STATES, CallRow, CallState
from controlplane.calls.shown import duration, set_fields
from controlplane.calls.transitions import Phase, phase_of
from controlplane.calls.waits import Place, Pool, WaitReason, first_line, queue_reason, seconds_since, sentence
from controlplane.capacity.patience import queue_patience, waits_since
from controlplane.clock import format_time, parse_time
from controlplane.store.contract import Document

_BEFORE_MONEY = frozenset({WaitReason.FUNCTION_DELETED, WaitReason.FUNCTION_STOPPED, WaitReason.MAX_COST_REACHED})
"""What must change before it matters whether the call can be paid for."""
WAITING_STATES = frozenset({CallState.QUEUED, *PENDING_STATES})


@dataclass(frozen=True, kw_only=True)
class Workers:
    """What `Pool` does not need to know of the workers."""

    busy: int
    draining: int
    starting_message: str | None


@dataclass(frozen=True, kw_only=True)
class LastDispatch:
    """How the newest dispatch of the call ended."""

    ended_at: datetime
    applied_at: datetime | None
    decision: str
    delay_seconds: float | None

    @property
    def not_before(self) -> datetime:
        """The earliest time of what was decided."""
        return self.ended_at + timedelta(seconds=self.delay_seconds or 0.0)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What one snapshot showed of a call that waits, and of its surroundings."""

    row: CallRow
    function: Document | None
    pool: Pool
    workers: Workers
    place: Place | None
    queued: int
    last: LastDispatch | None
    lag_calls: int | None
    unpaid: str | None = None
    """For which limit of spending it waits, in a sentence."""


def wait_status(document: Document, seen: Seen | None, now: datetime, late_seconds: float) -> Document:
    """Why the call waits; None as what was seen means that it runs or has ended. What the engine has not begun after
    `late_seconds` waits for the engine."""
    if seen is None:
        return set_fields({**_not_waiting(document, now), "funded": _funded(document)})
    row, last = seen.row, seen.last
    if row.state is CallState.QUEUED:
        reason = queue_reason(seen.pool)
        message = sentence(reason, seen.pool, seen.place, now)
        if seen.unpaid is not None and reason not in _BEFORE_MONEY:
            reason, message = WaitReason.UNFUNDED, seen.unpaid
        since, not_before = _offered_at(row, last), None
    else:
        reason, message = _pending(row, last, now, late_seconds)
        since = last.ended_at if last is not None else row.updated_at
        not_before = last.not_before if last is not None else None
    left = max(0.0, (not_before - now).total_seconds()) if not_before is not None else None
    return set_fields(
        {
            "phase": phase_of(document),
            "reason": reason,
            "message": message,
            "waiting": True,
            "sinceTime": format_time(since),
            "waited": duration((now - since).total_seconds()),
            "notBeforeTime": None if not_before is None else format_time(not_before),
            "backoffLeft": None if left is None else duration(left),
            "queueTimeoutLeft": _patience_left(seen, since, now),
            "queue": _queue(seen.place, seen.queued),
            "workers": _workers(seen),
            "function": _function(seen.function),
            "engine": set_fields(
                {"hasWorkflow": row.has_workflow, "lagExceeded": seen.pool.engine_lags, "lagCalls": seen.lag_calls}
            ),
            "funded": _funded(document),
        }
    )


def _offered_at(row: CallRow, last: LastDispatch | None) -> datetime:
    """Since when a worker may claim the call."""
    return row.created_at if last is None else last.applied_at or last.ended_at


def _patience_left(seen: Seen, since: datetime, now: datetime) -> str | None:
    """What is left of `placement.queueTimeout`; None for a call that waits for no worker, or for ever."""
    if seen.function is None or seen.row.state is not CallState.QUEUED:
        return None
    patience = queue_patience(seen.function)
    if patience is None:
        return None
    return duration((max(since, waits_since(seen.function, now)) + patience - now).total_seconds())


def _pending(row: CallRow, last: LastDispatch | None, now: datetime, late_seconds: float) -> tuple[WaitReason, str]:
    """Reason and sentence of a call between two dispatches."""
    facts = (row.outcome or {}).get("facts", {})
    due = last.not_before if last is not None else row.updated_at
    if last is not None and last.decision == Followed.RETRY:
        reason, what = WaitReason.RETRY_SCHEDULED, f"retry {row.retries} of {facts.get('retries_max', row.retries)}"
    else:
        counted = row.recoveries - row.excused
        limit = facts.get("recoveries_max", counted)
        reason = WaitReason.RECOVERING
        what = f"recovery {counted} of {limit}" if counted else "a recovery that does not count"
    if now < due:
        return reason, f"{what} follows in {_seconds(due - now)}, at {format_time(due)}"
    if (now - due).total_seconds() > late_seconds:
        told = f"{what} was due {seconds_since(due, now)} ago; the engine that offers the call again does not answer"
        return WaitReason.ENGINE_UNAVAILABLE, told
    return reason, f"{what} is being scheduled"


def _not_waiting(document: Document, now: datetime) -> dict[str, Any]:
    """A call that runs, is being stopped, or has ended."""
    status, phase = document["status"], phase_of(document)
    told: dict[str, Any] = {"phase": phase, "reason": str(phase), "waiting": False}
    worker = status.get("worker", {}).get("attempt", "a worker")
    since = f" since {seconds_since(parse_time(status['startTime']), now)}" if "startTime" in status else ""
    if phase is Phase.RUNNING:
        return {**told, "message": f"it runs on {worker}{since}"}
    if phase is Phase.CANCELLING:
        return {**told, "message": f"{worker} had it: {status.get('message', 'it is being cancelled')}"}
    ended = f" at {status['completionTime']}" if "completionTime" in status else ""
    return {**told, "message": f"it has ended{ended}: {status.get('message') or status.get('reason') or phase}"}


def _queue(place: Place | None, queued: int) -> Document | None:
    if place is None:
        return None
    is_cut = place.sessions_are_cut or place.calls_are_cut or place.position > place.calls_max
    counts = {
        "position": place.position,
        "sessionsAhead": place.sessions_ahead,
        "callsAhead": place.calls_ahead,
        "queued": queued,
        "countsAreMinimums": is_cut or None,
    }
    return set_fields(counts)


def _workers(seen: Seen) -> Document:
    pool, scaling = seen.pool, seen.function["spec"].get("scaling", {}) if seen.function is not None else {}
    return set_fields(
        {
            "ready": pool.ready,
            "busy": seen.workers.busy,
            "starting": pool.starting,
            "draining": seen.workers.draining,
            "max": scaling.get("maxWorkers", 0),
            "freeSlots": pool.free_slots,
            "startingSinceTime": None if pool.starting_since is None else format_time(pool.starting_since),
            "startingMessage": seen.workers.starting_message,
            "startFailures": pool.start_failures or None,
            "lastFailure": first_line(pool.last_failure) or None,
        }
    )


def _function(function: Document | None) -> Document | None:
    if function is None:
        return None
    status = function.get("status", {})
    told = {name: status.get(name) or None for name in ("phase", "reason", "message")}
    return set_fields({"state": function["spec"].get("state", "Running"), **told})


def _funded(document: Document) -> Document | None:
    found = (each for each in document["status"].get("conditions", ()) if each["type"] == "Funded")
    return next(found, None)


def _seconds(span: timedelta) -> str:
    return f"{span.total_seconds():.1f} s"
