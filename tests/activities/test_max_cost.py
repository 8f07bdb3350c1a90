"""A Function at its `maxCostUSD` stops, its calls stay queued and say why, and raising the cap lets it go on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from controlplane.errors import ApiError, Reason
from controlplane.ledger.invariants import verify
from controlplane.machinery.kind import Document
from controlplane.machinery.quantities import parse_money
from tests.fixtures.control import ControlWorld, open_world
from tests.fixtures.eventually import eventually
from workers.engines.temporal import EmbeddedTemporal

WITHIN_SECONDS = 120.0
CAP = "0.00016"
"""A worker holds 8 s and its stop of 1 s, 90 micro-USD, or 50 at least; a call may cost 60 and costs 10."""


@pytest.fixture
async def world(temporal: EmbeddedTemporal, database_url: str, tmp_path: Path) -> AsyncIterator[ControlWorld]:
    """A control process with short windows."""
    funding = {
        "worker_hold_seconds": 8,
        "worker_hold_seconds_min": 4,
        "worker_hold_renew_seconds": 6,
        "teardown_seconds_max": 1,
        "deadline_grace_seconds": 1,
    }
    async with open_world(temporal, database_url, tmp_path, **funding) as opened:
        async with opened.running():
            yield opened
        await opened.end_controllers()


def condition(status: Document, kind: str) -> tuple[str, str]:
    [found] = [each for each in status["conditions"] if each["type"] == kind]
    return found["status"], found["reason"]


@pytest.mark.case("C49")
async def test_a_function_at_its_cap_stops_and_goes_on_when_it_is_raised(world: ControlWorld) -> None:
    # All calls are admitted before the first of them costs anything.
    await world.function(maxCostUSD=CAP, timeout="5s", state="Stopped", scaling={"minWorkers": 0, "maxWorkers": 1})
    names = [await world.call(timeout="5s") for _ in range(3)]
    await world.change("Function", "f", lambda document: document["spec"].update(state="Running"))
    told = await world.until_function(within=WITHIN_SECONDS, phase="Stopped", reason="MaxCostReached")
    assert condition(told, "Funded") == ("False", "MaxCostReached")
    assert condition(told, "Ready") == ("False", "MaxCostReached")
    assert "`spec.maxCostUSD` of 0.00016 USD is reached" in told["message"]
    assert parse_money(told["cost"]["totalUSD"]) <= parse_money(CAP)

    async def waits_for_money() -> list[str]:
        statuses = {name: await world.status("FunctionCall", name) for name in names}
        return [name for name, status in statuses.items() if condition(status, "Funded")[0] == "False"]

    waiting = await eventually(waits_for_money, within=WITHIN_SECONDS)
    assert [(await world.status("FunctionCall", name))["phase"] for name in waiting] == ["Queued"] * len(waiting)
    with pytest.raises(ApiError) as refused:
        await world.call(timeout="5s")
    error = refused.value
    assert error.reason is Reason.BUDGET_EXCEEDED
    assert error.details["budget"] == "function/f"
    assert parse_money(error.details["remainingUSD"]) < parse_money(error.details["neededUSD"])
    assert "spec.maxCostUSD" in error.fix
    await world.change("Function", "f", lambda document: document["spec"].update(maxCostUSD="1.00"))
    for name in names:
        ended = await world.until_ended(name, within=WITHIN_SECONDS)
        assert (ended["phase"], condition(ended, "Funded")) == ("Succeeded", ("True", "Funded"))
    await world.until_function(within=WITHIN_SECONDS, phase="Running")
    assert await verify(world.core.database) == []
