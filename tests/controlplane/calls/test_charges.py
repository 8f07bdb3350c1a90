"""Every cent of a call can be worked out again from what is recorded, and what cannot be is told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from controlplane.ledger.credits import RefundCharge
from tests.fixtures.calls import Calls, ScriptedWorker, raised, succeeded
from tests.fixtures.inspecting import Inspecting, attach, bring_down


async def run(calls: Calls, name: str, seconds: float, report: Callable[[str], dict[str, object]]) -> ScriptedWorker:
    worker = await calls.worker(concurrency=4)
    assert await worker.take() == [name]
    calls.clock.advance(seconds)
    await worker.claim(report(name), take=0)
    return worker


async def test_a_call_tells_how_its_cost_came_about(calls: Calls, inspecting: Inspecting) -> None:
    [name] = await calls.create()
    queued = await inspecting.charges(name)
    assert (queued["equal"], queued["costUSD"], queued["charges"]) == (True, "0.00", [])
    first = await run(calls, name, 3.2, raised)
    await attach(calls, name)
    calls.clock.advance(8)
    await attach(calls, name, offer_after=1)
    second = await run(calls, name, 0.1, succeeded)
    told = await inspecting.charges(name)
    assert (told["phase"], told["equal"]) == ("Succeeded", True)
    assert (told["costUSD"], told["ledgerUSD"], told["recomputedUSD"]) == ("0.000013", "0.000013", "0.000013")
    uid = (await calls.get("FunctionCall", name))["metadata"]["uid"]
    assert told["charges"] == [
        {
            "dispatch": 1,
            "attempt": first.claimant.attempt,
            "chargedFrom": "2026-11-29T12:00:00.000000Z",
            "chargedUntil": "2026-11-29T12:00:03.200000Z",
            "seconds": 4,
            "rateUSDPerHour": "0.036",
            "shares": 4,
            "pricebookVersion": "flat-0.036",
            "amountUSD": "0.00001",
            "recomputedUSD": "0.00001",
            "transaction": f"charge/{uid}/1",
        },
        {
            "dispatch": 2,
            "attempt": second.claimant.attempt,
            "chargedFrom": "2026-11-29T12:00:11.200000Z",
            "chargedUntil": "2026-11-29T12:00:11.300000Z",
            "seconds": 1,
            "rateUSDPerHour": "0.036",
            "shares": 4,
            "pricebookVersion": "flat-0.036",
            "amountUSD": "0.000003",
            "recomputedUSD": "0.000003",
            "transaction": f"charge/{uid}/2",
        },
    ]


async def test_what_was_given_back_is_told_beside_the_cost(calls: Calls, inspecting: Inspecting) -> None:
    [name] = await calls.create()
    await run(calls, name, 4, succeeded)
    uid = (await calls.get("FunctionCall", name))["metadata"]["uid"]
    await calls.writer.write(RefundCharge(f"charge/{uid}/1", "sorry", 4, "the node was slow"))
    told = await inspecting.charges(name)
    assert (told["equal"], told["costUSD"], told["refundedUSD"]) == (True, "0.00001", "0.000004")
    [refund] = told["refunds"]
    assert (refund["of"], refund["amountUSD"], refund["reason"]) == (
        f"charge/{uid}/1", "0.000004", "the node was slow",
    )  # fmt: skip


async def test_a_dispatch_that_was_not_charged_says_why(calls: Calls, inspecting: Inspecting) -> None:
    [name] = await calls.create()
    worker = await calls.worker()
    await worker.take()
    # A claim that does not name the call: it never arrived.
    await worker.claim(take=0, running=[])
    told = await inspecting.charges(name)
    assert told["equal"] is True
    [free] = told["charges"]
    assert (free["amountUSD"], free["reason"]) == ("0.00", "the worker never received it")
    assert free["startedAt"] == free["endedAt"] == "2026-11-29T12:00:00.000000Z"


async def test_a_ledger_longer_than_is_told_is_not_said_to_agree(
    calls: Calls, inspecting: Inspecting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controlplane.calls.charges.TRANSFERS_MAX", 1)
    monkeypatch.setattr("controlplane.calls.inspection.TRANSFERS_MAX", 1)
    [name] = await calls.create()
    await run(calls, name, 4, succeeded)
    assert "chargesAreCut" not in await inspecting.charges(name)
    uid = (await calls.get("FunctionCall", name))["metadata"]["uid"]
    await calls.writer.write(RefundCharge(f"charge/{uid}/1", "sorry", 4, "the node was slow"))
    told = await inspecting.charges(name)
    assert (told["chargesAreCut"], told["equal"], len(told["charges"])) == (True, False, 1)


async def change_cost(calls: Calls, uid: str) -> None:
    await calls.database.execute(
        "UPDATE objects SET doc = jsonb_set(doc::jsonb, '{status,costUSD}', '\"1.00\"')::json WHERE uid = $1", uid
    )


async def change_dispatch(calls: Calls, uid: str) -> None:
    await calls.database.execute("UPDATE call_dispatches SET charge_micro_usd = 7 WHERE call_uid = $1", uid)


async def change_start(calls: Calls, uid: str) -> None:
    await calls.database.execute(
        "UPDATE call_dispatches SET started_at = started_at - interval '1 hour' WHERE call_uid = $1", uid
    )


async def change_end(calls: Calls, uid: str) -> None:
    await calls.database.execute(
        "UPDATE call_dispatches SET ended_at = ended_at - interval '1 second' WHERE call_uid = $1", uid
    )


async def change_basis(calls: Calls, uid: str) -> None:
    await calls.database.execute(
        "SET session_replication_role = replica; UPDATE ledger_transfers SET rate_micro_usd_per_hour = 1 "
        f"WHERE subject_uid = '{uid}'; RESET session_replication_role"
    )


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (change_cost, "the call tells 1.00 USD and the ledger 0.00004 USD"),
        (change_dispatch, "dispatch 1 tells 0.000007 USD and the ledger 0.00004 USD"),
        (change_start, "dispatch 1 began at another time than it is charged from"),
        (change_end, "dispatch 1 ended before what it is charged until"),
        (change_basis, "dispatch 1 was charged 0.00004 USD and the rule makes it 0.000001 USD"),
    ],
)
async def test_what_does_not_agree_is_told(
    calls: Calls, inspecting: Inspecting, change: Callable[[Calls, str], Awaitable[None]], told: str
) -> None:
    calls.verified = False
    [name] = await calls.create()
    worker = await calls.worker()
    await worker.take()
    calls.clock.advance(4)
    await worker.claim(succeeded(name), take=0)
    await change(calls, (await calls.get("FunctionCall", name))["metadata"]["uid"])
    shown = await inspecting.charges(name)
    assert (shown["equal"], shown["differences"]) == (False, [told])


async def test_a_call_whose_ledger_agrees_however_its_workers_ended(calls: Calls, inspecting: Inspecting) -> None:
    [name] = await calls.create()
    await bring_down(calls, name)
    worker = await calls.worker()
    await worker.take()
    calls.clock.advance(20)
    for _ in range(5):
        await worker.claim(succeeded(name), take=0)
    told = await inspecting.charges(name)
    assert (told["phase"], told["equal"]) == ("Succeeded", True)
    assert len(told["charges"]) == 2
