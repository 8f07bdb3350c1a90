"""What is charged when everybody dies around it: between any two writes of the path of money, and at any moment."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import asyncpg
import pytest

from controlplane.failpoints import taken_file
from controlplane.ledger.pricing import call_charge_micro_usd, worker_seconds
from controlplane.machinery.quantities import parse_money
from tests.faults.clients import ROOT
from tests.faults.cluster import SERVERS, Cluster, MemberDiedError
from tests.faults.history import BEGAN, Event
from tests.faults.plans import KINDS
from tests.faults.run import Run, fault_run
from tests.fixtures.eventually import eventually

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1_200)]

BOUND_SECONDS = 400
MERGE = {"Content-Type": "application/merge-patch+json"}
BUDGETS = "/apis/nodus.dev/v1/budgets"

MONEY_PATH: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        # A worker that holds its price is given the call, for which the most that it may cost is reserved.
        "given": ("dispatch-ready", "dispatch-written"),
        # Its worker dies: the dispatch is charged with the loss, and its workflow told.
        "lost": ("charge-ready", "charge-written"),
        # It ends: the dispatch is charged, and the engine is told.
        "ended": ("charge-ready", "charge-written", "outcome-reporting"),
    }
)
"""By step in the life of a call, the places between two of its writes at which a process dies. Those around the start
of a worker, the renewal of its hold and its end are scenes of `test_failpoints.py`, whose verdict adds up the same
ledger."""
MONEY_POINTS = frozenset(point for points in MONEY_PATH.values() for point in points)

CHARGES = """
SELECT id, dispatch, amount_micro_usd, period_start, period_end, rate_micro_usd_per_hour, shares
FROM ledger_transfers WHERE subject_uid = $1 AND kind = 'charge' ORDER BY dispatch
"""


@asynccontextmanager
async def revived(cluster: Cluster) -> AsyncIterator[None]:
    """Whatever dies by itself meanwhile is started again, as its supervisor would; afterwards all serve."""
    over = asyncio.Event()

    async def revive_until_over(name: str) -> None:
        while not over.is_set():
            if cluster.is_dead(name):
                # Who serves again may die at once; a member that never serves is told by the test's bounds.
                with contextlib.suppress(MemberDiedError):
                    await cluster.start_member(name)
            await asyncio.sleep(0.2)

    # Each by itself, as of a supervisor: none is dead for as long as another one needs for its start.
    reviving = [asyncio.create_task(revive_until_over(name)) for name in SERVERS]
    try:
        yield
    finally:
        over.set()
        await asyncio.gather(*reviving)
        await cluster.revive()


def arm(cluster: Cluster, step: str) -> None:
    """Let the first process die that gets to each point of the step."""
    for point in MONEY_PATH[step]:
        taken_file(cluster.failpoints, point).unlink(missing_ok=True)
        (cluster.failpoints / point).write_text("die")


async def all_taken(cluster: Cluster, step: str) -> None:
    def missing() -> set[str]:
        return {point for point in MONEY_PATH[step] if not taken_file(cluster.failpoints, point).exists()}

    try:
        await eventually(lambda: not missing(), within=120)
    except AssertionError as error:
        raise AssertionError(f"nothing reached {missing()} while a call was {step}") from error


def begins(run: Run) -> list[Event]:
    return [event for event in run.history() if event["event"] == BEGAN]


async def blocking_budget(run: Run, limit_usd: str, **spec: Any) -> str:
    """A Budget that blocks, over all work unless its `spec` says otherwise; its path."""
    name = f"of-{run.functions[0]}"
    whole = {"limitUSD": limit_usd, "period": "Total", "action": "Block", **spec}
    await run.clients[0].create(BUDGETS, {"metadata": {"name": name}, "spec": whole})
    return f"{BUDGETS}/{name}"


@pytest.mark.case("C47")
async def test_whoever_dies_between_two_writes_of_money_a_second_is_charged_once(cluster: Cluster) -> None:
    """A worker is killed at 10 s of a call of 20 s, its end is told five times, and a process dies at each point."""
    async with fault_run(cluster, seed=47, clients=1) as run:
        calls_of_run = {"matchLabels": {"nodus.dev/function": run.functions[0]}}
        await blocking_budget(run, "1", scope={"selector": calls_of_run})
        [client] = run.clients
        async with revived(cluster):
            arm(cluster, "given")
            waited = asyncio.create_task(client.make_and_wait(["billed"], BOUND_SECONDS))
            await all_taken(cluster, "given")
            [begun] = await eventually(lambda: begins(run), within=180)
            half_seconds = KINDS["billed"].body["seconds"] / 2
            await eventually(lambda: time.monotonic() - begun["at"] >= half_seconds)
            arm(cluster, "lost")
            cluster.signal_workers(signal.SIGKILL)
            await eventually(lambda: len(begins(run)) == 2, within=180)
            await all_taken(cluster, "lost")
            arm(cluster, "ended")
            assert await waited == ["Succeeded"]
            await all_taken(cluster, "ended")
        name = begun["call"]
        document = (await client.request("GET", f"{ROOT}/functioncalls/{name}")).json()
        audit = (await client.request("GET", f"{ROOT}/functioncalls/{name}/charges")).json()
        assert await run.verdict() == []
    status = document["status"]
    assert status["recoveries"] == 1
    assert audit["status"]["equal"] is True, audit
    connection = await cluster.connect()
    charges = [dict(row) for row in await connection.fetch(CHARGES, document["metadata"]["uid"])]
    await connection.close()
    assert len(charges) == 2, charges
    seconds = [worker_seconds(charge["period_start"], charge["period_end"]) for charge in charges]
    assert seconds[0] >= 10
    assert seconds[1] >= 20
    assert charges[0]["period_end"] <= charges[1]["period_start"]
    assert [charge["amount_micro_usd"] for charge in charges] == [applied(charge) for charge in charges]
    assert sum(charge["amount_micro_usd"] for charge in charges) == parse_money(status["costUSD"])


CENT_MICRO_USD = 10_000
CENT_SETTINGS = {
    # A call is a second of one of three places, 20 micro-USD, and may be 900: six run at once, and 500 are too many.
    "worker_rate_usd_per_hour": "0.216",
    "teardown_seconds_max": "2",
}
WORKER_MICRO_USD = (5 + 2) * 60
"""The least that a worker reserves there: with less left none is started any more."""
CENT_SPEC = {"timeout": "30s", "scaling": {"maxWorkers": 2, "targetConcurrency": 3, "scaledownWindow": "60s"}}
SPENDING = """
SELECT spent_micro_usd, held_micro_usd, (SELECT COALESCE(sum(t.amount_micro_usd), 0)::bigint FROM ledger_transfers t
    WHERE t.org = l.org AND t.kind = 'charge') AS charged_micro_usd,
    (SELECT count(*) FROM attempts WHERE state <> 'finished') AS workers,
    (SELECT count(*) FROM calls WHERE state = 'queued') AS queued
FROM spending_limits l
"""


@pytest.fixture
async def poor_cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """A cluster of its own whose work is dear enough for a cent to end."""
    made = Cluster(tmp_path / "cluster", CENT_SETTINGS)
    try:
        await made.start()
        yield made
    finally:
        await made.stop()


@pytest.mark.case("C49")
async def test_a_map_of_500_calls_never_passes_a_cent_while_everything_is_killed(poor_cluster: Cluster) -> None:
    """At no look is more than the cent spent, held or charged; raised, it lets the rest finish."""
    cluster, chance = poor_cluster, random.Random(4900)
    connection = await cluster.connect()
    async with fault_run(cluster, seed=4900, clients=1, spec=CENT_SPEC) as run:
        budget = await blocking_budget(run, "0.01")
        [client] = run.clients
        waited = asyncio.create_task(client.make_and_wait(["succeed"] * 500, BOUND_SECONDS))

        async def looked() -> asyncpg.Record | None:
            found = await connection.fetchrow(SPENDING)
            if found is not None:
                assert found["spent_micro_usd"] + found["held_micro_usd"] <= CENT_MICRO_USD, dict(found)
                assert found["charged_micro_usd"] <= CENT_MICRO_USD, dict(found)
            return found

        async def spent(micro_usd: int) -> bool:
            found = await looked()
            return found is not None and found["spent_micro_usd"] >= micro_usd

        async def until_spent(micro_usd: int) -> None:
            await eventually(lambda: spent(micro_usd), within=240)

        async def is_over() -> bool:
            found = await looked()
            left = CENT_MICRO_USD if found is None else CENT_MICRO_USD - found["spent_micro_usd"]
            return (
                found is not None and not found["workers"] and not found["held_micro_usd"] and left < WORKER_MICRO_USD
            )

        async with revived(cluster):
            for tenth, victim in enumerate(("worker", "api-1", "worker", "control-1", "worker"), start=1):
                micro_usd = tenth * CENT_MICRO_USD // 10
                await until_spent(micro_usd)
                if victim == "worker":
                    cluster.signal_workers(signal.SIGKILL, chance)
                else:
                    cluster.kill(victim)
            await eventually(is_over, within=240, every=0.1)
        found = await looked()
        assert found is not None
        assert found["queued"] > 0
        assert found["held_micro_usd"] == 0
        assert not waited.done()
        raised = await client.request("PATCH", budget, json={"spec": {"limitUSD": "1"}}, headers=MERGE)
        assert raised.status_code == 200, raised.text
        assert set(await waited) == {"Succeeded"}
        assert await run.verdict() == []
    found = await connection.fetchrow(SPENDING)
    await connection.close()
    assert found is not None
    assert (found["held_micro_usd"], found["spent_micro_usd"]) == (0, found["charged_micro_usd"])


def applied(charge: Mapping[str, Any]) -> int:
    """The rule of docs/decisions/0024, once."""
    lasted = worker_seconds(charge["period_start"], charge["period_end"])
    return call_charge_micro_usd(lasted, charge["rate_micro_usd_per_hour"], charge["shares"])
