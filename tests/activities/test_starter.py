from __future__ import annotations

import asyncio
import contextlib
import secrets

import pytest
from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import Worker

from activities.engine import Engine, call_workflow_id
from activities.pacing import Pacing, Traffic, TransitionMeter
from activities.run_call_contract import CONTROL_TASK_QUEUE, CallReference
from activities.starter import AttachBoard, Starter
from controlplane.calls.engine import AttachWorkflow
from tests.fixtures.calls import Calls, succeeded
from tests.fixtures.eventually import WITHIN_SECONDS, eventually
from tests.fixtures.scripted import HANG, ScriptedCall, ended
from workflows.function_call import FunctionCallWorkflow


async def test_a_workflow_is_in_flight_until_it_has_attached() -> None:
    board = AttachBoard()
    board.started("a")
    board.started("b")
    assert (board.count, board.is_pending("a")) == (2, True)
    board.attached("a")
    assert board.changed.is_set()
    assert (board.count, board.is_pending("a")) == (1, False)
    board.attached("started by another process")
    assert board.count == 1


async def test_a_workflow_that_does_not_come_is_forgotten_and_reported_once() -> None:
    board = AttachBoard()
    board.started("a")
    assert board.overdue(60) == []
    await asyncio.sleep(0)
    assert board.overdue(-1) == ["a"]
    assert board.overdue(-1) == []


async def test_workflows_that_attach_in_another_process_leave_room_for_the_next(
    calls: Calls, temporal_client: Client
) -> None:
    calls._numbers = secrets.randbelow(10**9)  # The engine is shared by all tests.
    await calls.function()
    refs = [await calls.ref(name) for name in await calls.create(*["s"] * 6)]
    engine = Engine(temporal_client, WITHIN_SECONDS)
    settings = calls.settings.model_copy(update={"workflow_starts_in_flight_max": 2})
    starter = Starter(
        database=calls.database, writer=calls.writer, feed=calls.feed, engine=engine, board=AttachBoard(),
        settings=settings, clock=calls.clock,
    )  # fmt: skip
    running = asyncio.create_task(starter.run())

    async def all_attached_elsewhere() -> bool:
        waiting = await calls.queries.without_workflow([ref.uid for ref in refs])
        for ref in refs:
            if ref.uid in waiting and await engine.call_is_open(ref.uid):
                await calls.writer.write(AttachWorkflow(ref, b"token"))
        return not waiting

    try:
        await eventually(all_attached_elsewhere)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        for ref in refs:
            with contextlib.suppress(RPCError):
                await temporal_client.get_workflow_handle(call_workflow_id(ref.uid)).terminate()


@pytest.mark.case("a-lost-activity-of-an-ended-call")
async def test_a_workflow_whose_activity_was_lost_ends_when_its_call_has_ended(
    calls: Calls, temporal_client: Client
) -> None:
    """A control process took the activity and died before it attached; meanwhile the call ended."""
    calls._numbers = secrets.randbelow(10**9)  # The engine is shared by all tests.
    await calls.function()
    [name] = await calls.create("s")
    ref = await calls.ref(name)
    engine = Engine(temporal_client, WITHIN_SECONDS)
    activities = ScriptedCall(HANG, ended(), only=ref.uid)
    starter = Starter(
        database=calls.database, writer=calls.writer, feed=calls.feed, engine=engine, board=AttachBoard(),
        settings=calls.settings, clock=calls.clock,
    )  # fmt: skip
    async with Worker(
        temporal_client,
        task_queue=CONTROL_TASK_QUEUE,
        workflows=[FunctionCallWorkflow],
        activities=activities.activities,
    ):
        reference = CallReference(uid=ref.uid, org=ref.org, project=ref.project, name=ref.name)
        await engine.start_call(reference, urgent=False)
        await eventually(lambda: activities.tokens)
        worker = await calls.worker()
        await worker.take()
        await worker.claim(succeeded(name), take=0)
        running = asyncio.create_task(starter.run())
        try:
            await eventually(lambda: _is_closed(engine, ref.uid))
            await eventually(lambda: _is_reported(calls, ref.uid))
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def _is_closed(engine: Engine, uid: str) -> bool:
    return not await engine.call_is_open(uid)


async def _is_reported(calls: Calls, uid: str) -> bool:
    return not await calls.database.fetch("SELECT 1 FROM calls WHERE uid = $1", uid)


def test_the_pace_is_that_of_the_last_second() -> None:
    meter = TransitionMeter()
    for tenth in range(20):
        meter.saw(3, now=tenth / 10)
    assert meter.per_second(now=1.95) == 30
    assert meter.per_second(now=2.5) == 12
    assert meter.per_second(now=10.0) == 0


def test_a_moment_without_changes_is_quiet() -> None:
    meter = TransitionMeter()
    assert meter.is_quiet(now=0.0)
    meter.saw(1, now=5.0)
    assert not meter.is_quiet(now=5.1)
    assert meter.is_quiet(now=5.2)


PACING = Pacing(in_flight_max=32, busy_transitions=40, trickle_per_second=2.0)


@pytest.mark.parametrize(
    ("quiet", "pace", "pressure", "in_flight", "pause"),
    [
        (True, 0, 0.0, 32, 0.0),
        (True, 500, 0.9, 32, 0.0),
        (False, 10, 0.1, 1, 0.0),
        (False, 200, 0.1, 1, 0.5),
        (False, 200, 0.5, 2, 0.0),
        (False, 200, 0.75, 16, 0.0),
        (False, 200, 1.0, 32, 0.0),
        (False, 200, 9.0, 32, 0.0),
    ],
)
def test_workflows_start_in_pauses_until_the_backlog_presses(
    quiet: bool, pace: int, pressure: float, in_flight: int, pause: float
) -> None:
    traffic = Traffic(quiet=quiet, transitions_per_second=pace, pressure=pressure)
    assert (PACING.in_flight(traffic), PACING.pause_seconds(traffic)) == (in_flight, pause)
