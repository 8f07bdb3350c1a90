"""The account of a worker that costs something: what it was started for, what its calls took, what it holds.

Opened in the transaction that starts the worker, with its first hold, and closed with its last charges; a worker
without a price has none and costs nobody a statement. `ledger/worker_costs.py` is the rule, `capacity/attempts.py`
opens accounts, `calls/worker_settlement.py` settles, renews and closes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from typing import Any

from controlplane.ledger.holds import HoldOrder, holdable, place, release
from controlplane.ledger.limits import Limit
from controlplane.ledger.pricing import SECONDS_PER_HOUR, Billing, call_charge_micro_usd
from controlplane.ledger.transfers import Subject
from controlplane.ledger.worker_costs import Terms
from controlplane.ledger.worker_reservations import WorkerReservations
from controlplane.settings import Settings
from controlplane.store.contract import Key, Loader, Tx
from controlplane.store.database import Database


@dataclass(frozen=True, kw_only=True)
class FundingRules:
    """The settings that funding depends on: for how long at a time the price of a worker is held."""

    hold_seconds: int
    hold_seconds_min: int
    renew_seconds: int
    teardown_seconds_max: int

    def least_micro_usd(self, rate_micro_usd_per_hour: int, billing: Billing) -> int:
        """The smallest hold with which a worker of this rate starts."""
        return hold_micro_usd(rate_micro_usd_per_hour, billing.held_seconds(0, self.hold_seconds_min))

    def first_micro_usd(self, rate_micro_usd_per_hour: int, billing: Billing) -> int:
        """The hold with which a worker of this rate starts where the money reaches for a whole window."""
        return hold_micro_usd(rate_micro_usd_per_hour, billing.held_seconds(0, self.hold_seconds))

    def least_reserved_micro_usd(self, rate_micro_usd_per_hour: int, billing: Billing) -> int:
        """The least that it reserves of limits of spending: that, and its stop."""
        stop = self.teardown_seconds_max
        seconds = billing.held_seconds(0, self.hold_seconds_min + stop) - stop
        return hold_micro_usd(rate_micro_usd_per_hour, seconds) + start_and_stop_micro_usd(
            rate_micro_usd_per_hour, self
        )

    @property
    def window(self) -> timedelta:
        """What a hold is for where the money reaches."""
        return timedelta(seconds=self.hold_seconds)

    @classmethod
    def from_settings(cls, settings: Settings) -> FundingRules:
        """The rules of this server."""
        return cls(
            hold_seconds=settings.worker_hold_seconds,
            hold_seconds_min=min(settings.worker_hold_seconds_min, settings.worker_hold_seconds),
            renew_seconds=settings.worker_hold_renew_seconds,
            teardown_seconds_max=settings.teardown_seconds_max,
        )


def hold_micro_usd(rate_micro_usd_per_hour: int, seconds: int) -> int:
    """What a worker holds for so many seconds: its price, rounded up."""
    return call_charge_micro_usd(seconds, rate_micro_usd_per_hour, 1)


@dataclass(frozen=True, kw_only=True)
class WorkerAccount:
    """A row of `worker_accounts`."""

    uid: str
    org: str
    project: str
    function: str
    function_uid: str
    rate_micro_usd_per_hour: int
    shares: int
    pricebook: str
    offering: str
    billing_increment_seconds: int = 1
    billing_minimum_seconds: int = 1
    restores: bool
    started_at: datetime | None = None
    """Its process started: it costs something from here on."""
    call_seconds: int = 0
    """Seconds of its places that dispatches of calls took, charged or not."""
    covered_call_seconds: int = 0
    """Those of them that the platform paid."""
    call_micro_usd: int = 0
    calls_until: datetime | None = None
    """When the last dispatch ended."""
    settlements: int = 0
    settled_seconds: int = 0
    """Of Running, since the first claim."""
    settled_call_seconds: int = 0
    idle_micro_usd: int = 0
    """Charged for its free places so far."""
    hold: int = 0
    """The number of its present hold."""
    held_micro_usd: int = 0
    reserved_micro_usd: int = 0
    """Of each limit of spending that covers it: the most that it may still be charged for itself where one blocks."""
    funded_until: datetime
    look_at: datetime
    hold_open: bool = True
    """Whether nothing has ended that hold yet."""
    drained_at: datetime | None = None
    """When the worker was asked to go."""
    limits: Sequence[str] = ()
    """Ids of the limits of which it reserves."""
    limited: bool = False
    """Whether one of them blocks."""

    @property
    def terms(self) -> Terms:
        """What was agreed for it."""
        return Terms(
            rate_micro_usd_per_hour=self.rate_micro_usd_per_hour,
            shares=self.shares,
            restores=self.restores,
            billing=self.billing,
        )

    @property
    def billing(self) -> Billing:
        """How its time is rounded up when it has ended."""
        return Billing(increment_seconds=self.billing_increment_seconds, minimum_seconds=self.billing_minimum_seconds)

    def is_due(self, now: datetime) -> bool:
        """Whether it must hold again: its window is nearly over, or its calls were charged more than it holds.

        Every call pays for a second at least, so a burst of short ones costs more than the worker does in that time.
        """
        calls_micro_usd = call_charge_micro_usd(
            max(0, self.call_seconds - self.settled_call_seconds), self.rate_micro_usd_per_hour, self.shares
        )
        return self.look_at <= now or calls_micro_usd > self.held_micro_usd

    @property
    def hold_id(self) -> str:
        """The id of its present hold in the ledger."""
        return f"hold/{self.uid}/{self.hold}"

    @property
    def subject(self) -> Subject:
        """What its transfers are about."""
        return Subject(
            kind="Attempt",
            project=self.project,
            name=self.uid,
            uid=self.uid,
            function_uid=self.function_uid,
            function_name=self.function,
        )

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> WorkerAccount:
        """The account in a row of `ACCOUNT`."""
        found = {field.name: record[field.name] for field in fields(cls)}
        return cls(**{**found, "limits": tuple(record["limits"])})


_LOADED = frozenset({"hold_open", "drained_at", "limits", "limited"})
_COLUMNS = tuple(field.name for field in fields(WorkerAccount) if field.name not in _LOADED)

ACCOUNT = Loader(
    "worker account",
    """
SELECT w.uid AS key, w.*, a.drained_at, e.id IS NULL AS hold_open, r.limits, r.limited FROM worker_accounts w
CROSS JOIN LATERAL (
    SELECT COALESCE(array_agg(s.limit_id), '{}') AS limits, COALESCE(bool_or(l.blocks), false) AS limited
    FROM spending_reservations s JOIN spending_limits l ON l.id = s.limit_id
    WHERE s.call_uid = w.uid AND s.dispatch = 0
) AS r
LEFT JOIN attempts a ON a.uid = w.uid
LEFT JOIN ledger_transfers e ON e.id = 'end/hold/' || w.uid || '/' || w.hold
WHERE w.uid = ANY($1::text[])
""",
)
"""The account of a worker, by its uid; none for one that costs nothing."""

STARTED = "UPDATE worker_accounts SET started_at = COALESCE(started_at, $2) WHERE uid = $1"
"""The worker's process started; the first time stays."""

ADD_CALLS = """
UPDATE worker_accounts w SET call_seconds = w.call_seconds + n.call_seconds,
    covered_call_seconds = w.covered_call_seconds + n.covered_call_seconds,
    call_micro_usd = w.call_micro_usd + n.call_micro_usd, calls_until = GREATEST(w.calls_until, n.calls_until)
FROM json_populate_recordset(NULL::worker_accounts, $rows) n WHERE w.uid = n.uid
"""
"""What dispatches took, once for each worker; a part of a batch."""

_OPEN = f"""
INSERT INTO worker_accounts ({", ".join(_COLUMNS)}) VALUES ({", ".join(f"${n}" for n in range(1, len(_COLUMNS) + 1))})
"""  # noqa: S608 - constants

_SETTLED = (
    "settlements", "settled_seconds", "settled_call_seconds", "idle_micro_usd", "hold", "held_micro_usd",
    "reserved_micro_usd", "funded_until", "look_at",
)  # fmt: skip
_SAVE = f"""
UPDATE worker_accounts SET {", ".join(f"{name} = ${n}" for n, name in enumerate(_SETTLED, 2))} WHERE uid = $1
"""  # noqa: S608 - constants

# The same as `WorkerAccount.is_due`. There is a row for each worker that lives, so all may be looked at.
_DUE = """
SELECT uid, org, project, function FROM worker_accounts
WHERE look_at <= $1 OR (call_seconds - settled_call_seconds) * rate_micro_usd_per_hour > held_micro_usd * 3600 * shares
ORDER BY look_at LIMIT $2
"""


@dataclass(frozen=True, kw_only=True)
class CallWork:
    """What dispatches of calls took of one worker."""

    call_seconds: int = 0
    covered_call_seconds: int = 0
    call_micro_usd: int = 0
    calls_until: datetime | None = None

    def plus(self, other: CallWork) -> CallWork:
        """Both together."""
        until = [time for time in (self.calls_until, other.calls_until) if time is not None]
        return CallWork(
            call_seconds=self.call_seconds + other.call_seconds,
            covered_call_seconds=self.covered_call_seconds + other.covered_call_seconds,
            call_micro_usd=self.call_micro_usd + other.call_micro_usd,
            calls_until=max(until, default=None),
        )


def present_account(tx: Tx, uid: str) -> WorkerAccount | None:
    """The account as of this point of the batch; reads `ACCOUNT`."""
    known: dict[str, WorkerAccount | None] = tx.scratch("worker accounts")
    if uid not in known:
        rows = tx.rows(ACCOUNT, uid)
        known[uid] = WorkerAccount.from_record(rows[0]) if rows else None
    return known[uid]


def open_account(tx: Tx, account: WorkerAccount, rules: FundingRules, limits: Sequence[Limit]) -> bool:
    """Open an account with its first hold; False, and nothing written, where the money does not reach for one.

    `limits` are those that cover the worker. Reads `BALANCE` of its organisation and `LIMIT_ROWS` of them.
    """
    held = hold_next(tx, account, rules, Needs(limits=limits))
    if held is None:
        return False
    tx.execute(_OPEN, [getattr(held, name) for name in _COLUMNS])
    tx.scratch("worker accounts")[held.uid] = held
    return True


def save_account(tx: Tx, account: WorkerAccount) -> None:
    """Write what settlements and holds change of it."""
    tx.execute(_SAVE, [account.uid, *(getattr(account, name) for name in _SETTLED)])
    tx.scratch("worker accounts")[account.uid] = account


def close_account(tx: Tx, account: WorkerAccount) -> None:
    """Release what it still holds and drop it."""
    _release(tx, account)
    _reserve(tx, account, (), 0)
    tx.execute("DELETE FROM worker_accounts WHERE uid = $1", [account.uid])
    tx.scratch("worker accounts")[account.uid] = None


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What a worker must be able to pay beside its next window."""

    limits: Sequence[Limit]
    """Those that cover it now."""
    accrued_micro_usd: int = 0
    """What calls in its hands have taken and are charged for when they end: it is held as well."""
    charged_micro_usd: int = 0
    """Charged for it in this transaction: limits that reserved nothing for it have so much less."""
    start_seconds: int = 0
    """Of its start, which is charged at its end."""
    lived_seconds: int = 0
    """Since its start: what its time will be rounded up to depends on them."""


def hold_next(tx: Tx, account: WorkerAccount, rules: FundingRules, needs: Needs) -> WorkerAccount | None:
    """The account with a hold for its next window in place of the present one, and with as much reserved of the limits
    that cover it; None, and nothing written, where the money does not reach for the shortest. Where it reaches for less
    than a whole window, less is held.

    Reads `BALANCE` of its organisation and `LIMIT_ROWS` of the limits.
    """
    rate, most = account.rate_micro_usd_per_hour, holdable(tx, account.org)
    billing, lived, stop = account.billing, needs.lived_seconds, rules.teardown_seconds_max
    seconds, around = rules.hold_seconds, start_and_stop_micro_usd(rate, rules, needs.start_seconds)
    if most is not None:
        most += account.held_micro_usd if account.hold_open else 0
        payable = (most - needs.accrued_micro_usd) * SECONDS_PER_HOUR // rate
        seconds = min(seconds, billing.window_seconds(lived, payable))
    if needs.limits:
        own = dict.fromkeys(account.limits, account.reserved_micro_usd)
        room = WorkerReservations.of(tx).room(tx, needs.limits, own, -needs.charged_micro_usd)
        if room is not None:
            payable = (room - around) * SECONDS_PER_HOUR // rate + stop
            seconds = min(seconds, billing.window_seconds(lived, payable) - stop)
    if seconds < rules.hold_seconds_min:
        return None
    _release(tx, account)
    window = timedelta(seconds=seconds)
    reserved = hold_micro_usd(rate, billing.held_seconds(lived, seconds + stop) - stop) + around
    held = replace(
        _reserve(tx, account, needs.limits, reserved),
        hold=account.hold + 1,
        hold_open=True,
        held_micro_usd=hold_micro_usd(rate, billing.held_seconds(lived, seconds)) + needs.accrued_micro_usd,
        funded_until=tx.now + window,
        look_at=tx.now + window - timedelta(seconds=min(rules.renew_seconds, seconds // 2)),
    )
    order = HoldOrder(
        id=held.hold_id,
        org=held.org,
        amount_micro_usd=held.held_micro_usd,
        # Nobody looks after a hold while the controllers are away: it outlives its window by another.
        expires_at=held.funded_until + rules.window,
        subject=held.subject,
    )
    place(tx, order)
    return held


def keep_reserved(tx: Tx, account: WorkerAccount, limits: Sequence[Limit]) -> WorkerAccount:
    """The account with no more reserved than what is left of its present window, of these limits."""
    return _reserve(tx, account, [limit for limit in limits if limit.id in account.limits], account.reserved_micro_usd)


def start_and_stop_micro_usd(rate_micro_usd_per_hour: int, rules: FundingRules, start_seconds: int = 0) -> int:
    """What is reserved for a worker beside its window: its start so far, which is charged at its end, and its stop."""
    return hold_micro_usd(rate_micro_usd_per_hour, start_seconds) + hold_micro_usd(
        rate_micro_usd_per_hour, rules.teardown_seconds_max
    )


async def due_accounts(database: Database, now: datetime, limit: int) -> list[tuple[Key, Key]]:
    """The Attempts whose holds are to be renewed now, the most urgent first, each with its Function."""
    return [
        (Key("Attempt", org, project, uid), Key("Function", org, project, function))
        for uid, org, project, function in await database.fetch(_DUE, now, limit)
    ]


def _reserve(tx: Tx, account: WorkerAccount, limits: Sequence[Limit], micro_usd: int) -> WorkerAccount:
    """Let the worker reserve that much of these limits and of no others."""
    if limits or account.limits:
        WorkerReservations.of(tx).keep(account.uid, limits, account.limits, account.reserved_micro_usd, micro_usd)
    return replace(
        account,
        reserved_micro_usd=micro_usd,
        limits=tuple(limit.id for limit in limits),
        limited=any(limit.blocks for limit in limits),
    )


def _release(tx: Tx, account: WorkerAccount) -> None:
    if account.hold and account.hold_open:
        release(tx, account.hold_id, account.subject, account.org, account.held_micro_usd)
