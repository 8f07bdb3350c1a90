"""The activity that ends a worker: give its calls back, close its row, object and token, charge what is left of it.

The process is gone when this runs, or nobody can reach it, so its calls may run elsewhere from the same commit on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from temporalio import activity

from activities.run_worker_contract import NODE_LOST, NODE_RESTARTED, SETTLE_ATTEMPT, SettleAttemptInput
from controlplane import failpoints
from controlplane.calls.outcomes import CallRules
from controlplane.calls.recovery import LoseAttempt
from controlplane.calls.worker_settlement import SettleWorker
from controlplane.capacity.attempts import CloseAttempt
from controlplane.capacity.endings import AttemptEnd, WorkerEnd
from controlplane.clock import Clock
from controlplane.ledger.worker_accounts import FundingRules
from controlplane.store.contract import Key, Reads, Tx
from controlplane.store.writer import Writer

_UNSEEN = frozenset({NODE_LOST, NODE_RESTARTED})
"""Nobody saw when such a worker ended; it is charged up to its last claim."""


class AttemptActivities:
    """Activities of `WorkerAttemptWorkflow` that touch SQL; the others are the node's."""

    def __init__(self, writer: Writer, rules: CallRules, funding: FundingRules, clock: Clock) -> None:
        self._writer = writer
        self._rules = rules
        self._funding = funding
        self._clock = clock

    @activity.defn(name=SETTLE_ATTEMPT)
    async def settle_attempt(self, settlement: SettleAttemptInput) -> str | None:
        """Give the calls of the worker back and close it; its reason, or None when it is unknown."""
        exit = settlement.exit
        end = WorkerEnd(outcome=exit.outcome, exit_code=exit.exit_code, signal=exit.signal, message=exit.message)
        key = Key("Attempt", settlement.org, settlement.project, settlement.attempt_uid)
        told = await self.settle(key, settlement.epoch, end)
        failpoints.reach("worker-settled")
        return None if told is None else told.reason

    async def settle(self, key: Key, epoch: int, end: WorkerEnd) -> AttemptEnd | None:
        """The same for a worker that has no workflow to do it."""
        ended_at: datetime | None = None if end.outcome in _UNSEEN else self._clock.now()
        return await self._writer.write(
            _SettleAttempt(
                LoseAttempt(key.name, epoch, ended_at, self._rules, end),
                CloseAttempt(key, end),
                SettleWorker(key, ended_at, end, self._funding),
            )
        )

    @property
    def all(self) -> Sequence[Callable[..., Any]]:
        """What a worker registers."""
        return [self.settle_attempt]


class _SettleAttempt:
    """The loss of a worker, its close and its last charges, in one change.

    With the close alone committed, nothing would look for its calls any more; with the loss alone, a start that failed
    would not count yet and the next one would come without a pause; without the charges, nobody would know what they
    were for.
    """

    def __init__(self, lose: LoseAttempt, close: CloseAttempt, settle: SettleWorker) -> None:
        self._lose = lose
        self._close = close
        self._settle = settle

    def reads(self) -> Reads:
        reads = [part.reads() for part in (self._lose, self._close, self._settle)]
        return Reads(
            keys=[key for read in reads for key in read.keys], loads=[load for read in reads for load in read.loads]
        )

    def apply(self, tx: Tx) -> AttemptEnd | None:
        self._lose.apply(tx)
        end = self._close.apply(tx)
        self._settle.apply(tx)
        return end
