"""Workers that say nothing while the time of what they hold runs out, over a clock the test moves."""

from __future__ import annotations

from typing import Any

import pytest

from activities.attempts import AttemptActivities
from activities.engine import attempt_workflow_id
from controlplane.capacity.endings import WorkerEnd
from controlplane.store.contract import Key
from tests.fixtures.calls import ORG, PROJECT, ScriptedWorker
from tests.fixtures.sweeping import Sweeping


async def silent(sweeping: Sweeping, *specs: dict[str, Any]) -> tuple[ScriptedWorker, list[str]]:
    """A worker that holds calls and claims no more."""
    calls = sweeping.calls
    names = [(await calls.create("s", **spec))[0] for spec in specs]
    worker = await sweeping.worker()
    assert await worker.take(len(specs)) == names
    return worker, names


async def kill_reason(sweeping: Sweeping, worker: ScriptedWorker) -> str | None:
    """Look after silent workers; why this one was to be killed."""
    await sweeping.sweeper.end_overdue_calls()
    await sweeping.sweeper.kill_silent_workers()
    row = await sweeping.calls.attempt(worker)
    reason: str | None = row["drain_reason"] if row["kill_at"] is not None else None
    return reason


@pytest.mark.parametrize(
    ("cancelled", "grace_seconds", "reason", "ended"),
    [(False, 70, "DeadlineExceeded", ("Failed", "DeadlineExceeded")), (True, 30, "CallCancelled", ("Cancelled",) * 2)],
)
async def test_a_silent_worker_is_killed_when_the_time_of_its_call_and_the_grace_are_over(
    sweeping: Sweeping, cancelled: bool, grace_seconds: int, reason: str, ended: tuple[str, str]
) -> None:
    """A body that blocks the event loop: it can neither be ended by its worker nor told of."""
    calls = sweeping.calls
    worker, [name] = await silent(sweeping, {"timeout": "10s"})
    if cancelled:
        calls.clock.advance(0.5)
        await calls.cancel(name)
    calls.clock.advance(grace_seconds - 1)
    assert await kill_reason(sweeping, worker) is None
    calls.clock.advance(2)
    assert await kill_reason(sweeping, worker) == reason
    # Only when it is gone is it sure what became of the call.
    assert await calls.phase(name) == ("Cancelling" if cancelled else "Running")
    calls.clock.advance(1)
    key = Key("Attempt", ORG, PROJECT, worker.claimant.attempt)
    settle = AttemptActivities(calls.writer, calls.rules, calls.funding, calls.clock).settle
    await settle(key, worker.claimant.epoch, WorkerEnd(outcome="Killed", signal=9))
    status = await calls.status(name)
    assert (status["phase"], status["reason"], status["recoveries"]) == (*ended, 0)
    await sweeping.client.get_workflow_handle(attempt_workflow_id(worker.claimant.attempt)).terminate()


async def test_what_runs_beside_an_overdue_call_on_a_silent_worker_has_its_lease(sweeping: Sweeping) -> None:
    calls = sweeping.calls
    worker, names = await silent(sweeping, {"timeout": "5s"}, {"timeout": "300s"})
    calls.clock.advance(70)
    assert await kill_reason(sweeping, worker) is None
    calls.clock.advance(6)
    await sweeping.sweeper.end_lapsed_leases()
    calls.clock.advance(1)
    key = Key("Attempt", ORG, PROJECT, worker.claimant.attempt)
    settle = AttemptActivities(calls.writer, calls.rules, calls.funding, calls.clock).settle
    await settle(key, worker.claimant.epoch, WorkerEnd(outcome="Killed", signal=9))
    assert [await calls.phase(name) for name in names] == ["Failed", "Recovering"]
    await sweeping.client.get_workflow_handle(attempt_workflow_id(worker.claimant.attempt)).terminate()


async def test_a_worker_has_the_whole_grace_to_tell_after_the_server_was_away(sweeping: Sweeping) -> None:
    calls = sweeping.calls
    worker, _ = await silent(sweeping, {"timeout": "10s"})
    calls.clock.advance(3_600)
    await sweeping.elect()
    calls.clock.advance(59)
    assert await kill_reason(sweeping, worker) is None
    calls.clock.advance(2)
    assert await kill_reason(sweeping, worker) == "DeadlineExceeded"
    await sweeping.client.get_workflow_handle(attempt_workflow_id(worker.claimant.attempt)).terminate()
