"""How a dispatch ends: charge it, decide what follows, and write call, row and tally in one transaction.

Everything that takes a call from a worker comes here: a report (`calls/claims.py`), a lost worker, a deadline, a
deleted Function (`calls/recovery.py`), and what a workflow decided (`calls/engine.py`). An end is applied at once;
what continues the call is left as facts in the row for its workflow, which decides by the same `decide` and offers
the call again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from controlplane.calls import transitions
from controlplane.calls.book import CallBook
from controlplane.calls.decide import Cause, Decision, Facts, Finish, Recover, Retry, decide
from controlplane.calls.rows import CallRow, CallState
from controlplane.calls.transitions import Ending
from controlplane.clock import format_time
from controlplane.kinds.quotes import quote_of
from controlplane.ledger.limits import labels_of_work
from controlplane.ledger.transfers import Basis, Subject, charge, record
from controlplane.ledger.worker_accounts import CallWork
from controlplane.machinery.quantities import parse_duration
from controlplane.settings import Settings
from controlplane.store.contract import Document, Tx
from controlplane.store.finalizers import CALL, is_deleting, settle, without_finalizer

_RECOVERIES_MAX_DEFAULT = 3


@dataclass(frozen=True, kw_only=True)
class CallRules:
    """The settings that outcomes depend on."""

    retry_jitter_fraction: float
    deadline_early_seconds: float
    deadline_grace_seconds: int
    cancel_grace_seconds: int
    dispatches_kept_max: int

    @classmethod
    def from_settings(cls, settings: Settings) -> CallRules:
        """The rules of this server."""
        return cls(
            retry_jitter_fraction=settings.retry_jitter_fraction,
            deadline_early_seconds=settings.deadline_early_seconds,
            deadline_grace_seconds=settings.deadline_grace_seconds,
            cancel_grace_seconds=settings.cancel_grace_seconds,
            dispatches_kept_max=settings.call_dispatches_kept_max,
        )


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one dispatch. `ran_until` ends the time that is charged; None when there is no sign that it
    ran. A loss is `suspicious` when the call may have ended its worker; `beside` are the calls it shared it with.
    `reported` tells whether the worker itself said so."""

    cause: Cause
    ran_until: datetime | None
    result: Mapping[str, Any] | None = None
    error: Mapping[str, str] | None = None
    reason: str = ""
    detail: str = ""
    suspicious: bool = False
    beside: int = 0
    reported: bool = False


def conclude(tx: Tx, row: CallRow, function: Document | None, outcome: Outcome, rules: CallRules) -> Decision:
    """End the present dispatch of a call: charge it, then end the call or leave it to its workflow.

    `function` is its Function if that still exists; only causes that can continue a call read it. The call's object
    must be loaded. A call that does not run is not charged.
    """
    charged = _charged(tx, row, outcome, rules)
    cost, row = charged.charge_micro_usd - row.charge_micro_usd, charged
    facts = facts_of(row, function, outcome, rules)
    decision = decide(facts)
    document = present_document(tx, row)
    if document is not None and row.state is CallState.RUNNING:
        # What its worker let go of was cancelled, by the worker's own word, however the worker ended then.
        let_go = row.let_go_at is not None
        told = transitions.described(outcome.error) if outcome.error else outcome.detail
        CallBook.of(tx).history.ended(
            row,
            tx.now,
            cause=Cause.CANCELLED if let_go else outcome.cause,
            followed=decision,
            reported=outcome.reported or let_go,
            told="" if let_go else told,
            charge_micro_usd=cost,
            kept_max=rules.dispatches_kept_max,
        )
    match decision:
        case Finish():
            end_call(tx, row, document, Ending(finish=decision, result=outcome.result, error=outcome.error))
        case _ if document is None or transitions.is_terminal(document):
            # Its object was taken away by force; there is nothing to run it for.
            end_call(tx, row, document, Ending(finish=Finish(phase="Cancelled", reason="Cancelled")))
        case Retry() | Recover():
            _leave_to_workflow(tx, row, document, facts, decision, outcome)
    return decision


def facts_of(row: CallRow, function: Document | None, outcome: Outcome, rules: CallRules) -> Facts:
    """What a decision about this dispatch depends on."""
    spec = function["spec"] if function is not None else {}
    retries, recovery = spec.get("retries") or {}, spec.get("recovery") or {}
    return Facts(
        call_uid=row.uid,
        cause=outcome.cause,
        dispatch=row.dispatches,
        cancel_requested=row.cancel_requested,
        retries=row.retries,
        retries_max=retries.get("maxRetries", 0),
        initial_delay_seconds=duration_seconds(retries.get("initialDelay", "1s")),
        backoff_coefficient=float(retries.get("backoffCoefficient", 2.0)),
        max_delay_seconds=duration_seconds(retries.get("maxDelay", "60s")),
        jitter_fraction=rules.retry_jitter_fraction,
        recoveries=row.recoveries,
        recoveries_max=recovery.get("maxAttempts", _RECOVERIES_MAX_DEFAULT),
        excused=row.excused,
        unproven=outcome.suspicious and outcome.beside > 0 and not row.excused,
        fail_on_loss=recovery.get("onInterruption") == "Fail",
        reason=outcome.reason,
        detail=outcome.detail,
    )


def end_call(tx: Tx, row: CallRow, document: Document | None, ending: Ending) -> None:
    """Put the call in its last phase, or remove its object when a delete only waited for this.

    The row stays until the call's workflow knows the end, and goes at once when there will be none.
    """
    book = CallBook.of(tx)
    removed = document is None
    if document is not None and not transitions.is_terminal(document):
        ended = transitions.ended(document, tx.now, ending, row.charge_micro_usd)
        # Put first: whoever watches a call that goes away sees how it ended.
        stored = tx.put(row.key, without_finalizer(ended, CALL))
        removed = is_deleting(stored) and settle(tx, row.key, stored) is None
        if removed:
            book.history.forget(row.uid)
    close_row(book, row, ending.finish, removed=removed)


def close_row(book: CallBook, row: CallRow, finish: Finish, *, removed: bool) -> None:
    """Mark a row done. A call whose object is gone and that has no workflow needs none any more."""
    ended = {"phase": finish.phase, "reason": finish.reason, "dispatch": row.dispatches}
    done = replace(row, state=CallState.DONE, outcome={"ended": ended}, deadline=None)
    if removed and not row.has_workflow:
        book.remove(done)
    else:
        book.save(done)


def present_document(tx: Tx, row: CallRow) -> Document | None:
    """The call's object, or None when it is gone or another call has its name now."""
    document = tx.get(row.key)
    return document if document is not None and document["metadata"]["uid"] == row.uid else None


@lru_cache(maxsize=1_024)
def duration_seconds(text: str) -> float:
    """`parse_duration`, remembered: the few durations of a Function are read again with each of its calls."""
    return parse_duration(text)


def _charged(tx: Tx, row: CallRow, outcome: Outcome, rules: CallRules) -> CallRow:
    """The row with what its present dispatch costs, which enters the ledger with this batch."""
    if row.state is not CallState.RUNNING or row.started_at is None:
        return row
    cost, book = 0, CallBook.of(tx)
    if outcome.ran_until is not None:
        basis = Basis(
            dispatch=row.dispatches,
            period_start=row.started_at,
            # A node may tell its end by a clock that is ahead: nobody pays for what has not been yet.
            period_end=_within_time(row, min(outcome.ran_until, tx.now), rules),
            rate_micro_usd_per_hour=row.rate_micro_usd_per_hour,
            shares=row.concurrency or 1,
            pricebook=row.pricebook,
            offering=row.offering,
        )
        is_covered = _is_our_loss(row, outcome)
        if not is_covered:
            cost = basis.cost_micro_usd
            record(tx, charge(row.org, cost, _subject(tx, row), basis))
        # A call that was quoted nothing takes its place of a worker that costs something all the same.
        is_priced = row.rate_micro_usd_per_hour or quote_of(present_document(tx, row)) is not None
        if is_priced and row.attempt is not None:
            book.work(row.attempt, _work(basis, cost, is_covered=is_covered))
    book.charge(row, cost)
    return replace(row, charge_micro_usd=row.charge_micro_usd + cost)


def _work(basis: Basis, cost_micro_usd: int, *, is_covered: bool) -> CallWork:
    """What the dispatch took of its worker: nobody is charged for that a second time as for an idle place."""
    seconds = basis.charged_seconds
    return CallWork(
        call_seconds=seconds,
        covered_call_seconds=seconds if is_covered else 0,
        call_micro_usd=cost_micro_usd,
        calls_until=basis.period_end,
    )


def _is_our_loss(row: CallRow, outcome: Outcome) -> bool:
    """Whether the platform lost the worker, so that what ran there is not the caller's to pay: a node that vanished or
    was stopped, an API that did not answer. A worker that its calls may have brought down is charged, and so is a
    body that went on after its cancel until its worker was ended (docs/decisions/0024)."""
    return outcome.cause is Cause.LOST and not outcome.suspicious and not row.cancel_requested


def _subject(tx: Tx, row: CallRow) -> Subject:
    document = present_document(tx, row)
    own = document["metadata"].get("labels") if document is not None else None
    return Subject(
        kind="FunctionCall",
        project=row.project,
        name=row.name,
        uid=row.uid,
        function_uid=row.function_uid,
        function_name=row.function,
        labels=labels_of_work(row.function_labels, own),
    )


def _within_time(row: CallRow, ran_until: datetime, rules: CallRules) -> datetime:
    """No call is charged for longer than it may run: what comes after its deadline and the grace is our own delay, or a
    clock that was set."""
    if row.deadline is None:
        return ran_until
    return min(ran_until, row.deadline + timedelta(seconds=rules.deadline_grace_seconds))


def _leave_to_workflow(
    tx: Tx, row: CallRow, document: Document, facts: Facts, decision: Retry | Recover, outcome: Outcome
) -> None:
    row = replace(row, state=CallState.DECIDING, outcome={"facts": facts.to_json()}, deadline=None)
    if isinstance(decision, Retry):
        row = replace(row, retries=row.retries + 1)
        raised = transitions.described(outcome.error) if outcome.error else "the function raised"
        delay_seconds = decision.delay_seconds
        due = format_time(tx.now + timedelta(seconds=delay_seconds))
        message = (
            f"retry {row.retries} of {facts.retries_max} follows in {delay_seconds:.1f} s, at {due}, after {raised}"
        )
        changed = transitions.retry_scheduled(
            document, tx.now, retries=row.retries, message=message, cost_micro_usd=row.charge_micro_usd
        )
    else:
        row = replace(
            row,
            recoveries=row.recoveries + 1,
            suspect=row.suspect or outcome.suspicious,
            excused=row.excused or facts.unproven,
        )
        message = _recovery_message(row, facts, outcome)
        changed = transitions.recovering(
            document, tx.now, recoveries=row.recoveries, message=message, cost_micro_usd=row.charge_micro_usd
        )
    tx.put(row.key, changed)
    CallBook.of(tx).save(row)


def _recovery_message(row: CallRow, facts: Facts, outcome: Outcome) -> str:
    """Why the call is offered again, and whether that counts (docs/decisions/0013-suspects-run-alone.md)."""
    lost = outcome.detail or "its worker was lost"
    if facts.unproven:
        others = "another call" if outcome.beside == 1 else f"{outcome.beside} other calls"
        return f"{lost} while {others} ran on it; this recovery does not count, and the call runs alone from now on"
    counted = row.recoveries - row.excused
    alone = "; the call runs alone from now on" if outcome.suspicious else ""
    return f"{lost}; recovery {counted} of {facts.recoveries_max} is being scheduled{alone}"
