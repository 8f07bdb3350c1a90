"""Budgets and caps where money is spent: what is dispatched, what waits, what is counted."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import Any

import pytest

from controlplane.calls.book import CallBook
from controlplane.calls.hooks import FunctionCallHooks
from controlplane.calls.recovery import LoseAttempt
from controlplane.capacity.endings import WorkerEnd
from controlplane.errors import ApiError, Reason
from controlplane.kinds.quotes import quoted
from controlplane.kinds.registry import KINDS
from controlplane.ledger.budget_hooks import BudgetHooks
from controlplane.ledger.pricebook import PriceBook
from controlplane.ledger.pricing import WorkerPrice
from controlplane.ledger.reservations import left_for_workers
from controlplane.ledger.worker_accounts import WorkerAccount
from controlplane.machinery.quantities import format_money
from controlplane.placement.placements import Placements
from controlplane.resources.mutations import Create, Creation, Update
from controlplane.store.contract import Document, Key, Reads, Tx
from tests.fixtures.calls import ORG, PROJECT, Calls, MarkStarted, PutObject, ScriptedWorker, raised, succeeded
from tests.fixtures.eventually import eventually

MICRO_USD_A_SECOND = 10
TIMEOUT_SECONDS = 20
GRACE_SECONDS = 60
MOST = (TIMEOUT_SECONDS + GRACE_SECONDS) * MICRO_USD_A_SECOND
"""What a call of these tests may cost at most, in micro-USD."""


@dataclass(frozen=True)
class Spending:
    """A row of a limit."""

    spent: int
    held: int


async def budget(calls: Calls, micro_usd: int, name: str = "b", **spec: Any) -> Document:
    """Create a Budget as admission would have it, or change its spec."""
    key = Key("Budget", ORG, "", name)
    whole = {"limitUSD": format_money(micro_usd), "period": "Total", "action": "Block", **spec}
    document = {
        "apiVersion": "nodus.dev/v1",
        "kind": "Budget",
        "metadata": {"name": name, "uid": f"bud_{name}", "creationTimestamp": "2026-11-29T11:00:00Z"},
        "spec": whole,
        "status": {},
    }
    stored, kind, hooks = await calls.objects.get_document(key), KINDS["Budget"], BudgetHooks()
    if stored is None:
        await calls.writer.write(Create(kind, [Creation(key, document)], hooks, None, as_list=False))
    else:
        await calls.writer.write(Update(kind, key, stored, {**stored, "spec": whole}, hooks))
    changed = await calls.objects.get_document(key)
    assert changed is not None
    return changed


async def spending(calls: Calls, limit_id: str = "bud_b") -> Spending:
    row = await calls.database.fetchrow("SELECT * FROM spending_limits WHERE id = $1", limit_id)
    assert row is not None, f"{limit_id} was never asked about"
    reserved = await calls.database.fetchval(
        "SELECT COALESCE(sum(amount_micro_usd), 0)::bigint FROM spending_reservations WHERE limit_id = $1", limit_id
    )
    assert row["held_micro_usd"] == reserved
    return Spending(row["spent_micro_usd"], row["held_micro_usd"])


def condition(status: dict[str, Any], kind: str) -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in status["conditions"] if each["type"] == kind)
    return found


async def create(calls: Calls, count: int, **spec: Any) -> list[str]:
    return await calls.create(*[""] * count, timeout=f"{TIMEOUT_SECONDS}s", **spec)


async def test_what_a_run_may_cost_is_held_until_it_ends_and_then_what_it_cost_is_spent(calls: Calls) -> None:
    await budget(calls, 10 * MOST)
    await calls.function()
    [name] = await create(calls, 1)
    worker = await calls.worker()
    assert await worker.take() == [name]
    assert await spending(calls) == Spending(0, MOST)
    calls.clock.advance(3)
    await worker.claim(succeeded(name), take=0)
    assert await spending(calls) == Spending(3 * MICRO_USD_A_SECOND, 0)


async def test_calls_run_as_far_as_the_money_reaches_and_go_on_when_there_is_more(calls: Calls) -> None:
    await budget(calls, 2 * MOST)
    await calls.function()
    names = await create(calls, 4)
    workers = [await calls.worker() for _ in names]
    given = [name for worker in workers for name in await worker.take()]
    assert given == names[:2]
    status = await calls.status(names[2])
    assert (status["phase"], condition(status, "Funded")["status"]) == ("Queued", "False")
    assert condition(status, "Funded")["reason"] == "BudgetExceeded"
    assert "budget/b" in status["message"]
    # What ends gives back what it did not need, and the next one runs in the same transaction.
    calls.clock.advance(1)
    assert [call["id"] for call in (await workers[0].claim(succeeded(names[0])))[0]] == []
    assert await spending(calls) == Spending(MICRO_USD_A_SECOND, MOST)
    await budget(calls, 2 * MOST + MICRO_USD_A_SECOND)
    await eventually_taken(calls, workers[2], names[2])
    assert condition(await calls.status(names[2]), "Funded")["status"] == "True"
    assert await workers[3].take() == []


DEARER = WorkerPrice(rate_micro_usd_per_hour=144_000, pricebook="b", offering="large")
"""Four times the flat price."""
BOUND = MOST * 11 // 10
"""What a call may cost that was quoted the flat price."""


async def bound_function(calls: Calls, name: str) -> None:
    """A Function that was created bound to a quote of the flat price, and its calls with it."""
    document = quoted(await calls.function(name), 36_000)
    await calls.writer.write(PutObject(Key("Function", ORG, PROJECT, name), document))


async def test_what_is_held_is_what_the_class_of_the_worker_costs_and_no_more_than_a_quote_allows(
    calls: Calls,
) -> None:
    await budget(calls, 10 * MOST)
    await calls.function()
    await bound_function(calls, "g")
    [dear], [bound] = await create(calls, 1), await create(calls, 1, function="g")
    calls.price = DEARER
    worker, other = await calls.worker(), await calls.worker("g")
    assert await worker.take() == [dear]
    assert await spending(calls) == Spending(0, 4 * MOST)
    assert await other.take() == [bound]
    assert await spending(calls) == Spending(0, 4 * MOST + BOUND)
    calls.clock.advance(3)
    await worker.claim(succeeded(dear), take=0)
    await other.claim(succeeded(bound), take=0)
    assert await spending(calls) == Spending(3 * 40 + 3 * 11, 0)


async def test_a_create_is_refused_by_what_the_class_of_its_function_costs_and_a_quote_allows(calls: Calls) -> None:
    large = {"name": "large", "host": {"cpu": "4", "memory": "8Gi"}, "regionClass": "us", "rateUSDPerHour": "0.144"}
    book = {"version": "b", "validFrom": "2026-01-01T00:00:00Z", "offerings": [{**large, "available": 1}]}
    placements = Placements([PriceBook.model_validate(book)], calls.settings, calls.clock)
    calls.hooks = FunctionCallHooks(calls.hooks._limits, calls.settings, placements)
    await budget(calls, 4 * MOST - 1)
    await calls.function()
    await bound_function(calls, "g")
    with pytest.raises(ApiError) as refused:
        await create(calls, 1)
    assert refused.value.reason is Reason.BUDGET_EXCEEDED
    assert refused.value.details["neededUSD"] == format_money(4 * MOST)
    await create(calls, 1, function="g")
    await budget(calls, 4 * MOST)
    await create(calls, 1)


async def eventually_taken(calls: Calls, worker: ScriptedWorker, name: str) -> None:
    async def taken() -> bool:
        return await worker.take() == [name]

    await eventually(taken)


async def test_a_held_claim_is_served_when_a_budget_is_raised_or_gives_money_back(calls: Calls) -> None:
    await budget(calls, MOST)
    await calls.function()
    first, second, third = await create(calls, 3)
    busy, waiting = await calls.worker(), await calls.worker()
    assert await busy.take() == [first]
    held = claim_in_background(waiting)
    await eventually(lambda: _held(calls, waiting))
    await budget(calls, 2 * MOST)
    assert await held == [second]
    # Money that is given back serves whoever waits, not only who gave it.
    calls.clock.advance(0.5)
    other = await calls.worker()
    again = claim_in_background(other)
    await eventually(lambda: _held(calls, other))
    await budget(calls, 2 * MOST + MICRO_USD_A_SECOND)
    await busy.claim(succeeded(first), take=0)
    assert await again == [third]


def claim_in_background(worker: ScriptedWorker) -> Any:

    async def names() -> list[str]:
        return [call["id"] for call in (await worker.claim(wait=60.0))[0]]

    return asyncio.ensure_future(names())


async def _held(calls: Calls, worker: ScriptedWorker) -> bool:
    return bool(calls.waiting.held(worker.claimant.function_uid))


async def test_a_create_is_refused_once_nothing_can_be_left_for_it(calls: Calls) -> None:
    await budget(calls, MOST)
    await calls.function()
    [name] = await create(calls, 1)
    worker = await calls.worker()
    await worker.take()
    # All is held; it may come back, so another call may wait for it.
    await create(calls, 1)
    calls.clock.advance(1)
    await worker.claim(succeeded(name), take=0)
    with pytest.raises(ApiError) as refused:
        await create(calls, 1)
    error = refused.value
    assert error.reason is Reason.BUDGET_EXCEEDED
    assert error.details == {"budget": "b", "neededUSD": "0.0008", "remainingUSD": "0.00079"}
    assert "spec.limitUSD" in error.fix
    assert "shorter `spec.timeout`" in error.fix
    await budget(calls, MOST + MICRO_USD_A_SECOND)
    await create(calls, 1)


async def test_a_budget_that_only_notifies_counts_and_holds_nothing_up(calls: Calls) -> None:
    await budget(calls, 1, action="Notify")
    await calls.function()
    [name] = await create(calls, 1)
    worker = await calls.worker()
    assert await worker.take() == [name]
    calls.clock.advance(2)
    await worker.claim(succeeded(name), take=0)
    assert await spending(calls) == Spending(2 * MICRO_USD_A_SECOND, 0)


async def test_a_cap_of_a_function_is_a_limit_of_its_own(calls: Calls) -> None:
    function = await calls.function(maxCostUSD=format_money(MOST))
    uid = function["metadata"]["uid"]
    await calls.function("free")
    first, second = await create(calls, 2)
    [other] = await create(calls, 1, function="free")
    worker, idle, free = await calls.worker(), await calls.worker(), await calls.worker("free")
    assert await worker.take() == [first]
    assert await idle.take() == []
    assert await free.take() == [other]
    assert "function/f" in (await calls.status(second))["message"]
    assert await spending(calls, uid) == Spending(0, MOST)


async def test_sessions_that_another_limit_covers_are_not_held_up(calls: Calls) -> None:
    await budget(calls, 1, scope={"selector": {"matchLabels": {"nodus.dev/function": "f"}}})
    await budget(calls, 1, name="other", scope={"project": "elsewhere"})
    await calls.function()
    await calls.function("g")
    with pytest.raises(ApiError):
        await create(calls, 1)
    [name] = await create(calls, 1, function="g")
    assert await (await calls.worker("g")).take() == [name]


async def test_a_budget_begins_with_what_was_spent_and_runs_already(calls: Calls) -> None:
    await calls.function()
    first, second, third = names = await create(calls, 3)
    # The engine knows them, or days later it would lag so much that nothing is handed out.
    await calls.writer.write(MarkStarted([await calls.ref(name) for name in names]))
    workers = [await calls.worker() for _ in range(3)]
    assert [await worker.take() for worker in workers[:2]] == [[first], [second]]
    calls.clock.advance(4)
    await workers[0].claim(succeeded(first), take=0)
    await budget(calls, 10 * MOST, period="Monthly")
    await workers[2].take()
    assert await spending(calls) == Spending(4 * MICRO_USD_A_SECOND, 2 * MOST)
    await workers[1].claim(succeeded(second), take=0)
    assert await spending(calls) == Spending(8 * MICRO_USD_A_SECOND, MOST)
    # A new month begins with nothing spent; what runs is held still.
    calls.clock.advance(3 * 24 * 3600)
    [fourth] = await create(calls, 1)
    assert await workers[0].take() == [fourth]
    assert await spending(calls) == Spending(0, 2 * MOST)
    assert await workers[2].claim(succeeded(third), take=0) == ([], [])


async def test_what_never_reached_its_worker_holds_nothing(calls: Calls) -> None:
    await budget(calls, MOST)
    await calls.function()
    [name] = await create(calls, 1)
    worker = await calls.worker()
    await worker.take()
    worker.running.clear()
    assert await worker.take() == [name]
    assert await spending(calls) == Spending(0, MOST)


@pytest.mark.case("C49")
async def test_a_map_never_passes_its_budget_whatever_happens_to_its_workers(calls: Calls) -> None:
    """500 calls under a Budget of one cent, that end, raise and take workers down in a random order."""
    chance = random.Random(49)
    limit = 10_000
    await budget(calls, limit)
    await calls.function(retries={"maxRetries": 0}, recovery={"maxAttempts": 0})
    names = await create(calls, 500)
    await calls.writer.write(MarkStarted([await calls.ref(name) for name in names]))
    workers = [await calls.worker() for _ in range(16)]
    idle_rounds = 0
    for _ in range(300):
        if idle_rounds == 3:
            break
        moved = False
        for position, worker in enumerate(workers):
            ended = [name for name in worker.running if chance.random() < 0.6]
            calls.clock.advance(chance.random() * 2)
            if worker.running and chance.random() < 0.05:
                end = WorkerEnd(outcome="Exited", signal=9)
                claimant = worker.claimant
                await calls.writer.write(
                    LoseAttempt(claimant.attempt, claimant.epoch, calls.clock.now(), calls.rules, end)
                )
                workers[position] = await calls.worker()
                moved = True
                continue
            reports = [chance.choice((succeeded, raised))(name) for name in ended]
            given, _ = await worker.claim(*reports, take=1 - len(worker.running) + len(ended))
            moved = moved or bool(given) or bool(reports) or bool(worker.running)
            now = await spending(calls)
            assert now.spent + now.held <= limit
            charged = await calls.database.fetchval("SELECT sum(amount_micro_usd)::bigint FROM ledger_transfers")
            assert (charged or 0) == now.spent <= limit
        idle_rounds = 0 if moved else idle_rounds + 1
    phases = await calls.database.fetch("SELECT state, count(*) AS calls FROM calls GROUP BY 1")
    left = {row["state"]: row["calls"] for row in phases}
    assert left.get("queued", 0) > 100, left
    assert (await spending(calls)).held == 0
    await budget(calls, 1_000_000)
    for _ in range(500):
        if not await calls.database.fetchval("SELECT count(*) FROM calls WHERE state IN ('queued', 'running')"):
            break
        for worker in workers:
            calls.clock.advance(0.5)
            reports = [succeeded(name) for name in worker.running]
            await worker.claim(*reports)
    total = await spending(calls)
    assert total.held == 0
    assert not await calls.database.fetchval("SELECT count(*) FROM calls WHERE state = 'queued'")
    assert total.spent == await calls.database.fetchval("SELECT sum(amount_micro_usd)::bigint FROM ledger_transfers")


async def test_what_workers_cost_beside_their_calls_is_counted_and_starts_no_more_of_them(calls: Calls) -> None:
    function = await calls.function()
    key, uid = Key("Function", ORG, PROJECT, "f"), function["metadata"]["uid"]
    await budget(calls, 10 * MOST)
    [name] = await create(calls, 1)
    worker = await calls.worker()
    await worker.take()
    account = WorkerAccount(
        uid=worker.claimant.attempt, org=ORG, project=PROJECT, function="f", function_uid=uid,
        rate_micro_usd_per_hour=36_000, shares=1, pricebook="test", offering="local", restores=False,
        funded_until=calls.clock.now(), look_at=calls.clock.now(),
    )  # fmt: skip
    await calls.writer.write(CostBeside(account, 9 * MOST))
    assert await spending(calls) == Spending(9 * MOST, MOST)
    limits = calls.dispatcher._limits
    left = await left_for_workers(calls.database, {uid: limits.blocking(key, function)}, calls.clock.now())
    assert left == {uid: 0}
    [other] = await create(calls, 1, function="f")
    assert await (await calls.worker()).take() == []
    await budget(calls, 12 * MOST)
    left = await left_for_workers(calls.database, {uid: limits.blocking(key, function)}, calls.clock.now())
    assert left == {uid: 2 * MOST}
    assert await left_for_workers(calls.database, {uid: []}, calls.clock.now()) == {uid: None}
    await worker.claim(succeeded(name), take=0)
    await eventually_taken(calls, worker, other)
    calls.verified = False  # no transfer was written for what the worker cost


@dataclass(frozen=True)
class CostBeside:
    """A worker came to this much beyond its calls."""

    account: WorkerAccount
    micro_usd: int

    def reads(self) -> Reads:
        return Reads()

    def apply(self, tx: Tx) -> None:
        CallBook.of(tx).charge_worker(self.account, self.micro_usd)
