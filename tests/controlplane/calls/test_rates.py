"""What a worker costs is agreed at its start, for its calls as well, and holds until its end whatever prices do."""

from __future__ import annotations

from dataclasses import replace

from controlplane.calls.function_charges import FunctionAuditor
from controlplane.ledger.invariants import verify
from controlplane.ledger.pricing import WorkerPrice
from controlplane.store.contract import Key
from tests.fixtures.calls import ORG, PROJECT, Calls, ScriptedWorker, succeeded
from tests.fixtures.inspecting import Inspecting
from tests.fixtures.paid_workers import PaidWorkers, paid_workers

DEARER = WorkerPrice(rate_micro_usd_per_hour=144_000, pricebook="book-2", offering="cpu-4x8")
"""40 micro-USD a second; the flat price is 10."""


async def ran(calls: Calls, worker: ScriptedWorker, seconds: int) -> str:
    """A call that ran for so long."""
    [name] = await calls.create()
    assert await worker.take() == [name]
    calls.clock.advance(seconds)
    await worker.claim(succeeded(name), take=0)
    return name


async def test_a_worker_and_its_calls_are_charged_at_the_rate_of_its_start(
    calls: Calls, inspecting: Inspecting
) -> None:
    paid = paid_workers(calls)
    before = await paid.ready(boot_seconds=5)
    [name] = await calls.create()
    assert await before.take() == [name]
    calls.clock.advance(4)
    calls.price = DEARER
    calls.clock.advance(6)
    await before.claim(succeeded(name), take=0)
    later = await ran(calls, before, 10)
    await paid.drain(before)
    await paid.end(before)
    after = await paid.ready(boot_seconds=5)
    dearer = await ran(calls, after, 10)
    await paid.drain(after)
    await paid.end(after)
    for call, amount, rate, book in (
        (name, "0.0001", "0.036", "flat-0.036"),
        (later, "0.0001", "0.036", "flat-0.036"),
        (dearer, "0.0004", "0.144", "book-2"),
    ):
        told = await inspecting.charges(call)
        [charge] = told["charges"]
        assert (told["equal"], told["ledgerUSD"]) == (True, amount)
        assert (charge["rateUSDPerHour"], charge["pricebookVersion"]) == (rate, book)
    audited = await FunctionAuditor(calls.database).charges(Key("Function", ORG, PROJECT, "f"))
    status = audited["status"]
    assert (status["equal"], status["recomputedUSD"]) == (True, status["ledgerUSD"])
    rates = {(each["attempt"], each["rateUSDPerHour"], each["pricebookVersion"]) for each in status["workers"]}
    assert rates == {
        (before.claimant.attempt, "0.036", "flat-0.036"),
        (after.claimant.attempt, "0.144", "book-2"),
    }
    # 25 s and 15 s of a whole worker, whatever of it went to calls.
    assert await paid.total() == 25 * 10 + 15 * 40
    assert await verify(calls.database) == []
    ran_on = "SELECT DISTINCT subject_kind, offering FROM ledger_transfers WHERE kind = 'charge' ORDER BY 1, 2"
    assert [tuple(row) for row in await calls.database.fetch(ran_on)] == [
        ("Attempt", "cpu-4x8"), ("Attempt", "local"), ("FunctionCall", "cpu-4x8"), ("FunctionCall", "local"),
    ]  # fmt: skip


async def test_an_attempt_tells_what_it_runs_on_and_costs(calls: Calls, paid: PaidWorkers) -> None:
    calls.price = DEARER
    [row] = await paid.start()
    placement = (await calls.get("Attempt", row.uid))["status"]["placement"]
    assert (placement["offering"], placement["rateUSDPerHour"]) == ("cpu-4x8", "0.144")
    calls.price = replace(DEARER, rate_micro_usd_per_hour=0)
    account = "SELECT rate_micro_usd_per_hour, offering FROM worker_accounts WHERE uid = $1"
    [stored] = await calls.database.fetch(account, row.uid)
    assert tuple(stored) == (144_000, "cpu-4x8")
