"""Workers that hold a cancelled call which nobody can be sure has stopped."""

from __future__ import annotations

from activities.engine import attempt_workflow_id
from tests.fixtures.calls import said
from tests.fixtures.sweeping import Sweeping


async def test_a_worker_with_a_cancelled_thread_is_let_go_and_killed_once_nothing_else_runs_there(
    sweeping: Sweeping,
) -> None:
    calls = sweeping.calls
    cancelled, _ = [(await calls.create("s"))[0] for _ in range(2)]
    worker = await sweeping.worker()
    await calls.database.execute("UPDATE attempts SET concurrency = 2")
    assert len(await worker.take(2)) == 2
    await calls.cancel(cancelled)
    await worker.claim(said(cancelled, "Cancelled"), take=0)
    await sweeping.sweeper.drain_running_on()
    assert not (await calls.attempt(worker))["draining"]
    calls.clock.advance(0.5)
    await sweeping.sweeper.drain_running_on()
    row = await calls.attempt(worker)
    assert (row["draining"], row["drain_reason"], row["kill_at"] is not None) == (True, "CallCancelled", True)
    # Its workflow was told, which ends the process when the other call is over.
    handle = sweeping.client.get_workflow_handle(attempt_workflow_id(row["uid"]))
    assert (await handle.describe()).close_time is None
    calls.clock.advance(60)
    assert await calls.queries.attempts_to_kill(calls.clock.now()) == []
    await handle.terminate()


async def test_a_worker_of_a_command_is_told_to_go_when_a_call_is_cancelled_and_no_other_is(sweeping: Sweeping) -> None:
    calls = sweeping.calls
    await calls.function("commanded", command=["python"], args=["-m", "nodus._worker"])
    held = {}
    for function in ("commanded", "f"):
        [name] = await calls.create("s", function=function)
        held[function] = await sweeping.worker(function)
        assert await held[function].take() == [name]
        await calls.cancel(name)
    await sweeping.sweeper.drain_deaf()
    assert not (await calls.attempt(held["commanded"]))["draining"]
    calls.clock.advance(0.5)
    await sweeping.sweeper.drain_deaf()
    rows = {function: await calls.attempt(worker) for function, worker in held.items()}
    assert {function: row["drain_reason"] for function, row in rows.items()} == {
        "commanded": "CallCancelled",
        "f": None,
    }
    # It is not killed before it has let go of the call: a coroutine may clean up.
    calls.clock.advance(10)
    assert await calls.queries.attempts_to_kill(calls.clock.now()) == []
    await sweeping.client.get_workflow_handle(attempt_workflow_id(rows["commanded"]["uid"])).terminate()
