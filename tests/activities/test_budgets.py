"""What the keeper of Budgets tells and mends."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from activities.budgets import BudgetKeeper
from controlplane.ledger.invariants import SPENT_RULE, Breach, verify
from controlplane.ledger.limits import SpendingLimits
from controlplane.store.cache import ObjectCache
from controlplane.store.contract import Document, Key
from tests.controlplane.calls.test_budgets import MICRO_USD_A_SECOND, MOST, Spending, budget, create, spending
from tests.fixtures.calls import ORG, Calls, succeeded


class KnowsNothing:
    """What a process has in memory that has not heard of anything yet."""

    def get(self, key: Key) -> Document | None:
        return None

    def of_kind(self, kind: str) -> list[tuple[Key, Document]]:
        return []


@pytest.fixture
async def keeper(calls: Calls) -> BudgetKeeper:
    cache = ObjectCache(calls.database, calls.feed, frozenset({"Budget", "Function"}))
    await cache.start()
    return BudgetKeeper(calls.database, calls.writer, cache, calls.clock)


async def told(calls: Calls) -> dict[str, Any]:
    [row] = await calls.database.fetch("SELECT doc FROM objects WHERE kind = 'Budget' AND name = 'b'")
    status: dict[str, Any] = orjson.loads(row["doc"])["status"]
    return status


async def events(calls: Calls) -> list[tuple[str, int]]:
    rows = await calls.database.fetch("SELECT doc FROM objects WHERE kind = 'Event' AND org = $1", ORG)
    found = [orjson.loads(row["doc"]) for row in rows]
    return [(event["reason"], event["count"]) for event in found if event["involvedObject"]["kind"] == "Budget"]


async def run(calls: Calls, seconds: float) -> None:
    """A call that takes so long, on a worker of its own."""
    [name] = await create(calls, 1)
    worker = await calls.worker()
    assert await worker.take() == [name]
    calls.clock.advance(seconds)
    await worker.claim(succeeded(name), take=0)


async def test_a_status_tells_what_is_spent_held_and_left_and_each_threshold_once(
    calls: Calls, keeper: BudgetKeeper
) -> None:
    await calls.function()
    await budget(calls, MOST + 400, thresholds=[10, 20])
    await keeper.tell()
    status = await told(calls)
    assert (status["spentUSD"], status["remainingUSD"], status["percentUsed"]) == ("0.00", "0.0012", 0)
    assert status["currentPeriod"] == {"startTime": "2026-11-29T11:00:00Z"}
    await run(calls, 15)
    for _ in range(2):
        await keeper.tell()
    status = await told(calls)
    assert (status["spentUSD"], status["percentUsed"], status["notifiedThresholds"]) == ("0.00015", 12, [10])
    assert await events(calls) == [("BudgetThresholdReached", 1)]
    assert [each["status"] for each in status["conditions"]] == ["False"]
    # Two wait: one runs, and there is no room for the other.
    await create(calls, 2)
    workers = [await calls.worker(), await calls.worker()]
    assert [len(await worker.take()) for worker in workers] == [1, 0]
    for _ in range(2):
        await keeper.tell()
    status = await told(calls)
    assert (status["heldUSD"], status["remainingUSD"]) == ("0.0008", "0.00025")
    [exceeded] = status["conditions"]
    assert (exceeded["type"], exceeded["status"], exceeded["reason"]) == ("Exceeded", "True", "LimitReached")
    assert sorted(await events(calls)) == [("BudgetExceeded", 1), ("BudgetThresholdReached", 1)]


async def test_a_budget_is_exceeded_no_longer_than_something_waits_for_it(calls: Calls, keeper: BudgetKeeper) -> None:
    await calls.function()
    await budget(calls, MOST + 400)
    _, second = await create(calls, 2)
    worker, other = await calls.worker(), await calls.worker()
    assert [len(await each.take()) for each in (worker, other)] == [1, 0]
    await keeper.tell()
    assert [each["status"] for each in (await told(calls))["conditions"]] == ["True"]
    await calls.cancel(second)
    await keeper.tell()
    assert [each["status"] for each in (await told(calls))["conditions"]] == ["False"]


async def test_what_a_process_did_before_it_heard_of_a_budget_is_counted(calls: Calls, keeper: BudgetKeeper) -> None:
    await calls.function()
    names = await create(calls, 2)
    await budget(calls, 10 * MOST)
    await keeper.reconcile()
    # A process that does not know the Budget yet dispatches and ends calls as if there was none.
    knowing, ignorant = calls.dispatcher._limits, SpendingLimits(KnowsNothing())
    calls.dispatcher._limits = ignorant
    worker, other = await calls.worker(), await calls.worker()
    await worker.take()
    await other.take()
    calls.dispatcher._limits = knowing
    assert await spending(calls) == Spending(0, 0)
    await keeper.reconcile()
    assert await spending(calls) == Spending(0, 2 * MOST)
    assert await calls.database.fetchval("SELECT blocks FROM spending_limits")
    calls.clock.advance(7)
    calls.dispatcher._limits = ignorant
    await worker.claim(succeeded(names[0]), take=0)
    calls.dispatcher._limits = knowing
    assert await spending(calls) == Spending(0, 2 * MOST)
    for _ in range(2):
        await keeper.reconcile()
    assert await spending(calls) == Spending(7 * MICRO_USD_A_SECOND, MOST)


async def test_what_ran_unnoticed_from_its_start_to_its_end_is_counted_by_the_ledger(
    calls: Calls, keeper: BudgetKeeper
) -> None:
    """Nothing of it is left in any row but the charge."""
    await calls.function()
    await budget(calls, 10 * MOST)
    knowing, calls.dispatcher._limits = calls.dispatcher._limits, SpendingLimits(KnowsNothing())
    await run(calls, 7)
    calls.dispatcher._limits = knowing
    await keeper.reconcile()
    assert await spending(calls) == Spending(0, 0)
    [breach] = await verify(calls.database)
    assert breach == Breach(SPENT_RULE, "budget/b tells 0.00 USD and the ledger 0.00007 USD", ORG)
    await keeper.recount()
    assert await spending(calls) == Spending(7 * MICRO_USD_A_SECOND, 0)
    assert await verify(calls.database) == []


async def test_limits_are_recounted_in_turns(
    calls: Calls, keeper: BudgetKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("activities.budgets.RECOUNTED_PER_TURN", 2)
    for name in "abc":
        await budget(calls, MOST, name=name)
    await calls.database.execute("UPDATE spending_limits SET spent_micro_usd = 5, limit_micro_usd = 1, blocks = false")
    assert len(await verify(calls.database)) == 3
    for left in (1, 0):
        await keeper.recount()
        assert len(await verify(calls.database)) == left
    rows = await calls.database.fetch("SELECT limit_micro_usd, blocks FROM spending_limits")
    assert {(row["limit_micro_usd"], row["blocks"]) for row in rows} == {(MOST, True)}


async def test_a_row_of_an_older_server_follows_its_budget(calls: Calls, keeper: BudgetKeeper) -> None:
    await budget(calls, MOST)
    await calls.database.execute("UPDATE spending_limits SET limit_micro_usd = 1, blocks = false")
    await keeper.reconcile()
    row = await calls.database.fetchrow("SELECT limit_micro_usd, blocks FROM spending_limits")
    assert row is not None
    assert tuple(row) == (MOST, True)
