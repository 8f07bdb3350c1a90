"""Without money calls wait and say so, workers that cannot be paid go, and everything goes on when there is money."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from controlplane.ledger.accounts import read_balance, set_floor
from controlplane.ledger.credits import GrantCredit
from controlplane.ledger.invariants import verify
from controlplane.machinery.kind import Document
from controlplane.machinery.quantities import parse_money
from tests.fixtures.control import ControlWorld, open_world
from tests.fixtures.eventually import eventually
from workers.engines.temporal import EmbeddedTemporal

ORG = "default"
LEAST_MICRO_USD = 40
"""Held for a worker before it starts: four seconds."""


@pytest.fixture
async def poor_world(temporal: EmbeddedTemporal, database_url: str, tmp_path: Path) -> AsyncIterator[ControlWorld]:
    """A control process of an organisation that may spend what it was granted, and was granted nothing; holds are
    short."""
    holds = {"worker_hold_seconds": 8, "worker_hold_seconds_min": 4, "worker_hold_renew_seconds": 6}
    holds["wait_message_unfunded_calls_max"] = 7
    async with open_world(temporal, database_url, tmp_path, **holds) as world:
        await set_floor(world.core.database, ORG, 0)
        async with world.running():
            yield world
        await world.end_controllers()


async def grant(world: ControlWorld, name: str, micro_usd: int) -> None:
    await world.core.writer.write(GrantCredit(ORG, name, micro_usd, ""))


def funded(status: Document) -> tuple[str, str]:
    [condition] = [each for each in status["conditions"] if each["type"] == "Funded"]
    return condition["status"], condition["reason"]


async def until_funded(world: ControlWorld, kind: str, name: str, told: tuple[str, str]) -> Document:
    async def says() -> Document | None:
        status = await world.status(kind, name)
        return status if funded(status) == told else None

    status: Document = await eventually(says)
    return status


async def test_calls_wait_for_money_and_say_so_and_go_on_when_it_comes(poor_world: ControlWorld) -> None:
    world = poor_world
    await world.function()
    first = await world.call()
    told = await until_funded(world, "Function", "f", ("False", "InsufficientCredits"))
    [condition] = [each for each in told["conditions"] if each["type"] == "Funded"]
    assert "a worker holds 0.00004 USD at least before it starts and 0.00 USD are available" in condition["message"]
    status = await until_funded(world, "FunctionCall", first, ("False", "Unfunded"))
    assert status["phase"] == "Queued"
    assert "lacks the credit" in status["message"]
    # One that comes now says so from its first moment.
    second = await world.call()
    assert funded(await world.status("FunctionCall", second)) == ("False", "Unfunded")
    assert await world.attempts() == []
    await grant(world, "welcome", 1_000_000)
    for name in (first, second):
        ended = await world.until_ended(name)
        assert (ended["phase"], funded(ended)) == ("Succeeded", ("True", "Funded"))
    told = await until_funded(world, "Function", "f", ("True", "Funded"))

    async def holds() -> Document | None:
        cost: Document = (await world.status("Function", "f"))["cost"]
        return cost if parse_money(cost.get("heldUSD", "0")) else None

    cost = await eventually(holds)
    assert cost["fundedUntilTime"]


async def test_every_call_that_waits_for_money_says_so_however_many_there_are(poor_world: ControlWorld) -> None:
    world = poor_world
    await world.function()
    # The first of them are taken before anybody looked whether they can be paid, and more than one turn tells.
    names = [await world.call(session=f"s{number % 3}") for number in range(40)]

    async def all_say_so() -> bool:
        statuses = [await world.status("FunctionCall", name) for name in names]
        return all(funded(status) == ("False", "Unfunded") for status in statuses)

    await eventually(all_say_so, every=0.5)


async def test_a_warm_worker_goes_when_its_money_ends_and_another_comes_with_the_next(
    poor_world: ControlWorld,
) -> None:
    world = poor_world
    await grant(world, "welcome", 150)
    await world.function(scaling={"minWorkers": 1, "maxWorkers": 2})

    async def spent() -> bool:
        """Nothing runs, and what is left pays for no other worker: so it stays until there is more."""
        left = (await read_balance(world.core.database, ORG)).available_micro_usd
        return left < LEAST_MICRO_USD and all(row["state"] == "finished" for row in await world.attempts())

    await eventually(spent)
    before = [await world.status("Attempt", row["uid"]) for row in await world.attempts()]
    assert {(status["phase"], status["reason"]) for status in before} == {("Cancelled", "Unfunded")}
    assert sum(parse_money(status["actual"]["costUSD"]) for status in before) > 0
    await until_funded(world, "Function", "f", ("False", "InsufficientCredits"))
    await grant(world, "more", 1_000_000)
    told = await world.until_function(workers__idle=1)
    segments = told["cost"]["bySegment"]
    parts = [parse_money(value) for name, value in segments.items() if name.endswith("USD")]
    assert sum(parts) == parse_money(told["cost"]["totalUSD"]) > 0
    assert len(await world.attempts()) == len(before) + 1
    assert await verify(world.core.database) == []
