"""However many calls wait, few of them have a workflow: the engine is spared what SQL does alone."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from temporalio.client import Client
from temporalio.service import RPCError

from activities.engine import Engine, call_workflow_id
from activities.starter import AttachBoard, Starter
from controlplane.calls.engine import AttachWorkflow
from controlplane.machinery.kind import Document
from tests.fixtures.calls import Calls
from tests.fixtures.control import ControlWorld, fail, open_world, succeed
from tests.fixtures.eventually import WITHIN_SECONDS, eventually
from workers.engines.temporal import EmbeddedTemporal

OPEN_MAX = 20
QUEUED = 200


@pytest.fixture
async def crowded(temporal: EmbeddedTemporal, database_url: str, tmp_path: Path) -> AsyncIterator[ControlWorld]:
    """A control process that lets few workflows be open, and a stopped Function whose many calls wait in two
    sessions."""
    async with open_world(temporal, database_url, tmp_path, open_workflows_max=OPEN_MAX) as world:
        await world.function("stopped", state="Stopped", scaling={"maxWorkers": 3})
        for number in range(QUEUED):
            await world.call("stopped", session="small" if number % 4 == 3 else "big")
        async with world.running():
            yield world
        await world.end_controllers()


async def started(world: ControlWorld) -> list[Document]:
    """The calls whose workflows are there."""
    rows = await world.core.database.fetch("SELECT uid, name, session, state FROM calls WHERE has_workflow")
    return [dict(row) for row in rows]


async def until_full(world: ControlWorld) -> list[Document]:
    """The calls that have workflows, once these are as many as there may be."""

    async def full() -> list[Document] | None:
        calls = await started(world)
        return calls if len(calls) >= OPEN_MAX else None

    found: list[Document] = await eventually(full)
    return found


async def test_of_many_queued_calls_few_have_a_workflow_and_each_session_its_share(crowded: ControlWorld) -> None:
    calls = await until_full(crowded)
    shares = Counter(call["session"] for call in calls)
    # A round begins anew while starts of the one before are still on their way, so one session may be one ahead.
    assert shares.total() == OPEN_MAX
    assert abs(shares["big"] - shares["small"]) <= 2
    [first, *_] = sorted(call["name"] for call in calls)
    await crowded.change("FunctionCall", first, _cancel)
    # The starter looks again when the end of that one is told, and fills its place only.
    await eventually(lambda: _has_been_replaced(crowded, first))
    rows = await crowded.core.database.fetch("SELECT uid FROM calls")
    engine = Engine(await crowded.client(), WITHIN_SECONDS)
    is_open = await asyncio.gather(*(engine.call_is_open(row["uid"]) for row in rows))
    assert (len(rows), sum(is_open)) == (QUEUED - 1, OPEN_MAX)


async def _has_been_replaced(world: ControlWorld, gone: str) -> bool:
    names = {call["name"] for call in await started(world)}
    return gone not in names and len(names) == OPEN_MAX


def _cancel(document: Document) -> None:
    document["spec"]["state"] = "Cancelled"


async def test_calls_without_a_workflow_run_are_decided_and_cancelled_as_all_others(crowded: ControlWorld) -> None:
    await until_full(crowded)
    outcomes = [fail, succeed]

    async def play(call: str) -> Document:
        return await outcomes.pop(0)(call)

    crowded.node.behaviour = play
    await crowded.function("retried", retries={"maxRetries": 1, "initialDelay": "1s"})
    status = await crowded.until_ended(await crowded.call("retried"))
    assert (status["phase"], status["retries"]) == ("Succeeded", 1)
    known = {call["name"] for call in await started(crowded)}
    [unknown, *_] = [name for number in range(QUEUED) if (name := f"c-{number + 1}") not in known]
    await crowded.change("FunctionCall", unknown, _cancel)
    assert (await crowded.status("FunctionCall", unknown))["phase"] == "Cancelled"


async def test_when_workers_come_every_call_runs_and_ends_in_the_engine_too(crowded: ControlWorld) -> None:
    await until_full(crowded)
    most = 0

    async def all_told() -> bool:
        nonlocal most
        most = max(most, len(await started(crowded)))
        return await crowded.open_rows() == 0

    await crowded.change("Function", "stopped", lambda document: document["spec"].update(state="Running"))
    await eventually(all_told, within=150)
    assert len(crowded.node.ran) == len(set(crowded.node.ran)) == QUEUED
    # Each of three workers holds one call, and calls that run may be given a workflow.
    assert most <= OPEN_MAX + 3 + crowded.core.settings.workflow_starts_in_flight_max


async def test_a_restart_of_the_control_process_starts_no_more(crowded: ControlWorld) -> None:
    before = await until_full(crowded)
    async with crowded.running():
        # Two processes, of which one is elected; then this one alone is left with what the other knew.
        await crowded.change("FunctionCall", before[0]["name"], _cancel)
        await eventually(lambda: _has_been_replaced(crowded, before[0]["name"]))
    assert len(await started(crowded)) == OPEN_MAX


async def test_what_a_starter_had_in_flight_when_it_died_is_started_by_the_next_before_any_other(
    calls: Calls, temporal_client: Client
) -> None:
    calls._numbers = secrets.randbelow(10**9)  # The engine is shared by all tests.
    await calls.function()
    refs = [await calls.ref(name) for name in await calls.create(*["s"] * 12)]
    engine = Engine(temporal_client, WITHIN_SECONDS)
    settings = calls.settings.model_copy(update={"workflow_starts_in_flight_max": 3, "open_workflows_max": 4})

    async def open_ones() -> list[str]:
        return [ref.uid for ref in refs if await engine.call_is_open(ref.uid)]

    async def attach() -> bool:
        for uid in await open_ones():
            [ref] = [ref for ref in refs if ref.uid == uid]
            await calls.writer.write(AttachWorkflow(ref, b"token"))
        return await calls.queries.open_workflows(100) == 4

    async def starting(done: Callable[[], Awaitable[bool]]) -> None:
        starter = Starter(
            database=calls.database, writer=calls.writer, feed=calls.feed, engine=engine, board=AttachBoard(),
            settings=settings, clock=calls.clock,
        )  # fmt: skip
        running = asyncio.create_task(starter.run())
        try:
            await eventually(done)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def three_are_open() -> bool:
        return len(await open_ones()) == 3

    try:
        await starting(three_are_open)  # and nobody attaches: the control process dies with them
        assert await calls.queries.open_workflows(100) == 0
        await starting(attach)
        assert await open_ones() == [ref.uid for ref in refs[:4]]
    finally:
        for ref in refs:
            with contextlib.suppress(RPCError):
                await temporal_client.get_workflow_handle(call_workflow_id(ref.uid)).terminate()
