"""Warm time and Budgets: what a worker may cost beside its calls is reserved before it costs it."""

from __future__ import annotations

import random

import pytest

from controlplane.calls.function_charges import FunctionAuditor
from controlplane.capacity.endings import WorkerEnd
from controlplane.ledger.pricing import Billing
from controlplane.store.contract import Key
from tests.controlplane.calls.test_budgets import Spending, budget, create, spending
from tests.fixtures.calls import ORG, PROJECT, Calls, MarkStarted, ScriptedWorker, raised, succeeded
from tests.fixtures.paid_workers import EXITED, MICRO_USD_A_SECOND, PaidWorkers

WINDOW_SECONDS = 60
SHORTEST_SECONDS = 30
STOP_SECONDS = 5
STOP = STOP_SECONDS * MICRO_USD_A_SECOND
WHOLE = WINDOW_SECONDS * MICRO_USD_A_SECOND + STOP
"""What a worker of these tests reserves where the money reaches."""
CRASHED = WorkerEnd(outcome="Exited", signal=9)


@pytest.fixture
def brief(paid: PaidWorkers) -> PaidWorkers:
    """The same with short windows and stops."""
    return paid.with_rules(
        hold_seconds=WINDOW_SECONDS,
        hold_seconds_min=SHORTEST_SECONDS,
        renew_seconds=WINDOW_SECONDS // 2,
        teardown_seconds_max=STOP_SECONDS,
    )


async def charged(calls: Calls) -> int:
    found = await calls.database.fetchval(
        "SELECT sum(amount_micro_usd)::bigint FROM ledger_transfers WHERE kind = 'charge'"
    )
    return int(found or 0)


async def test_a_worker_reserves_its_window_and_its_stop_and_gives_back_what_it_did_not_cost(
    calls: Calls, brief: PaidWorkers
) -> None:
    await budget(calls, 10 * WHOLE)
    worker = await brief.ready(boot_seconds=2)
    assert await spending(calls) == Spending(0, WHOLE)
    calls.clock.advance(40)
    await brief.keeper.renew()
    # The idle time is charged; the start is charged at the end, and so is held beside the next window.
    assert await spending(calls) == Spending(40 * MICRO_USD_A_SECOND, WHOLE + 2 * MICRO_USD_A_SECOND)
    calls.clock.advance(10)
    await brief.drain(worker)
    calls.clock.advance(1)
    await brief.end(worker)
    assert await spending(calls) == Spending((2 + 40 + 10 + 1) * MICRO_USD_A_SECOND, 0)
    assert await charged(calls) == (2 + 40 + 10 + 1) * MICRO_USD_A_SECOND


async def test_where_less_is_left_a_shorter_window_is_reserved_and_below_the_shortest_none(
    calls: Calls, brief: PaidWorkers
) -> None:
    least = SHORTEST_SECONDS * MICRO_USD_A_SECOND + STOP
    await budget(calls, WHOLE + least)
    assert len(await brief.start(3)) == 2
    assert await spending(calls) == Spending(0, WHOLE + least)
    await budget(calls, WHOLE + 2 * least - 1)
    assert await brief.start() == []
    await budget(calls, WHOLE + 2 * least)
    assert len(await brief.start()) == 1
    # What works beside its calls and what calls may cost are of the same money.
    [name] = await create(calls, 1)
    worker = await calls.worker()
    assert await worker.take() == []
    await budget(calls, 1_000_000)
    assert await calls.status(name)
    assert await worker.take() == [name]


async def test_a_worker_whose_limit_has_no_room_goes_and_is_charged_no_more_than_it_reserved(
    calls: Calls, brief: PaidWorkers
) -> None:
    await budget(calls, WHOLE)
    worker = await brief.ready()
    calls.clock.advance(WINDOW_SECONDS - 20)
    await brief.keeper.renew()
    row = await calls.database.fetchrow("SELECT draining, drain_reason FROM attempts")
    assert row is not None
    assert (row["draining"], row["drain_reason"]) == (True, "Unfunded")
    # Nobody stops it for an hour: what that costs beyond the window is the platform's.
    calls.clock.advance(3_600)
    await brief.end(worker)
    now = await spending(calls)
    assert now.held == 0
    assert now.spent == await charged(calls) <= WHOLE
    told = (await FunctionAuditor(calls.database).charges(Key("Function", ORG, PROJECT, "f")))["status"]
    assert told["equal"] is True, told["differences"]


async def test_controllers_that_were_away_let_no_limit_be_passed(calls: Calls, brief: PaidWorkers) -> None:
    await budget(calls, 2 * WHOLE)
    worker = await brief.ready()
    calls.clock.advance(100 * WINDOW_SECONDS)
    await worker.claim(take=0)
    await brief.keeper.renew()
    now = await spending(calls)
    assert now.spent == WHOLE
    assert now.spent + now.held <= 2 * WHOLE
    await brief.end(worker, CRASHED)
    assert (await spending(calls)).spent == await charged(calls) <= 2 * WHOLE


async def test_a_budget_that_comes_later_holds_what_workers_reserve_already(calls: Calls, brief: PaidWorkers) -> None:
    worker = await brief.ready()
    await budget(calls, 10 * WHOLE)
    calls.clock.advance(40)
    await brief.keeper.renew()
    now = await spending(calls)
    assert now == Spending(40 * MICRO_USD_A_SECOND, WHOLE)
    await brief.end(worker)
    assert (await spending(calls)).held == 0


@pytest.mark.case("C49")
async def test_a_map_its_warm_workers_and_their_crashes_never_pass_a_budget_of_a_cent(
    calls: Calls, brief: PaidWorkers
) -> None:
    """500 calls under one cent: workers start, idle, are renewed, crash, and go when nothing is left; then it is
    raised and the rest finishes. Not a micro-USD is spent or held beyond the limit at any moment."""
    chance = random.Random(4949)
    limit = 10_000
    await budget(calls, limit)
    await calls.function("g", scaling={"maxWorkers": 10, "targetConcurrency": 2}, recovery={"maxAttempts": 0})
    names = await create(calls, 500, function="g")
    await calls.writer.write(MarkStarted([await calls.ref(name) for name in names]))
    workers: list[ScriptedWorker] = []

    async def turn() -> bool:
        """Whether anything happened that is not the end of something."""
        given = False
        calls.clock.advance(chance.random() * 8)
        if len(workers) < 6 and await calls.database.fetchval(QUEUED):
            for row in await brief.start(function="g"):
                workers.append(await brief.took(row, boot_seconds=chance.random()))
                given = True
        for worker in list(workers):
            if chance.random() < 0.04:
                await brief.end(worker, CRASHED)
                workers.remove(worker)
                continue
            ended = [name for name in worker.running if chance.random() < 0.6]
            free = 2 - len(worker.running) + len(ended)
            got, _ = await worker.claim(*(chance.choice((succeeded, raised))(name) for name in ended), take=free)
            given = given or bool(got)
        await brief.keeper.renew()
        leaving = await calls.database.fetch("SELECT uid FROM attempts WHERE draining AND finished_at IS NULL")
        for uid in [record["uid"] for record in leaving]:
            worker = next(each for each in workers if each.claimant.attempt == uid)
            if not worker.running:
                await brief.end(worker, EXITED)
                workers.remove(worker)
        now = await spending(calls)
        assert now.spent + now.held <= limit
        assert await charged(calls) == now.spent <= limit
        return given or bool(workers)

    quiet = 0
    while quiet < 3:
        quiet = 0 if await turn() else quiet + 1
    left = await calls.database.fetchval(QUEUED)
    assert left > 50
    assert (await spending(calls)).held == 0
    limit = 10_000_000
    await budget(calls, limit)
    for _ in range(1_000):
        if not await calls.database.fetchval("SELECT count(*) FROM calls WHERE state IN ('queued', 'running')"):
            break
        await turn()
    assert await calls.database.fetchval(QUEUED) == 0


QUEUED = "SELECT count(*) FROM calls WHERE state = 'queued'"


async def test_a_limit_reserves_what_increment_and_minimum_of_a_class_may_add(calls: Calls, brief: PaidWorkers) -> None:
    brief.billing = Billing(increment_seconds=50, minimum_seconds=200)
    # Window and stop are 65 s, of which at least 200 are charged.
    await budget(calls, 200 * MICRO_USD_A_SECOND - 1)
    await create(calls, 1)
    assert await brief.start() == []
    await budget(calls, 10_000)
    worker = await brief.ready()
    assert await spending(calls) == Spending(0, 200 * MICRO_USD_A_SECOND)
    calls.clock.advance(40)
    await brief.keeper.renew()
    # 40 s are charged; whenever within the next window and stop it ends, 200 s will have been.
    assert await spending(calls) == Spending(40 * MICRO_USD_A_SECOND, 160 * MICRO_USD_A_SECOND)
    await brief.drain(worker)
    calls.clock.advance(1)
    await brief.end(worker)
    assert await spending(calls) == Spending(200 * MICRO_USD_A_SECOND, 0)
    assert await charged(calls) == 200 * MICRO_USD_A_SECOND
