"""What a call and its workflow say to each other: attach, offer again, finish, reported.

The workflow's `run_call` activity attaches its task token to the call's row; `activities/` completes it when the
row has something to tell. Each mutation here may be repeated: an activity whose commit succeeded and whose answer
was lost finds its work done. What the workflow answers names the dispatch it answers to, so an old answer never
meets a newer outcome.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from controlplane.calls import transitions
from controlplane.calls.book import CallBook
from controlplane.calls.decide import Facts, Finish
from controlplane.calls.history import Followed
from controlplane.calls.outcomes import end_call, present_document
from controlplane.calls.rows import (
    CALL_BY_UID,
    CALLS_OF_INCARNATION,
    CALLS_PER_WALK,
    PENDING_STATES,
    PRIORITY_REOFFERED,
    CallRef,
    CallRow,
    CallState,
)
from controlplane.calls.transitions import Ending
from controlplane.calls.waits import WaitReason
from controlplane.store.contract import Document, Reads, Tx


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The call is over. `phase` is empty when its object is gone as well."""

    phase: str
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """The form that travels to a workflow."""
        return {"phase": self.phase, "reason": self.reason}


@dataclass(frozen=True, kw_only=True)
class CallOutcome:
    """What the workflow learns of a dispatch: the call ended, or the facts it must decide on. One of the two is
    set."""

    ended: Ended | None = None
    facts: Facts | None = None

    def to_json(self) -> dict[str, Any]:
        """The form that travels as an activity's result."""
        if self.facts is not None:
            return {"facts": self.facts.to_json()}
        assert self.ended is not None
        return {"ended": self.ended.to_json()}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> CallOutcome:
        """The outcome back from `to_json`, and from the `outcome` column of a row."""
        if "facts" in value:
            return cls(facts=Facts.from_json(value["facts"]))
        return cls(ended=Ended(phase=value["ended"]["phase"], reason=value["ended"]["reason"]))


class AttachWorkflow:
    """Ties a workflow's activity to its call, after offering the call again if the workflow decided so.

    `offer_after` is the dispatch whose outcome the workflow answers by Retry or Recover; None for the first
    activity. The result is the outcome that waits for the workflow, or None when the call is queued or runs: then
    the activity is completed later by `token`.
    """

    def __init__(self, ref: CallRef, token: bytes, offer_after: int | None = None) -> None:
        self._ref = ref
        self._token = token
        self._offer_after = offer_after

    def reads(self) -> Reads:
        return Reads(keys=(self._ref.key,), loads=((CALL_BY_UID, self._ref.uid),))

    def apply(self, tx: Tx) -> CallOutcome | None:
        book = CallBook.of(tx)
        row = _row(tx, self._ref)
        if row is None:
            return _ended_without_row(tx, self._ref)
        if row.state is CallState.DONE:
            book.remove(row)
            return CallOutcome.from_json(row.outcome or {})
        if row.state in PENDING_STATES:
            if row.dispatches != self._offer_after:
                _note_answer(tx, row)
                book.save(replace(row, state=CallState.WAITING, has_workflow=True, task_token=None))
                return CallOutcome.from_json(row.outcome or {})
            document = present_document(tx, row)
            if document is None:
                book.remove(row)
                return CallOutcome(ended=Ended(phase=""))
            row = self._offer(tx, row, document)
        attached = replace(row, has_workflow=True, task_token=self._token)
        book.save(attached)
        if attached.state is CallState.QUEUED:
            # While the engine lags, it is the workflow that makes a call claimable.
            book.claimable.add(attached.function_uid)
        return None

    def _offer(self, tx: Tx, row: CallRow, document: Document) -> CallRow:
        CallBook.of(tx).history.applied(row, tx.now)
        stored = tx.put(row.key, transitions.offered(document, tx.now, alone=row.suspect))
        offered = replace(row, state=CallState.QUEUED, priority=PRIORITY_REOFFERED, outcome=None, has_workflow=True)
        CallBook.of(tx).queue(offered, turn=int(stored["metadata"]["resourceVersion"]))
        return offered


class FinishCall:
    """Ends a call as its workflow decided about `dispatch`; the result tells how the call stands.

    None means that the call went on meanwhile (it is queued or runs): the workflow attaches again.
    """

    def __init__(self, ref: CallRef, dispatch: int, finish: Finish) -> None:
        self._ref = ref
        self._dispatch = dispatch
        self._finish = finish

    def reads(self) -> Reads:
        return Reads(keys=(self._ref.key,), loads=((CALL_BY_UID, self._ref.uid),))

    def apply(self, tx: Tx) -> Ended | None:
        row = _row(tx, self._ref)
        if row is None:
            return _ended_without_row(tx, self._ref).ended
        if row.state in PENDING_STATES and row.dispatches == self._dispatch:
            CallBook.of(tx).history.applied(row, tx.now, Followed.FINISH)
            end_call(tx, row, present_document(tx, row), Ending(finish=self._finish))
            CallBook.of(tx).remove(row)
            return Ended(phase=self._finish.phase, reason=self._finish.reason)
        if row.state is CallState.DONE:
            CallBook.of(tx).remove(row)
            return CallOutcome.from_json(row.outcome or {}).ended
        return None


class MarkReported:
    """Notes that the engine took an outcome by this token, or that the token is none of its any more.

    An ended call's row is done with; a call that goes on waits for its workflow's next activity. `token` is None for a
    call whose workflow completed without leaving one.
    """

    def __init__(self, ref: CallRef, token: bytes | None) -> None:
        self._ref = ref
        self._token = token

    def reads(self) -> Reads:
        return Reads(loads=((CALL_BY_UID, self._ref.uid),))

    def apply(self, tx: Tx) -> None:
        book = CallBook.of(tx)
        row = _row(tx, self._ref)
        if row is None or row.task_token != self._token:
            return
        if row.state is CallState.DONE:
            book.remove(row)
        elif row.state is CallState.DECIDING:
            book.save(replace(row, state=CallState.WAITING, task_token=None))


class DetachWorkflow:
    """Notes that the engine knows nothing of this token or this call's workflow, so that the starter starts it
    again."""

    def __init__(self, ref: CallRef, token: bytes | None) -> None:
        self._ref = ref
        self._token = token

    def reads(self) -> Reads:
        return Reads(loads=((CALL_BY_UID, self._ref.uid),))

    def apply(self, tx: Tx) -> None:
        row = _row(tx, self._ref)
        if row is not None and row.task_token == self._token:
            CallBook.of(tx).save(replace(row, has_workflow=False, task_token=None))


class ForgetEngine:
    """Treats calls as ones without a workflow, because the engine's database is no longer the one known as `was`.

    It takes the next `CALLS_PER_WALK` calls after the uid `after`. The result is where to go on, None at the end. Once
    another incarnation is known, which is the end of starting over, it finds nothing: calls that were started since
    keep their workflows.
    """

    def __init__(self, was: str, after: str = "") -> None:
        self._argument = f"{was}/{after}"

    def reads(self) -> Reads:
        return Reads(loads=((CALLS_OF_INCARNATION, self._argument),))

    def apply(self, tx: Tx) -> str | None:
        book = CallBook.of(tx)
        loaded = [CallRow.from_record(record) for record in tx.rows(CALLS_OF_INCARNATION, self._argument)]
        for row in book.see(loaded):
            if row.has_workflow:
                book.save(replace(row, has_workflow=False, task_token=None))
        return loaded[-1].uid if len(loaded) == CALLS_PER_WALK else None


def _row(tx: Tx, ref: CallRef) -> CallRow | None:
    records = tx.rows(CALL_BY_UID, ref.uid)
    return CallBook.of(tx).present(ref.uid, CallRow.from_json(records[0]) if records else None)


def _note_answer(tx: Tx, row: CallRow) -> None:
    """A call that said it waits for the engine (`activities/queue_explainer.py`) does not say so any longer."""
    document = present_document(tx, row)
    if document is None or transitions.scheduled_reason(document) != WaitReason.ENGINE_UNAVAILABLE:
        return
    if transitions.phase_of(document) is transitions.Phase.RECOVERING:
        reason, message = WaitReason.RECOVERING, f"recovery {row.recoveries} is being scheduled"
    else:
        reason, message = WaitReason.RETRY_SCHEDULED, f"retry {row.retries} is being scheduled"
    tx.put(row.key, transitions.waiting(document, tx.now, reason, message))


def _ended_without_row(tx: Tx, ref: CallRef) -> CallOutcome:
    """A row is dropped only when its call ended, so the object tells how, if it is still there."""
    document = tx.get(ref.key)
    if document is None or document["metadata"]["uid"] != ref.uid:
        return CallOutcome(ended=Ended(phase=""))
    status = document["status"]
    return CallOutcome(ended=Ended(phase=status["phase"], reason=status.get("reason", "")))
