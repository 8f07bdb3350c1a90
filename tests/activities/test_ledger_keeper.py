"""The sweeper's part of the ledger: holds end in time, and what does not balance is told."""

from __future__ import annotations

from datetime import timedelta

import asyncpg
import pytest

from activities.ledger_keeper import LedgerKeeper
from controlplane.ledger.accounts import read_balance
from controlplane.ledger.credits import GrantCredit
from controlplane.ledger.grants import Grants
from controlplane.ledger.holds import EndHold, HoldOrder, PlaceHold
from controlplane.metrics import REGISTRY
from tests.fixtures.calls import ORG, Calls


async def events(calls: Calls) -> list[tuple[str, int]]:
    rows = await calls.database.fetch("SELECT doc->>'message' AS told, (doc->>'count')::int AS n FROM objects")
    return [(row["told"], row["n"]) for row in rows]


async def test_holds_end_when_their_time_has_come(calls: Calls) -> None:
    keeper = LedgerKeeper(calls.database, calls.writer, calls.clock)
    for number in range(250):
        until = calls.clock.now() + timedelta(seconds=10 + number // 249)
        await calls.writer.write(PlaceHold(HoldOrder(id=f"h{number}", org=ORG, amount_micro_usd=1, expires_at=until)))
    await keeper.expire_holds()
    assert (await read_balance(calls.database, ORG)).held_micro_usd == 250
    calls.clock.advance(10)
    await keeper.expire_holds()
    assert (await read_balance(calls.database, ORG)).held_micro_usd == 1


async def test_what_is_left_of_a_grant_goes_when_its_time_is_over(calls: Calls) -> None:
    keeper = LedgerKeeper(calls.database, calls.writer, calls.clock)
    await calls.writer.write(GrantCredit(ORG, "trial", 50, "", timedelta(minutes=1)))
    await calls.writer.write(GrantCredit(ORG, "bought", 7, ""))
    until = calls.clock.now() + timedelta(minutes=3)
    await calls.writer.write(PlaceHold(HoldOrder(id="h", org=ORG, amount_micro_usd=20, expires_at=until)))
    await keeper.lapse_grants()
    assert (await read_balance(calls.database, ORG)).available_micro_usd == 37
    calls.clock.advance(60)
    for _ in range(2):
        await keeper.lapse_grants()
        balance = await read_balance(calls.database, ORG)
        assert (balance.available_micro_usd, balance.held_micro_usd) == (7, 20)
    # What was held for work goes when that lets go of it, and only what the work did not take.
    await calls.writer.write(EndHold("h", 15))
    for _ in range(2):
        await keeper.lapse_grants()
        assert (await read_balance(calls.database, ORG)).available_micro_usd == 7
    [trial, bought] = await Grants(calls.database, calls.clock).all(ORG)
    assert (trial.spent_micro_usd, trial.grant.lapsed_micro_usd, trial.remaining_micro_usd) == (15, 35, 0)
    assert (bought.spent_micro_usd, bought.remaining_micro_usd) == (0, 7)


async def test_the_database_refuses_that_more_lapses_than_was_granted_or_before_its_time(calls: Calls) -> None:
    await calls.writer.write(GrantCredit(ORG, "trial", 50, "", timedelta(minutes=1)))
    insert = (
        "INSERT INTO ledger_transfers (id, org, kind, debit, credit, amount_micro_usd, reason, subject_kind, "
        "subject_name, subject_uid, created_at) VALUES ('lapse/x', $1, 'lapse', 'credits/' || $1, 'grants/' || $1, $2, "
        "'', 'CreditGrant', 'trial', 'grant/' || $1 || '/trial', $3)"
    )
    with pytest.raises(asyncpg.IntegrityConstraintViolationError):
        await calls.database.execute(insert, ORG, 10, calls.clock.now())
    calls.clock.advance(60)
    with pytest.raises(asyncpg.IntegrityConstraintViolationError):
        await calls.database.execute(insert, ORG, 51, calls.clock.now())
    await calls.database.execute(insert, ORG, 50, calls.clock.now())


async def test_a_ledger_that_does_not_balance_is_told_once_and_counted(calls: Calls) -> None:
    calls.verified = False
    keeper = LedgerKeeper(calls.database, calls.writer, calls.clock)
    counted = REGISTRY.get_sample_value("nodus_ledger_breaches_total") or 0
    await calls.writer.write(GrantCredit(ORG, "welcome", 5, ""))
    await keeper.audit()
    assert await events(calls) == []
    await calls.database.execute(
        "SET session_replication_role = replica; UPDATE ledger_accounts SET credits_micro_usd = 6 "
        "WHERE class = 'credits'; RESET session_replication_role"
    )
    await keeper.audit()
    await keeper.audit()
    [(told, count)] = await events(calls)
    assert "credits/acme tells credits of 0.000006 USD and its transfers 0.000005 USD" in told
    assert count == 2
    assert REGISTRY.get_sample_value("nodus_ledger_breaches_total") == counted + 2
