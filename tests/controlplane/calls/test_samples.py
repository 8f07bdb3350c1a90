"""The history of estimates: which calls it holds, and what it costs to read."""

from __future__ import annotations

from datetime import timedelta

from controlplane.calls import samples
from controlplane.calls.recovery import LoseAttempt
from controlplane.calls.samples import Sampled, kept_calls, latest_calls
from controlplane.store.contract import Key
from tests.fixtures.calls import ORG, PROJECT, Calls, raised, said, succeeded
from tests.fixtures.inspecting import attach
from tests.fixtures.query_costs import pages_read

HERE = Key("Function", ORG, PROJECT, "f")
RETRYING = {"retries": {"maxRetries": 1, "initialDelay": "1s"}}


def of(calls: Calls, *names: str) -> list[Sampled]:
    return [Sampled(name=name, since=calls.clock.now() - timedelta(days=1)) for name in names]


async def run(calls: Calls, function: str, *seconds: float) -> str:
    """A call that runs this long, and again after each exception."""
    [name] = await calls.create(function=function)
    for number, each in enumerate(seconds):
        worker = await calls.worker(function)
        assert await worker.take() == [name]
        calls.clock.advance(each)
        last = number == len(seconds) - 1
        await worker.claim(succeeded(name) if last else raised(name), take=0)
        if not last:
            await attach(calls, name)
            await attach(calls, name, offer_after=1)
    return name


async def test_ended_calls_tell_the_seconds_of_each_dispatch_newest_first(calls: Calls) -> None:
    await calls.function("f", **RETRYING)
    await calls.function("g")
    await run(calls, "f", 3.2)
    await run(calls, "f", 1.0, 7.5)
    await run(calls, "g", 9)
    await run(calls, "f", 0.2)
    found = await latest_calls(calls.database, HERE, of(calls, "f", "g", "nope"))
    assert found == {"f": [[1], [1, 8], [4]], "g": [[9]]}
    assert await latest_calls(calls.database, HERE, of(calls, "g")) == {"g": [[9]]}
    kept = await kept_calls(calls.database, HERE, of(calls, "f")[0])
    assert sorted(map(list, kept)) == [[1], [1, 8], [4]]


async def test_calls_that_did_not_end_by_themselves_tell_nothing(calls: Calls) -> None:
    await calls.function("f")
    [queued, cancelled, running, dropped] = await calls.create("a", "b", "c", "d")
    await calls.cancel(queued)
    worker = await calls.worker(concurrency=3)
    assert set(await worker.take(3)) == {cancelled, running, dropped}
    await calls.cancel(cancelled)
    calls.clock.advance(5)
    await worker.claim(said(cancelled, "Cancelled"), take=0, running=[running, dropped])
    await worker.claim(succeeded(dropped), take=0)
    await calls.delete(dropped)
    assert await latest_calls(calls.database, HERE, of(calls, "f")) == {}
    assert await kept_calls(calls.database, HERE, of(calls, "f")[0]) == []


async def test_what_the_platform_lost_is_free_and_not_part_of_a_cost(calls: Calls) -> None:
    await calls.function("f", recovery={"maxAttempts": 3})
    [name] = await calls.create()
    lost = await calls.worker()
    assert await lost.take() == [name]
    calls.clock.advance(40)
    await calls.writer.write(LoseAttempt(lost.claimant.attempt, 1, calls.clock.now(), calls.rules))
    await attach(calls, name)
    await attach(calls, name, offer_after=1)
    worker = await calls.worker()
    assert await worker.take() == [name]
    calls.clock.advance(2)
    await worker.claim(succeeded(name), take=0)
    assert await latest_calls(calls.database, HERE, of(calls, "f")) == {"f": [[2]]}


async def test_calls_of_another_function_of_that_name_and_of_other_projects_are_not_ours(calls: Calls) -> None:
    await calls.function("f")
    await run(calls, "f", 3)
    calls.clock.advance(1)
    [ours] = of(calls, "f")
    later = Sampled(name="f", since=calls.clock.now())
    assert await latest_calls(calls.database, HERE, [later]) == {}
    assert await kept_calls(calls.database, HERE, later) == []
    for elsewhere in (Key("Function", ORG, "other", "f"), Key("Function", "other", PROJECT, "f")):
        assert await latest_calls(calls.database, elsewhere, [ours]) == {}
        assert await kept_calls(calls.database, elsewhere, ours) == []


FILL = """
WITH made AS (
    INSERT INTO objects (kind, org, project, name, uid, rv, create_rv, deleting, labels, fields, owners, doc)
    SELECT 'FunctionCall', 'acme', 'default', 'x' || n, 'x' || n, n, n, false,
        jsonb_build_object('nodus.dev/function', 'f'), jsonb_build_object('status.phase', 'Succeeded'), '{}', '{}'
    FROM generate_series(1, 50000) AS n
), logged AS (
    INSERT INTO changes (rv, time, type, kind, org, project, name, uid, labels, fields, doc)
    SELECT 10000000 + n, now(), 'MODIFIED', 'FunctionCall', 'acme', 'default', 'x' || n, 'x' || n,
        jsonb_build_object('nodus.dev/function', 'f'), jsonb_build_object('status.phase', 'Succeeded'), '{}'
    FROM generate_series(1, 50000) AS n
)
INSERT INTO call_dispatches (call_uid, number, org, project, attempt, epoch, call_created_at, started_at, ended_at,
    cause, reported, told, charge_micro_usd, decision)
SELECT 'x' || n, 1, 'acme', 'default', 'a', 1, now(), now(), now(), 'succeeded', true, '', 10, 'Finish'
FROM generate_series(1, 50000) AS n
"""


async def test_a_long_history_costs_no_more_than_a_page_of_a_list(calls: Calls) -> None:
    connection = await calls.database.connect("test")
    await connection.execute("SET plan_cache_mode = force_generic_plan")
    await connection.execute("BEGIN")
    await connection.execute(FILL)
    latest = f"'acme', 'default', '{{f}}', '{{2020-01-01}}', {samples.ENDS_READ}, {samples.SAMPLES_MAX}"
    kept = f"'acme', 'default', 'f', '2020-01-01', {samples.ENDS_READ}, {samples.SAMPLES_MAX}"
    read = [await pages_read(connection, sql, told) for sql, told in ((samples.LATEST, latest), (samples.KEPT, kept))]
    await connection.execute("ROLLBACK")
    await connection.close()
    # A page for each end that is looked at, if they are in disorder, and five for the dispatches of each sample.
    assert max(read) < samples.ENDS_READ + 5 * samples.SAMPLES_MAX, read
