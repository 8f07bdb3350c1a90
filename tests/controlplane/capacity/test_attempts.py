from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest

from activities.run_worker_contract import DRAINED, EXITED, NODE_LOST, PLATFORM_AWAY
from controlplane.calls.recovery import LoseAttempt
from controlplane.calls.wants import Claimant
from controlplane.capacity.attempts import CloseAttempt, DrainWorkers, StartOrder, StartWorkers
from controlplane.capacity.endings import WorkerEnd
from controlplane.capacity.rows import NodeLoad, WorkerQueries, WorkerRow
from controlplane.kinds.quotes import quoted
from controlplane.machinery.quantities import format_money
from controlplane.store.contract import Key
from tests.fixtures.calls import ORG, PROJECT, Calls, PutObject, ScriptedWorker
from tests.fixtures.placing import capacity_at

SCALING = {"minWorkers": 0, "maxWorkers": 10, "targetConcurrency": 2}


@pytest.fixture
async def workers(calls: Calls) -> WorkerQueries:
    await calls.function(scaling=SCALING)
    return WorkerQueries(calls.database)


async def start(calls: Calls, count: int = 1, *, revision: str = "r1", **changes: Any) -> list[WorkerRow]:
    function = await calls.get("Function", changes.pop("function", "f"))
    uid = function["metadata"]["uid"]
    live = (await WorkerQueries(calls.database).live([uid]))[uid]
    told: dict[str, Any] = {
        "function_key": Key("Function", ORG, PROJECT, function["metadata"]["name"]),
        "function_uid": uid,
        "revision": revision,
        "count": count,
        "node": "local",
        "node_workers_max": 32,
        "seen": frozenset(worker.row.uid for worker in live),
        "capacity": capacity_at(calls.price),
        "funding": calls.funding,
    }
    return await calls.writer.write(StartWorkers(StartOrder(**{**told, **changes})))


async def end(calls: Calls, row: WorkerRow, told: WorkerEnd) -> None:
    await asyncio.gather(
        calls.writer.write(LoseAttempt(row.uid, row.epoch, calls.clock.now(), calls.rules)),
        calls.writer.write(CloseAttempt(row.key, told)),
    )


async def test_a_worker_is_a_row_and_an_object_under_one_name(calls: Calls, workers: WorkerQueries) -> None:
    [row] = await start(calls)
    document = await calls.get("Attempt", row.uid)
    assert document["metadata"]["uid"] == row.uid
    assert "_" not in row.uid
    assert document["spec"] == {"slot": "w1", "epoch": 1}
    assert document["status"]["phase"] == "Provisioning"
    assert document["metadata"]["labels"] == {"nodus.dev/function": "f"}
    assert document["metadata"]["ownerReferences"][0]["kind"] == "Function"
    [live] = (await workers.live([row.function_uid]))[row.function_uid]
    assert (live.row, live.busy) == (row, 0)
    assert row.concurrency == 2


async def test_each_slot_is_filled_once_and_its_epoch_grows_with_every_replacement(
    calls: Calls, workers: WorkerQueries
) -> None:
    first = await start(calls, 3)
    assert [(row.slot, row.epoch) for row in first] == [("w1", 1), ("w2", 1), ("w3", 1)]
    await end(calls, first[1], WorkerEnd(outcome=EXITED, exit_code=1))
    [replacement] = await start(calls)
    assert (replacement.slot, replacement.epoch) == ("w2", 2)


async def test_two_plans_made_on_the_same_facts_start_workers_once(calls: Calls, workers: WorkerQueries) -> None:
    nobody: frozenset[str] = frozenset()
    both = await asyncio.gather(start(calls, 2, seen=nobody), start(calls, 2, seen=nobody))
    assert sorted(len(rows) for rows in both) == [0, 2]
    assert await start(calls, seen=nobody) == []


async def test_a_node_is_never_filled_beyond_its_limit(calls: Calls, workers: WorkerQueries) -> None:
    await calls.function("g", scaling=SCALING)
    both = await asyncio.gather(start(calls, 3, node_workers_max=4), start(calls, 3, node_workers_max=4, function="g"))
    assert sum(len(rows) for rows in both) == 4
    assert await workers.node_load("local") == NodeLoad(live=4, starting=4, staying={f"{ORG}/{PROJECT}": 4})
    assert await workers.node_load("elsewhere") == NodeLoad()


async def test_a_function_that_is_gone_or_stopped_gets_no_workers(calls: Calls, workers: WorkerQueries) -> None:
    await calls.function("g", scaling=SCALING, state="Stopped")
    assert await start(calls, function="g") == []
    assert await start(calls, function_uid="another") == []


async def test_an_idle_worker_that_was_let_go_is_released_and_its_token_ends(
    calls: Calls, workers: WorkerQueries
) -> None:
    [row] = await start(calls)
    await calls.database.execute(
        "INSERT INTO tokens (hash, kind, org, principal, name, attempt, epoch, created_at) "
        "VALUES ('\\x01', 'attempt', $1, $2, $2, $2, 1, $3)",
        ORG, row.uid, calls.clock.now(),
    )  # fmt: skip
    await calls.writer.write(DrainWorkers([row.uid], "Idle"))
    [live] = (await workers.live([row.function_uid]))[row.function_uid]
    assert (live.row.draining, live.row.drain_reason) == (True, "Idle")
    await end(calls, row, WorkerEnd(outcome=DRAINED, exit_code=0))
    status = (await calls.get("Attempt", row.uid))["status"]
    assert (status["phase"], status["reason"], status["exitCode"]) == ("Cancelled", "Released", 0)
    assert status["timings"]["finishedTime"] == "2026-11-29T12:00:00Z"
    assert await workers.live([row.function_uid]) == {row.function_uid: []}
    [token] = await calls.database.fetch("SELECT revoked_at FROM tokens")
    assert token["revoked_at"] == calls.clock.now()


async def test_the_first_end_of_a_worker_stays(calls: Calls, workers: WorkerQueries) -> None:
    [row] = await start(calls)
    await end(calls, row, WorkerEnd(outcome=EXITED, exit_code=1))
    revision = calls.feed.last_rv
    await end(calls, row, WorkerEnd(outcome=NODE_LOST))
    assert calls.feed.last_rv == revision
    assert (await calls.get("Attempt", row.uid))["status"]["reason"] == "CustomerExit"


async def test_starts_that_fail_are_counted_until_one_succeeds_or_the_revision_changes(
    calls: Calls, workers: WorkerQueries
) -> None:
    uid, last = "", ""
    for _ in range(3):
        calls.clock.advance(1)
        [row] = await start(calls)
        await end(calls, row, WorkerEnd(outcome=EXITED, exit_code=1))
        uid, last = row.function_uid, row.uid
    record = (await workers.start_records({uid: "r1"}))[uid]
    assert (record.failures, record.last_failure_at, record.last_failure_uid) == (3, calls.clock.now(), last)
    assert (await workers.start_records({uid: "r2"}))[uid].failures == 0
    calls.clock.advance(1)
    [row] = await start(calls)
    assert (await workers.start_records({uid: "r1"}))[uid].failures == 3
    await calls.database.execute("UPDATE attempts SET ready_at = $2 WHERE uid = $1", row.uid, calls.clock.now())
    assert (await workers.start_records({uid: "r1"}))[uid].failures == 0


async def test_starts_that_the_platform_lost_are_counted_apart_from_failures(
    calls: Calls, workers: WorkerQueries
) -> None:
    uid = (await calls.get("Function", "f"))["metadata"]["uid"]
    for _ in range(6):
        calls.clock.advance(31)
        [row] = await start(calls)
        await end(calls, row, WorkerEnd(outcome=PLATFORM_AWAY, message="no node process took the worker"))
    record = (await workers.start_records({uid: "r1"}))[uid]
    assert (record.failures, record.lost_starts, record.last_lost_at) == (0, 6, calls.clock.now())
    assert not record.lost_worker


async def ready_then_ended(calls: Calls, told: WorkerEnd, seconds: float, **row: Any) -> WorkerRow:
    """A worker that took calls for so long; `row` are columns of it at its end."""
    calls.clock.advance(1)
    [started] = await start(calls)
    row = {"state": "ready", "ready_at": calls.clock.now(), **row}
    columns = ", ".join(f"{name} = ${number}" for number, name in enumerate(row, start=2))
    await calls.database.execute(f"UPDATE attempts SET {columns} WHERE uid = $1", started.uid, *row.values())
    calls.clock.advance(seconds)
    await end(calls, started, told)
    return started


CRASHED = WorkerEnd(outcome=EXITED, exit_code=3)
SOON, LATE = 600, 601


@pytest.mark.parametrize(
    ("told", "seconds", "row", "failures"),
    [
        (CRASHED, 3, {}, 2),
        (CRASHED, SOON, {}, 2),
        (CRASHED, LATE, {}, 0),
        (WorkerEnd(outcome=EXITED, exit_code=0), 3, {}, 2),
        (WorkerEnd(outcome="OutOfMemory", signal=9), 3, {}, 2),
        (WorkerEnd(outcome=DRAINED, exit_code=0), 3, {}, 0),
        (WorkerEnd(outcome=NODE_LOST), 3, {}, 0),
        (CRASHED, 3, {"drain_reason": "Idle"}, 0),
        (CRASHED, 3, {"last_busy_at": datetime(2026, 11, 29, 12, tzinfo=UTC)}, 0),
    ],
)
async def test_a_worker_that_soon_ends_by_itself_without_a_call_counts_as_a_failed_start(
    calls: Calls, workers: WorkerQueries, told: WorkerEnd, seconds: float, row: dict[str, Any], failures: int
) -> None:
    await ready_then_ended(calls, told, seconds, **row)
    ended = await ready_then_ended(calls, told, seconds, **row)
    record = (await workers.start_records({ended.function_uid: "r1"}))[ended.function_uid]
    assert record.failures == failures
    newest = (ended.uid, calls.clock.now()) if failures else (None, None)
    assert (record.last_failure_uid, record.last_failure_at) == newest
    await start(calls)
    await calls.database.execute("UPDATE attempts SET ready_at = $1 WHERE state = 'starting'", calls.clock.now())
    assert (await workers.start_records({ended.function_uid: "r1"}))[ended.function_uid].failures == 0


async def test_a_call_that_ends_its_worker_is_no_failed_start(calls: Calls, workers: WorkerQueries) -> None:
    """The worker took it with its first claim and never came to say so."""
    [poison] = await calls.create()
    [started] = await start(calls)
    owner = {name: getattr(started, name) for name in ("org", "project", "function", "function_uid", "epoch")}
    worker = ScriptedWorker(calls, Claimant(attempt=started.uid, **owner))
    assert await worker.take() == [poison]
    await end(calls, started, CRASHED)
    record = (await workers.start_records({started.function_uid: "r1"}))[started.function_uid]
    assert (record.failures, record.lost_worker) == (0, True)


async def test_a_lost_node_is_not_the_functions_fault_but_a_loss(calls: Calls, workers: WorkerQueries) -> None:
    [row] = await start(calls)
    await calls.database.execute("UPDATE attempts SET ready_at = $2 WHERE uid = $1", row.uid, calls.clock.now())
    await end(calls, row, WorkerEnd(outcome=NODE_LOST))
    record = (await workers.start_records({row.function_uid: "r1"}))[row.function_uid]
    assert (record.failures, record.lost_worker) == (0, True)
    status = (await calls.get("Attempt", row.uid))["status"]
    assert status["interruption"]["trigger"] == "HeartbeatLoss"


async def test_start_times_are_measured(calls: Calls, workers: WorkerQueries) -> None:
    assert await workers.start_seconds("fn_1") is None
    for seconds in (1, 2, 3, 4):
        [row] = await start(calls)
        ready_at = calls.clock.now() + timedelta(seconds=seconds)
        await calls.database.execute("UPDATE attempts SET ready_at = $2 WHERE uid = $1", row.uid, ready_at)
    assert await workers.start_seconds("fn_1") == (2.0, 4.0)


async def test_workers_that_should_be_gone_are_found(calls: Calls, workers: WorkerQueries) -> None:
    rows = await start(calls, 4)
    for row in rows:
        await workers.mark_started(row.uid)
    now = calls.clock.now()
    await calls.writer.write(DrainWorkers([rows[0].uid], "Idle"))
    await calls.writer.write(DrainWorkers([rows[1].uid], "DeadlineExceeded", kill_at=now))
    await calls.database.execute("UPDATE attempts SET state = 'ready', ready_at = $1 WHERE uid <> $2", now, rows[2].uid)

    async def stuck(after: float) -> set[str]:
        found = await workers.stuck(now + timedelta(seconds=after), 300, 30, 10)
        return {row.uid for row in found}

    assert await stuck(1) == {rows[1].uid}
    assert await stuck(31) == {rows[0].uid, rows[1].uid}
    assert await stuck(301) == {rows[0].uid, rows[1].uid, rows[2].uid}


async def test_the_end_of_what_a_worker_printed_is_read_from_its_log(calls: Calls, workers: WorkerQueries) -> None:
    assert await workers.last_output("att-1") == ""
    for seq in range(6):
        lines = f'[[1, "stderr", "line {seq}a"], [2, "stderr", "line {seq}b"]]'
        await calls.database.execute(
            "INSERT INTO log_chunks (attempt, seq, org, project, function_uid, first_time, last_time, received_at, "
            "size_bytes, end_bytes, lines) VALUES ('att-1', $1, 'o', 'p', 'fn_1', $2, $2, $2, 10, 10, $3)",
            seq, calls.clock.now(), lines,
        )  # fmt: skip
    assert (await workers.last_output("att-1")).splitlines()[-2:] == ["line 5a", "line 5b"]


@pytest.mark.parametrize(("quoted_rate", "rate"), [(36_000, 36_000), (18_000, 19_800), (0, None)])
async def test_a_worker_of_a_function_that_is_bound_to_a_quote_is_started_for_that(
    calls: Calls, workers: WorkerQueries, quoted_rate: int, rate: int | None
) -> None:
    bound = quoted(await calls.get("Function", "f"), quoted_rate)
    await calls.writer.write(PutObject(Key("Function", ORG, PROJECT, "f"), bound))
    [row] = await start(calls)
    placement = (await calls.get("Attempt", row.uid))["status"]["placement"]
    assert placement["rateUSDPerHour"] == format_money(rate or 0)
    account = "SELECT rate_micro_usd_per_hour FROM worker_accounts WHERE uid = $1"
    assert await calls.database.fetchval(account, row.uid) == rate


async def test_a_function_whose_workers_fail_again_and_again_has_one_event_with_a_count(
    calls: Calls, workers: WorkerQueries
) -> None:
    killed = WorkerEnd(outcome="OutOfMemory", signal=9)
    failed = []
    for told in (killed, killed, WorkerEnd(outcome=EXITED, exit_code=1), killed):
        failed += await start(calls)
        await end(calls, failed[-1], told)
        # A second close changes nothing, so it is no second failure.
        await end(calls, failed[-1], told)
    stored = await calls.database.fetch("SELECT doc FROM objects WHERE kind = 'Event'")
    events = {event["reason"]: event for event in (orjson.loads(record["doc"]) for record in stored)}
    assert {reason: event["count"] for reason, event in events.items()} == {"OutOfMemory": 3, "CustomerExit": 1}
    event = events["OutOfMemory"]
    assert event["involvedObject"] == {
        "kind": "Function",
        "namespace": PROJECT,
        "name": "f",
        "uid": failed[0].function_uid,
    }
    assert event["type"] == "Warning"
    assert event["message"].startswith(f"worker {failed[-1].uid}: the worker needed more memory")


async def test_a_worker_that_was_asked_to_go_is_no_event(calls: Calls, workers: WorkerQueries) -> None:
    [row] = await start(calls)
    await calls.writer.write(DrainWorkers([row.uid], "Stopped"))
    await end(calls, row, WorkerEnd(outcome="Drained", exit_code=0))
    assert await calls.database.fetch("SELECT 1 FROM objects WHERE kind = 'Event'") == []
