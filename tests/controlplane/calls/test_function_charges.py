"""Every cent of a Function can be worked out again from the ledger, and what cannot be is told."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.calls.function_charges import FunctionAuditor
from controlplane.capacity.endings import WorkerEnd
from controlplane.kinds.charge_views import FunctionChargesStatus
from controlplane.ledger.credits import RefundCharge
from controlplane.store.contract import Key
from tests.fixtures.calls import ORG, PROJECT, Calls, succeeded
from tests.fixtures.paid_workers import PaidWorkers


async def audit(calls: Calls) -> dict[str, Any]:
    """What is served, held against its model."""
    shown = await FunctionAuditor(calls.database).charges(Key("Function", ORG, PROJECT, "f"))
    assert shown["kind"] == "FunctionCharges"
    return FunctionChargesStatus.model_validate(shown["status"]).to_wire()


@pytest.fixture
async def worked(calls: Calls, paid: PaidWorkers) -> PaidWorkers:
    """Two workers, of which one was lost, one idled through a window, and calls were run."""
    lost = await paid.ready(boot_seconds=3)
    calls.clock.advance(20.5)
    await lost.claim(take=0)
    await paid.end(lost, WorkerEnd(outcome="NodeLost"))
    worker = await paid.ready(boot_seconds=4.4)
    names = await calls.create("a", "b", "c")
    for name in names:
        await worker.take(1)
        calls.clock.advance(3.7)
        await worker.claim(succeeded(name), take=0)
    calls.clock.advance(400)
    await paid.keeper.renew()
    calls.clock.advance(10)
    await paid.drain(worker)
    calls.clock.advance(1)
    await paid.end(worker)
    return paid


async def test_calls_warm_time_starts_and_stops_are_the_total_and_the_ledger(calls: Calls, worked: PaidWorkers) -> None:
    told = await audit(calls)
    assert (told["equal"], told.get("differences")) == (True, None)
    parts = {part["part"]: (part["charges"], part["seconds"], part["amountUSD"]) for part in told["parts"]}
    assert parts["Calls"] == (3, 12, "0.00006")
    assert parts["Restore"] == (1, 5, "0.00005")
    assert parts["Teardown"] == (1, 1, "0.00001")
    assert "Boot" not in parts  # of the worker that the platform lost
    # 21 s of the lost worker and 421 s of the other, with two places, of which calls took 12 s.
    assert parts["Warm"][1] == 2 * (21 + 421) - 12
    assert sum(int(1_000_000 * float(part["amountUSD"]) + 0.5) for part in told["parts"]) == await worked.total()
    assert told["totalUSD"] == told["ledgerUSD"] == told["recomputedUSD"]
    assert (told["heldUSD"], told["refundedUSD"]) == ("0.00", "0.00")
    newest = told["workers"][0]
    assert (newest["segment"], newest["seconds"], newest["shares"], newest["amountUSD"]) == (
        "Teardown", 1, 1, "0.00001",
    )  # fmt: skip
    assert newest["transaction"] == f"charge/{newest['attempt']}/teardown/2"


async def test_an_entry_that_does_not_follow_from_its_fields_is_told(calls: Calls, worked: PaidWorkers) -> None:
    calls.verified = False
    await calls.database.execute(
        "SET session_replication_role = replica; UPDATE ledger_transfers SET amount_micro_usd = amount_micro_usd + 1 "
        "WHERE segment = 'Restore'; RESET session_replication_role"
    )
    told = await audit(calls)
    assert told["equal"] is False
    assert len(told["differences"]) == 3
    assert "the Function tells" in told["differences"][0]
    assert "is of 0.000051 USD and the rule makes it 0.00005 USD" in told["differences"][1]
    assert "its workers tell 0.00005 USD of Restore and the ledger 0.000051 USD" in told["differences"][2]


async def test_what_runs_holds_and_what_was_given_back_stand_beside_the_cost(calls: Calls, worked: PaidWorkers) -> None:
    await worked.ready()
    [(first, _), *_] = await worked.entries("charge")
    await calls.writer.write(RefundCharge(first, "sorry", 7, "it was slow"))
    told = await audit(calls)
    assert (told["equal"], told["heldUSD"], told["refundedUSD"]) == (True, "0.003", "0.000007")


async def test_a_function_that_never_ran_was_charged_nothing(calls: Calls, paid: PaidWorkers) -> None:
    told = await audit(calls)
    assert (told["equal"], told["totalUSD"], told["parts"], told["workers"]) == (True, "0.00", [], [])
