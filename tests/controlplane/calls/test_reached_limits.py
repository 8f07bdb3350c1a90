"""When a limit is reached: by what still waits for it, and not by what is gone."""

from __future__ import annotations

import pytest

from controlplane.errors import ApiError
from controlplane.ledger.function_funds import function_funds
from controlplane.ledger.worker_accounts import FundingRules
from controlplane.placement.placements import Placements
from controlplane.store.contract import Document, Key
from tests.fixtures.calls import ORG, PROJECT, Calls, MarkStarted, succeeded


async def is_reached(calls: Calls, function: Document) -> bool:
    """Whether a pool starts no worker for the calls that wait, because its cap pays for nothing any more."""
    key, uid = Key("Function", ORG, PROJECT, "f"), function["metadata"]["uid"]
    capacity = Placements((), calls.settings, calls.clock).of(function["spec"])
    rules, now = FundingRules.from_settings(calls.settings), calls.clock.now()
    funds = await function_funds(calls.database, rules, {uid: capacity}, {key: function}, calls.cache, now)
    load = await calls.database.fetchrow("SELECT queued, running FROM function_load WHERE function_uid = $1", uid)
    cap = funds[uid].cap
    assert cap is not None
    assert load is not None
    return cap.is_reached(queued=load["queued"], running=load["running"])


async def test_a_cap_is_not_reached_by_a_call_that_has_left_the_queue(calls: Calls) -> None:
    """Whoever follows the advice of the 402, to ask for less time, is served."""
    function = await calls.function(maxCostUSD="0.03")
    first, long = await calls.create("", "", timeout="2000s")
    await calls.writer.write(MarkStarted([await calls.ref(name) for name in (first, long)]))
    worker = await calls.worker()
    await worker.take()
    calls.clock.advance(1_500)
    assert await worker.claim(succeeded(first)) == ([], [])
    assert await is_reached(calls, function)
    await calls.cancel(long)
    [short] = await calls.create(timeout="60s")
    assert not await is_reached(calls, function)
    assert await worker.take() == [short]


@pytest.mark.parametrize("seconds", [60, 3_000])
async def test_a_call_that_needs_less_than_what_did_not_fit_may_try(calls: Calls, seconds: int) -> None:
    function = await calls.function(maxCostUSD="0.05")
    first, long = await calls.create("", "", timeout="3000s")
    await calls.writer.write(MarkStarted([await calls.ref(name) for name in (first, long)]))
    worker = await calls.worker()
    await worker.take()
    calls.clock.advance(2_500)
    await worker.claim(succeeded(first))
    assert await is_reached(calls, function)
    if seconds > 2_440:
        with pytest.raises(ApiError):
            await calls.create("another", timeout=f"{seconds}s")
        assert await is_reached(calls, function)
        return
    await calls.create("another", timeout=f"{seconds}s")
    assert not await is_reached(calls, function)
    # The long one is asked first, does not fit, and the cap is reached again only by what did not.
    assert len(await worker.take(2)) == 1
    await worker.claim(*[succeeded(name) for name in worker.running], take=0)
    await calls.cancel(long)
    assert not await is_reached(calls, function)
