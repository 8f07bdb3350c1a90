"""The sweeper's part of the ledger: holds end in time, and what does not balance is told."""

from __future__ import annotations

from datetime import timedelta

from activities.ledger_keeper import LedgerKeeper
from controlplane.ledger.accounts import read_balance
from controlplane.ledger.credits import GrantCredit
from controlplane.ledger.holds import HoldOrder, PlaceHold
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


async def test_a_ledger_that_does_not_balance_is_told_once_and_counted(calls: Calls) -> None:
    calls.verified = False
    keeper = LedgerKeeper(calls.database, calls.writer, calls.clock)
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
