"""The story of a call, told from its dispatches: pure.

Rows of `call_dispatches` say when each dispatch began and ended, what was decided of it and when that took effect; the
row of an open call says what is so now. Everything between is waiting of one kind or another. `calls/history.py` keeps
the rows, `calls/inspection.py` reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from controlplane.calls.decide import Cause
from controlplane.calls.history import UNDELIVERED, Followed
from controlplane.calls.rows import CallRow, CallState
from controlplane.calls.shown import duration, set_fields
from controlplane.clock import format_time, parse_time
from controlplane.machinery.quantities import format_money
from controlplane.store.contract import Document

OUTCOMES: Mapping[str, str] = {
    Cause.SUCCEEDED: "Succeeded",
    Cause.RAISED: "Raised",
    Cause.DEADLINE: "DeadlineExceeded",
    Cause.CANCELLED: "Cancelled",
    Cause.LOST: "WorkerLost",
    Cause.BAD_RESULT: "BadResult",
    Cause.UNSERIALIZABLE: "Unserializable",
    Cause.UNSERVED: "Unserved",
    Cause.FUNCTION_DELETED: "FunctionDeleted",
    UNDELIVERED: "Undelivered",
}
"""What a dispatch came to, by its cause."""

_WAITS = {Followed.RETRY: "BackingOff", Followed.RECOVER: "Recovering"}
"""What a call does between a decision and its effect."""


@dataclass(frozen=True, kw_only=True)
class PastDispatch:
    """A row of `call_dispatches`, with what became of its worker later."""

    number: int
    attempt: str
    epoch: int
    call_created_at: datetime
    started_at: datetime
    cancel_requested_at: datetime | None
    ended_at: datetime
    cause: str
    told: str
    charge_micro_usd: int
    decision: str
    delay_seconds: float | None
    applied_at: datetime | None
    worker_reason: str | None
    worker_message: str | None


@dataclass(frozen=True)
class Piece:
    """An interval; open at its end while it lasts."""

    type: str
    start: datetime
    end: datetime | None
    dispatch: int | None = None


def timeline_status(document: Document, past: Sequence[PastDispatch], row: CallRow | None, now: datetime) -> Document:
    """The status of a FunctionCallTimeline; `row` is the call's own while the engine has not been told of its end."""
    status = document["status"]
    dispatches = [_past(dispatch) for dispatch in past]
    if row is not None and row.state is CallState.RUNNING:
        dispatches.append(_present(row, now))
    told = {
        "phase": status["phase"],
        "reason": status.get("reason"),
        "costUSD": status.get("costUSD", format_money(0)),
        "dispatches": dispatches,
        "dispatchesOmitted": past[0].number - 1 if past and past[0].number > 1 else None,
        "intervals": [_interval(piece, now) for piece in pieces(document, past, row)],
    }
    return set_fields(told)


def pieces(document: Document, past: Sequence[PastDispatch], row: CallRow | None) -> Iterator[Piece]:
    """The call's life from its creation, or from the oldest dispatch that is kept, without gaps."""
    since = past[0].call_created_at if past else row.created_at if row else _created(document)
    if past and past[0].number > 1:
        since = past[0].started_at
    completed = _completed(document)
    awaited: PastDispatch | None = None
    for dispatch in past:
        yield from _run(dispatch, since)
        waits = _WAITS.get(Followed(dispatch.decision))
        if waits is not None:
            yield Piece(waits, dispatch.ended_at, dispatch.applied_at or completed, dispatch.number)
        since = dispatch.applied_at or dispatch.ended_at
        awaited = dispatch if dispatch.applied_at is None else None
    finished = bool(past) and past[-1].decision == Followed.FINISH
    if awaited is not None or finished:
        return
    if row is None or row.state is not CallState.RUNNING or row.started_at is None:
        yield Piece("Queued", since, completed)
        return
    yield Piece("Queued", since, row.started_at, row.dispatches)
    yield Piece("Running", row.started_at, row.cancel_requested_at, row.dispatches)
    if row.cancel_requested_at is not None:
        yield Piece("Cancelling", row.cancel_requested_at, None, row.dispatches)


def _run(dispatch: PastDispatch, since: datetime) -> Iterator[Piece]:
    """The wait for a dispatch and the dispatch itself."""
    if dispatch.started_at > since:
        yield Piece("Queued", since, dispatch.started_at, dispatch.number)
    yield Piece("Running", dispatch.started_at, dispatch.cancel_requested_at or dispatch.ended_at, dispatch.number)
    if dispatch.cancel_requested_at is not None:
        yield Piece("Cancelling", dispatch.cancel_requested_at, dispatch.ended_at, dispatch.number)


def _past(dispatch: PastDispatch) -> Document:
    worker = {
        "attempt": dispatch.attempt,
        "epoch": dispatch.epoch,
        "reason": dispatch.worker_reason,
        "message": dispatch.worker_message,
    }
    delay = dispatch.delay_seconds
    decision = {
        "action": dispatch.decision,
        "delay": None if delay is None else duration(delay),
        "appliedTime": None if dispatch.applied_at is None else format_time(dispatch.applied_at),
    }
    return set_fields(
        {
            "number": dispatch.number,
            "worker": set_fields(worker),
            "startTime": format_time(dispatch.started_at),
            "endTime": format_time(dispatch.ended_at),
            "duration": duration((dispatch.ended_at - dispatch.started_at).total_seconds()),
            "outcome": OUTCOMES[dispatch.cause],
            "message": dispatch.told or None,
            "costUSD": format_money(dispatch.charge_micro_usd),
            "decision": set_fields(decision),
        }
    )


def _present(row: CallRow, now: datetime) -> Document:
    assert row.started_at is not None, f"{row.uid} runs since no time"
    return {
        "number": row.dispatches,
        "worker": {"attempt": row.attempt, "epoch": row.epoch},
        "startTime": format_time(row.started_at),
        "duration": duration((now - row.started_at).total_seconds()),
        "outcome": "Running",
    }


def _interval(piece: Piece, now: datetime) -> Document:
    end = piece.end or now
    return set_fields(
        {
            "type": piece.type,
            "startTime": format_time(piece.start),
            # A call's end is told in whole seconds, so it may seem to be before what led to it.
            "endTime": None if piece.end is None else format_time(max(piece.start, piece.end)),
            "duration": duration((end - piece.start).total_seconds()),
            "dispatch": piece.dispatch,
        }
    )


def _created(document: Document) -> datetime:
    return parse_time(document["metadata"]["creationTimestamp"])


def _completed(document: Document) -> datetime | None:
    completed = document["status"].get("completionTime")
    return parse_time(completed) if completed else None
