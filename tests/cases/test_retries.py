"""How often a call that raises is run, and when."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from controlplane.machinery.kind import Document
from tests.fixtures.control import ControlWorld, fail, open_world
from tests.fixtures.eventually import eventually
from workers.engines.temporal import EmbeddedTemporal


@pytest.mark.case("C19")
async def test_a_call_is_run_once_and_four_times_more_after_its_delays_though_control_restarts_in_each(
    temporal: EmbeddedTemporal, database_url: str, tmp_path: Path
) -> None:
    began: list[float] = []
    ended: list[float] = []

    async def behave(call: str) -> Document:
        began.append(time.monotonic())
        record = await fail(call)
        ended.append(time.monotonic())
        return record

    async with open_world(temporal, database_url, tmp_path) as world:
        world.node.behaviour = behave
        retries = {"maxRetries": 4, "initialDelay": "1s", "backoffCoefficient": 2.0, "maxDelay": "3s"}
        async with world.running():
            await world.function(retries=retries)
            name = await world.call()
            await eventually(lambda: _retries(world, name, 1))
        for retry in range(2, 5):
            async with world.running():
                await eventually(lambda retry=retry: _retries(world, name, retry))  # type: ignore[misc]
        async with world.running():
            status = await world.until_ended(name)
    assert (status["phase"], status["reason"], status["retries"], status["recoveries"]) == (
        "Failed", "RemoteError", 4, 0,
    )  # fmt: skip
    assert world.node.ran == [name] * 5
    pauses = [later - earlier for earlier, later in zip(ended, began[1:], strict=False)]
    for pause, delay in zip(pauses, [1, 2, 3, 3], strict=True):
        assert pause >= delay


async def _retries(world: ControlWorld, name: str, count: int) -> bool:
    """Whether it has been run again so often; a slow look may see it later still."""
    return bool((await world.status("FunctionCall", name))["retries"] >= count)
