"""Workers run on the class of hosts that placement chooses, at its rate; where none will do, everybody is told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from controlplane.calls.inspection import CallInspector
from controlplane.machinery.kind import Document
from tests.fixtures.control import ControlWorld, open_world
from tests.fixtures.eventually import eventually
from workers.engines.temporal import EmbeddedTemporal

HOSTS = (("cheap", "us", "0.072"), ("dear", "us", "0.72"))


@pytest.fixture
async def offered_world(temporal: EmbeddedTemporal, database_url: str, tmp_path: Path) -> AsyncIterator[ControlWorld]:
    """A control process whose hosts are two classes of a price book."""
    offerings = [
        {
            "name": name,
            "host": {"cpu": "4", "memory": "8Gi"},
            "regionClass": region,
            "rateUSDPerHour": rate,
            "available": 8,
        }
        for name, region, rate in HOSTS
    ]
    book = {"version": "book-1", "validFrom": "2026-01-01T00:00:00Z", "offerings": offerings}
    path = tmp_path / "prices.yaml"
    path.write_text(yaml.safe_dump({"books": [book]}))
    async with open_world(temporal, database_url, tmp_path, pricebook_file=path) as world:
        async with world.running():
            yield world
        await world.end_controllers()


def condition(status: Document, kind: str) -> dict[str, Any]:
    return next((each for each in status.get("conditions", ()) if each["type"] == kind), {})


async def test_a_function_that_no_host_will_do_for_says_what_to_change_and_runs_once_it_is(
    offered_world: ControlWorld,
) -> None:
    world = offered_world
    inspector = CallInspector(
        world.core.database, world.core.cache, world.core.placements, world.core.settings, world.core.clock
    )
    await world.function(placement={"regions": ["eu"]})
    name = await world.call()

    async def told(kind: str, named: str, part: str) -> dict[str, Any] | None:
        found = condition(await world.status(kind, named), part)
        return found if found.get("reason") == "NoOffering" else None

    ready = await eventually(lambda: told("Function", "f", "Ready"))
    assert ready["status"] == "False"
    assert 'add "us" to `spec.placement.regions` or leave that out' in ready["message"]
    await world.until_function(phase="Pending", reason="NoOffering")
    await eventually(lambda: told("FunctionCall", name, "Scheduled"))
    waits = (await inspector.wait(world.key("FunctionCall", name)))["status"]
    assert waits["reason"] == "NoOffering"
    assert '"cheap" (and 1 more) is not taken because `regions` leaves it out' in waits["message"]
    assert await world.attempts() == []

    await world.change("Function", "f", lambda function: function["spec"]["placement"].update(regions=["us"]))
    ended = await world.until_ended(name)
    assert ended["phase"] == "Succeeded"
    [attempt] = await world.attempts()
    placement = (await world.status("Attempt", attempt["uid"]))["placement"]
    assert (placement["offering"], placement["rateUSDPerHour"], placement["regionClass"]) == ("cheap", "0.072", "us")
    assert placement["explain"]["fallbacks"] == ["dear"]
    [charge] = (await inspector.charges(world.key("FunctionCall", name)))["status"]["charges"]
    assert (charge["rateUSDPerHour"], charge["pricebookVersion"]) == ("0.072", "book-1")
    assert charge["amountUSD"] == charge["recomputedUSD"]


async def test_a_filter_sends_work_to_the_class_that_it_names(offered_world: ControlWorld) -> None:
    world = offered_world
    await world.function(placement={"offerings": ["dear"]})
    name = await world.call()
    assert (await world.until_ended(name))["phase"] == "Succeeded"
    [attempt] = await world.attempts()
    assert (attempt["offering"], attempt["rate_micro_usd_per_hour"]) == ("dear", 720_000)
