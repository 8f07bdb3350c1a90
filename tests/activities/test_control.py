"""A control process at work: real store, real engine, played workers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from controlplane.clock import format_time
from controlplane.machinery.kind import Document
from controlplane.resources.answers import DeleteOptions
from tests.fixtures.control import (
    TOLD_AT_THE_START,
    WAITED_ONCE,
    ControlWorld,
    CrashError,
    fail,
    open_world,
    succeed,
)
from tests.fixtures.eventually import eventually
from workers.control import serve
from workers.engines.temporal import EmbeddedTemporal


async def test_the_first_call_gets_a_worker_and_ends_with_a_workflow(
    control_world: ControlWorld,
) -> None:
    world = control_world
    await world.function()
    name = await world.call()
    status = await world.until_ended(name)
    assert status["phase"] == "Succeeded"
    assert status["worker"]["attempt"] == world.node.attempts[0]
    await eventually(lambda: _is_zero(world))
    # Its workflow waited for the end in one activity, or, on a busy machine, came when there was nothing to wait for.
    assert await world.workflow_events(name) in (WAITED_ONCE, TOLD_AT_THE_START)
    told = await world.until_function(workers__idle=1, queue__running=0, cost__totalUSD=status["costUSD"])
    assert (told["phase"], told["reason"]) == ("Running", "WorkersReady")
    assert told["estimate"]["startup"]["warm"]["p50"]
    assert told["estimate"]["startup"]["cold"]["p50"]
    attempt = await world.status("Attempt", world.node.attempts[0])
    assert attempt["phase"] == "Running"


async def _is_zero(world: ControlWorld) -> bool:
    return await world.open_rows() == 0


async def test_a_burst_gets_as_many_workers_as_the_function_may_have_and_every_call_its_workflow(
    control_world: ControlWorld,
) -> None:
    world, release = control_world, asyncio.Event()

    async def behave(call: str) -> Document:
        await release.wait()
        return await succeed(call)

    world.node.behaviour = behave
    await world.function(scaling={"maxWorkers": 3})
    names = [await world.call(session=str(number % 4)) for number in range(40)]
    # However quick they are, none is done before each worker has its first.
    await eventually(lambda: len(world.node.ran) == 3)
    release.set()
    for name in names:
        assert (await world.until_ended(name))["phase"] == "Succeeded"
    assert sorted(world.node.ran) == sorted(names)
    assert len(world.node.attempts) == 3
    await eventually(lambda: _is_zero(world))


async def test_retries_wait_their_time_and_are_counted_apart_from_recoveries(control_world: ControlWorld) -> None:
    world = control_world
    outcomes = [fail, fail, _crash, succeed]

    async def behave(call: str) -> Document:
        return await outcomes.pop(0)(call)

    world.node.behaviour = behave
    await world.function(retries={"maxRetries": 2, "initialDelay": "0.2s"})
    name = await world.call()
    status = await world.until_ended(name)
    assert (status["phase"], status["retries"], status["recoveries"]) == ("Succeeded", 2, 1)
    assert world.node.ran == [name] * 4
    assert len(world.node.attempts) == 2


@pytest.mark.case("C17")
async def test_lost_workers_use_up_no_retry(control_world: ControlWorld) -> None:
    world = control_world
    outcomes = [_crash, _crash, _crash, fail, succeed]

    async def behave(call: str) -> Document:
        return await outcomes.pop(0)(call)

    world.node.behaviour = behave
    await world.function(retries={"maxRetries": 1, "initialDelay": "0.2s"})
    name = await world.call()
    status = await world.until_ended(name)
    assert (status["phase"], status["retries"], status["recoveries"]) == ("Succeeded", 1, 3)
    assert world.node.ran == [name] * 5


async def _crash(call: str) -> Document:
    raise CrashError(139)


async def test_an_exception_with_no_retry_left_ends_the_call_at_once(control_world: ControlWorld) -> None:
    world = control_world
    world.node.behaviour = fail
    await world.function()
    name = await world.call()
    status = await world.until_ended(name)
    assert (status["phase"], status["reason"], status["error"]["type"]) == ("Failed", "RemoteError", "ValueError")
    await eventually(lambda: _is_zero(world))


async def test_a_call_that_kills_its_workers_fails_within_its_limit(control_world: ControlWorld) -> None:
    world = control_world
    world.node.behaviour = _crash
    await world.function(recovery={"maxAttempts": 1})
    name = await world.call()
    status = await world.until_ended(name)
    assert (status["reason"], status["recoveries"]) == ("RecoveryLimitExceeded", 1)
    assert world.node.ran == [name] * 2
    for uid in world.node.attempts[:2]:
        row = await eventually(lambda uid=uid: _finished(world, uid))  # type: ignore[misc]
        assert row["reason"] == "CustomerExit"


async def _all_finished(world: ControlWorld) -> list[Document] | None:
    rows = await world.attempts()
    return rows if all(row["state"] == "finished" for row in rows) else None


async def test_an_idle_worker_goes_after_the_window_and_the_function_stays_ready(control_world: ControlWorld) -> None:
    world = control_world
    await world.function(scaling={"scaledownWindow": "0s"})
    await world.until_ended(await world.call())
    [row] = await eventually(lambda: _all_finished(world))
    assert (row["reason"], row["drain_reason"]) == ("Released", "Idle")
    assert (await world.status("Attempt", row["uid"]))["phase"] == "Cancelled"
    told = await world.until_function(workers__ready=0, reason="Idle")
    assert [(c["status"], c["reason"]) for c in told["conditions"] if c["type"] == "Ready"] == [
        ("True", "ScaledToZero")
    ]
    assert "warm" not in told["estimate"]["startup"]


async def test_least_workers_are_kept_without_calls_and_stopping_lets_them_go(control_world: ControlWorld) -> None:
    world = control_world
    await world.function(scaling={"minWorkers": 2})
    await world.until_function(workers__idle=2, phase="Running")
    await world.change("Function", "f", lambda f: f["spec"].update(state="Stopped"))
    await world.until_function(phase="Stopped", workers__ready=0, workers__draining=0)
    name = await world.call()
    await world.change("Function", "f", lambda f: f["spec"].update(state="Running"))
    assert (await world.until_ended(name))["phase"] == "Succeeded"


@pytest.mark.case("C54")
async def test_a_new_version_takes_over_only_when_it_is_ready(control_world: ControlWorld) -> None:
    world = control_world
    await world.function(scaling={"minWorkers": 1})
    await world.until_function(workers__idle=1)
    release = asyncio.Event()
    world.node.start = release.wait  # type: ignore[assignment]
    await world.change("Function", "f", lambda f: f["spec"].update(env=[{"name": "A", "value": "2"}]))
    await world.until_function(workers__idle=1, workers__starting=1)
    old, new = [row["uid"] for row in await world.attempts()]
    await world.until_ended(await world.call())
    release.set()
    rows = await eventually(lambda: _finished(world, old))
    assert rows["drain_reason"] == "Rolled"
    await world.until_function(workers__idle=1, workers__starting=0)
    assert [row["uid"] for row in await world.attempts() if row["state"] == "ready"] == [new]


async def _finished(world: ControlWorld, uid: str) -> Document | None:
    [row] = [row for row in await world.attempts() if row["uid"] == uid]
    return row if row["state"] == "finished" else None


async def test_a_restart_request_replaces_the_workers_and_is_acknowledged(control_world: ControlWorld) -> None:
    world = control_world
    await world.function(scaling={"minWorkers": 1})
    await world.until_function(workers__idle=1)
    release = asyncio.Event()
    world.node.start = release.wait  # type: ignore[assignment]
    await world.change("Function", "f", request_a_restart)
    # The old worker still takes calls, so nothing was done yet.
    told = await world.until_function(workers__idle=1, workers__starting=1)
    assert "handledRequests" not in told
    release.set()
    asked = "2026-11-29T12:00:00Z"
    told = await world.until_function(handledRequests__restart=asked)
    assert told["handledRequests"] == {"restart": asked}
    assert len(world.node.attempts) == 2
    assert (await world.attempts())[0]["drain_reason"] == "Rolled"


def change_its_spec(function: Document) -> None:
    function["spec"]["env"] = [{"name": "FIXED", "value": "1"}]


def request_a_restart(function: Document) -> None:
    function["metadata"].setdefault("annotations", {})["nodus.dev/restart-requested-at"] = "2026-11-29T12:00:00Z"


@pytest.mark.case("C54")
@pytest.mark.parametrize("heal", [change_its_spec, request_a_restart])
async def test_a_version_that_does_not_start_fails_its_calls_and_the_next_one_heals(
    control_world: ControlWorld, heal: Callable[[Document], None]
) -> None:
    world = control_world
    broken = True

    async def start() -> None:
        if broken:
            raise CrashError(1)

    world.node.start = start
    await world.function()
    name = await world.call()
    status = await world.until_ended(name)
    assert (status["phase"], status["reason"]) == ("Failed", "StartupFailed")
    told = await world.until_function(phase="Failed", reason="StartupFailed")
    assert "before its first claim" in told["message"]
    assert len(world.node.attempts) == 2
    broken = False
    await world.change("Function", "f", heal)
    await world.until_function(phase="Running")
    assert (await world.until_ended(await world.call()))["phase"] == "Succeeded"


async def test_workers_that_end_soon_after_they_are_ready_are_not_replaced_for_ever(
    control_world: ControlWorld,
) -> None:
    world = control_world

    async def crash() -> None:
        raise CrashError(3)

    world.node.idle = crash
    await world.function(scaling={"minWorkers": 1})
    told = await world.until_function(phase="Failed", reason="StartupFailed")
    assert "exited with code 3" in told["message"]
    assert "nodus rollout restart function/f" in told["message"]
    assert len(world.node.attempts) == 2
    world.node.idle = None
    await world.change("Function", "f", request_a_restart)
    await world.until_function(phase="Running", workers__idle=1)


async def test_deleting_a_function_fails_its_calls_ends_its_workers_and_then_goes(
    temporal: EmbeddedTemporal, database_url: str, tmp_path: Path
) -> None:
    taken = asyncio.Event()

    async def hang(call: str) -> Document:
        taken.set()
        await asyncio.Event().wait()
        raise AssertionError

    # The body never ends by itself: its worker is killed after the grace.
    async with open_world(temporal, database_url, tmp_path, drain_seconds=1) as world:
        world.node.behaviour = hang
        async with world.running():
            await world.function(scaling={"maxWorkers": 1})
            running, queued = await world.call(), await world.call()
            await taken.wait()
            await world.core.resources.deleter.delete(world.key("Function", "f"), DeleteOptions())
            for name in (running, queued):
                status = await world.until_ended(name)
                assert (status["phase"], status["reason"]) == ("Failed", "FunctionDeleted")

            async def is_gone() -> bool:
                return await world.get("Function", "f") is None

            await eventually(is_gone)
            assert await _all_finished(world)
            await eventually(lambda: _is_zero(world))
        await world.end_controllers()


@pytest.mark.case("C27")
async def test_an_ephemeral_app_that_nobody_renews_is_deleted_with_what_it_owns(control_world: ControlWorld) -> None:
    world = control_world
    later, before = (format_time(world.core.clock.now() + timedelta(hours=hours)) for hours in (1, -1))
    await world.create("App", "demo", {"ephemeral": True, "renewTime": later})
    await world.create("App", "kept", {"ephemeral": False})
    await world.function("demo-f", labels={"sdk.nodus.dev/app": "demo"})
    await eventually(lambda: _has_members(world, functions=1, ready=1))
    # As if nobody had renewed it since.
    await world.change("App", "demo", lambda app: app["spec"].update(renewTime=before))

    async def gone() -> bool:
        return await world.get("App", "demo") is None and await world.get("Function", "demo-f") is None

    await eventually(gone)
    assert await world.get("App", "kept") is not None
    # It is told once it is done.
    [event] = await eventually(lambda: world.core.database.fetch("SELECT doc FROM objects WHERE kind = 'Event'"))
    assert '"AppExpired"' in event["doc"]


async def _has_members(world: ControlWorld, *, functions: int, ready: int) -> bool:
    status = await world.status("App", "demo")
    members = status["members"]
    return (status["phase"], members["functions"], members["ready"]) == ("Ready", functions, ready)


async def test_cancelling_a_queued_call_ends_it_and_its_workflow(control_world: ControlWorld) -> None:
    world = control_world
    await world.function(state="Stopped")
    name = await world.call()

    async def attached() -> bool:
        return bool(await world.core.database.fetchval("SELECT task_token IS NOT NULL FROM calls"))

    await eventually(attached)
    await world.change("FunctionCall", name, lambda call: call["spec"].update(state="Cancelled"))
    assert (await world.until_ended(name))["phase"] == "Cancelled"
    await eventually(lambda: _is_zero(world))
    assert await world.workflow_events(name) == WAITED_ONCE


async def test_controllers_are_handed_over_when_their_process_stops(control_world: ControlWorld) -> None:
    world = control_world
    stop = asyncio.Event()
    await world.function(scaling={"scaledownWindow": "0s"})
    second = asyncio.create_task(serve(world.core, await world.client(), stop))
    await world.until_ended(await world.call())
    stop.set()
    await second
    third = asyncio.create_task(serve(world.core, await world.client(), stopped := asyncio.Event()))
    assert (await world.until_ended(await world.call()))["phase"] == "Succeeded"
    await eventually(lambda: _is_zero(world))
    stopped.set()
    await third
