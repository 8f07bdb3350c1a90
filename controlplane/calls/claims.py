"""A worker's claim as one mutation: what finished, what it still runs, and its wish for more.

The order is the protocol's: completions first, then `running` is compared with what the server thinks the worker
holds, then the wish for calls goes to the `Dispatcher`, which serves it before the same batch commits. Whatever a
worker says about a call counts only while the call's row names its (attempt, epoch); anything else is ignored, so
repeated and late claims are harmless. `api/claims.py` builds the mutation and holds the request.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

from controlplane.calls import transitions
from controlplane.calls.book import CallBook
from controlplane.calls.decide import Cause
from controlplane.calls.history import UNDELIVERED
from controlplane.calls.outcomes import CallRules, Outcome, conclude, present_document
from controlplane.calls.reports import ClaimBody, Report
from controlplane.calls.rows import CLAIMANT, PRIORITY_REOFFERED, AttemptRow, CallRow, CallState, claimant_rows
from controlplane.calls.wants import Claimant, Want
from controlplane.clock import format_time
from controlplane.errors import ApiError, Reason
from controlplane.store.contract import Key, Loader, Reads, Tx

_DRAINED_BY_ITSELF = "DeadlineExceeded"


@dataclass(frozen=True, kw_only=True)
class ClaimAnswer:
    """What the claim's own transaction answers; calls are in its `Want`."""

    cancel: list[str]
    draining: bool
    refused: Sequence[Report] = ()
    """Reports of calls that the worker does not hold; they changed nothing."""


class ClaimMutation:
    """Applies one claim. Raises NOT_FOUND for a worker that is finished, WORKER_NOT_ALLOWED for another
    Function's."""

    def __init__(self, claimant: Claimant, body: ClaimBody, want: Want | None, rules: CallRules) -> None:
        self._claimant = claimant
        self._body = body
        self._want = want
        self._rules = rules

    def reads(self) -> Reads:
        claimant = self._claimant
        names = (report.call for report in self._body.completed)
        keys = [Key("FunctionCall", claimant.org, claimant.project, name) for name in names]
        if any(report.cause is not Cause.SUCCEEDED for report in self._body.completed):
            keys.append(claimant.function_key)
        loads: list[tuple[Loader, Hashable]] = [(CLAIMANT, claimant.attempt)]
        return Reads(keys=keys, loads=loads)

    def apply(self, tx: Tx) -> ClaimAnswer:
        book = CallBook.of(tx)
        records = tx.rows(CLAIMANT, self._claimant.attempt)
        loaded, loaded_calls = claimant_rows(records)
        attempt = admitted(book.attempt(loaded), self._claimant)
        held = {row.name: row for row in book.see(loaded_calls) if holds(attempt, row)}
        # That a call was cancelled is no lost result, and the runtime's word about it often comes first.
        late = (report for report in self._body.completed if report.call not in held)
        refused = [report for report in late if report.cause is not Cause.CANCELLED]
        completed = [(held.pop(report.call), report) for report in self._body.completed if report.call in held]
        for row, report in completed:
            self._complete(tx, attempt, row, report)
        running = self._body.running
        for row in held.values():
            if row.name not in running and row.let_go_at is None:
                book.later([row.key], partial(self._return_undelivered, uid=row.uid, attempt=attempt))
        attempt = self._renew(tx, attempt, busy=bool(running or completed))
        cancel = sorted(name for name in running if name not in held or held[name].cancel_requested)
        if self._want is not None and not attempt.draining:
            self._want.claim_seq = attempt.claim_seq
            self._want.concurrency, self._want.price = attempt.concurrency, attempt.price
            self._want.offered = []
            self._want.stopping = frozenset(row.name for row in book.see(loaded_calls) if _may_run_on(attempt, row))
            # Its heartbeats ask for more calls as well, and a call that may bring the worker down has it for itself.
            self._want.full = any(row.suspect and row.name in running for row in held.values())
            book.want(self._want)
            if completed and not records[0]["function_queued"]:
                # Every claim of a busy worker would look in vain at a queue that is empty. A claim that reports nothing
                # looks all the same: whatever became of the tally, a call is found by the next long poll.
                book.saw_empty_queue(attempt.function_uid)
        return ClaimAnswer(cancel=cancel, draining=attempt.draining, refused=refused)

    def _complete(self, tx: Tx, attempt: AttemptRow, row: CallRow, report: Report) -> None:
        book = CallBook.of(tx)
        if report.cause is Cause.CANCELLED and row.cancel_requested:
            _let_go(tx, row)
        else:
            outcome = _outcome(report, row, tx, self._rules)
            function = None if outcome.cause is Cause.SUCCEEDED else tx.get(self._claimant.function_key)
            conclude(tx, row, function, outcome, self._rules)
        if report.cause is Cause.DEADLINE:
            # The worker stops taking calls by itself. The body may still run, so it is replaced and killed.
            kill_at = tx.now + timedelta(seconds=self._rules.cancel_grace_seconds)
            present = book.attempt(attempt) or attempt
            book.patch_attempt(present, draining=True, drain_reason=_DRAINED_BY_ITSELF, kill_at=kill_at)

    def _renew(self, tx: Tx, attempt: AttemptRow, *, busy: bool) -> AttemptRow:
        """Renew the lease, count the claim, and note the first one: it makes the worker ready."""
        book = CallBook.of(tx)
        attempt = book.attempt(attempt) or attempt
        changes: dict[str, object] = {"last_claim_at": tx.now, "claim_seq": attempt.claim_seq + 1}
        if busy:
            changes["last_busy_at"] = tx.now
        if attempt.ready_at is None:
            changes |= {"ready_at": tx.now, "state": "ready"}
            book.later([attempt.key], partial(_mark_running, key=attempt.key))
        if self._body.draining:
            changes |= {"draining": True, "drained_at": tx.now, "drain_reason": "WorkerDrained"}
        return book.patch_attempt(attempt, **changes)

    def _return_undelivered(self, tx: Tx, *, uid: str, attempt: AttemptRow) -> None:
        """Put back a call whose hand-out never reached the worker: uncounted, uncharged, first in its session."""
        book = CallBook.of(tx)
        row = book.present(uid, None)
        if row is None or not holds(attempt, row):
            return
        document = present_document(tx, row)
        if document is None or row.cancel_requested:
            conclude(tx, row, None, Outcome(cause=Cause.CANCELLED, ran_until=None), self._rules)
            return
        book.history.ended(
            row,
            tx.now,
            cause=UNDELIVERED,
            followed=None,
            reported=False,
            told="",
            charge_micro_usd=0,
            kept_max=self._rules.dispatches_kept_max,
        )
        stored = tx.put(row.key, transitions.returned_to_queue(document, tx.now))
        back = replace(row, state=CallState.QUEUED, priority=PRIORITY_REOFFERED, deadline=None, started_at=None)
        book.queue(back, turn=int(stored["metadata"]["resourceVersion"]))


def admitted(attempt: AttemptRow | None, claimant: Claimant) -> AttemptRow:
    """The worker, unless its word does not count any more; raises as `ClaimMutation` does."""
    if attempt is None or attempt.finished_at is not None or attempt.epoch != claimant.epoch:
        raise ApiError(
            Reason.NOT_FOUND,
            "this worker was replaced; its calls were taken from it",
            fix="Exit; a fresh worker has taken its place.",
            subject=("attempts", claimant.attempt),
        )
    if attempt.function_uid != claimant.function_uid:
        raise ApiError(Reason.WORKER_NOT_ALLOWED, "the credential belongs to a worker of another Function")
    return attempt


def _let_go(tx: Tx, row: CallRow) -> None:
    """Hold a call whose worker says that it was stopped until its runtime says so too (`calls/cancels.py`), or the
    worker is gone: only then its body surely is."""
    document = present_document(tx, row)
    if row.let_go_at is not None:
        return
    if document is not None and not transitions.is_terminal(document):
        tx.put(row.key, transitions.let_go(document, tx.now))
    CallBook.of(tx).save(replace(row, let_go_at=tx.now))


def _may_run_on(attempt: AttemptRow, row: CallRow) -> bool:
    return holds(attempt, row) and row.let_go_at is not None


def holds(attempt: AttemptRow, row: CallRow) -> bool:
    """Whether the call is in the hands of this worker."""
    return row.state is CallState.RUNNING and row.attempt == attempt.uid and row.epoch == attempt.epoch


def _outcome(report: Report, row: CallRow, tx: Tx, rules: CallRules) -> Outcome:
    """What the report means: the public worker names two of its user's own exceptions after the protocol's words."""
    if report.cause is Cause.DEADLINE and row.deadline is not None:
        early = (row.deadline - tx.now).total_seconds()
        if early > rules.deadline_early_seconds:
            return _raised(tx, "TimeoutError")
    if report.cause is Cause.CANCELLED and not row.cancel_requested:
        return _raised(tx, "asyncio.exceptions.CancelledError")
    return Outcome(
        cause=report.cause,
        ran_until=tx.now,
        result=report.result,
        error=report.error,
        reason=report.reason,
        detail=report.detail,
        reported=True,
    )


def _raised(tx: Tx, type_name: str) -> Outcome:
    """An exception of the function whose text the worker did not pass on."""
    message = "raised by the function; the worker reports neither its message nor its traceback"
    error = {"type": type_name, "message": message, "traceback": f"{type_name}: {message}\n"}
    return Outcome(cause=Cause.RAISED, ran_until=tx.now, error=error, reported=True)


def _mark_running(tx: Tx, *, key: Key) -> None:
    """The worker's Attempt object says Running from its first claim on."""
    document = tx.get(key)
    if document is None or document["status"].get("phase") not in ("Queued", "Provisioning"):
        return
    status = document["status"]
    timings = {**status.get("timings", {}), "registeredTime": format_time(tx.now)}
    progress = {**status.get("progress", {}), "stage": "Running"}
    changed = {**status, "phase": "Running", "progress": progress, "timings": timings}
    tx.put(key, {**document, "status": changed})
