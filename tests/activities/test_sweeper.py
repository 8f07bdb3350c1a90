"""The sweeper's chores one by one, over a clock the test moves; the engine is real and runs no worker."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from activities.attempts import AttemptActivities
from activities.departures import attempt_input
from activities.engine import Engine, attempt_workflow_id
from activities.sweeper import PER_TURN
from controlplane.calls.engine import AttachWorkflow, MarkReported
from controlplane.calls.recovery import LoseAttempt
from controlplane.capacity.attempts import CloseAttempt
from controlplane.capacity.endings import WorkerEnd
from controlplane.clock import format_time
from controlplane.store.contract import Key
from controlplane.store.events import NORMAL, Happening, RecordEvent
from tests.fixtures.calls import ORG, PROJECT, PutObject, succeeded
from tests.fixtures.eventually import WITHIN_SECONDS, eventually
from tests.fixtures.sweeping import Sweeping

DAY = 86_400
START = datetime(2026, 11, 29, 12, 0, 0, tzinfo=UTC)
"""Where the clock of these tests stands at first."""


async def test_a_worker_that_stops_claiming_is_killed_and_given_up_when_nobody_confirms_it(sweeping: Sweeping) -> None:
    calls = sweeping.calls
    [name] = await calls.create()
    worker = await sweeping.worker()
    await worker.take()
    calls.clock.advance(74)
    await sweeping.sweeper.end_lapsed_leases()
    assert not (await calls.attempt(worker))["draining"]
    calls.clock.advance(2)
    await sweeping.sweeper.end_lapsed_leases()
    row = await calls.attempt(worker)
    assert (row["draining"], row["drain_reason"], row["state"]) == (True, "LeaseExpired", "ready")
    assert await calls.phase(name) == "Running"
    described = await sweeping.client.get_workflow_handle(attempt_workflow_id(row["uid"])).describe()
    assert described.close_time is None
    calls.clock.advance(31)
    await sweeping.sweeper.end_lapsed_leases()
    assert (await calls.attempt(worker))["reason"] == "NodeLost"
    status = await calls.status(name)
    assert (status["phase"], status["recoveries"]) == ("Recovering", 1)
    await sweeping.client.get_workflow_handle(attempt_workflow_id(row["uid"])).terminate()


async def test_a_worker_has_a_whole_lease_to_claim_after_the_server_was_away(sweeping: Sweeping) -> None:
    calls = sweeping.calls
    await calls.create()
    worker = await sweeping.worker()
    await worker.take()
    calls.clock.advance(3_600)
    await sweeping.elect()
    calls.clock.advance(74)
    await sweeping.sweeper.end_lapsed_leases()
    assert not (await calls.attempt(worker))["draining"]
    calls.clock.advance(2)
    await sweeping.sweeper.end_lapsed_leases()
    assert (await calls.attempt(worker))["drain_reason"] == "LeaseExpired"
    await sweeping.client.get_workflow_handle(attempt_workflow_id(worker.claimant.attempt)).terminate()


async def test_an_ephemeral_app_outlives_an_outage_for_as_long_as_its_client_may_be_silent(sweeping: Sweeping) -> None:
    calls = sweeping.calls
    created = format_time(calls.clock.now())
    metadata = {"name": "a", "namespace": PROJECT, "uid": "app_1", "labels": {}, "creationTimestamp": created}
    app = {"apiVersion": "nodus.dev/v1", "kind": "App", "metadata": metadata, "spec": {"ephemeral": True}, "status": {}}
    key = Key("App", ORG, PROJECT, "a")
    await calls.writer.write(PutObject(key, app))

    async def sweep() -> bool:
        await sweeping.sweeper.expire_apps()
        return await calls.objects.get_document(key) is not None

    await eventually(lambda: any(found == key for found, _ in sweeping.sweeper._cache.of_kind("App")))
    calls.clock.advance(3_600)
    await sweeping.elect()
    calls.clock.advance(119)
    assert await sweep()
    calls.clock.advance(2)
    assert not await sweep()


async def test_a_worker_is_closed_in_the_commit_that_gives_its_calls_back(sweeping: Sweeping) -> None:
    calls = sweeping.calls
    [name] = await calls.create()
    worker = await sweeping.worker()
    await worker.take()
    batches, mutations = calls.writer.stats.batches, calls.writer.stats.mutations
    key = Key("Attempt", ORG, PROJECT, worker.claimant.attempt)
    end = WorkerEnd(outcome="Exited", exit_code=1)
    settle = AttemptActivities(calls.writer, calls.rules, calls.funding, calls.clock).settle
    assert await settle(key, worker.claimant.epoch, end) == await settle(key, worker.claimant.epoch, end)
    assert calls.writer.stats.batches - batches == calls.writer.stats.mutations - mutations == 2
    row = await calls.attempt(worker)
    assert (row["state"], row["reason"]) == ("finished", "CustomerExit")
    status = await calls.status(name)
    assert (status["phase"], status["recoveries"]) == ("Recovering", 1)


async def test_a_call_past_its_deadline_and_grace_ends_and_its_worker_is_condemned(sweeping: Sweeping) -> None:
    calls = sweeping.calls
    [name] = await calls.create(timeout="10s")
    worker = await sweeping.worker()
    await worker.take()
    calls.clock.advance(69)
    await worker.claim(take=0)
    await sweeping.sweeper.end_overdue_calls()
    assert await calls.phase(name) == "Running"
    calls.clock.advance(2)
    await sweeping.sweeper.end_overdue_calls()
    status = await calls.status(name)
    assert (status["phase"], status["reason"]) == ("Failed", "DeadlineExceeded")
    calls.clock.advance(1)
    await sweeping.sweeper.end_stuck_workers()
    row = await calls.attempt(worker)
    assert (row["drain_reason"], row["has_workflow"]) == ("DeadlineExceeded", True)
    await sweeping.client.get_workflow_handle(attempt_workflow_id(row["uid"])).terminate()


async def test_a_call_that_no_worker_takes_in_its_time_fails_for_want_of_capacity(sweeping: Sweeping) -> None:
    calls = sweeping.calls
    ready = {"type": "Ready", "status": "True", "reason": "ScaledToZero", "lastTransitionTime": format_time(START)}
    patient = {"placement": {"queueTimeout": "600s"}}
    for name, spec, conditions in (
        ("bounded", patient, [ready]),
        ("restarted", patient, [{**ready, "lastTransitionTime": format_time(START + timedelta(seconds=590))}]),
        ("stopped", {**patient, "state": "Stopped"}, [{**ready, "status": "False", "reason": "Stopped"}]),
        ("for-ever", {"placement": {"queueTimeout": "0s"}}, [ready]),
    ):
        function = await calls.function(name, **spec)
        await calls.writer.write(
            PutObject(Key("Function", ORG, PROJECT, name), {**function, "status": {"conditions": conditions}})
        )
    worker = await calls.worker("bounded", concurrency=2)
    running, returned = await calls.create("r", "r", function="bounded")
    await worker.take(2)
    waiting = {name: (await calls.create(function=name))[0] for name in ("bounded", "restarted", "stopped", "for-ever")}
    calls.clock.advance(300)
    # The reply that gave it was lost; it waits again, from now on.
    await worker.claim(take=0, running=[running])
    calls.clock.advance(300)
    await sweeping.sweeper.end_unserved_calls()
    assert await calls.phase(waiting["bounded"]) == "Queued"
    calls.clock.advance(1)
    await sweeping.sweeper.end_unserved_calls()
    status = await calls.status(waiting.pop("bounded"))
    assert (status["phase"], status["reason"]) == ("Failed", "CapacityUnavailable")
    assert "within 600s, the `placement.queueTimeout` of its Function" in status["message"]
    assert status["costUSD"] == "0.00"
    assert await calls.phase(running) == "Running"
    for name in (returned, *waiting.values()):
        assert await calls.phase(name) == "Queued"


async def test_one_look_ends_all_that_waited_too_long_however_many_they_are(sweeping: Sweeping) -> None:
    calls = sweeping.calls
    ready = {"type": "Ready", "status": "True", "reason": "ScaledToZero", "lastTransitionTime": format_time(START)}
    for name in ("large", "small"):
        function = await calls.function(name, placement={"queueTimeout": "60s"})
        document = {**function, "status": {"conditions": [ready]}}
        await calls.writer.write(PutObject(Key("Function", ORG, PROJECT, name), document))
    waiting = [*await calls.create(*["s"] * (2 * PER_TURN + 1), function="large")]
    waiting += await calls.create(*[f"s{number}" for number in range(PER_TURN + 1)], function="small")
    calls.clock.advance(61)
    [late] = await calls.create("s", function="large")
    await sweeping.sweeper.end_unserved_calls()
    reasons = {(status["phase"], status["reason"]) for status in [await calls.status(name) for name in waiting]}
    assert reasons == {("Failed", "CapacityUnavailable")}
    assert await calls.phase(late) == "Queued"


async def test_calls_that_were_offered_again_a_moment_ago_hide_none_that_waits_too_long(sweeping: Sweeping) -> None:
    calls = sweeping.calls
    ready = {"type": "Ready", "status": "True", "reason": "ScaledToZero", "lastTransitionTime": format_time(START)}
    function = await calls.function("large", placement={"queueTimeout": "60s"})
    document = {**function, "status": {"conditions": [ready]}}
    await calls.writer.write(PutObject(Key("Function", ORG, PROJECT, "large"), document))
    returned = await calls.create(*["s"] * (PER_TURN + 1), function="large")
    worker = await calls.worker("large", concurrency=PER_TURN + 1)
    assert len(await worker.take(PER_TURN + 1)) == PER_TURN + 1
    late = await calls.create("s", function="large")
    calls.clock.advance(59)
    await worker.claim(take=0, running=[])
    calls.clock.advance(2)
    await sweeping.sweeper.end_unserved_calls()
    assert {await calls.phase(name) for name in returned} == {"Queued"}
    assert [await calls.phase(name) for name in late] == ["Failed"]
    calls.clock.advance(60)
    await sweeping.sweeper.end_unserved_calls()
    assert {await calls.phase(name) for name in returned} == {"Failed"}


async def test_a_cancel_that_the_worker_ignores_ends_the_call_after_its_grace(sweeping: Sweeping) -> None:
    calls = sweeping.calls
    [name] = await calls.create()
    worker = await sweeping.worker()
    await worker.take()
    await calls.cancel(name)
    assert await calls.phase(name) == "Cancelling"
    calls.clock.advance(31)
    await sweeping.sweeper.end_overdue_calls()
    assert await calls.phase(name) == "Cancelled"


async def test_a_worker_that_takes_too_long_to_start_is_killed(sweeping: Sweeping) -> None:
    calls = sweeping.calls
    worker = await sweeping.worker()
    [started] = await sweeping.workers.rows([worker.claimant.attempt])
    await Engine(sweeping.client, WITHIN_SECONDS).start_attempt(attempt_input(started))
    await sweeping.workers.mark_started(started.uid)
    calls.clock.advance(301)
    await sweeping.sweeper.end_stuck_workers()
    row = await calls.attempt(worker)
    assert (row["draining"], row["drain_reason"]) == (True, "StartupTimeout")
    await sweeping.client.get_workflow_handle(attempt_workflow_id(row["uid"])).terminate()


async def test_the_time_of_an_init_command_is_added_to_that_of_a_start(sweeping: Sweeping) -> None:
    calls = sweeping.calls
    await calls.function("prepared", initCommand={"command": ["prepare"], "timeout": "10m"})
    worker = await sweeping.worker("prepared")
    calls.clock.advance(899)
    await sweeping.sweeper.end_stuck_workers()
    assert (await calls.attempt(worker))["state"] == "starting"
    calls.clock.advance(2)
    await sweeping.sweeper.end_stuck_workers()
    assert (await calls.attempt(worker))["state"] == "finished"


async def test_a_worker_that_the_engine_never_heard_of_is_replaced_and_nobody_is_blamed(sweeping: Sweeping) -> None:
    calls = sweeping.calls
    worker = await sweeping.worker()
    calls.clock.advance(301)
    await sweeping.sweeper.end_stuck_workers()
    row = await calls.attempt(worker)
    assert (row["state"], row["reason"]) == ("finished", "NodeLost")
    record = (await sweeping.workers.start_records({row["function_uid"]: row["pool"]}))[row["function_uid"]]
    assert (record.failures, record.lost_starts) == (0, 1)


async def test_a_call_whose_workflow_is_gone_gets_another(sweeping: Sweeping) -> None:
    calls = sweeping.calls
    [name] = await calls.create()
    worker = await sweeping.worker()
    await worker.take()
    ref = await calls.ref(name)
    await calls.writer.write(AttachWorkflow(ref, b"token"))
    [row] = await calls.database.fetch("SELECT epoch FROM attempts")
    await calls.writer.write(LoseAttempt(worker.claimant.attempt, row["epoch"], None, calls.rules))
    await calls.writer.write(MarkReported(ref, b"token"))
    waiting = await calls.row(name)
    assert waiting is not None
    assert (waiting["state"], waiting["has_workflow"]) == ("waiting", True)
    calls.clock.advance(61)
    await sweeping.sweeper.wake_silent_workflows()
    detached = await calls.row(name)
    assert detached is not None
    assert (detached["state"], detached["has_workflow"]) == ("waiting", False)


async def test_calls_attempts_and_events_are_kept_for_their_time_and_then_forgotten(sweeping: Sweeping) -> None:
    calls = sweeping.calls
    ended, open_call = await calls.create("a", "b")
    worker = await sweeping.worker()
    assert await worker.take() == [ended]
    await worker.claim(succeeded(ended), take=0)
    key = Key("Attempt", ORG, PROJECT, worker.claimant.attempt)
    await calls.writer.write(CloseAttempt(key, WorkerEnd(outcome="Exited", exit_code=0)))
    await calls.writer.write(
        RecordEvent(Happening(key=key, uid="u", type=NORMAL, reason="Something", message="happened"))
    )

    async def kept() -> dict[str, int]:
        rows = await calls.database.fetch("SELECT kind, count(*) AS n FROM objects GROUP BY kind")
        return {row["kind"]: row["n"] for row in rows}

    async def forget() -> None:
        await sweeping.retention.forget_calls()
        await sweeping.retention.forget_attempts()
        await sweeping.retention.forget_events()
        await sweeping.retention.compact_changes()

    calls.clock.advance(DAY + 60)
    await forget()
    assert await kept() == {"Attempt": 1, "Function": 1, "FunctionCall": 2}
    calls.clock.advance(6 * DAY)
    await forget()
    assert await kept() == {"Function": 1, "FunctionCall": 1}
    assert await calls.phase(open_call) == "Queued"
    assert await calls.database.fetchval("SELECT count(*) FROM attempts") == 0


async def test_blobs_nobody_uses_or_names_are_deleted(sweeping: Sweeping) -> None:
    calls = sweeping.calls
    digests = {name: name * 64 for name in "abcdef"}
    for digest in digests.values():
        await calls.database.execute(
            "INSERT INTO blobs (org, project, digest, size_bytes, content_type, location, created_at, last_used_at) "
            "VALUES ($1, $2, $3, 1, '', $3, $4, $4)",
            ORG, PROJECT, digest, calls.clock.now(),
        )  # fmt: skip
    await calls.function("g", code={"blob": f"sha256:{digests['a']}"})
    step = {"copy": {"blob": f"sha256:{digests['f']}", "dest": "/data"}}
    image = {"metadata": {"name": "i", "uid": "img_i"}, "spec": {"base": "nodus/python:3.11", "steps": [step]}}
    await calls.writer.write(PutObject(Key("Image", ORG, PROJECT, "i"), image))
    await calls.create(input={"encoding": "Pickle", "blob": f"sha256:{digests['b']}"})
    running, ended = [
        (await calls.create("s", input={"encoding": "Pickle", "blob": f"sha256:{digests[name]}"}))[0] for name in "de"
    ]
    worker = await calls.worker(concurrency=3)
    await worker.take(3)

    async def left() -> str:
        await sweeping.retention.forget_calls()
        await sweeping.retention.forget_blobs()
        rows = await calls.database.fetch("SELECT digest FROM blobs ORDER BY digest")
        return "".join(row["digest"][0] for row in rows)

    calls.clock.advance(8 * DAY)
    await worker.claim(succeeded(ended), take=0)
    # What a call waits with, runs with or has just ended with stays, however long ago it was last read.
    assert await left() == "abdef"
    assert await calls.phase(running) == "Running"
    calls.clock.advance(8 * DAY)
    assert await left() == "abdf"


async def test_a_blob_that_two_calls_share_stays_until_both_are_forgotten(sweeping: Sweeping) -> None:
    calls, digest = sweeping.calls, "ab" * 32
    await calls.database.execute(
        "INSERT INTO blobs (org, project, digest, size_bytes, content_type, location, created_at, last_used_at) "
        "VALUES ($1, $2, $3, 1, '', $3, $4, $4)",
        ORG, PROJECT, digest, calls.clock.now(),
    )  # fmt: skip
    shared = {"encoding": "Pickle", "blob": f"sha256:{digest}"}
    first, second = [(await calls.create("s", input=shared))[0] for _ in range(2)]
    worker = await calls.worker(concurrency=2)
    assert await worker.take(2) == [first, second]

    async def left() -> tuple[int, int]:
        await sweeping.retention.forget_calls()
        await sweeping.retention.forget_blobs()
        kept = await calls.database.fetchval("SELECT count(*) FROM objects WHERE kind = 'FunctionCall'")
        return kept, await calls.database.fetchval("SELECT count(*) FROM blobs")

    await worker.claim(succeeded(first), take=0)
    calls.clock.advance(4 * DAY)
    await worker.claim(succeeded(second), take=0)
    calls.clock.advance(3.5 * DAY)
    assert await left() == (1, 1)
    # Looked at just before its last call is forgotten, it is looked at again a day later.
    calls.clock.advance(3.4 * DAY)
    assert await left() == (1, 1)
    calls.clock.advance(0.2 * DAY)
    assert await left() == (0, 1)
    calls.clock.advance(0.9 * DAY)
    assert await left() == (0, 0)


async def test_logs_are_kept_as_long_as_calls(sweeping: Sweeping) -> None:
    calls = sweeping.calls
    insert = (
        "INSERT INTO log_chunks (attempt, seq, org, project, function_uid, first_time, last_time, received_at, "
        "size_bytes, end_bytes, lines) VALUES ('att-1', $1, 'o', 'p', 'fn_1', $2, $2, $2, 10, 10, '[]')"
    )
    await calls.database.execute(insert, 1, calls.clock.now())
    calls.clock.advance(7 * DAY)
    await calls.database.execute(insert, 2, calls.clock.now())
    calls.clock.advance(1)
    await sweeping.retention.forget_logs()
    rows = await calls.database.fetch("SELECT seq FROM log_chunks")
    assert [row["seq"] for row in rows] == [2]
