"""Quotas on workers and what they hold: exact in the transaction that starts them, whoever asks at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.run_worker_contract import NODE_LOST
from controlplane.capacity.attempts import CloseAttempt, StartOrder, StartWorkers
from controlplane.capacity.endings import WorkerEnd
from controlplane.capacity.rows import WorkerQueries, WorkerRow
from controlplane.kinds.registry import KINDS
from controlplane.limits.quotas import Counter, Quota, set_quota, unit_of
from controlplane.limits.worker_quotas import WorkerRoom, project_key, read_room
from controlplane.placement.demand import Demand, GpuDemand
from controlplane.store.changes import ChangeFeed
from controlplane.store.contract import Key
from controlplane.store.writer import Writer
from tests.fixtures.calls import ORG, PROJECT, Calls
from tests.fixtures.placing import capacity_at

GIB = 1 << 30
SCALING = {"minWorkers": 0, "maxWorkers": 10, "targetConcurrency": 1}
BIG = Demand(cpu_milli=2_000, memory_bytes=4 * GIB, gpu=GpuDemand(types=frozenset({"h100"}), count=2))
SMALL = Demand(cpu_milli=500, memory_bytes=GIB)
MINE = project_key(ORG, PROJECT)


@pytest.fixture
async def other_writer(calls: Calls) -> AsyncIterator[Writer]:
    """The writer of another process."""
    feed = ChangeFeed(calls.database, calls.settings)
    await feed.start()
    writer = Writer(database=calls.database, clock=calls.clock, kinds=KINDS, feed=feed, settings=calls.settings)
    await writer.start()
    yield writer
    await writer.stop()
    await feed.stop()


async def order(calls: Calls, function: str, count: int, demand: Demand = SMALL) -> StartWorkers:
    uid = (await calls.get("Function", function))["metadata"]["uid"]
    live = (await WorkerQueries(calls.database).live([uid]))[uid]
    return StartWorkers(
        StartOrder(
            function_key=Key("Function", ORG, PROJECT, function),
            function_uid=uid,
            revision="r",
            count=count,
            node="local",
            node_workers_max=1_000,
            seen=frozenset(worker.row.uid for worker in live),
            capacity=capacity_at(calls.price),
            funding=calls.funding,
            demand=demand,
        )
    )


async def bound(calls: Calls, counter: Counter, amount: str, project: str = "") -> None:
    quota = Quota(org=ORG, project=project, counter=counter, amount_max=unit_of(counter).parse(amount))
    await set_quota(calls.database, quota)


@pytest.mark.parametrize("project", ["", PROJECT])
async def test_two_processes_start_as_many_workers_as_the_quota_allows_and_no_more(
    calls: Calls, other_writer: Writer, project: str
) -> None:
    await bound(calls, Counter.WORKERS, "7", project)
    names = [f"f{number}" for number in range(8)]
    for name in names:
        await calls.function(name, scaling=SCALING)
    orders = [await order(calls, name, 3) for name in names]
    started: list[list[WorkerRow]] = await asyncio.gather(
        *(writer.write(one) for one, writer in zip(orders, [calls.writer, other_writer] * 4, strict=True))
    )
    assert sum(map(len, started)) == 7
    assert (await read_room(calls.database, [MINE])).fit(MINE, SMALL).more == 0
    # What ended is given back.
    [row] = next(rows for rows in started if rows)[:1]
    await calls.writer.write(CloseAttempt(row.key, WorkerEnd(outcome=NODE_LOST)))
    again = await calls.writer.write(await order(calls, "f7", 3))
    assert len(again) == 1


@pytest.mark.parametrize(
    ("counter", "amount", "demand", "fits"),
    [
        (Counter.CPUS, "5", BIG, 2),
        (Counter.CPUS, "1500m", SMALL, 3),
        (Counter.MEMORY, "11Gi", BIG, 2),
        (Counter.GPUS, "5", BIG, 2),
        (Counter.GPUS, "0", SMALL, 4),
        (Counter.WORKERS, "0", SMALL, 0),
    ],
)
async def test_what_a_worker_asks_for_is_counted(
    calls: Calls, counter: Counter, amount: str, demand: Demand, fits: int
) -> None:
    await calls.function(scaling=SCALING)
    await bound(calls, counter, amount)
    assert len(await calls.writer.write(await order(calls, "f", 4, demand))) == fits
    assert not fits or fits == 4 or not await calls.writer.write(await order(calls, "f", 1, demand))


async def test_a_quota_of_another_project_or_organisation_bounds_nothing_here(calls: Calls) -> None:
    await calls.function(scaling=SCALING)
    await bound(calls, Counter.WORKERS, "0", "elsewhere")
    await set_quota(calls.database, Quota(org="another", project="", counter=Counter.WORKERS, amount_max=0))
    assert len(await calls.writer.write(await order(calls, "f", 2))) == 2


async def test_what_is_told_has_the_numbers_and_what_to_do(calls: Calls) -> None:
    await calls.function(scaling=SCALING)
    await bound(calls, Counter.MEMORY, "2560Mi", PROJECT)
    await calls.writer.write(await order(calls, "f", 4))
    fit = (await read_room(calls.database, [MINE])).fit(MINE, SMALL)
    assert (fit.more, fit.told) == (
        0,
        f'the project "{PROJECT}" may have 2560Mi memory and its workers take 2Gi; one more takes 1Gi. It starts when '
        "others end: lower `scaling` of other Functions, or ask an operator for a higher quota",
    )


@pytest.mark.parametrize(
    ("counter", "amount", "text"),
    [
        (Counter.WORKERS, 12, "12"),
        (Counter.CPUS, 1_500, "1500m"),
        (Counter.CPUS, 4_000, "4"),
        (Counter.MEMORY, 3 * GIB, "3Gi"),
        (Counter.STORAGE, 1_000, "1000"),
        (Counter.STORAGE, 0, "0"),
    ],
)
def test_amounts_are_written_as_they_are_read(counter: Counter, amount: int, text: str) -> None:
    unit = unit_of(counter)
    assert (unit.text(amount), unit.parse(text)) == (text, amount)


rows = st.lists(
    st.builds(
        lambda project, counter, most, used: {
            "key": MINE, "org": ORG, "project": project, "counter": counter, "amount_max": most, "used": used,
        },
        st.sampled_from(["", PROJECT]), st.sampled_from(["workers", "cpus", "memory", "gpus"]),
        st.integers(0, 20_000), st.integers(0, 20_000),
    ),
    unique_by=lambda row: (row["project"], row["counter"]),
)  # fmt: skip


@given(rows=rows, cpu=st.integers(0, 3_000), gpus=st.integers(0, 4))
def test_taking_what_fits_fits_and_one_more_does_not(rows: list[dict[str, Any]], cpu: int, gpus: int) -> None:
    gpu = GpuDemand(types=frozenset({"t4"}), count=gpus) if gpus else None
    demand = Demand(cpu_milli=cpu, memory_bytes=700, gpu=gpu)
    room = WorkerRoom(rows)
    more = room.fit(MINE, demand).more
    if more is None:
        assert all(
            row["counter"] in ("cpus", "gpus") and not {"cpus": cpu, "gpus": gpus}[row["counter"]] for row in rows
        )
        return
    room.take(MINE, demand, more)
    takes = {"workers": 1, "cpus": cpu, "memory": 700, "gpus": gpus}
    left = [row["amount_max"] - row["used"] - more * takes[row["counter"]] for row in rows if takes[row["counter"]]]
    assert more == 0 or min(left) >= 0
    assert room.fit(MINE, demand).more == 0
