"""`/timeline`: what happened to a call, and that it adds up."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from controlplane.calls.decide import Cause, Finish
from controlplane.calls.engine import FinishCall
from controlplane.calls.history import UNDELIVERED
from controlplane.calls.timeline import OUTCOMES
from controlplane.errors import ApiError, Reason
from controlplane.machinery.quantities import parse_money
from tests.controlplane.calls.test_every_call_ends import Chaos
from tests.fixtures.calls import raised, said, succeeded
from tests.fixtures.inspecting import Inspecting, attach, lose


def test_every_way_a_dispatch_can_end_has_a_word() -> None:
    assert {*OUTCOMES} == {*Cause, UNDELIVERED}


async def test_a_plain_call_waited_ran_and_ended(inspecting: Inspecting) -> None:
    calls = inspecting.calls
    [name] = await calls.create()
    worker = await calls.worker()
    calls.clock.advance(2.5)
    await worker.take()
    calls.clock.advance(0.25)
    running = await inspecting.timeline(name)
    assert [each["outcome"] for each in running["dispatches"]] == ["Running"]
    assert [(piece["type"], "endTime" in piece) for piece in running["intervals"]] == [
        ("Queued", True),
        ("Running", False),
    ]
    calls.clock.advance(1)
    await worker.claim(succeeded(name), take=0)
    told = await inspecting.timeline(name)
    assert told == {
        "phase": "Succeeded",
        "costUSD": "0.00002",
        "dispatches": [
            {
                "number": 1,
                "worker": {"attempt": worker.claimant.attempt, "epoch": 1},
                "startTime": "2026-11-29T12:00:02Z",
                "endTime": "2026-11-29T12:00:03Z",
                "duration": "1.25s",
                "outcome": "Succeeded",
                "costUSD": "0.00002",
                "decision": {"action": "Finish", "appliedTime": "2026-11-29T12:00:03Z"},
            }
        ],
        "intervals": [
            {
                "type": "Queued",
                "startTime": "2026-11-29T12:00:00Z",
                "endTime": "2026-11-29T12:00:02Z",
                "duration": "2.5s",
                "dispatch": 1,
            },
            {
                "type": "Running",
                "startTime": "2026-11-29T12:00:02Z",
                "endTime": "2026-11-29T12:00:03Z",
                "duration": "1.25s",
                "dispatch": 1,
            },
        ],
    }


async def test_retries_and_recoveries_are_told_with_their_workers_their_money_and_the_waits_between(
    inspecting: Inspecting,
) -> None:
    calls = inspecting.calls
    [name] = await calls.create()
    first = await calls.worker()
    await first.take()
    calls.clock.advance(1)
    await first.claim(raised(name, message="no luck"), take=0)
    assert await inspecting.intervals(name) == [("Running", "1s"), ("BackingOff", "0s")]
    calls.clock.advance(8)
    await attach(calls, name)
    await attach(calls, name, offer_after=1)
    calls.clock.advance(3)
    await first.take()
    calls.clock.advance(4)
    await lose(calls, first)
    calls.clock.advance(2)
    await attach(calls, name)
    await attach(calls, name, offer_after=2)
    second = await calls.worker()
    await second.take()
    calls.clock.advance(5)
    await second.claim(succeeded(name), take=0)
    told = await inspecting.timeline(name)
    assert [
        (each["outcome"], each.get("message"), each["costUSD"], each["decision"]["action"])
        for each in told["dispatches"]
    ] == [
        ("Raised", "ValueError: no luck", "0.00001", "Retry"),
        ("WorkerLost", "its worker was lost", "0.00", "Recover"),
        ("Succeeded", None, "0.00005", "Finish"),
    ]
    assert told["costUSD"] == "0.00006"
    assert [each["worker"]["attempt"] for each in told["dispatches"]] == [
        first.claimant.attempt,
        first.claimant.attempt,
        second.claimant.attempt,
    ]
    delay = told["dispatches"][0]["decision"]["delay"]
    assert 8 <= float(delay.removesuffix("s")) <= 8.8
    assert told["dispatches"][1]["decision"]["appliedTime"] == "2026-11-29T12:00:18Z"
    assert await inspecting.intervals(name) == [
        ("Running", "1s"),
        ("BackingOff", "8s"),
        ("Queued", "3s"),
        ("Running", "4s"),
        ("Recovering", "2s"),
        ("Running", "5s"),
    ]


async def test_how_a_worker_ended_stands_beside_the_dispatch_that_it_lost(inspecting: Inspecting) -> None:
    calls = inspecting.calls
    [name] = await calls.create()
    worker = await calls.worker()
    await worker.take()
    await lose(calls, worker)
    await calls.database.execute(
        "UPDATE attempts SET reason = 'NodeLost', message = 'the node stopped sending heartbeats' WHERE uid = $1",
        worker.claimant.attempt,
    )
    [dispatch] = (await inspecting.timeline(name))["dispatches"]
    assert (dispatch["worker"]["reason"], dispatch["worker"]["message"]) == (
        "NodeLost",
        "the node stopped sending heartbeats",
    )
    assert "appliedTime" not in dispatch["decision"]


async def test_a_cancel_is_told_as_the_time_the_worker_took_for_it(inspecting: Inspecting) -> None:
    calls = inspecting.calls
    [name] = await calls.create()
    worker = await calls.worker()
    await worker.take()
    calls.clock.advance(2)
    await calls.cancel(name)
    calls.clock.advance(1)
    assert await inspecting.intervals(name) == [("Queued", "0s"), ("Running", "2s"), ("Cancelling", "1s")]
    await worker.claim(said(name, "Cancelled"), take=0)
    calls.clock.advance(1)
    await lose(calls, worker)  # only then its body has surely ended
    [dispatch] = (await inspecting.timeline(name))["dispatches"]
    assert (dispatch["outcome"], dispatch.get("message")) == ("Cancelled", None)
    assert await inspecting.intervals(name) == [("Running", "2s"), ("Cancelling", "2s")]


async def test_a_call_that_was_cancelled_in_the_queue_only_waited(inspecting: Inspecting) -> None:
    calls = inspecting.calls
    [name] = await calls.create()
    calls.clock.advance(7)
    await calls.cancel(name)
    calls.clock.advance(7)
    told = await inspecting.timeline(name)
    assert (told["phase"], told["dispatches"]) == ("Cancelled", [])
    assert await inspecting.intervals(name) == [("Queued", "7s")]


async def test_a_backoff_that_a_cancel_ended_has_no_applied_decision(inspecting: Inspecting) -> None:
    calls = inspecting.calls
    [name] = await calls.create()
    worker = await calls.worker()
    await worker.take()
    await worker.claim(raised(name), take=0)
    calls.clock.advance(3)
    await calls.cancel(name)
    calls.clock.advance(60)
    [dispatch] = (await inspecting.timeline(name))["dispatches"]
    assert "appliedTime" not in dispatch["decision"]
    assert await inspecting.intervals(name) == [("Running", "0s"), ("BackingOff", "3s")]


async def test_an_end_that_its_workflow_decided_is_told_as_such(inspecting: Inspecting) -> None:
    calls = inspecting.calls
    [name] = await calls.create()
    worker = await calls.worker()
    await worker.take()
    await worker.claim(raised(name), take=0)
    await attach(calls, name)
    calls.clock.advance(1)
    finish = Finish(phase="Failed", reason="DeadlineExceeded", message="m")
    await calls.writer.write(FinishCall(await calls.ref(name), 1, finish))
    [dispatch] = (await inspecting.timeline(name))["dispatches"]
    assert (dispatch["decision"]["action"], dispatch["decision"]["appliedTime"]) == ("Finish", "2026-11-29T12:00:01Z")


async def test_a_dispatch_that_never_reached_its_worker_is_told_and_costs_nothing(inspecting: Inspecting) -> None:
    calls = inspecting.calls
    [name] = await calls.create()
    worker = await calls.worker()
    await worker.take()
    calls.clock.advance(1)
    await worker.claim(running=[], take=0)
    told = await inspecting.timeline(name)
    [dispatch] = told["dispatches"]
    assert (dispatch["outcome"], dispatch["costUSD"], dispatch["decision"]["action"]) == (
        "Undelivered",
        "0.00",
        "Requeue",
    )
    assert await inspecting.intervals(name) == [("Running", "1s"), ("Queued", "0s")]


async def test_only_the_newest_dispatches_are_kept_and_the_others_are_counted(inspecting: Inspecting) -> None:
    calls = inspecting.calls
    kept_max = calls.settings.call_dispatches_kept_max
    [name] = await calls.create()
    worker = await calls.worker()
    await worker.take()
    await calls.database.execute("UPDATE calls SET dispatches = $1 WHERE name = $2", kept_max - 1, name)
    for _ in range(3):
        # A worker that says it runs nothing never had it: handed out again and again by a hostile one.
        await worker.claim(running=[])
    await calls.database.execute("UPDATE calls SET dispatches = 2 * $1 - 1 WHERE name = $2", kept_max, name)
    await worker.claim(running=[])
    numbers = [each["number"] for each in (await inspecting.timeline(name))["dispatches"]]
    assert numbers[:2] == [kept_max, kept_max + 1]
    rows = await calls.database.fetch("SELECT number FROM call_dispatches ORDER BY number")
    assert kept_max - 1 not in {row["number"] for row in rows}
    assert (await inspecting.timeline(name))["dispatchesOmitted"] == kept_max - 1


@pytest.mark.parametrize("ended_first", [True, False])
async def test_the_history_of_a_call_goes_with_its_object(inspecting: Inspecting, ended_first: bool) -> None:
    calls = inspecting.calls
    [name] = await calls.create()
    worker = await calls.worker()
    await worker.take()
    if ended_first:
        await worker.claim(succeeded(name), take=0)
        assert await calls.database.fetchval("SELECT count(*) FROM call_dispatches") == 1
        await calls.delete(name)
    else:
        # The delete waits for the worker, so the end and the removal are one commit.
        await calls.delete(name)
        await worker.claim(said(name, "Cancelled"), take=0)
        await lose(calls, worker)
    assert await calls.database.fetchval("SELECT count(*) FROM call_dispatches") == 0
    with pytest.raises(ApiError) as refused:
        await inspecting.timeline(name)
    assert refused.value.reason is Reason.NOT_FOUND


@pytest.mark.parametrize("seed", range(4))
async def test_the_stories_of_random_lives_add_up(inspecting: Inspecting, seed: int) -> None:
    """Whatever happens to calls, their dispatches are counted without gaps and cost what the calls cost."""
    calls = inspecting.calls
    await inspecting.change_function(retries={"maxRetries": 2, "initialDelay": "1s"}, recovery={"maxAttempts": 2})
    chaos = Chaos(calls, random.Random(seed))
    for _ in range(60):
        await chaos.act()
    await chaos.settle()
    for name in chaos.names:
        told, status = await inspecting.timeline(name), await calls.status(name)
        dispatches = told["dispatches"]
        assert [each["number"] for each in dispatches] == [*range(1, len(dispatches) + 1)]
        assert sum(parse_money(each["costUSD"]) for each in dispatches) == parse_money(status["costUSD"])
        actions = Counter(each["decision"]["action"] for each in dispatches)
        assert (actions["Retry"], actions["Recover"]) == (status["retries"], status["recoveries"])
        assert actions["Finish"] <= 1
        assert all("endTime" in piece for piece in told["intervals"])
        ran = [piece["type"] for piece in told["intervals"]].count("Running")
        assert ran == len(dispatches)
        await calls.delete(name)
    assert await calls.database.fetchval("SELECT count(*) FROM call_dispatches") == 0


async def test_neither_history_nor_messages_cost_a_round_trip(inspecting: Inspecting) -> None:
    """Begin, load, write and commit: what a batch took before there were either."""
    calls = inspecting.calls
    first, _ = await calls.create("a", "b")
    worker = await calls.worker()
    await worker.take()
    statements: list[str] = []
    connection = calls.writer._committer._connection
    assert connection is not None
    connection.add_query_logger(lambda query: statements.append(query.query))
    await worker.claim(succeeded(first), take=0)
    assert len(statements) == 4
    assert sum("INSERT INTO call_dispatches" in statement for statement in statements) == 1
    statements.clear()
    await calls.create("c")
    assert len(statements) == 4
    statements.clear()
    await calls.delete(first)
    assert len(statements) == 4
