"""What the generic verbs do to calls: a create enters the queue, a cancel and a delete leave it.

`FunctionCallHooks` runs inside the transaction of a create, update or delete of a FunctionCall, beside the object's
own write, so a call is in the queue from the commit that made it. The `Dispatcher` sees in the same batch what
became claimable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from controlplane.calls import transitions
from controlplane.calls.book import CallBook
from controlplane.calls.decide import Finish
from controlplane.calls.funding import most_of_call
from controlplane.calls.outcomes import close_row
from controlplane.calls.rows import CALL_BY_KEY, CALL_BY_UID, PRIORITY_NEW, CallRow, CallState, key_argument
from controlplane.calls.transitions import Ending, Phase
from controlplane.calls.waits import WaitReason, pool_of, queue_reason, stored_message
from controlplane.errors import ApiError, Reason
from controlplane.kinds.quotes import bound_as, within_quote
from controlplane.ledger.limits import Limit, SpendingLimits, labels_of_work
from controlplane.ledger.reservations import LIMIT_ROWS, remaining, want_less
from controlplane.ledger.worker_accounts import FundingRules
from controlplane.machinery.quantities import format_money
from controlplane.placement.placements import Placements
from controlplane.settings import Settings
from controlplane.store.contract import Document, Key, Reads, Tx
from controlplane.store.finalizers import CALL, is_deleting, with_finalizer
from controlplane.store.hooks import PlainHooks

_CANCELLED = Finish(phase="Cancelled", reason="Cancelled", message="the call was cancelled")
_ESTIMATED = ("costUSD", "rateUSDPerHour", "minimumChargeUSD", "pricebookVersion")
"""Of a Function's estimate, what each new call keeps: there may be a million calls, and the rest is of workers."""
_FREE = format_money(0)


class FunctionCallHooks(PlainHooks):
    """The kind's part of each verb; documents were validated and defaulted before."""

    def __init__(self, limits: SpendingLimits, settings: Settings, placements: Placements) -> None:
        self._limits = limits
        self._settings = settings
        self._funding = FundingRules.from_settings(settings)
        self._placements = placements

    def reads_create(self, key: Key, document: Document) -> Reads:
        function = _function_key(key, document)
        limits = self._limits.of(function)
        if not limits:
            return Reads(keys=(function,))
        return Reads(keys=(function,), loads=[(LIMIT_ROWS, limit.id) for limit in limits])

    def admit_create(self, tx: Tx, key: Key, document: Document) -> Document:
        """Refuse a call of a Function that is gone: it may have been deleted since admission looked."""
        function = tx.get(_function_key(key, document))
        if function is None or is_deleting(function):
            name = document["spec"]["function"]
            raise ApiError(
                Reason.FUNCTION_NOT_FOUND,
                f'functions.nodus.dev "{name}" not found',
                subject=("functions", name),
            )
        document = _estimated(bound_as(function, document), function)
        if document["spec"].get("state") == "Cancelled":
            return transitions.ended(document, tx.now, Ending(finish=_CANCELLED), cost_micro_usd=0)
        self._require_funds(tx, key, document, function)
        pool = pool_of(function)
        reason = queue_reason(pool)
        if reason is WaitReason.QUEUED:
            return document  # which says so already; nearly all calls of a busy Function come here
        return transitions.waiting(document, tx.now, reason, stored_message(reason, pool))

    def _require_funds(self, tx: Tx, key: Key, document: Document, function: Document) -> None:
        """402 when a limit has no room for the call even once all that runs has given its reservations back. One that
        fits then waits in the queue: a map is taken as a whole and runs as far as the money reaches."""
        limits, needed = self._covering(key, document, function)
        if not limits:
            return
        worker = 0
        if pool_of(function).capped:
            # It has no worker, and needs to pay one as well before it can run anything.
            capacity = self._placements.of(function["spec"])
            rate = within_quote(function, capacity.rate_micro_usd_per_hour)
            worker = self._funding.least_reserved_micro_usd(rate, capacity.billing)
        for limit in limits:
            least = needed + (worker if limit.function_uid is not None else 0)
            left = remaining(limit, tx.rows(LIMIT_ROWS, limit.id), tx.now)
            if left < least:
                raise limit.refusal(least, left)

    def _covering(self, key: Key, document: Document, function: Document) -> tuple[list[Limit], int]:
        """The limits that may hold the call up, and the most that a run of it may cost, in micro-USD."""
        limits = [limit for limit in self._limits.of(_function_key(key, document)) if limit.blocks]
        if not limits:
            return [], 0
        shares = function["spec"].get("scaling", {}).get("targetConcurrency", 1)
        rate = self._placements.of(function["spec"]).rate_micro_usd_per_hour
        needed = most_of_call(document, rate, shares, self._settings)
        labels = labels_of_work(function["metadata"].get("labels"), document["metadata"].get("labels"))
        return [limit for limit in limits if needed and limit.covers(labels)], needed

    def created(self, tx: Tx, key: Key, document: Document) -> None:
        if transitions.is_terminal(document):
            return
        function = tx.get(_function_key(key, document))
        assert function is not None, f"{key} was admitted without its Function"
        metadata, revision = document["metadata"], int(document["metadata"]["resourceVersion"])
        row = CallRow(
            uid=metadata["uid"],
            org=key.org,
            project=key.project,
            name=key.name,
            function=document["spec"]["function"],
            function_uid=function["metadata"]["uid"],
            session=_session(document),
            state=CallState.QUEUED,
            priority=PRIORITY_NEW,
            seq=revision,
            created_at=tx.now,
            updated_at=tx.now,
        )
        CallBook.of(tx).queue(row, turn=revision)
        limits, needed = self._covering(key, document, function)
        for limit in limits:
            want_less(tx, limit, needed)

    def reads_update(self, key: Key, document: Document) -> Reads:
        if document["spec"].get("state") != "Cancelled":
            return Reads()
        return Reads(loads=((CALL_BY_UID, document["metadata"]["uid"]),))

    def updated(self, tx: Tx, key: Key, old: Document, new: Document) -> Document:
        cancelled = new["spec"].get("state") == "Cancelled" and old["spec"].get("state") != "Cancelled"
        if not cancelled:
            return new
        if transitions.is_terminal(old):
            # It came too late and has no effect: the object goes on saying what the call was when it ended.
            metadata = {**new["metadata"], "generation": old["metadata"].get("generation", 1)}
            return {**new, "metadata": metadata, "spec": old["spec"]}
        return _cancel(tx, _row(tx, new, tx.rows(CALL_BY_UID, new["metadata"]["uid"])), new)

    def reads_delete(self, key: Key) -> Reads:
        return Reads(loads=((CALL_BY_KEY, key_argument(key)),))

    def deleting(self, tx: Tx, key: Key, document: Document) -> Document:
        """Deleting a call that has not ended cancels it; one that runs stays until its worker has let go of it."""
        if transitions.is_terminal(document):
            return document
        document = _cancel(tx, _row(tx, document, tx.rows(CALL_BY_KEY, key_argument(key))), document)
        if transitions.is_terminal(document):
            # Put before it is removed: whoever waits for a call that goes away learns how it ended.
            return tx.put(key, document)
        return with_finalizer(document, CALL)

    def removed(self, tx: Tx, key: Key, document: Document) -> None:
        """The object is gone; a row stays only for a workflow that must still learn of the end."""
        CallBook.of(tx).history.forget(document["metadata"]["uid"])
        row = _row(tx, document, tx.rows(CALL_BY_KEY, key_argument(key)))
        if row is None:
            return
        if row.state is CallState.DONE:
            if not row.has_workflow:
                CallBook.of(tx).remove(row)
        else:
            # Somebody took the finalizer off by hand; the worker is told to stop the call by its next claim.
            close_row(CallBook.of(tx), row, _CANCELLED, removed=True)


def _cancel(tx: Tx, row: CallRow | None, document: Document) -> Document:
    """Cancelled at once unless a worker has the call; then Cancelling until the worker reports or its grace is
    over."""
    if transitions.phase_of(document) is Phase.CANCELLING:
        return document
    if row is not None and row.state is CallState.RUNNING:
        CallBook.of(tx).save(replace(row, cancel_requested_at=tx.now))
        return transitions.cancelling(document, tx.now)
    charged = row.charge_micro_usd if row is not None else 0
    if row is not None:
        close_row(CallBook.of(tx), row, _CANCELLED, removed=False)
    return transitions.ended(document, tx.now, Ending(finish=_CANCELLED), charged)


def _row(tx: Tx, document: Document, records: Sequence[Mapping[str, Any]]) -> CallRow | None:
    """The present row of the call, given the records that were loaded for it."""
    loaded = CallRow.from_json(records[0]) if records else None
    return CallBook.of(tx).present(document["metadata"]["uid"], loaded)


def _estimated(document: Document, function: Document) -> Document:
    """The call with what its Function's estimate says of one; where nothing costs anything it has none."""
    told = function.get("status", {}).get("estimate") or {}
    if "estimate" in document["status"] or told.get("rateUSDPerHour", _FREE) == _FREE:
        return document
    own = {name: told[name] for name in _ESTIMATED if name in told}
    return {**document, "status": {**document["status"], "estimate": own}}


def _function_key(key: Key, document: Document) -> Key:
    return Key("Function", key.org, key.project, document["spec"]["function"])


def _session(document: Document) -> str:
    """The caller's session, in a form that PostgreSQL stores: text there has no NUL."""
    session: str = document["spec"].get("session") or ""
    return session.replace("\0", "\N{REPLACEMENT CHARACTER}")
