"""Charging a worker itself: what its calls did not take of it, its start and its stop; and renewing what it holds.

`SettleWorker` runs in the commit that ends the worker, `RenewFunds` whenever its hold is nearly used up. Both charge
what has passed since the last time by `ledger/worker_costs.py`; entries are named by the worker, the segment and the
number of the settlement, and the account moves in the same commit, so a repetition finds nothing left to charge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from controlplane.calls.book import CallBook
from controlplane.calls.rows import CLAIMANT, AttemptRow, CallState, claimant_rows
from controlplane.capacity.endings import WorkerEnd, is_platforms_fault
from controlplane.capacity.pool import DrainReason
from controlplane.ledger.accounts import BALANCE
from controlplane.ledger.limits import Limit
from controlplane.ledger.pricing import call_charge_micro_usd
from controlplane.ledger.reservations import LIMIT_ROWS
from controlplane.ledger.transfers import Basis, charge, record
from controlplane.ledger.worker_accounts import (
    ACCOUNT,
    CallWork,
    FundingRules,
    Needs,
    WorkerAccount,
    close_account,
    hold_next,
    keep_reserved,
    present_account,
    save_account,
)
from controlplane.ledger.worker_costs import Life, Portion, Segment, Served, portions, whole_seconds, within
from controlplane.machinery.quantities import format_money
from controlplane.store.contract import Document, Key, Reads, Tx

# One statement takes all of a batch, and a row may be changed once in it.
ADD_SEGMENTS = """
INSERT INTO function_segments (function_uid, segment, org, amount_micro_usd, seconds, covered_seconds)
SELECT function_uid, segment, min(org), sum(amount_micro_usd), sum(seconds), sum(covered_seconds)
FROM json_populate_recordset(NULL::function_segments, $rows) GROUP BY function_uid, segment
ON CONFLICT (function_uid, segment) DO UPDATE SET
    amount_micro_usd = function_segments.amount_micro_usd + EXCLUDED.amount_micro_usd,
    seconds = function_segments.seconds + EXCLUDED.seconds,
    covered_seconds = function_segments.covered_seconds + EXCLUDED.covered_seconds
"""


class SettleWorker:
    """Charges what is left of a worker that has ended, releases its hold and writes in its Attempt what it came to.

    `ended_at` is when its process ended, or None where nobody saw that; then it is charged up to its last claim. What
    it still held must be given back in the same batch (`calls/recovery.py`). A worker without an account, because it
    costs nothing or was settled before, is left alone.
    """

    def __init__(self, key: Key, ended_at: datetime | None, end: WorkerEnd, rules: FundingRules) -> None:
        self._key = key
        self._ended_at = ended_at
        self._end = end
        self._rules = rules

    def reads(self) -> Reads:
        return Reads(loads=((ACCOUNT, self._key.name), (CLAIMANT, self._key.name)))

    def apply(self, tx: Tx) -> None:
        if present_account(tx, self._key.name) is not None:
            # After the calls that the worker held: what they took of it is not idle.
            CallBook.of(tx).later([self._key], self._settle)

    def _settle(self, tx: Tx) -> None:
        book = CallBook.of(tx)
        account = present_account(tx, self._key.name)
        attempt = book.attempt(claimant_rows(tx.rows(CLAIMANT, self._key.name))[0])
        if account is None or attempt is None:
            return
        end = _End(
            ended_at=self._ended_at or attempt.last_claim_at or account.started_at or tx.now,
            at_fault=is_platforms_fault(self._end, attempt.drain_reason),
        )
        account, settled = _charge(tx, account, attempt, self._rules, end=end)
        came_to = _came_to(account, settled, book.worked(account.uid))
        _move_covered(tx, account, came_to[Segment.RUNNING].covered_seconds)
        close_account(tx, account)
        document = tx.get(self._key)
        if document is not None:
            status = document["status"]
            timings = {**status.get("timings", {}), **_timings(came_to)}
            tx.put(self._key, {**document, "status": {**status, "actual": _actual(came_to), "timings": timings}})


class RenewFunds:
    """Charges what an idle worker came to since the last time, and holds the price of its next window instead of the
    last one's. The result tells whether there was something to renew.

    Where the money does not reach, the worker is to go: it finishes its calls, which were begun under a hold, and takes
    no more. A worker that is leaving anyway keeps its old hold then.
    """

    def __init__(self, key: Key, rules: FundingRules, limits: Sequence[Limit] = ()) -> None:
        self._key = key
        self._rules = rules
        self._limits = limits

    def reads(self) -> Reads:
        uid = self._key.name
        limits = tuple((LIMIT_ROWS, limit.id) for limit in self._limits)
        return Reads(loads=((ACCOUNT, uid), (CLAIMANT, uid), (BALANCE, self._key.org), *limits))

    def apply(self, tx: Tx) -> bool:
        account = present_account(tx, self._key.name)
        if account is None or not account.is_due(tx.now):
            return False
        book = CallBook.of(tx)
        loaded, held = claimant_rows(tx.rows(CLAIMANT, self._key.name))
        attempt = book.attempt(loaded)
        if attempt is None or attempt.finished_at is not None:
            # Its end was written by a server that knows no accounts.
            close_account(tx, account)
            return True
        running = [row for row in book.see(held) if row.state is CallState.RUNNING and row.attempt == account.uid]
        begun = [row.started_at for row in running if row.started_at is not None]
        account, settled = _charge(tx, account, attempt, self._rules, in_hand=begun)
        rate = account.rate_micro_usd_per_hour
        accrued = sum(call_charge_micro_usd(_lived_seconds(start, tx.now), rate, account.shares) for start in begun)
        needs = Needs(
            limits=self._limits,
            accrued_micro_usd=accrued,
            charged_micro_usd=sum(portion.amount_micro_usd for portion in settled),
            start_seconds=_start_seconds(account, attempt, tx.now),
            lived_seconds=0 if account.started_at is None else whole_seconds(account.started_at, tx.now),
        )
        held_next = hold_next(tx, account, self._rules, needs)
        if held_next is None:
            # Asked again after a window: the money may have come while it finishes its calls.
            account = keep_reserved(tx, account, self._limits)
            held_next = replace(account, look_at=tx.now + self._rules.window)
            if not attempt.draining:
                book.patch_attempt(attempt, draining=True, drain_reason=DrainReason.UNFUNDED, drained_at=tx.now)
        save_account(tx, held_next)
        return True


@dataclass(frozen=True, kw_only=True)
class _End:
    """When a worker was gone, and whether that was the platform's fault."""

    ended_at: datetime
    at_fault: bool


@dataclass(frozen=True, kw_only=True)
class _Came:
    """What a worker came to in one segment of its life."""

    amount_micro_usd: int = 0
    seconds: int = 0
    covered_seconds: int = 0
    rounding_seconds: int = 0
    """Charged with it and not lived."""


def _charge(
    tx: Tx,
    account: WorkerAccount,
    attempt: AttemptRow,
    rules: FundingRules,
    *,
    end: _End | None = None,
    in_hand: Sequence[datetime] = (),
) -> tuple[WorkerAccount, Sequence[Portion]]:
    """Charge what is to be settled now; the account after it, and what was settled. `in_hand` are the starts of
    calls that still run."""
    work = CallBook.of(tx).worked(account.uid)
    started_at = account.started_at or attempt.ready_at
    if started_at is None:
        return account, ()  # Nobody ever saw it run.
    life = Life(
        started_at=started_at,
        ready_at=attempt.ready_at,
        stopped_at=None if in_hand else _stopped_at(account, work.calls_until),
        ended_at=None if end is None else end.ended_at,
        now=tx.now,
    )
    served = Served(
        settled_seconds=account.settled_seconds,
        settled_call_seconds=account.settled_call_seconds,
        call_seconds=account.call_seconds + work.call_seconds + sum(_lived_seconds(begun, tx.now) for begun in in_hand),
    )
    settled = portions(
        account.terms,
        life,
        served,
        at_fault=end is not None and end.at_fault,
        teardown_seconds_max=rules.teardown_seconds_max,
    )
    if account.limited:
        settled = within(settled, account.terms, account.reserved_micro_usd)
    number = account.settlements + 1
    for portion in settled:
        _record(tx, account, number, portion)
    running = [portion for portion in settled if portion.segment is Segment.RUNNING]
    account = replace(
        account,
        settlements=number,
        settled_seconds=account.settled_seconds + sum(portion.seconds for portion in running),
        settled_call_seconds=max(served.settled_call_seconds, served.call_seconds),
        idle_micro_usd=account.idle_micro_usd + sum(portion.amount_micro_usd for portion in running),
    )
    charged = sum(portion.amount_micro_usd for portion in settled)
    return replace(account, reserved_micro_usd=max(0, account.reserved_micro_usd - charged)), settled


def _start_seconds(account: WorkerAccount, attempt: AttemptRow, now: datetime) -> int:
    """How long its start has taken, which is charged at its end."""
    return 0 if account.started_at is None else whole_seconds(account.started_at, attempt.ready_at or now)


def _lived_seconds(begun: datetime, now: datetime) -> int:
    """Whole seconds that a call has taken for certain; what it is charged for in the end is no less."""
    return max(0, int((now - begun).total_seconds()))


def _stopped_at(account: WorkerAccount, ended_call_at: datetime | None) -> datetime | None:
    """When the worker was asked to go and held no call any more; None while nobody has asked it."""
    if account.drained_at is None:
        return None
    ends = [time for time in (account.calls_until, ended_call_at) if time is not None]
    return max([account.drained_at, *ends])


def _record(tx: Tx, account: WorkerAccount, number: int, portion: Portion) -> None:
    """Let a portion enter the ledger and the sums of its Function."""
    basis = Basis(
        dispatch=number,
        period_start=portion.period_start,
        period_end=portion.period_end,
        rate_micro_usd_per_hour=account.rate_micro_usd_per_hour,
        shares=portion.shares,
        pricebook=account.pricebook,
        offering=account.offering,
        segment=portion.segment,
        seconds=portion.charged_seconds,
    )
    record(tx, charge(account.org, portion.amount_micro_usd, account.subject, basis))
    CallBook.of(tx).charge_worker(account, portion.amount_micro_usd)
    charged_seconds = portion.seconds + portion.rounding_seconds
    _add(tx, account, portion.segment, portion.amount_micro_usd, charged_seconds, portion.covered_seconds)


def _move_covered(tx: Tx, account: WorkerAccount, covered_seconds: int) -> None:
    """Of the Running time of its Function, this much was the platform's, which lost the calls that took it."""
    if covered_seconds:
        _add(tx, account, Segment.RUNNING, 0, -covered_seconds, covered_seconds)


def _add(
    tx: Tx, account: WorkerAccount, segment: Segment, amount_micro_usd: int, seconds: int, covered_seconds: int
) -> None:
    tx.join(
        ADD_SEGMENTS,
        {
            "function_uid": account.function_uid,
            "segment": segment,
            "org": account.org,
            "amount_micro_usd": amount_micro_usd,
            "seconds": seconds,
            "covered_seconds": covered_seconds,
        },
    )


def _came_to(account: WorkerAccount, settled: Sequence[Portion], work: CallWork) -> dict[Segment, _Came]:
    """By segment, with what its calls were charged in Running."""
    came = {
        portion.segment: _Came(
            amount_micro_usd=portion.amount_micro_usd,
            seconds=portion.seconds + portion.rounding_seconds,
            covered_seconds=portion.covered_seconds,
            rounding_seconds=portion.rounding_seconds,
        )
        for portion in settled
    }
    covered_seconds = (account.covered_call_seconds + work.covered_call_seconds) // account.shares
    covered_seconds = min(covered_seconds, account.settled_seconds)
    came[Segment.RUNNING] = _Came(
        amount_micro_usd=account.idle_micro_usd + account.call_micro_usd + work.call_micro_usd,
        seconds=account.settled_seconds - covered_seconds,
        covered_seconds=covered_seconds,
    )
    return came


def _actual(came_to: Mapping[Segment, _Came]) -> Document:
    """`status.actual` of an Attempt."""
    segments: dict[str, Any] = {}
    for segment, came in came_to.items():
        name = segment.lower()
        segments |= {f"{name}USD": format_money(came.amount_micro_usd), f"{name}Seconds": came.seconds}
        if came.covered_seconds:
            segments[f"{name}CoveredSeconds"] = came.covered_seconds
    covered = [segment for segment in Segment if segment in came_to and came_to[segment].covered_seconds]
    if covered:
        segments["coveredByNodus"] = covered
    return {
        "costUSD": format_money(sum(came.amount_micro_usd for came in came_to.values())),
        "hours": f"{sum(came.seconds for came in came_to.values()) / 3_600:.4f}",
        "segments": segments,
    }


_TIMINGS = ((Segment.RESTORE, "restoreSeconds"), (Segment.TEARDOWN, "teardownSeconds"))


def _timings(came_to: Mapping[Segment, _Came]) -> Document:
    """What the segments say to `status.timings` of an Attempt."""
    return {
        name: came_to[segment].seconds + came_to[segment].covered_seconds - came_to[segment].rounding_seconds
        for segment, name in _TIMINGS
        if segment in came_to
    }
