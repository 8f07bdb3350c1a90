"""A node dies at each point of a worker's start, with public workers, and takes nothing of its host along."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from controlplane.failpoints import FAILPOINTS, taken_file
from tests.fixtures.eventually import eventually
from tests.fixtures.system import APPS, System, installation
from tests.fixtures.traces import seen_by, settled

pytestmark = [pytest.mark.e2e, pytest.mark.faults, pytest.mark.timeout(900)]

WAITING = 1
"""Workers that the node keeps: with more, the one that is looked for would not always be the next one made."""
MADE_AHEAD = ("warm-opened", "warm-made", "cold-opened", "cold-sidecar")
TAKEN = ("warm-taken", "warm-joined", "warm-granted")
"""A supervisor gives up a process that dies five times within a minute, so each system goes through a few of them."""

SPAWN = 'import nodus; print(nodus.Function.from_name("pool", "{function}").spawn({argument!r}).name)'
GET = "import nodus; print(nodus.FunctionCall.from_name({name!r}).get(timeout=240))"


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[System]:
    """A system whose processes die where files of `failpoints` say so."""
    points = tmp_path / "failpoints"
    points.mkdir()
    settings = {"failpoints_dir": str(points), "warm_workers_max": str(WAITING)}
    with installation(tmp_path / "data", settings) as made:
        made.start()
        made.nodus("deploy", str(APPS / "pool" / "pool.py"))
        yield made


def test_every_point_of_a_node_is_gone_through() -> None:
    assert {*MADE_AHEAD, *TAKEN} == {point for point in FAILPOINTS if point.startswith(("warm-", "cold-"))}


@pytest.mark.parametrize("points", [MADE_AHEAD, TAKEN], ids=["made ahead", "taken"])
async def test_a_node_that_dies_in_a_start_leaves_nothing_and_its_call_ends(
    points: Sequence[str], mortal: System, tmp_path: Path
) -> None:
    # The first worker of a node opens what the process keeps, and the second one starts in a pool that is known.
    await finished(mortal, mortal.python(SPAWN.format(function="say", argument="first")).strip())
    await stopped(mortal, "say")
    before = await settled(mortal, None, WAITING)
    for point in points:
        node = mortal.child("node").pid
        (tmp_path / "failpoints" / point).write_text("die")
        # What runs before its worker cannot run in one that waits, so this start is a cold one.
        before_it = ["true"] if point.startswith("cold-") else None
        beside_it = [{"name": "beside", "command": ["sleep", "600"]}] if point == "cold-sidecar" else None
        init = before_it and {"command": before_it}
        patch = {"spec": {"state": "Running", "initCommand": init, "sidecars": beside_it}}
        mortal.kubectl("patch", "function/pool-say", "--type=merge", "-p", json.dumps(patch))
        name = mortal.python(SPAWN.format(function="say", argument=point)).strip()
        await eventually(taken_file(tmp_path / "failpoints", point).exists, within=120)
        await finished(mortal, name)
        await eventually(lambda node=node: mortal.is_replaced("node", node))  # type: ignore[misc]
        assert "said " + point in mortal.nodus("logs", f"functioncall/{name}")
        # It may have ended before the node died, whose successor has its first worker then.
        await finished(mortal, mortal.python(SPAWN.format(function="say", argument="next")).strip())
        await stopped(mortal, "say")
        assert await settled(mortal, before, WAITING) == before, point
    assert mortal.stop() == 0
    assert seen_by(mortal.data_dir / "node") == []


async def finished(system: System, name: str) -> None:
    """Wait for the result of a call; it was run by some worker, and once to its end."""
    assert system.python(GET.format(name=name), timeout=300).startswith("att-")
    [call] = [one for one in system.calls("pool-say") if one["metadata"]["name"] == name]
    assert (call["status"]["phase"], call["status"]["retries"]) == ("Succeeded", 0)


async def stopped(system: System, function: str) -> None:
    """Stop the Function and wait until its last worker has gone."""
    system.nodus("stop", f"function/pool-{function}")

    def phase() -> str:
        [found] = system.objects("functions", fieldSelector=f"metadata.name=pool-{function}")
        told: str = found["status"]["phase"]
        return told

    await eventually(lambda: phase() == "Stopped", within=120)
