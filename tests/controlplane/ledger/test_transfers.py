"""What the database refuses of the ledger, whoever asks it, and what a repetition does."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import asyncpg
import pytest

from controlplane.errors import ApiError, Reason
from controlplane.ledger.accounts import TransferKind, read_balance, set_floor
from controlplane.ledger.credits import GrantCredit, RefundCharge
from controlplane.ledger.holds import EndHold, ExpireHolds, HoldEnd, HoldOrder, PlaceHold, overdue_holds
from controlplane.ledger.invariants import BALANCE_RULE, SUMS_RULE, LedgerAuditor, verify
from controlplane.ledger.transfers import Basis, Subject, Transfer, charge, record
from controlplane.store.contract import Reads, Tx
from tests.fixtures.calls import ORG, Calls

USD = 1_000_000


@dataclass(frozen=True)
class Record:
    """Puts transfers into the ledger as they are."""

    transfers: tuple[Transfer, ...]

    def reads(self) -> Reads:
        return Reads()

    def apply(self, tx: Tx) -> None:
        for transfer in self.transfers:
            record(tx, transfer)


def charged(calls: Calls, amount_micro_usd: int, uid: str = "fnc_1", dispatch: int = 1) -> Transfer:
    now = calls.clock.now()
    basis = Basis(
        dispatch=dispatch, period_start=now, period_end=now + timedelta(seconds=1), rate_micro_usd_per_hour=36_000,
        shares=1, pricebook="test",
    )  # fmt: skip
    return charge(ORG, amount_micro_usd, Subject(kind="FunctionCall", project="p", name="c", uid=uid), basis)


def order(calls: Calls, amount_micro_usd: int, hold_id: str = "hold/1", seconds: int = 60) -> HoldOrder:
    return HoldOrder(
        id=hold_id, org=ORG, amount_micro_usd=amount_micro_usd,
        expires_at=calls.clock.now() + timedelta(seconds=seconds),
    )  # fmt: skip


async def available(calls: Calls) -> int:
    return (await read_balance(calls.database, ORG)).available_micro_usd


async def transfers(calls: Calls) -> int:
    count: int = await calls.database.fetchval("SELECT count(*) FROM ledger_transfers")
    return count


async def test_a_repeated_transfer_is_the_same_transfer(calls: Calls) -> None:
    grant = GrantCredit(ORG, "welcome", 5 * USD, "for a start")
    for _ in range(3):
        await calls.writer.write(grant)
        await calls.writer.write(Record((charged(calls, USD), charged(calls, USD))))
    assert await available(calls) == 4 * USD
    assert await transfers(calls) == 2


async def test_an_id_that_comes_again_with_another_amount_is_refused_and_nothing_of_it_is_stored(calls: Calls) -> None:
    await calls.writer.write(Record((charged(calls, USD),)))
    with pytest.raises(ApiError) as refused:
        await calls.writer.write(Record((charged(calls, 2 * USD), charged(calls, USD, uid="fnc_2"))))
    assert refused.value.reason is Reason.INTERNAL_ERROR
    assert await available(calls) == -USD
    assert await verify(calls.database) == []


async def test_what_costs_nothing_writes_nothing(calls: Calls) -> None:
    await calls.writer.write(Record((charged(calls, 0),)))
    assert await transfers(calls) == 0


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE ledger_transfers SET amount_micro_usd = 1",
        "DELETE FROM ledger_transfers",
        "TRUNCATE ledger_transfers",
        "DELETE FROM ledger_accounts",
        "TRUNCATE ledger_accounts",
        "UPDATE ledger_accounts SET credits_micro_usd = credits_micro_usd + 1",
        "INSERT INTO ledger_transfers (id, org, kind, debit, credit, amount_micro_usd, reason, created_at) "
        "VALUES ('x', 'acme', 'charge', 'credits/acme', 'revenue/other', 1, '', now())",
        "INSERT INTO ledger_transfers (id, org, kind, debit, credit, amount_micro_usd, reason, created_at) "
        "VALUES ('x', 'acme', 'charge', 'credits/acme', 'revenue/acme', -1, '', now())",
        "INSERT INTO ledger_transfers (id, org, kind, debit, credit, amount_micro_usd, reason, created_at) "
        "VALUES ('x', 'acme', 'gift', 'credits/acme', 'revenue/acme', 1, '', now())",
        "INSERT INTO ledger_transfers (id, org, kind, debit, credit, amount_micro_usd, reason, created_at, refers_to) "
        "VALUES ('x', 'acme', 'post', 'credits/acme', 'revenue/acme', 1, '', now(), 'charge/fnc_1/1')",
        "INSERT INTO ledger_transfers (id, org, kind, debit, credit, amount_micro_usd, reason, created_at, refers_to) "
        "VALUES ('x', 'acme', 'refund', 'revenue/acme', 'credits/acme', 1000001, '', now(), 'charge/fnc_1/1')",
        "INSERT INTO ledger_transfers (id, org, kind, debit, credit, amount_micro_usd, reason, created_at, refers_to) "
        "VALUES ('x', 'acme', 'void', 'credits/acme', 'revenue/acme', 0, '', now(), 'nothing')",
    ],
)
async def test_the_database_itself_keeps_the_ledger(calls: Calls, statement: str) -> None:
    await calls.writer.write(Record((charged(calls, USD),)))
    with pytest.raises(asyncpg.IntegrityConstraintViolationError):
        await calls.database.execute(statement)
    assert await available(calls) == -USD
    assert await verify(calls.database) == []


async def test_a_hold_that_does_not_fit_is_refused_with_its_amounts(calls: Calls) -> None:
    await calls.writer.write(GrantCredit(ORG, "welcome", USD, ""))
    await set_floor(calls.database, ORG, 0)
    await calls.writer.write(PlaceHold(order(calls, 700_000)))
    with pytest.raises(ApiError) as refused:
        await calls.writer.write(PlaceHold(order(calls, 300_001, "hold/2")))
    assert refused.value.reason is Reason.INSUFFICIENT_CREDITS
    assert refused.value.details == {"neededUSD": "0.300001", "availableUSD": "0.30"}
    await calls.writer.write(PlaceHold(order(calls, 300_000, "hold/2")))
    assert await available(calls) == 0


async def test_the_database_refuses_a_hold_that_nobody_asked_about(calls: Calls) -> None:
    await set_floor(calls.database, ORG, 0)
    until = order(calls, 1).expires_at
    hold = Transfer(id="h", org=ORG, kind=TransferKind.HOLD, amount_micro_usd=1, expires_at=until)
    with pytest.raises(ApiError) as refused:
        await calls.writer.write(Record((hold,)))
    assert refused.value.reason is Reason.INTERNAL_ERROR
    assert await transfers(calls) == 0


async def test_work_that_was_done_is_charged_whatever_is_left(calls: Calls) -> None:
    await calls.writer.write(GrantCredit(ORG, "welcome", USD, ""))
    await set_floor(calls.database, ORG, 0)
    await calls.writer.write(Record((charged(calls, 3 * USD),)))
    assert await available(calls) == -2 * USD
    with pytest.raises(ApiError):
        await calls.writer.write(PlaceHold(order(calls, 1)))


async def test_a_hold_ends_once_and_tells_a_second_end_how(calls: Calls) -> None:
    await calls.writer.write(PlaceHold(order(calls, USD)))
    with pytest.raises(ApiError) as too_much:
        await calls.writer.write(EndHold("hold/1", USD + 1))
    assert too_much.value.reason is Reason.INVALID
    for _ in range(5):
        assert await calls.writer.write(EndHold("hold/1", 250_000)) == HoldEnd(TransferKind.POST, 250_000)
    with pytest.raises(ApiError) as late:
        await calls.writer.write(EndHold("hold/1", 0))
    assert late.value.reason is Reason.CONFLICT
    assert "post with 0.25 USD" in late.value.message
    balance = await read_balance(calls.database, ORG)
    assert (balance.charged_micro_usd, balance.held_micro_usd) == (250_000, 0)
    with pytest.raises(ApiError) as missing:
        await calls.writer.write(EndHold("hold/2", 0))
    assert missing.value.reason is Reason.NOT_FOUND


async def test_a_hold_expires_at_its_time_and_not_before(calls: Calls) -> None:
    await calls.writer.write(PlaceHold(order(calls, USD)))
    assert await overdue_holds(calls.database, calls.clock.now(), 10) == []
    assert await calls.writer.write(ExpireHolds(["hold/1"])) == 0
    calls.clock.advance(60)
    assert await overdue_holds(calls.database, calls.clock.now(), 10) == ["hold/1"]
    assert await calls.writer.write(ExpireHolds(["hold/1"])) == 1
    assert await calls.writer.write(ExpireHolds(["hold/1"])) == 0
    assert await overdue_holds(calls.database, calls.clock.now(), 10) == []
    assert await available(calls) == 0


async def test_no_more_is_given_back_than_was_charged(calls: Calls) -> None:
    await calls.writer.write(Record((charged(calls, USD),)))
    for _ in range(2):
        await calls.writer.write(RefundCharge("charge/fnc_1/1", "sorry", 600_000, "our fault"))
    with pytest.raises(ApiError) as refused:
        await calls.writer.write(RefundCharge("charge/fnc_1/1", "again", 400_001, "our fault"))
    assert refused.value.reason is Reason.INVALID
    assert "0.40 USD are left" in refused.value.message
    await calls.writer.write(RefundCharge("charge/fnc_1/1", "again", 400_000, "our fault"))
    assert await available(calls) == 0
    assert await verify(calls.database) == []
    with pytest.raises(ApiError) as missing:
        await calls.writer.write(RefundCharge("charge/fnc_2/1", "sorry", 1, ""))
    assert missing.value.reason is Reason.NOT_FOUND


async def test_two_refunds_in_one_commit_cannot_give_back_more_than_was_charged(calls: Calls) -> None:
    await calls.writer.write(Record((charged(calls, USD),)))
    whole = Transfer(id="refund/1", org=ORG, kind=TransferKind.REFUND, amount_micro_usd=USD, refers_to="charge/fnc_1/1")
    other = Transfer(id="refund/2", org=ORG, kind=TransferKind.REFUND, amount_micro_usd=1, refers_to="charge/fnc_1/1")
    with pytest.raises(ApiError):
        await calls.writer.write(Record((whole, other)))
    assert await available(calls) == -USD


async def test_what_was_written_past_the_ledger_is_found_by_both_looks(calls: Calls) -> None:
    calls.verified = False
    auditor = LedgerAuditor(calls.database)
    await calls.writer.write(Record((charged(calls, USD),)))
    assert await auditor.look() == []
    await calls.writer.write(Record((charged(calls, USD, dispatch=2),)))
    await calls.database.execute(
        "SET session_replication_role = replica; UPDATE ledger_accounts SET credits_micro_usd = credits_micro_usd - 7 "
        "WHERE class = 'revenue'; RESET session_replication_role"
    )
    for breaches in (await auditor.look(), await auditor.look(), await verify(calls.database)):
        [breach] = breaches
        assert (breach.rule, breach.org) == (SUMS_RULE, ORG)
        assert breach.told == "revenue/acme tells credits of 1.999993 USD and its transfers 2.00 USD"


async def test_a_transfer_without_its_accounts_is_found(calls: Calls) -> None:
    calls.verified = False
    await calls.database.execute(
        "SET session_replication_role = replica; INSERT INTO ledger_transfers (id, org, kind, debit, credit, "
        "amount_micro_usd, reason, created_at, expires_at) VALUES ('h', 'acme', 'hold', 'credits/acme', "
        "'revenue/acme', 5, '', now(), now()); RESET session_replication_role"
    )
    rules = [breach.rule for breach in await verify(calls.database)]
    assert rules == [SUMS_RULE, SUMS_RULE, "a hold is open until something ends it"]
    assert BALANCE_RULE not in rules
