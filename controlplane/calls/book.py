"""The calls of one batch: their rows as they are now, and what is to be written of them.

Mutations of a batch see the rows that were loaded when it began, so their own changes live here, in the batch's
scratch: `CallBook.of(tx)` is the same book for every mutation and hook of the batch. The hook in
`calls/dispatcher.py` runs what was put off with `later`, dispatches over `unwritten` and joins the book to the
statement that writes the batch; only when it must look at a queue again is the book flushed before. Because every
change of a row passes through the book, it also keeps the per-Function tallies that the autoscaler reads instead of
counting a queue of any length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import orjson

from controlplane.calls.history import DispatchHistory
from controlplane.calls.looks import Unwritten
from controlplane.calls.rows import PENDING_STATES, AttemptRow, CallRow, CallState
from controlplane.calls.wants import Want
from controlplane.ledger.reservations import EndedDispatch
from controlplane.ledger.worker_accounts import ADD_CALLS, CallWork, WorkerAccount
from controlplane.store import sql
from controlplane.store.contract import Key, Tx

if TYPE_CHECKING:
    from controlplane.store.contract import Connection

Deferred = tuple[Sequence[Key], Callable[[Tx], None]]
Json = dict[str, Any]


@dataclass
class _Charged:
    """What a batch adds to the total of one Function."""

    of: CallRow | WorkerAccount
    micro_usd: int = 0
    ended_call: bool = False


class CallBook:
    """Rows, turns, tallies and wishes of one batch. Created by `of`, gone with the batch."""

    def __init__(self, now: datetime) -> None:
        self._now = now
        self._rows: dict[str, CallRow] = {}
        self._removed: set[str] = set()
        self._stored: dict[str, CallRow | None] = {}
        self._changed: set[str] = set()
        self._attempts: dict[str, AttemptRow] = {}
        self._attempt_patches: dict[str, Json] = {}
        self._opened: dict[tuple[str, str], int] = {}
        self._turns: dict[tuple[str, str], int] = {}
        self._closed: set[tuple[str, str]] = set()
        self._charges: dict[str, _Charged] = {}
        self._work: dict[str, CallWork] = {}
        self._unwritten_work: dict[str, CallWork] = {}
        self._empty_queues: set[str] = set()
        self.workers_cost: dict[Key, int] = {}
        """By Function, what this batch charged for its workers beyond their calls, in micro-USD."""
        self.history = DispatchHistory()
        self.deferred: list[Deferred] = []
        self.claimable: set[str] = set()
        """Uids of Functions that gained a claimable call in this batch."""
        self.wants: list[Want] = []
        """Wishes of the claims in this batch, in order."""

    @classmethod
    def of(cls, tx: Tx) -> CallBook:
        """The book of the batch that `tx` belongs to."""
        scratch = tx.scratch("calls")
        if "book" not in scratch:
            scratch["book"] = cls(tx.now)
        book: CallBook = scratch["book"]
        return book

    def see(self, loaded: Iterable[CallRow]) -> list[CallRow]:
        """The present versions of rows that were loaded, without those removed since."""
        return [row for stored in loaded if (row := self.present(stored.uid, stored)) is not None]

    def present(self, uid: str, loaded: CallRow | None) -> CallRow | None:
        """The row as of this point of the batch; `loaded` is what was loaded for it, if anything was."""
        if uid not in self._rows and loaded is not None:
            self._rows[uid] = loaded
            self._stored[uid] = loaded
        return None if uid in self._removed else self._rows.get(uid)

    def save(self, row: CallRow) -> None:
        """Create or replace a row; one that was loaded must have been shown to `present` before."""
        self._rows[row.uid] = row
        self._stored.setdefault(row.uid, None)
        self._changed.add(row.uid)

    def remove(self, row: CallRow) -> None:
        """Drop a row: its workflow knows its end, or will never be."""
        self.save(row)
        self._removed.add(row.uid)

    def queue(self, row: CallRow, turn: int) -> None:
        """Save a claimable row; its session joins the back of the round at `turn` unless it already has a place."""
        assert row.state is CallState.QUEUED, f"{row.uid} is {row.state}"
        self.save(row)
        session = (row.function_uid, row.session)
        self._opened.setdefault(session, turn)
        self._closed.discard(session)
        self.claimable.add(row.function_uid)

    def turn(self, row: CallRow, turn: int) -> None:
        """The row's session was served at `turn` and goes to the back of the round."""
        session = (row.function_uid, row.session)
        self._turns[session] = turn
        self._opened.pop(session, None)
        self._closed.discard(session)

    def close_session(self, function_uid: str, session: str) -> None:
        """The session has no claimable call left, so it loses its place in the round."""
        self._closed.add((function_uid, session))
        self._turns.pop((function_uid, session), None)
        self._opened.pop((function_uid, session), None)

    def charge(self, row: CallRow, micro_usd: int) -> None:
        """Add what a dispatch of this call cost to the tally of its Function, and note that one ended now."""
        charged = self._charges.setdefault(row.function_uid, _Charged(row))
        charged.micro_usd += micro_usd
        charged.ended_call = True

    def charge_worker(self, account: WorkerAccount, micro_usd: int) -> None:
        """Add what a worker itself cost to the tally of its Function."""
        self._charges.setdefault(account.function_uid, _Charged(account)).micro_usd += micro_usd
        key = Key("Function", account.org, account.project, account.function)
        self.workers_cost[key] = self.workers_cost.get(key, 0) + micro_usd

    def work(self, attempt_uid: str, work: CallWork) -> None:
        """Note in the account of a worker, if it has one, what a dispatch took of it."""
        for kept in (self._work, self._unwritten_work):
            kept[attempt_uid] = kept.get(attempt_uid, CallWork()).plus(work)

    def worked(self, attempt_uid: str) -> CallWork:
        """What the dispatches that this batch ended took of a worker."""
        return self._work.get(attempt_uid, CallWork())

    def attempt(self, loaded: AttemptRow | None) -> AttemptRow | None:
        """The worker as of this point of the batch."""
        return None if loaded is None else self._attempts.setdefault(loaded.uid, loaded)

    def patch_attempt(self, attempt: AttemptRow, **changes: Any) -> AttemptRow:  # noqa: ANN401 - values of columns
        """Change columns of a worker's row; columns that are not named stay as others write them."""
        seen = {name: value for name, value in changes.items() if name in AttemptRow.__dataclass_fields__}
        self._attempts[attempt.uid] = replace(attempt, **seen)
        self._attempt_patches.setdefault(attempt.uid, {"uid": attempt.uid}).update(changes)
        return self._attempts[attempt.uid]

    def want(self, want: Want) -> None:
        """Note a claim's wish; an earlier one of the same worker came over a connection that was cut."""
        for earlier in self.wants:
            if earlier.claimant.attempt == want.claimant.attempt:
                earlier.withdraw()
        self.wants.append(want)

    def later(self, keys: Sequence[Key], apply: Callable[[Tx], None]) -> None:
        """Run `apply` before the batch commits, with the objects at `keys` loaded.

        For what a mutation finds only in rows and so could not name in its reads. `apply` must not raise: it would
        fail the whole batch. It looks at the present rows again, since other mutations ran in between.
        """
        self.deferred.append((keys, apply))

    def saw_empty_queue(self, function_uid: str) -> None:
        """The tally of the Function said, when the batch began, that it had no claimable call."""
        self._empty_queues.add(function_uid)

    def queue_was_empty(self, function_uid: str) -> bool:
        """Whether a look at the queue of the Function would find nothing but what is unwritten here."""
        return function_uid in self._empty_queues

    def unwritten(self, function_uid: str) -> Unwritten:
        """What a look at the queue of the Function does not find yet, and what it finds that is no longer so."""
        changed = {uid: self._rows[uid] for uid in self._changed if self._rows[uid].function_uid == function_uid}
        opened = {session: turn for (owner, session), turn in self._opened.items() if owner == function_uid}
        return Unwritten(
            queued=[row for uid, row in changed.items() if row.state is CallState.QUEUED and uid not in self._removed],
            changed=changed.keys(),
            opened=opened,
        )

    def ended_dispatches(self) -> dict[Key, list[EndedDispatch]]:
        """The dispatches that ran when the batch began and do no more, by Function, with what each cost."""
        ended: dict[Key, list[EndedDispatch]] = {}
        for uid in sorted(self._changed):
            before, row = self._stored[uid], self._rows[uid]
            if before is None or before.state is not CallState.RUNNING:
                continue
            if uid in self._removed or row.state is not CallState.RUNNING or row.dispatches != before.dispatches:
                cost = row.charge_micro_usd - before.charge_micro_usd
                ended.setdefault(row.function_key, []).append(
                    EndedDispatch(call_uid=uid, dispatch=before.dispatches, cost_micro_usd=cost)
                )
        return ended

    def left_queue(self) -> set[Key]:
        """The Functions of calls that waited when the batch began and will not be dispatched any more."""
        left: set[Key] = set()
        for uid in self._changed:
            before, row = self._stored[uid], self._rows[uid]
            waited = before is not None and before.state is CallState.QUEUED
            if waited and (uid in self._removed or row.state is CallState.DONE):
                left.add(row.function_key)
        return left

    def may_serve(self, want: Want, alive: frozenset[str]) -> bool:
        """Whether the worker of a held wish still takes calls by it; `alive` are those of whom the database says so."""
        attempt = self._attempts.get(want.claimant.attempt)
        if attempt is None:
            return want.claimant.attempt in alive
        return attempt.claim_seq == want.claim_seq and attempt.finished_at is None and not attempt.draining

    async def flush(self, connection: Connection) -> None:
        """Write what is unwritten now, so that another look at a queue finds it."""
        parts = self._take()
        if parts:
            rows = [orjson.dumps(rows).decode() for rows in parts.values()]
            await connection.execute(sql.together(tuple(parts)), *rows)

    def join(self, tx: Tx) -> None:
        """Let what is unwritten be written with the batch."""
        for part, rows in self._take().items():
            for row in rows:
                tx.join(part, row)
        for part, ended in self.history.take():
            tx.join(part, ended)

    def _take(self) -> dict[str, list[Json]]:
        """What is unwritten, as rows of the parts of one statement; it counts as written now."""
        parts = {
            **self._take_calls(),
            _OPEN_SESSIONS: _sessions(self._opened),
            _TURN_SESSIONS: _sessions(self._turns),
            _CLOSE_SESSIONS: _sessions(dict.fromkeys(self._closed, 0)),
            _PATCH_ATTEMPTS: list(self._attempt_patches.values()),
            ADD_CALLS: [{"uid": uid, **vars(work)} for uid, work in self._unwritten_work.items()],
        }
        self._unwritten_work = {}
        self._opened, self._turns, self._closed, self._attempt_patches = {}, {}, set(), {}
        self._empty_queues = set()
        return {part: rows for part, rows in parts.items() if rows}

    def _take_calls(self) -> dict[str, list[Json]]:
        saved: list[Json] = []
        dropped: list[Json] = []
        tallies: dict[str, Json] = {}
        for uid in sorted(self._changed):
            row = self._rows[uid]
            before = self._stored[uid]
            after = None if uid in self._removed else row
            if after is not None:
                saved.append(replace(row, updated_at=self._now).to_json())
            elif before is not None:
                dropped.append({"uid": uid})
            self._stored[uid] = after
            for version, count in ((before, -1), (after, 1)):
                for column in _tallied(version):
                    tallies.setdefault(row.function_uid, _empty_tally(row))[column] += count
        for function_uid, charged in self._charges.items():
            tally = tallies.setdefault(function_uid, _empty_tally(charged.of))
            tally["charge_micro_usd"] += charged.micro_usd
            tally["last_end_at"] = self._now if charged.ended_call else None
        self._changed, self._charges = set(), {}
        return {
            _SAVE_CALLS: saved,
            _DROP_CALLS: dropped,
            _ADD_TALLIES: [tallies[function_uid] for function_uid in sorted(tallies)],
        }


_TALLIED = {
    CallState.QUEUED: "queued",
    CallState.RUNNING: "running",
    **dict.fromkeys(sorted(PENDING_STATES), "pending"),
}


def _tallied(row: CallRow | None) -> tuple[str, ...]:
    """The sums that a row is part of; `alone` are those of the queued and running calls that share no worker."""
    if row is None or row.state not in _TALLIED:
        return ()
    needs_worker = row.suspect and row.state not in PENDING_STATES
    return (_TALLIED[row.state], "alone") if needs_worker else (_TALLIED[row.state],)


def _empty_tally(row: CallRow | WorkerAccount) -> Json:
    return {
        "function_uid": row.function_uid,
        "org": row.org,
        "project": row.project,
        "function": row.function,
        "queued": 0,
        "running": 0,
        "alone": 0,
        "pending": 0,
        "charge_micro_usd": 0,
        "last_end_at": None,
    }


def _sessions(turns: dict[tuple[str, str], int]) -> list[Json]:
    return [
        {"function_uid": function_uid, "session": session, "last_turn": turns[function_uid, session]}
        for function_uid, session in sorted(turns)
    ]


_CALL_COLUMNS = ", ".join(CallRow.__dataclass_fields__)
_CREATED_COLUMNS = frozenset(
    {"uid", "org", "project", "name", "function", "function_uid", "session", "seq", "created_at"}
)
_CHANGING_COLUMNS = tuple(name for name in CallRow.__dataclass_fields__ if name not in _CREATED_COLUMNS)

_SAVE_CALLS = """
INSERT INTO calls ($columns) SELECT $columns FROM json_populate_recordset(NULL::calls, $rows)
ON CONFLICT (uid) DO UPDATE SET $changes
""".replace("$columns", _CALL_COLUMNS).replace(
    "$changes", ", ".join(f"{name} = EXCLUDED.{name}" for name in _CHANGING_COLUMNS)
)

_DROP_CALLS = "DELETE FROM calls WHERE uid IN (SELECT uid FROM json_populate_recordset(NULL::calls, $rows))"

_OPEN_SESSIONS = """
INSERT INTO call_sessions (function_uid, session, last_turn)
SELECT function_uid, session, last_turn FROM json_populate_recordset(NULL::call_sessions, $rows)
ON CONFLICT (function_uid, session) DO NOTHING
"""

_TURN_SESSIONS = """
INSERT INTO call_sessions (function_uid, session, last_turn)
SELECT function_uid, session, last_turn FROM json_populate_recordset(NULL::call_sessions, $rows)
ON CONFLICT (function_uid, session) DO UPDATE SET last_turn = EXCLUDED.last_turn
"""

_CLOSE_SESSIONS = """
DELETE FROM call_sessions s USING json_populate_recordset(NULL::call_sessions, $rows) c
WHERE s.function_uid = c.function_uid AND s.session = c.session
"""

_ADD_TALLIES = """
INSERT INTO function_load
    (function_uid, org, project, function, queued, running, alone, pending, charge_micro_usd, last_end_at)
SELECT function_uid, org, project, function, queued, running, alone, pending, charge_micro_usd, last_end_at
FROM json_populate_recordset(NULL::function_load, $rows)
ON CONFLICT (function_uid) DO UPDATE SET
    queued = function_load.queued + EXCLUDED.queued,
    running = function_load.running + EXCLUDED.running,
    alone = function_load.alone + EXCLUDED.alone,
    pending = function_load.pending + EXCLUDED.pending,
    charge_micro_usd = function_load.charge_micro_usd + EXCLUDED.charge_micro_usd,
    last_end_at = GREATEST(function_load.last_end_at, EXCLUDED.last_end_at)
"""

# A worker is ready, finished or draining once and for all, so only the first time and the first reason stay.
_PATCH_ATTEMPTS = """
UPDATE attempts a SET
    state = COALESCE(n.state, a.state),
    last_claim_at = COALESCE(n.last_claim_at, a.last_claim_at),
    last_busy_at = COALESCE(n.last_busy_at, a.last_busy_at),
    claim_seq = COALESCE(n.claim_seq, a.claim_seq),
    ready_at = COALESCE(a.ready_at, n.ready_at),
    drained_at = COALESCE(a.drained_at, n.drained_at),
    finished_at = COALESCE(a.finished_at, n.finished_at),
    draining = a.draining OR COALESCE(n.draining, false),
    drain_reason = COALESCE(a.drain_reason, n.drain_reason),
    kill_at = LEAST(a.kill_at, n.kill_at)
FROM json_populate_recordset(NULL::attempts, $rows) n WHERE a.uid = n.uid
"""
