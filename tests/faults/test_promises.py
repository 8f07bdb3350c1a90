"""What is promised about certain faults, each as a test of its own."""

from __future__ import annotations

import asyncio
import signal
import uuid
from typing import Any

import pytest

from tests.faults.clients import ROOT, Client
from tests.faults.cluster import APIS, CONTROLS, Cluster
from tests.faults.history import BEGAN, SEEN
from tests.faults.lateness import Lateness
from tests.faults.run import Run, fault_run
from tests.fixtures.eventually import eventually

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1_200)]

BOUND_SECONDS = 150
ROUNDS_MAX = 5
STARTS = rb"call/fnc_[0-9a-z]{26}(?=(?s:.{0,8})FunctionCallWorkflow)"
"""In a request that starts the workflow of a call, and in no other: its id, followed by its type."""


def held_by(concurrency: int) -> dict[str, Any]:
    """The spec of a Function whose calls run for long on two workers."""
    return {"timeout": "900s", "scaling": {"maxWorkers": 2, "targetConcurrency": concurrency}}


def seen(run: Run, phase: str) -> set[str]:
    """Calls whose last event on a watch says that they are in this phase."""
    last = {event["call"]: event["phase"] for event in run.history() if event["event"] == SEEN}
    return {call for call, now in last.items() if now == phase}


def began(run: Run) -> list[str]:
    """Calls that workers began, as often as they did."""
    return [event["call"] for event in run.history() if event["event"] == BEGAN]


@pytest.mark.case("C11")
async def test_restarts_within_the_lease_recover_nothing_and_run_nothing_twice(cluster: Cluster) -> None:
    async with fault_run(cluster, seed=11, clients=1, spec=held_by(10)) as run:
        maps = asyncio.create_task(run.make_maps(BOUND_SECONDS * 2, ["held"] * 20))
        await eventually(lambda: len(seen(run, "Running")) == 20, within=120)
        for name in (*APIS, *CONTROLS, "temporal"):
            await cluster.stop_politely(name)
            await cluster.start_member(name)
        run.open_gate()
        await maps
        assert len(began(run)) == 20
        assert all(event["recoveries"] == 0 for event in run.history() if event["event"] == SEEN)
        assert await run.verdict() == []


@pytest.mark.case("C1")
async def test_fifty_calls_survive_their_workers_and_then_everything_else_in_turn(cluster: Cluster) -> None:
    async with fault_run(cluster, seed=12, clients=2, spec=held_by(25)) as run:
        maps = asyncio.create_task(run.make_maps(BOUND_SECONDS * 2, ["held"] * 25))
        await eventually(lambda: len(seen(run, "Running")) == 50, within=120)
        cluster.signal_workers(signal.SIGKILL)
        await eventually(lambda: seen(run, "Recovering"), within=120)
        for _ in range(3):
            for name in ("api-1", "temporal", "postgres"):
                await cluster.restart(name)
        # Each of them may have brought the workers down, so they run alone: two at a time.
        assert seen(run, "Recovering")
        run.open_gate()
        await maps
        assert await run.verdict() == []


@pytest.mark.case("C24")
async def test_a_thousand_calls_cancelled_at_random_end_within_five_seconds(cluster: Cluster) -> None:
    ends: dict[str, tuple[str, float]] = {}
    async with fault_run(cluster, seed=24, clients=10) as run, Lateness() as late:

        async def cancelled(client: Client, name: str) -> None:
            await asyncio.sleep(run.rng.uniform(0, 0.3))
            await client.ask(name, "cancel")
            asked_at = asyncio.get_running_loop().time() - late.seconds
            phase = await client.end_of(name, BOUND_SECONDS)
            ends[name] = phase, asyncio.get_running_loop().time() - late.seconds - asked_at

        async def one_client(client: Client) -> None:
            for _ in range(10):
                names = await client.map(["cancel"] * 10, BOUND_SECONDS)
                await asyncio.gather(*(cancelled(client, name) for name in names))

        await asyncio.gather(*(one_client(client) for client in run.clients))
        assert len(ends) == 1_000
        assert {phase for phase, _ in ends.values()} <= {"Cancelled", "Succeeded"}
        assert {name: seconds for name, (_, seconds) in ends.items() if seconds > 5} == {}
        assert await run.verdict() == []


@pytest.mark.case("C12")
async def test_twenty_requests_with_one_key_make_one_call_also_over_a_restart(cluster: Cluster) -> None:
    async with fault_run(cluster, seed=13, clients=1) as run:
        [client] = run.clients
        body, headers = client.document("succeed"), {"Idempotency-Key": uuid.uuid4().hex}

        async def post_twenty() -> list[tuple[int, bytes]]:
            answers = await asyncio.gather(
                *(client.request("POST", f"{ROOT}/functioncalls", json=body, headers=headers) for _ in range(20))
            )
            return [(answer.status_code, answer.content) for answer in answers]

        first = asyncio.create_task(post_twenty())
        await asyncio.sleep(run.rng.uniform(0, 0.2))
        await cluster.restart("api-1")
        again = await post_twenty()
        await cluster.restart("api-2")
        answers = {*(await first), *again, *(await post_twenty())}
        assert len(answers) == 1
        [(status, content)] = answers
        assert status == 201
        await client.adopt(content, "succeed", BOUND_SECONDS)
        listed = await client.request("GET", f"{ROOT}/functioncalls", params=client.selector)
        assert len(listed.json()["items"]) == 1
        assert await run.verdict() == []


@pytest.mark.case("C13")
async def test_a_hundred_lost_answers_of_starts_start_each_workflow_once(cluster: Cluster) -> None:
    async with fault_run(cluster, seed=14, clients=4) as run:
        links = [cluster.engine[name] for name in CONTROLS]
        before = sum(link.lost for link in links)
        for link in links:
            link.lose_answers_to(STARTS, times=1_000)
        for _ in range(ROUNDS_MAX):
            if sum(link.lost for link in links) >= before + 100:
                break
            await run.make_maps(BOUND_SECONDS, ["succeed"] * 20 + ["retry"] * 5)
            await eventually(lambda: _no_calls_wait(cluster, run), within=120)
        assert sum(link.lost for link in links) >= before + 100
        for link in links:
            link.heal()
        assert await run.verdict() == []
        for uid in {event["uid"] for event in run.history() if event["event"] == SEEN}:
            runs = [found async for found in cluster.client.list_workflows(f"WorkflowId = 'call/{uid}'")]
            assert len(runs) == 1


async def _no_calls_wait(cluster: Cluster, run: Run) -> bool:
    """Whether every call has its workflow and that knows its end."""
    connection = await cluster.connect()
    try:
        return not await connection.fetchval("SELECT count(*) FROM calls WHERE function = ANY($1)", run.functions)
    finally:
        await connection.close()
