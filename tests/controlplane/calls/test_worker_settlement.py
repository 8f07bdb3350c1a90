"""A worker itself is charged once for what its calls did not take of it, and holds the price of what comes."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from activities.ledger_keeper import LedgerKeeper
from controlplane.calls.function_charges import FunctionAuditor
from controlplane.capacity.endings import WorkerEnd
from controlplane.kinds.charge_views import FunctionChargesStatus
from controlplane.kinds.quotes import quoted
from controlplane.ledger.accounts import set_floor
from controlplane.ledger.credits import GrantCredit
from controlplane.ledger.invariants import verify
from controlplane.ledger.pricing import Billing
from controlplane.ledger.worker_accounts import hold_micro_usd
from controlplane.store.contract import Key
from tests.fixtures.calls import ORG, PROJECT, Calls, PutObject, succeeded
from tests.fixtures.paid_workers import MICRO_USD_A_SECOND, PaidWorkers

WINDOW_SECONDS = 300


async def draining(calls: Calls) -> tuple[bool, str | None, object]:
    [row] = await calls.database.fetch("SELECT draining, drain_reason, kill_at FROM attempts")
    return row["draining"], row["drain_reason"], row["kill_at"]


async def test_calls_free_places_start_and_stop_add_up_to_the_worker(calls: Calls, paid: PaidWorkers) -> None:
    worker = await paid.ready(boot_seconds=7)
    [name] = await calls.create()
    await worker.take()
    calls.clock.advance(10)
    await worker.claim(succeeded(name), take=0)
    calls.clock.advance(20)
    await paid.drain(worker)
    calls.clock.advance(3)
    await paid.end(worker)
    uid = worker.claimant.attempt
    call_uid = (await calls.get("FunctionCall", name))["metadata"]["uid"]
    # Two places for 30 s, of which a call took 10 s of one.
    assert await paid.entries("charge") == [
        (f"charge/{call_uid}/1", 50),
        (f"charge/{uid}/boot/1", 70),
        (f"charge/{uid}/running/1", 250),
        (f"charge/{uid}/teardown/1", 30),
    ]
    assert await paid.total() == 400 == 40 * MICRO_USD_A_SECOND
    assert await paid.actual(worker) == {
        "costUSD": "0.0004",
        "hours": "0.0111",
        "segments": {
            "bootUSD": "0.00007", "bootSeconds": 7, "runningUSD": "0.0003", "runningSeconds": 30,
            "teardownUSD": "0.00003", "teardownSeconds": 3,
        },
    }  # fmt: skip
    timings = (await calls.get("Attempt", uid))["status"]["timings"]
    assert (timings["bootSeconds"], timings["teardownSeconds"]) == (7, 3)


async def test_an_end_that_is_told_again_charges_nothing_more(calls: Calls, paid: PaidWorkers) -> None:
    worker = await paid.ready()
    calls.clock.advance(30)
    for _ in range(5):
        await paid.end(worker)
        calls.clock.advance(10)
    assert await paid.total() == 30 * MICRO_USD_A_SECOND
    assert len(await paid.entries("charge")) == 1
    assert (await paid.balance()).held_micro_usd == 0


@pytest.mark.parametrize(
    ("end", "drained", "expected", "covered"),
    [
        (WorkerEnd(outcome="NodeLost"), None, {"runningSeconds": 20}, ["Boot"]),
        (WorkerEnd(outcome="Drained", exit_code=0), None, {"runningSeconds": 30}, ["Boot"]),
        (WorkerEnd(outcome="Drained", exit_code=0), "Idle", {"bootSeconds": 5, "runningSeconds": 30}, None),
        (WorkerEnd(outcome="Exited", exit_code=1), None, {"bootSeconds": 5, "runningSeconds": 30}, None),
        (WorkerEnd(outcome="OutOfMemory", signal=9), None, {"bootSeconds": 5, "runningSeconds": 30}, None),
    ],
    ids=["its node vanished", "its node was stopped", "it was let go", "its code ended it", "it grew too large"],
)
async def test_who_ends_a_worker_pays_for_its_start(
    calls: Calls,
    paid: PaidWorkers,
    end: WorkerEnd,
    drained: str | None,
    expected: dict[str, int],
    covered: list[str] | None,
) -> None:
    worker = await paid.ready(boot_seconds=5)
    calls.clock.advance(20)
    await worker.claim(take=0)
    calls.clock.advance(10)
    if drained is not None:
        await paid.drain(worker, drained)
    await paid.end(worker, end)
    segments = (await paid.actual(worker))["segments"]
    assert {name: segments[name] for name in ("bootSeconds", "runningSeconds") if segments[name]} == expected
    assert segments.get("coveredByNodus") == covered
    assert await paid.total() == sum(expected.values()) * MICRO_USD_A_SECOND


async def test_time_of_calls_that_the_platform_lost_is_charged_to_nobody(calls: Calls, paid: PaidWorkers) -> None:
    worker = await paid.ready()
    await calls.create("a", "b")
    await worker.take(2)
    calls.clock.advance(40)
    await worker.claim(take=0)
    await paid.end(worker, WorkerEnd(outcome="NodeLost"))
    assert await paid.total() == 0
    actual = await paid.actual(worker)
    assert (actual["costUSD"], actual["segments"]["runningCoveredSeconds"]) == ("0.00", 40)
    # The one that takes its place brings it back.
    again = await paid.ready(boot_seconds=6)
    await paid.end(again, WorkerEnd(outcome="Exited", exit_code=1))
    segments = (await paid.actual(again))["segments"]
    assert (segments["restoreSeconds"], segments["restoreUSD"]) == (6, "0.00006")
    assert "bootSeconds" not in segments


async def test_an_idle_worker_is_charged_as_it_goes_and_holds_the_next_window(calls: Calls, paid: PaidWorkers) -> None:
    worker = await paid.ready(boot_seconds=10)
    uid, window_micro_usd = worker.claimant.attempt, WINDOW_SECONDS * MICRO_USD_A_SECOND
    assert (await paid.balance()).held_micro_usd == window_micro_usd
    for _ in range(40):
        calls.clock.advance(15)
        await paid.keeper.renew()
        await paid.keeper.renew()
        assert (await paid.balance()).held_micro_usd == window_micro_usd
    # Holds end 30 s before they are used up: after 270 and 540 s.
    assert await paid.entries("hold") == [(f"hold/{uid}/{number}", window_micro_usd) for number in (1, 2, 3)]
    assert await paid.entries("charge") == [(f"charge/{uid}/running/1", 2_700), (f"charge/{uid}/running/2", 2_700)]
    await paid.drain(worker)
    await paid.end(worker)
    assert (await paid.balance()).held_micro_usd == 0
    assert await paid.total() == 610 * MICRO_USD_A_SECOND


async def test_a_long_call_is_not_charged_a_second_time_as_idle_time(calls: Calls, paid: PaidWorkers) -> None:
    worker = await paid.ready()
    names = await calls.create("a", "b", timeout="3600s")
    await worker.take(2)
    for _ in range(5):
        calls.clock.advance(199.5)
        await paid.keeper.renew()
    for name in names:
        await worker.claim(succeeded(name), take=0)
    await paid.end(worker, WorkerEnd(outcome="Exited", exit_code=0))
    assert await paid.total() == 2 * 998 * MICRO_USD_A_SECOND // 2
    assert [entry for entry, _ in await paid.entries("charge") if "/running/" in entry] == []


async def test_where_the_money_ends_no_worker_is_started_and_a_shorter_window_is_held(
    calls: Calls, paid: PaidWorkers
) -> None:
    await set_floor(calls.database, ORG, 0)
    assert await paid.start() == []
    left = hold_micro_usd(36_000, 2 * WINDOW_SECONDS + 70)
    await calls.writer.write(GrantCredit(ORG, "welcome", left, ""))
    rows = await paid.start(5)
    assert len(rows) == 3
    assert [amount for _, amount in await paid.entries("hold")] == [3_000, 3_000, 700]
    assert await paid.start() == []
    assert (await paid.balance()).available_micro_usd == 0


async def test_a_worker_that_cannot_be_paid_any_more_finishes_its_calls_and_takes_no_new_one(
    calls: Calls, paid: PaidWorkers
) -> None:
    await set_floor(calls.database, ORG, 0)
    await calls.writer.write(GrantCredit(ORG, "welcome", 400 * MICRO_USD_A_SECOND, ""))
    worker = await paid.ready()
    first, second = await calls.create("a", "b", timeout="3600s")
    assert await worker.take() == [first]
    for _ in range(37):
        assert await draining(calls) == (False, None, None)
        calls.clock.advance(10)
        await paid.keeper.renew()
        await worker.claim(take=0)
    # The call has taken 370 s of one place and the other was idle: 30 s of the worker are left, too few to hold.
    assert await draining(calls) == (True, "Unfunded", None)
    calls.clock.advance(1_000)
    await paid.keeper.renew()
    assert await worker.take() == []
    await worker.claim(succeeded(first), take=0)
    assert (await calls.status(first))["phase"] == "Succeeded"
    end = await paid.end(worker)
    assert end is not None
    assert (end.phase, end.reason) == ("Cancelled", "Unfunded")
    assert (await calls.status(second))["phase"] == "Queued"
    assert (await paid.balance()).held_micro_usd == 0
    assert await paid.start() == []
    await calls.writer.write(GrantCredit(ORG, "more", 4_000 * MICRO_USD_A_SECOND, ""))
    again = await paid.ready()
    assert await again.take() == [second]


async def test_a_worker_is_renewed_after_its_hold_has_expired_while_nobody_looked(
    calls: Calls, paid: PaidWorkers
) -> None:
    worker = await paid.ready()
    calls.clock.advance(5_000)
    await LedgerKeeper(calls.database, calls.writer, calls.clock).expire_holds()
    assert (await paid.balance()).held_micro_usd == 0
    await paid.keeper.renew()
    assert (await paid.balance()).held_micro_usd == WINDOW_SECONDS * MICRO_USD_A_SECOND
    await paid.end(worker)
    assert await paid.total() == 5_000 * MICRO_USD_A_SECOND


async def test_a_worker_without_a_price_holds_nothing_and_writes_nothing(calls: Calls, paid: PaidWorkers) -> None:
    calls.price = replace(calls.price, rate_micro_usd_per_hour=0)
    worker = await paid.ready(boot_seconds=3)
    calls.clock.advance(1_000)
    await paid.keeper.renew()
    await paid.end(worker)
    for table in ("ledger_transfers", "worker_accounts", "function_segments"):
        assert await calls.database.fetch(f"SELECT * FROM {table}") == []


async def test_a_leftover_account_of_a_worker_that_is_gone_is_closed(calls: Calls, paid: PaidWorkers) -> None:
    worker = await paid.ready()
    await calls.database.execute(
        "UPDATE attempts SET state = 'finished', finished_at = $1", calls.clock.now() + timedelta(seconds=1)
    )
    calls.clock.advance(400)
    await paid.keeper.renew()
    assert await calls.database.fetch("SELECT * FROM worker_accounts") == []
    assert (await paid.balance()).held_micro_usd == 0
    assert await paid.end(worker) is not None


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        ("UPDATE function_segments SET amount_micro_usd = 1 WHERE segment = 'Running'", "the segments of a Function"),
        ("UPDATE worker_accounts SET idle_micro_usd = 1", "for its free places"),
        ("UPDATE worker_accounts SET held_micro_usd = 1", "a worker that lives holds"),
    ],
)
async def test_verify_finds_an_account_that_says_something_else_than_the_ledger(
    calls: Calls, paid: PaidWorkers, broken: str, told: str
) -> None:
    calls.verified = False
    await paid.ready()
    calls.clock.advance(280)
    await paid.keeper.renew()
    assert await verify(calls.database) == []
    await calls.database.execute(broken)
    [breach] = await verify(calls.database)
    assert told in breach.rule


async def test_a_function_that_was_quoted_a_rate_pays_no_more_for_its_workers(calls: Calls, paid: PaidWorkers) -> None:
    function = await calls.get("Function", "f")
    await calls.writer.write(PutObject(Key("Function", ORG, PROJECT, "f"), quoted(function, 18_000)))
    worker = await paid.ready(boot_seconds=100)
    attempt = await calls.get("Attempt", worker.claimant.attempt)
    # At most a tenth more than the quote, which is half of the present rate.
    assert attempt["status"]["placement"]["rateUSDPerHour"] == "0.0198"
    assert (await paid.balance()).held_micro_usd == 1_650
    await paid.end(worker, WorkerEnd(outcome="Exited", exit_code=1))
    assert await paid.total() == 550


async def test_short_calls_that_cost_more_than_their_worker_holds_are_not_run_on_credit(
    calls: Calls, paid: PaidWorkers
) -> None:
    short = paid.with_rules(hold_seconds=20, hold_seconds_min=5, renew_seconds=1)
    await set_floor(calls.database, ORG, 0)
    await calls.writer.write(GrantCredit(ORG, "welcome", 400, ""))
    worker = await short.ready()
    names = await calls.create(*["a"] * 100)
    ran = 0
    for _ in names:
        for name in await worker.take():
            calls.clock.advance(0.1)
            await worker.claim(succeeded(name), take=0)
            ran += 1
        await short.keeper.renew()
    # Each costs 5 micro-USD, and 50 must be left for the shortest hold.
    assert 70 <= ran <= 80
    assert (await draining(calls))[:2] == (True, "Unfunded")
    assert (await short.balance()).charged_micro_usd <= 400
    assert len(await short.entries("hold")) == 2


async def test_increment_and_minimum_of_its_class_are_charged_once_with_the_stop_of_a_worker(
    calls: Calls, paid: PaidWorkers
) -> None:
    paid.billing = Billing(increment_seconds=60, minimum_seconds=120)
    short = await paid.ready(boot_seconds=5)
    # Whenever it ends, what it may come to by then is held: a window ends with an increment, or the next is held.
    assert (await paid.balance()).held_micro_usd == WINDOW_SECONDS * MICRO_USD_A_SECOND
    calls.clock.advance(20)
    await paid.drain(short)
    calls.clock.advance(1)
    for _ in range(3):
        await paid.end(short)
    assert await paid.total() == 120 * MICRO_USD_A_SECOND
    segments = (await paid.actual(short))["segments"]
    assert (segments["bootSeconds"], segments["runningSeconds"], segments["teardownSeconds"]) == (5, 20, 95)
    timings = (await calls.get("Attempt", short.claimant.attempt))["status"]["timings"]
    assert timings["teardownSeconds"] == 1
    paid.billing = Billing(increment_seconds=60)
    # Another class of prices changes nothing of a worker that lives, and what the platform ends is not rounded.
    lost = await paid.ready()
    calls.clock.advance(20)
    await lost.claim(take=0)
    await paid.end(lost, WorkerEnd(outcome="NodeLost"))
    assert await paid.total() == 140 * MICRO_USD_A_SECOND
    audited = await FunctionAuditor(calls.database).charges(Key("Function", ORG, PROJECT, "f"))
    told = FunctionChargesStatus.model_validate(audited["status"]).to_wire()
    assert (told["equal"], told["recomputedUSD"]) == (True, "0.0014")
    rounded = {(each["segment"], each["seconds"], each.get("roundingSeconds")) for each in told["workers"]}
    assert rounded == {("Boot", 5, None), ("Running", 40, None), ("Teardown", 95, 94)}
    assert await verify(calls.database) == []


async def test_a_worker_that_cannot_pay_the_minimum_of_its_class_does_not_start(
    calls: Calls, paid: PaidWorkers
) -> None:
    await set_floor(calls.database, ORG, 0)
    paid.billing = Billing(minimum_seconds=600)
    await calls.writer.write(GrantCredit(ORG, "most", 600 * MICRO_USD_A_SECOND - 1, ""))
    assert await paid.start() == []
    await calls.writer.write(GrantCredit(ORG, "rest", 1, ""))
    [row] = await paid.start()
    assert (await paid.balance()).held_micro_usd == 600 * MICRO_USD_A_SECOND
    assert row.rate_micro_usd_per_hour == 36_000
