"""Whatever is done in whatever order, alone or many at once in one commit, repeated or late: the ledger balances."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from controlplane.errors import ApiError, Reason
from controlplane.ledger.accounts import TransferKind, read_balance, set_floor
from controlplane.ledger.credits import GrantCredit, RefundCharge
from controlplane.ledger.holds import EndHold, ExpireHolds, HoldEnd, HoldOrder, PlaceHold, overdue_holds
from controlplane.ledger.invariants import LedgerAuditor, verify
from controlplane.ledger.transfers import Basis, Subject, charge, record
from controlplane.store.contract import Mutation, Reads, Tx
from tests.fixtures.calls import Calls

Result = TypeVar("Result")

AMOUNTS = st.integers(1, 1_000) | st.integers(1, 10**12)
RUNS, STEPS = 20, 30
_orgs = count()


@dataclass
class Charge:
    """Charges a call."""

    org: str
    uid: str
    amount_micro_usd: int

    def reads(self) -> Reads:
        return Reads()

    def apply(self, tx: Tx) -> str:
        subject = Subject(kind="FunctionCall", project="default", name=self.uid, uid=self.uid)
        basis = Basis(
            dispatch=1, period_start=tx.now, period_end=tx.now, rate_micro_usd_per_hour=1, shares=1, pricebook="test"
        )
        transfer = charge(self.org, self.amount_micro_usd, subject, basis)
        record(tx, transfer)
        return transfer.id


@dataclass
class Hold:
    amount_micro_usd: int
    expires_at: Any
    end: HoldEnd | None = None


class LedgerMachine(RuleBasedStateMachine):
    """The ledger beside a model of it, which is a few dictionaries."""

    def __init__(self, calls: Calls, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.calls, self.loop = calls, loop
        self.auditor = LedgerAuditor(calls.database)
        self.org = f"org-{next(_orgs)}"
        self.numbers = count()
        self.granted = 0
        self.charges: dict[str, int] = {}
        self.refunds: dict[str, int] = {}
        self.holds: dict[str, Hold] = {}
        self.floor: int | None = None
        self.written: list[Any] = []

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def write(self, mutation: Mutation[Result]) -> Result:
        result = self.run(self.calls.writer.write(mutation))
        self.written.append(mutation)
        return result

    def refused(self, mutation: Mutation[Any], reason: Reason) -> None:
        with pytest.raises(ApiError) as refused:
            self.write(mutation)
        assert refused.value.reason is reason

    @property
    def held(self) -> int:
        return sum(hold.amount_micro_usd for hold in self.holds.values() if hold.end is None)

    @property
    def spent(self) -> int:
        posted = sum(hold.end.posted_micro_usd for hold in self.holds.values() if hold.end is not None)
        return posted + sum(self.charges.values()) - sum(self.refunds.values())

    @property
    def available(self) -> int:
        return self.granted - self.spent - self.held

    @rule(floor=st.sampled_from([None, 0, -50]))
    def limit(self, floor: int | None) -> None:
        self.run(set_floor(self.calls.database, self.org, floor))
        self.floor = floor

    @rule(amount=AMOUNTS)
    def grant(self, amount: int) -> None:
        self.write(GrantCredit(self.org, str(next(self.numbers)), amount, "test"))
        self.granted += amount

    @rule(amount=AMOUNTS)
    def charge(self, amount: int) -> None:
        self.charges[self.write(Charge(self.org, f"{self.org}-{next(self.numbers)}", amount))] = amount

    @rule(amount=AMOUNTS, seconds=st.integers(0, 100))
    def hold(self, amount: int, seconds: int) -> None:
        order, hold = self.order(amount, seconds)
        if self.floor is not None and amount > max(0, self.available - self.floor):
            self.refused(PlaceHold(order), Reason.INSUFFICIENT_CREDITS)
        else:
            self.write(PlaceHold(order))
            self.holds[order.id] = hold

    def order(self, amount: int, seconds: int) -> tuple[HoldOrder, Hold]:
        expires_at = self.calls.clock.now() + timedelta(seconds=seconds)
        hold_id = f"hold/{self.org}/{next(self.numbers)}"
        order = HoldOrder(id=hold_id, org=self.org, amount_micro_usd=amount, expires_at=expires_at)
        return order, Hold(amount, expires_at)

    @precondition(lambda self: self.holds)
    @rule(data=st.data(), thousandths=st.integers(0, 1_200))
    def end(self, data: st.DataObject, thousandths: int) -> None:
        hold_id = data.draw(st.sampled_from(sorted(self.holds)))
        hold = self.holds[hold_id]
        posted = hold.amount_micro_usd * thousandths // 1_000
        end = HoldEnd(TransferKind.POST if posted else TransferKind.VOID, posted)
        if hold.end is not None and hold.end != end:
            self.refused(EndHold(hold_id, posted), Reason.CONFLICT)
        elif posted > hold.amount_micro_usd:
            self.refused(EndHold(hold_id, posted), Reason.INVALID)
        else:
            self.write(EndHold(hold_id, posted))
            hold.end = end

    @rule(seconds=st.integers(0, 60))
    def expire(self, seconds: int) -> None:
        self.calls.clock.advance(seconds)
        due = [hold for hold in self.holds.values() if hold.end is None and hold.expires_at <= self.calls.clock.now()]
        overdue = self.run(overdue_holds(self.calls.database, self.calls.clock.now(), 1_000))
        assert self.write(ExpireHolds([hold_id for hold_id in overdue if hold_id in self.holds])) == len(due)
        for hold in due:
            hold.end = HoldEnd(TransferKind.EXPIRE, 0)

    @precondition(lambda self: self.charges)
    @rule(data=st.data(), amount=AMOUNTS)
    def refund(self, data: st.DataObject, amount: int) -> None:
        charge_id = data.draw(st.sampled_from(sorted(self.charges)))
        mutation = RefundCharge(charge_id, str(next(self.numbers)), amount, "test")
        back = self.refunds.get(charge_id, 0) + amount
        if back > self.charges[charge_id]:
            self.refused(mutation, Reason.INVALID)
        else:
            self.write(mutation)
            self.refunds[charge_id] = back

    @precondition(lambda self: self.written)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        """Nothing that was written is written again, however often it is asked for."""
        again = data.draw(st.integers(0, len(self.written) - 1))
        if not isinstance(self.written[again], ExpireHolds):
            self.run(self.calls.writer.write(self.written[again]))

    @rule(wanted=st.lists(st.tuples(st.sampled_from(["grant", "charge", "hold"]), AMOUNTS), min_size=2, max_size=6))
    def at_once(self, wanted: list[tuple[str, int]]) -> None:
        """Many in one commit come to what they would one after the other."""
        orders = {place: self.order(amount, 50) for place, (what, amount) in enumerate(wanted) if what == "hold"}
        mutations = [
            GrantCredit(self.org, str(next(self.numbers)), amount, "test")
            if what == "grant"
            else PlaceHold(orders[place][0])
            if what == "hold"
            else Charge(self.org, f"{self.org}-{next(self.numbers)}", amount)
            for place, (what, amount) in enumerate(wanted)
        ]

        async def all_of_them() -> list[Any]:
            return await asyncio.gather(*map(self.calls.writer.write, mutations), return_exceptions=True)

        for place, ((what, amount), answer) in enumerate(zip(wanted, self.run(all_of_them()), strict=True)):
            if what == "grant":
                self.granted += amount
            elif what == "charge":
                self.charges[answer] = amount
            elif self.floor is not None and amount > max(0, self.available - self.floor):
                assert isinstance(answer, ApiError)
                assert answer.reason is Reason.INSUFFICIENT_CREDITS
            else:
                assert answer is None
                self.holds[orders[place][0].id] = orders[place][1]

    @invariant()
    def the_balance_is_what_the_model_says(self) -> None:
        balance = self.run(read_balance(self.calls.database, self.org))
        told = (balance.granted_micro_usd, balance.charged_micro_usd, balance.held_micro_usd)
        assert told == (self.granted, self.spent, self.held)
        assert self.run(self.auditor.look()) == []

    def teardown(self) -> None:
        assert self.run(verify(self.calls.database)) == []


async def test_any_interleaving_balances(calls: Calls) -> None:
    loop = asyncio.get_running_loop()
    limits = settings(
        max_examples=RUNS, stateful_step_count=STEPS, deadline=None, suppress_health_check=list(HealthCheck)
    )

    class OfThisWorld(LedgerMachine):
        def __init__(self) -> None:
            super().__init__(calls, loop)

    await asyncio.to_thread(run_state_machine_as_test, OfThisWorld, settings=limits)
