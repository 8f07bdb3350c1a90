"""Taking calls from workers that cannot be trusted to report: lost, overdue, deaf to a cancel, of a deleted Function.

The controllers find the work with `calls/queries.py` and commit these mutations, which look again inside the
transaction and do nothing where a report came first. A body that may still run keeps its worker from being used
again: the worker drains and is killed after a grace.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial

from controlplane.calls.book import CallBook
from controlplane.calls.decide import Cause
from controlplane.calls.outcomes import CallRules, Outcome, conclude
from controlplane.calls.rows import (
    CALL_BY_UID,
    CLAIMANT,
    LET_GO_GRACES,
    OPEN_CALLS,
    OPEN_CALLS_PER_READ,
    AttemptRow,
    CallRef,
    CallRow,
    CallState,
    claimant_rows,
)
from controlplane.capacity.endings import Loss, WorkerEnd, outlived, worker_loss
from controlplane.capacity.pool import DrainReason
from controlplane.store.contract import Reads, Tx


class LoseAttempt:
    """Ends a worker: what it still holds is recovered within its limit, or fails; nothing it says counts any more.

    `ended_at` is when its process ended, if its node saw that; a worker that vanished is charged up to its last
    claim. `end` is how it ended, if anybody knows: calls that may have brought it down run alone from then on. The
    result is the number of calls it held, or None when it was ended before or has another epoch. A clean exit is the
    same with nothing held. A call that it ran past the deadline until it was killed for its silence was not lost with
    it: its time was over, and it is not run again. A worker that was ended before may still hold calls, if its end was
    written by something else than this: they are recovered as well, since nobody else would look for them.
    """

    def __init__(
        self, attempt_uid: str, epoch: int, ended_at: datetime | None, rules: CallRules, end: WorkerEnd | None = None
    ) -> None:
        self._attempt_uid = attempt_uid
        self._epoch = epoch
        self._ended_at = ended_at
        self._rules = rules
        self._end = end or WorkerEnd(outcome="")

    def reads(self) -> Reads:
        return Reads(loads=((CLAIMANT, self._attempt_uid),))

    def apply(self, tx: Tx) -> int | None:
        book = CallBook.of(tx)
        loaded, loaded_calls = claimant_rows(tx.rows(CLAIMANT, self._attempt_uid))
        attempt = book.attempt(loaded)
        if attempt is None or attempt.epoch != self._epoch:
            return None
        held = [row for row in book.see(loaded_calls) if row.state is CallState.RUNNING]
        ended_in_this_batch = attempt.finished_at is not None and loaded is not None and loaded.finished_at is None
        if ended_in_this_batch or (attempt.finished_at is not None and not held):
            return None
        loss = worker_loss(self._end, attempt.drain_reason)
        for row in held:
            lose = partial(self._lose, uid=row.uid, attempt=attempt, loss=loss, beside=len(held) - 1)
            book.later([row.key, row.function_key], lose)
        changes: dict[str, object] = {"finished_at": tx.now, "draining": True, "state": "finished"}
        if held:
            # A worker that a call brings down may never have said that it has one; its end is no failed start.
            changes["last_busy_at"] = tx.now
        book.patch_attempt(attempt, **changes)
        return len(held)

    def _lose(self, tx: Tx, *, uid: str, attempt: AttemptRow, loss: Loss, beside: int) -> None:
        row = _running(tx, uid, attempt)
        if row is None or row.started_at is None:
            return
        ran_until = self._ended_at
        if ran_until is None and attempt.last_claim_at is not None and attempt.last_claim_at > row.started_at:
            ran_until = attempt.last_claim_at
        if self._outlived(row, attempt):
            outcome = Outcome(cause=Cause.DEADLINE, ran_until=ran_until)
        else:
            outcome = Outcome(
                cause=Cause.LOST, ran_until=ran_until, detail=loss.how, suspicious=loss.suspicious, beside=beside
            )
        conclude(tx, row, tx.get(row.function_key), outcome, self._rules)

    def _outlived(self, row: CallRow, attempt: AttemptRow) -> bool:
        return row.deadline is not None and outlived(
            row.deadline,
            end=self._end,
            drain_reason=attempt.drain_reason,
            kill_at=attempt.kill_at,
            grace_seconds=self._rules.deadline_grace_seconds,
        )


class EndOverdue:
    """Ends calls of one worker that it should have ended itself: past the deadline, or past a cancel, and their
    graces.

    The result is how many were ended. Their bodies may still run, so the worker is replaced. Only a worker that is
    known to have been alive then let the time pass. One that has said nothing since may have died before, so it is
    killed first (`CallQueries.silent_attempts`), and how that ends tells (`LoseAttempt`).
    """

    def __init__(self, attempt_uid: str, rules: CallRules) -> None:
        self._attempt_uid = attempt_uid
        self._rules = rules

    def reads(self) -> Reads:
        return Reads(loads=((CLAIMANT, self._attempt_uid),))

    def apply(self, tx: Tx) -> int:
        book = CallBook.of(tx)
        loaded, loaded_calls = claimant_rows(tx.rows(CLAIMANT, self._attempt_uid))
        attempt = book.attempt(loaded)
        if attempt is None:
            return 0
        overdue = [
            (row, cause) for row in book.see(loaded_calls) if (cause := self._cause(tx, row, attempt)) is not None
        ]
        for row, cause in overdue:
            book.later([row.key], partial(self._end, uid=row.uid, attempt=attempt, cause=cause))
        if overdue:
            reason = DrainReason.CANCELLED if overdue[0][1] is Cause.CANCELLED else "DeadlineExceeded"
            book.patch_attempt(attempt, draining=True, drain_reason=reason, kill_at=tx.now)
        return len(overdue)

    def _cause(self, tx: Tx, row: CallRow, attempt: AttemptRow) -> Cause | None:
        if row.state is not CallState.RUNNING or attempt.last_claim_at is None:
            return None
        graces = 1 if row.let_go_at is None else LET_GO_GRACES
        times = (
            (Cause.CANCELLED, row.cancel_requested_at, graces * self._rules.cancel_grace_seconds),
            (Cause.DEADLINE, row.deadline, self._rules.deadline_grace_seconds),
        )
        for cause, asked_at, grace_seconds in times:
            # The same condition as in the query that finds it (`calls/queries.py`).
            if asked_at is None or asked_at > attempt.last_claim_at:
                continue
            if asked_at + timedelta(seconds=grace_seconds) <= tx.now:
                return cause
        return None

    def _end(self, tx: Tx, *, uid: str, attempt: AttemptRow, cause: Cause) -> None:
        row = _running(tx, uid, attempt)
        if row is not None:
            conclude(tx, row, None, Outcome(cause=cause, ran_until=tx.now), self._rules)


class FailCallsOfFunction:
    """Fails calls of a Function that will not be run, running ones too; the result is how many, 0 when none are left.

    `outcome` says why; unless it is given, the Function is being deleted.

    At most `limit` (and `OPEN_CALLS_PER_READ`) a commit, so a long queue is failed in bounded steps: repeat until 0.
    """

    def __init__(self, function_uid: str, limit: int, rules: CallRules, outcome: Outcome | None = None) -> None:
        self._function_uid = function_uid
        self._limit = min(limit, OPEN_CALLS_PER_READ)
        self._rules = rules
        self._outcome = outcome

    def reads(self) -> Reads:
        return Reads(loads=((OPEN_CALLS, self._function_uid),))

    def apply(self, tx: Tx) -> int:
        book = CallBook.of(tx)
        loaded = [CallRow.from_json(record) for record in tx.rows(OPEN_CALLS, self._function_uid)]
        open_calls = [row for row in book.see(loaded) if row.state is not CallState.DONE][: self._limit]
        for row in open_calls:
            book.later([row.key], partial(self._fail, uid=row.uid))
        return len(open_calls)

    def _fail(self, tx: Tx, *, uid: str) -> None:
        row = CallBook.of(tx).present(uid, None)
        if row is None or row.state is CallState.DONE:
            return
        outcome = self._outcome or Outcome(cause=Cause.FUNCTION_DELETED, ran_until=tx.now)
        conclude(tx, row, None, outcome, self._rules)


class EndUnserved:
    """Fails calls that have waited for a worker since before a time; the result is how many still did.

    `queue_timeout` is what their Function says of it, for the message. Nothing ran, so nothing is charged.
    """

    def __init__(self, refs: Sequence[CallRef], before: datetime, queue_timeout: str, rules: CallRules) -> None:
        self._refs = refs
        self._before = before
        self._queue_timeout = queue_timeout
        self._rules = rules

    def reads(self) -> Reads:
        return Reads(keys=[ref.key for ref in self._refs], loads=[(CALL_BY_UID, ref.uid) for ref in self._refs])

    def apply(self, tx: Tx) -> int:
        book = CallBook.of(tx)
        loaded = [CallRow.from_json(record) for ref in self._refs for record in tx.rows(CALL_BY_UID, ref.uid)]
        unserved = [
            row for row in book.see(loaded) if row.state is CallState.QUEUED and row.waiting_since < self._before
        ]
        outcome = Outcome(
            cause=Cause.UNSERVED,
            ran_until=None,
            detail=f"no worker took the call within {self._queue_timeout}, the `placement.queueTimeout` of its "
            "Function: see the Function's status for what keeps it from having more workers, or raise the timeout",
        )
        for row in unserved:
            conclude(tx, row, None, outcome, self._rules)
        return len(unserved)


class ForgetFunction:
    """Drops what is kept per Function once it and its calls are gone."""

    def __init__(self, function_uid: str) -> None:
        self._function_uid = function_uid

    def reads(self) -> Reads:
        return Reads()

    def apply(self, tx: Tx) -> None:
        tx.execute("DELETE FROM call_sessions WHERE function_uid = $1", (self._function_uid,))
        tx.execute("DELETE FROM function_load WHERE function_uid = $1", (self._function_uid,))
        tx.execute("DELETE FROM function_segments WHERE function_uid = $1", (self._function_uid,))
        tx.execute("DELETE FROM spending_limits WHERE id = $1", (self._function_uid,))


def _running(tx: Tx, uid: str, attempt: AttemptRow) -> CallRow | None:
    row = CallBook.of(tx).present(uid, None)
    held = row is not None and row.state is CallState.RUNNING
    return row if held and row is not None and (row.attempt, row.epoch) == (attempt.uid, attempt.epoch) else None
