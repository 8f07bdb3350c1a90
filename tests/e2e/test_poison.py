"""Calls that bring their workers down, with the public worker: they fail by their limit, and nobody else does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.fixtures.eventually import eventually
from tests.fixtures.system import APPS, System

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

RECOVERIES_MAX = 3
SPAWN = """
import nodus
taste = nodus.Function.from_name("poison", "{function}")
for kind in {kinds}:
    print(taste.spawn(kind).name)
"""


@pytest.fixture
def poison(system: System) -> Iterator[System]:
    """The shared system with the App `poison`."""
    system.nodus("deploy", str(APPS / "poison" / "poison.py"))
    yield system
    system.delete_app("poison")


def spawn(system: System, function: str, kinds: list[str]) -> list[str]:
    return system.python(SPAWN.format(function=function, kinds=kinds)).split()


async def ended(system: System, function: str, names: list[str]) -> dict[str, dict[str, Any]]:
    """The statuses of these calls once all of them are in a last phase."""

    def final() -> dict[str, dict[str, Any]] | None:
        statuses = {call["metadata"]["name"]: call["status"] for call in system.calls(function)}
        done = all(statuses[name]["phase"] in ("Succeeded", "Failed", "Cancelled") for name in names)
        return statuses if done else None

    found: dict[str, dict[str, Any]] = await eventually(final, within=240)
    return found


def starts(system: System, function: str) -> int:
    """How many workers the Function has had."""
    return len(system.objects("attempts", labelSelector=f"nodus.dev/function={function}"))


@pytest.mark.case("C22")
async def test_a_poisoned_call_fails_and_those_that_shared_its_worker_succeed(poison: System) -> None:
    names = spawn(poison, "shared", ["exit", "innocent", "innocent", "innocent"])
    others = spawn(poison, "alone", ["segfault", "sys.exit", "unspeakable"])
    statuses = await ended(poison, "poison-shared", names)
    culprit = statuses[names[0]]
    assert (culprit["phase"], culprit["reason"]) == ("Failed", "RecoveryLimitExceeded")
    assert "its worker exited with code 1" in culprit["message"]
    assert culprit["recoveries"] in (RECOVERIES_MAX, RECOVERIES_MAX + 1)
    for name in names[1:]:
        assert (statuses[name]["phase"], statuses[name]["recoveries"] <= 1) == ("Succeeded", True)
    # One death beside the innocents and one for each run alone; two workers may have been there before.
    assert starts(poison, "poison-shared") <= RECOVERIES_MAX + 2 + 2
    statuses = await ended(poison, "poison-alone", others)
    # What cannot even be printed is reported all the same, and costs no worker (C35).
    unspeakable = statuses[others.pop()]
    assert (unspeakable["reason"], unspeakable["recoveries"]) == ("RemoteError", 0), unspeakable
    for name, told in zip(others, ("signal 11 (SIGSEGV)", "exited with code"), strict=True):
        status = statuses[name]
        assert (status["phase"], status["reason"]) == ("Failed", "RecoveryLimitExceeded"), status
        assert (status["recoveries"], told in status["message"]) == (RECOVERIES_MAX, True), status
    assert starts(poison, "poison-alone") <= 2 * (RECOVERIES_MAX + 1) + 3
