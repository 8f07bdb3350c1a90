"""Gives calls to workers inside the commit that makes them claimable, and holds claims that found none.

The `Dispatcher` joins every batch of its process's writer. Before the batch commits it serves the claims of the
batch and, if calls became claimable, the claims that are held; so a `.remote()` is created and handed to a waiting
worker in one transaction, and a worker's result and its next call are another. Calls that other processes queued
are seen on the change feed and wake it. Turn order is `calls/fairness.py`, the SQL is `calls/selection.py`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

import structlog

from controlplane import failpoints
from controlplane.calls import transitions
from controlplane.calls.book import CallBook
from controlplane.calls.decide import Finish
from controlplane.calls.fairness import Pick, pick
from controlplane.calls.funding import Funding, waits_for
from controlplane.calls.looks import NOTHING, Look, corrected
from controlplane.calls.outcomes import close_row, duration_seconds, present_document
from controlplane.calls.rows import CallRow, CallState
from controlplane.calls.seats import Seats
from controlplane.calls.selection import OBJECT_PREFIX, engine_lag, look, look_started
from controlplane.calls.waiting import WaitingClaims
from controlplane.calls.wants import Want
from controlplane.clock import format_time_micro
from controlplane.kinds.quotes import within_quote
from controlplane.ledger.limits import Documents, Limit, SpendingLimits
from controlplane.ledger.reservations import EndedDispatch, reservations_of
from controlplane.ledger.worker_reservations import WorkerReservations
from controlplane.settings import Settings
from controlplane.store.contract import Document, Key, Tx

if TYPE_CHECKING:
    from controlplane.store.contract import Connection

log = structlog.get_logger(__name__)

_ROUNDS_MAX = 32
"""Looks at the queues in one batch; each serves everybody or ends sessions, so only a lagging engine needs many."""
_LAG_READ_SECONDS = 0.25


class Suspensions(Protocol):
    """Whether an organisation's calls must wait, known without I/O."""

    def is_suspended(self, org: str) -> bool: ...


class Dispatcher:
    """The hook that dispatches calls. One per process and writer, also in processes that serve no claims."""

    def __init__(
        self, functions: Documents, suspensions: Suspensions, waiting: WaitingClaims, settings: Settings
    ) -> None:
        self._functions = functions
        self._suspensions = suspensions
        self._waiting = waiting
        self._settings = settings
        self._limits = SpendingLimits(functions)
        self._starved: set[str] = set()
        """Functions with calls that no limit of spending had room for: looked at again when money is given back."""
        self._lag_read_at = float("-inf")
        self.gated = False
        """Whether the engine is behind by more than its budget; then only calls with a workflow are handed out."""
        self._gives = self._charges = False
        """Whether the batch that is about to commit hands out calls, and whether it ends dispatches."""

    async def before_commit(self, tx: Tx, connection: Connection) -> None:
        """Finish what mutations put off, serve whoever can be served, and let the book be written."""
        self._gives = self._charges = False
        if not tx.scratch("calls") and not tx.scratch("spending"):
            return
        book = CallBook.of(tx)
        while book.deferred:
            deferred, book.deferred = book.deferred, []
            await tx.load([key for keys, _ in deferred for key in keys])
            for _, apply in deferred:
                apply(tx)
        ended, left = book.ended_dispatches(), book.left_queue()
        demand = self._demand(book, frees_money=bool(ended or left))
        funding = await self._funding(tx, connection, book, ended, demand)
        if demand:
            await self._serve(tx, connection, book, demand, funding)
        # What did not fit may have been a call that has left the queue, and those behind it may need less.
        freed = {limit.id for key in left for limit in self._limits.of(key)}
        await reservations_of(tx).write(connection, freed)
        book.join(tx)
        self._waiting.join(book.wants)
        self._gives = any(want.offered for wants in demand.values() for want in wants)
        self._charges = bool(ended)
        if self._gives:
            failpoints.reach("dispatch-ready")
        if self._charges:
            failpoints.reach("charge-ready")

    def committed(self) -> None:
        """Answer the claims that were served and hold those that were not."""
        if self._gives:
            failpoints.reach("dispatch-written")
        if self._charges:
            failpoints.reach("charge-written")
        self._waiting.committed()

    def rolled_back(self) -> None:
        """Take back what was offered in the batch that failed."""
        self._waiting.rolled_back()

    async def _funding(
        self,
        tx: Tx,
        connection: Connection,
        book: CallBook,
        ended: Mapping[Key, Sequence[EndedDispatch]],
        demand: Mapping[str, Sequence[Want]],
    ) -> Funding:
        """What limits the spending of the Functions in demand; what they have left is read, once whatever ended in this
        batch gave back its reservations. Without limits it is no query and no wish to have one."""
        limits = {uid: self._limits.of(wants[0].claimant.function_key) for uid, wants in demand.items()}
        touched = [limit for key in ended for limit in self._limits.of(key)]
        touched += [limit for found in limits.values() for limit in found]
        beside, workers = self._beside_calls(book), WorkerReservations.of(tx)
        reservations = reservations_of(tx)
        if touched or beside or workers.changed:
            dispatches = [each for found in ended.values() for each in found]
            touched += [*(limit for limit, _ in beside), *workers.limits]
            reserve_for_workers = workers.write if workers.changed else None
            await reservations.open(connection, touched, dispatches, beside, reserve_for_workers)
        return Funding(limits, reservations, self._settings)

    def _beside_calls(self, book: CallBook) -> list[tuple[Limit, int]]:
        """What workers cost in this batch beyond their calls, by limit that covers their Function."""
        return [
            (limit, micro_usd)
            for key, micro_usd in book.workers_cost.items()
            for limit in self._limits.of(key)
            if limit.covers(self._function_labels(key) or {})
        ]

    def _demand(self, book: CallBook, *, frees_money: bool) -> dict[str, list[Want]]:
        """Wishes by Function that may be served now: those of this batch, and held ones whose Function has news, or
        waits for money while some is given back or is wanted no more."""
        demand: dict[str, list[Want]] = {}
        functions = dict.fromkeys(want.claimant.function_uid for want in book.wants)
        news = book.claimable | self._starved if frees_money else book.claimable
        functions |= dict.fromkeys(uid for uid in sorted(news) if self._waiting.held(uid))
        for function_uid in functions:
            new = [want for want in book.wants if want.claimant.function_uid == function_uid]
            wants = [*self._waiting.held(function_uid), *new]
            if self._accepts_work(wants[0].claimant.function_key):
                demand[function_uid] = wants
        return demand

    def _accepts_work(self, key: Key) -> bool:
        if self._suspensions.is_suspended(key.org):
            return False
        document = self._functions.get(key)
        if document is None:
            return True  # the cache lags behind a Function that was just created
        return document["spec"].get("state") != "Stopped" and "deletionTimestamp" not in document["metadata"]

    async def _serve(
        self, tx: Tx, connection: Connection, book: CallBook, demand: dict[str, list[Want]], funding: Funding
    ) -> None:
        if not _rooms(demand, self._settings.dispatch_calls_max):
            return
        await self._read_lag(tx, connection)
        for round_number in range(_ROUNDS_MAX):
            if round_number or self.gated:
                # The first look is corrected by what is unwritten; later ones are too rare to deserve the thought.
                await book.flush(connection)
            looks, demand = await self._look(tx, connection, book, demand, round_number, funding)
            wanted = _rooms(demand, self._settings.dispatch_calls_max)
            picks = {uid: _picked(looks[uid], wanted.get(uid, 0)) for uid in demand}
            await tx.load([row.key for picked in picks.values() for _, row in picked.taken])
            again = []
            for function_uid, picked in picks.items():
                dealt = self._hand_out_all(tx, book, picked, demand[function_uid], funding)
                for session in picked.emptied:
                    if session not in dealt.left:
                        book.close_session(function_uid, session)
                self._starved.discard(function_uid)
                if dealt.unfunded:
                    self._starved.add(function_uid)
                    # Other sessions may be covered by other limits.
                    if funding.differs_by_call(function_uid) and not dealt.left - dealt.unfunded:
                        funding.pass_over(function_uid, dealt.unfunded)
                        again.append(function_uid)
                elif (picked.look_again or dealt.vanished) and not dealt.left:
                    again.append(function_uid)
            demand = {uid: demand[uid] for uid in again}
            if not _rooms(demand, self._settings.dispatch_calls_max):
                return

    async def _look(
        self,
        tx: Tx,
        connection: Connection,
        book: CallBook,
        demand: dict[str, list[Want]],
        round_number: int,
        funding: Funding,
    ) -> tuple[dict[str, Look], dict[str, list[Want]]]:
        """What the queues hold now, and the demand without held claims whose worker was fenced, drains, or has claimed
        again elsewhere. It costs one query, or none when there cannot be anything to find."""
        joined = set(book.wants)
        held = [want for wants in demand.values() for want in wants if want not in joined and not want.offered]
        rooms = _rooms(demand, self._settings.dispatch_calls_max)
        wanted = {uid: room + funding.passed(uid) for uid, room in rooms.items() if not book.queue_was_empty(uid)}
        unwritten = {uid: book.unwritten(uid) for uid in demand}
        looks = dict.fromkeys(demand, NOTHING)
        if wanted or (held and any(unwritten[uid].queued for uid in rooms)):
            claims = [(want.claimant.attempt, want.claim_seq) for want in held]
            if self.gated:
                found = await look_started(connection, wanted, claims)
            else:
                found = await look(connection, wanted, round_number, claims)
            for key, record in found.objects:
                tx.remember(key, record, OBJECT_PREFIX)
            void = {want for want in held if not book.may_serve(want, found.alive)}
            self._waiting.release(void)
            demand = {uid: [want for want in wants if want not in void] for uid, wants in demand.items()}
            looks |= found.looks
        return {uid: funding.open_to(uid, corrected(found, unwritten[uid])) for uid, found in looks.items()}, demand

    async def _read_lag(self, tx: Tx, connection: Connection) -> None:
        """Whether the engine is beyond its budget, at most a moment old: the budget is a soft one."""
        if time.monotonic() - self._lag_read_at < _LAG_READ_SECONDS:
            return
        lag = await engine_lag(connection, self._settings.engine_lag_calls_max)
        self._lag_read_at = time.monotonic()
        oldest_allowed = tx.now - timedelta(seconds=self._settings.engine_lag_seconds_max)
        too_old = lag.oldest_at is not None and lag.oldest_at < oldest_allowed
        gated = too_old or lag.calls > self._settings.engine_lag_calls_max
        if gated != self.gated:
            log.warning("the engine lags: only calls with a workflow start" if gated else "the engine caught up")
        self.gated = gated

    def _function_labels(self, key: Key) -> dict[str, str] | None:
        document = self._functions.get(key)
        return None if document is None else document["metadata"].get("labels") or None

    def _hand_out_all(
        self, tx: Tx, book: CallBook, picked: Pick[CallRow], wants: list[Want], funding: Funding
    ) -> _Dealt:
        """Give each call to a worker that may take it (`calls/seats.py`), in the order the claims came."""
        dealt = _Dealt()
        seats = Seats(wants)
        for session, row in picked.taken:
            book.present(row.uid, row)
            document = present_document(tx, row)
            if document is None or transitions.is_terminal(document):
                # The object was taken away by force; nobody waits for the call.
                close_row(book, row, Finish(phase="Cancelled", reason="Cancelled"), removed=document is None)
                dealt.vanished = True
                continue
            funded = replace(
                row,
                reserved_micro_usd=funding.most(document, wants),
                function_labels=self._function_labels(row.function_key),
            )
            lacking = funding.take(funded, document)
            if lacking is not None:
                tx.put(row.key, transitions.unfunded(document, tx.now, waits_for(lacking)))
                dealt.left.add(session)
                dealt.unfunded.add(session)
                continue
            want = seats.take_alone() if row.suspect else seats.take()
            if want is None:
                funding.give_back(funded)
                dealt.left.add(session)
            else:
                self._hand_out(tx, book, funded, document, want)
        return dealt

    def _hand_out(self, tx: Tx, book: CallBook, row: CallRow, document: Document, want: Want) -> None:
        claimant = want.claimant
        timeout = document["spec"].get("timeout") or self._settings.call_timeout_default
        deadline = tx.now + timedelta(seconds=duration_seconds(timeout))
        running = transitions.claimed(document, tx.now, attempt=claimant.attempt, epoch=claimant.epoch)
        stored = tx.put(row.key, running)
        book.save(
            replace(
                row,
                state=CallState.RUNNING,
                attempt=claimant.attempt,
                epoch=claimant.epoch,
                concurrency=want.concurrency,
                rate_micro_usd_per_hour=within_quote(document, want.price.rate_micro_usd_per_hour),
                pricebook=want.price.pricebook,
                offering=want.price.offering,
                started_at=tx.now,
                deadline=deadline,
                dispatches=row.dispatches + 1,
                outcome=None,
            )
        )
        book.turn(row, int(stored["metadata"]["resourceVersion"]))
        want.offered.append(
            {"id": row.name, "input": document["spec"]["input"], "deadline": format_time_micro(deadline)}
        )


@dataclass
class _Dealt:
    """What became of the calls that were picked."""

    vanished: bool = False
    """Some had lost their objects, so there may be others to hand out in their place."""
    unfunded: set[str] = field(default_factory=set)
    """Sessions whose next call no limit of spending has room for; they are left as well."""
    left: set[str] = field(default_factory=set)
    """Sessions of calls that stay in the queue, because one that runs alone found no idle worker. Those behind it may
    have found no room either; the next claims look again."""


def _rooms(demand: dict[str, list[Want]], calls_max: int) -> dict[str, int]:
    """How many calls each Function's wishes have room for, up to a bound."""
    rooms = {uid: min(sum(want.room for want in wants), calls_max) for uid, wants in demand.items()}
    return {uid: room for uid, room in rooms.items() if room > 0}


def _picked(found: Look, wanted: int) -> Pick[CallRow]:
    return pick(found.heads, wanted, found.all_sessions)
