"""Budgets that are changed while work runs, by processes that have not heard of it as well; what the database holds."""

from __future__ import annotations

import asyncpg
import pytest

from controlplane.ledger.invariants import verify
from controlplane.ledger.limits import SpendingLimits
from controlplane.store.contract import Document, Key
from tests.controlplane.calls.test_budgets import MICRO_USD_A_SECOND, MOST, Spending, budget, create, spending
from tests.fixtures.calls import ORG, Calls, succeeded


class Remembers:
    """What a process has in memory that has not heard of anything since."""

    def __init__(self, calls: Calls) -> None:
        self._of_kind = {kind: calls.cache.of_kind(kind) for kind in ("Budget", "Function")}

    def get(self, key: Key) -> Document | None:
        return dict(self._of_kind[key.kind]).get(key)

    def of_kind(self, kind: str) -> list[tuple[Key, Document]]:
        return self._of_kind[kind]


async def test_a_lowered_budget_is_not_passed_by_a_process_that_has_not_heard_of_it(calls: Calls) -> None:
    await calls.function()
    await budget(calls, 2 * MOST)
    await create(calls, 2)
    calls.dispatcher._limits = SpendingLimits(Remembers(calls))
    await budget(calls, MOST)
    workers = [await calls.worker(), await calls.worker()]
    assert [len(await worker.take()) for worker in workers] == [1, 0]
    assert await spending(calls) == Spending(0, MOST)


async def test_a_raised_budget_serves_at_once_and_one_that_only_notifies_holds_nothing_up(calls: Calls) -> None:
    await calls.function()
    await budget(calls, MOST)
    await create(calls, 3)
    calls.dispatcher._limits = SpendingLimits(Remembers(calls))
    workers = [await calls.worker() for _ in range(3)]
    assert [len(await worker.take()) for worker in workers] == [1, 0, 0]
    await budget(calls, 2 * MOST)
    assert [len(await worker.take()) for worker in workers[1:]] == [1, 0]
    await budget(calls, 2 * MOST, action="Notify")
    assert len(await workers[2].take()) == 1


async def test_a_budget_of_another_scope_begins_with_what_that_has_spent_and_runs(calls: Calls) -> None:
    def scope(function: str) -> dict[str, object]:
        return {"selector": {"matchLabels": {"nodus.dev/function": function}}}

    await calls.function()
    await calls.function("g")
    await budget(calls, 10 * MOST, scope=scope("f"))
    for function, seconds in (("f", 5), ("g", 3)):
        [name] = await create(calls, 1, function=function)
        worker = await calls.worker(function)
        await worker.take()
        calls.clock.advance(seconds)
        await worker.claim(succeeded(name), take=0)
    await create(calls, 1, function="g")
    await (await calls.worker("g")).take()
    assert await spending(calls) == Spending(5 * MICRO_USD_A_SECOND, 0)
    await budget(calls, 10 * MOST, scope=scope("g"))
    assert await spending(calls) == Spending(3 * MICRO_USD_A_SECOND, MOST)
    assert await verify(calls.database) == []


async def test_the_database_itself_refuses_a_reservation_that_passes_a_limit(calls: Calls) -> None:
    await budget(calls, MOST)
    await calls.function()
    await create(calls, 1)
    await (await calls.worker()).take()
    with pytest.raises(asyncpg.CheckViolationError):
        await calls.database.execute("UPDATE spending_limits SET held_micro_usd = held_micro_usd + 1")


async def test_a_limit_that_holds_what_nothing_reserved_is_found_by_the_recount(calls: Calls) -> None:
    await budget(calls, 2 * MOST)
    await calls.function()
    await create(calls, 1)
    await (await calls.worker()).take()
    assert await verify(calls.database) == []
    await calls.database.execute("UPDATE spending_limits SET held_micro_usd = held_micro_usd - 1")
    [breach] = await verify(calls.database)
    assert (breach.org, "bud_b" in breach.told) == (ORG, True)
    calls.verified = False
