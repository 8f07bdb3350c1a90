"""Following: what comes later arrives soon, once, in order, and the stream ends when nothing more can come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from controlplane.clock import format_time
from controlplane.errors import ApiError, Reason
from controlplane.logs.reader import LogOptions
from controlplane.logs.subjects import nanoseconds
from controlplane.store.contract import Document, Key, Reads, Tx
from tests.controlplane.logs.conftest import SECOND, Logs, MakeFunction, MakeLogs
from tests.fixtures.eventually import eventually
from tests.fixtures.plane import Plane, PutObject
from tests.fixtures.postgres import away

FOLLOW = LogOptions(follow=True)


class Stream:
    """A followed log that is read all the time."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.ended = False

    async def has(self, *lines: str) -> None:
        await eventually(lambda: self.lines == list(lines))

    async def has_count(self, count: int) -> None:
        await eventually(lambda: len(self.lines) >= count)

    async def ends(self) -> None:
        await eventually(lambda: self.ended)


@asynccontextmanager
async def following(logs: Logs, key: Key, options: LogOptions = FOLLOW) -> AsyncIterator[Stream]:
    stream = Stream()
    chunks = await logs.reader.read(key, options)

    async def read() -> None:
        async for chunk in chunks:
            stream.lines += chunk.decode().splitlines()
        stream.ended = True

    task = asyncio.create_task(read())
    try:
        yield stream
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await chunks.aclose()


class Remove:
    def __init__(self, key: Key) -> None:
        self.key = key

    def reads(self) -> Reads:
        return Reads(keys=(self.key,))

    def apply(self, tx: Tx) -> None:
        tx.remove(self.key)


async def test_a_function_is_followed_until_it_is_gone(logs: Logs, make_function: MakeFunction) -> None:
    function = await make_function("f", workers=2)
    await logs.print("f-1", 1, "before")
    async with following(logs, function) as stream:
        await stream.has("before")
        await logs.print("f-2", 1, "second")
        await logs.print("f-1", 2, "third")
        await stream.has("before", "second", "third")
        assert not stream.ended
        await logs.plane.writer.write(Remove(function))
        await stream.ends()


async def test_lines_that_another_process_stored_arrive_within_the_poll(
    logs: Logs, make_logs: MakeLogs, make_function: MakeFunction
) -> None:
    elsewhere = make_logs()
    function = await make_function("f")
    async with following(logs, function) as stream:
        await elsewhere.print("f-1", 1, "from afar")
        await stream.has("from afar")
        await elsewhere.print("f-1", 2, "again")
        await stream.has("from afar", "again")


async def test_nothing_is_lost_or_repeated_between_history_and_news(logs: Logs, make_function: MakeFunction) -> None:
    function = await make_function("f", workers=4)
    wanted = [f"{worker}-{seq}" for worker in range(1, 5) for seq in range(1, 41)]

    async def print_all(worker: int) -> None:
        for seq in range(1, 41):
            await logs.print(f"f-{worker}", seq, f"{worker}-{seq}")

    printing = [asyncio.create_task(print_all(worker)) for worker in range(1, 5)]
    tail = replace(FOLLOW, tail_lines=1000)
    async with following(logs, function) as early, following(logs, function, tail) as late:
        await asyncio.gather(*printing)
        for stream in (early, late):
            await stream.has_count(len(wanted))
            assert sorted(stream.lines) == sorted(wanted)
            for worker in range(1, 5):
                own = [line for line in stream.lines if line.startswith(f"{worker}-")]
                assert own == [f"{worker}-{seq}" for seq in range(1, 41)]


async def test_a_tail_is_followed_from_there(logs: Logs, make_function: MakeFunction) -> None:
    function = await make_function("f", workers=2)
    await logs.print("f-2", 1, "0")
    await logs.print("f-1", 1, "1", "2", "3")
    for tail, first in ((1, ["3"]), (2, ["2", "3"])):
        async with following(logs, function, replace(FOLLOW, tail_lines=tail)) as stream:
            await stream.has(*first)
            await logs.print("f-2", 2 + tail, f"new {tail}")
            await stream.has(*first, f"new {tail}")
        await logs.plane.database.execute("DELETE FROM log_chunks WHERE attempt = 'f-2' AND seq > 1")


async def test_a_tail_of_nothing_gives_only_what_comes_later(logs: Logs, make_function: MakeFunction) -> None:
    function = await make_function("f", workers=2)
    await logs.print("f-1", 1, "old")
    async with following(logs, function, replace(FOLLOW, tail_lines=0)) as stream:
        seqs = count(1)

        async def something_came() -> bool:
            # The first of them may come before the stream has found its place.
            await logs.print("f-2", next(seqs), "new")
            return bool(stream.lines)

        await eventually(something_came)
        assert set(stream.lines) == {"new"}


async def test_an_app_shows_members_that_join_it_while_it_is_followed(plane: Plane, logs: Logs) -> None:
    await plane.create("App", {"metadata": {"name": "a"}, "spec": {}})
    async with following(logs, Key("App", "default", "default", "a")) as stream:
        spec = {"code": {"module": "app", "qualname": "f"}, "python": "3.11"}
        body = {"metadata": {"name": "a-f", "labels": {"sdk.nodus.dev/app": "a"}}, "spec": spec}
        created = await plane.create("Function", body)
        await plane.attempt("a-f-1", function="a-f", function_uid=created["metadata"]["uid"])
        await logs.print("a-f-1", 1, "hello")
        await stream.has("hello")
        await plane.writer.write(Remove(Key("App", "default", "default", "a")))
        await stream.ends()


async def put_attempt(plane: Plane, uid: str, phase: str) -> Key:
    key = Key("Attempt", "default", "default", uid)
    metadata = {"name": uid, "namespace": "default", "uid": uid}
    spec = {"slot": "0", "epoch": 1}
    await plane.writer.write(PutObject(key, {"metadata": metadata, "spec": spec, "status": {"phase": phase}}))
    return key


async def test_an_attempt_is_followed_until_it_has_ended(logs: Logs, make_function: MakeFunction) -> None:
    await make_function("f")
    key = await put_attempt(logs.plane, "f-1", "Running")
    async with following(logs, key) as stream:
        await logs.print("f-1", 1, "works")
        await stream.has("works")
        await put_attempt(logs.plane, "f-1", "Succeeded")
        await stream.ends()


class Call:
    """A call whose phases are written one by one."""

    def __init__(self, plane: Plane, name: str = "c") -> None:
        self.plane = plane
        self.key = Key("FunctionCall", "default", "default", name)
        self.status: Document = {"phase": "Queued"}

    async def become(self, phase: str, attempt: str = "", **status: Any) -> int:
        """Move to a phase; the time of it in nanoseconds."""
        self.status = {**self.status, "phase": phase, **status}
        if attempt:
            self.status["worker"] = {"attempt": attempt, "epoch": 1}
            self.status["startTime"] = format_time(self.plane.clock.now())
        if phase in ("Succeeded", "Failed", "Cancelled"):
            self.status["completionTime"] = format_time(self.plane.clock.now())
        metadata = {"name": self.key.name, "namespace": "default", "uid": f"fnc_{self.key.name}"}
        document = {"metadata": metadata, "spec": {"function": "f"}, "status": self.status}
        await self.plane.writer.write(PutObject(self.key, document))
        latest = "SELECT max(time) FROM changes WHERE name = $1"
        moment: datetime = await self.plane.database.fetchval(latest, self.key.name)
        return nanoseconds(moment)


async def test_a_calls_log_is_what_its_worker_printed_while_it_ran_it(logs: Logs, make_function: MakeFunction) -> None:
    await make_function("f")
    call = Call(logs.plane)
    await call.become("Queued")
    began = await call.become("Running", "f-1")
    ended = await call.become("Succeeded")
    middle = (began + ended) // 2
    await logs.print("f-1", 1, "import", at=began - 5_000)
    await logs.print("f-1", 2, "mine", at=middle)
    await logs.print("f-1", 3, "the next call", at=ended + 5_000)
    assert await logs.text(call.key) == "mine\n"
    assert await logs.text(call.key, LogOptions(tail_lines=5)) == "mine\n"
    async with following(logs, call.key) as stream:
        await stream.ends()
        assert stream.lines == ["mine"]


async def test_who_reads_the_log_of_a_call_that_has_just_ended_gets_the_lines_on_their_way(
    make_logs: MakeLogs, make_function: MakeFunction, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    printed = asyncio.Event()

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        await printed.wait()

    monkeypatch.setattr("controlplane.logs.reader.asyncio", SimpleNamespace(sleep=sleep))
    logs = make_logs(log_read_settle_seconds=600.0)
    await make_function("f")
    call = Call(logs.plane)
    await call.become("Running", "f-1")
    ended = await call.become("Succeeded")
    readings = [
        asyncio.create_task(logs.text(call.key, options)) for options in (LogOptions(), LogOptions(tail_lines=1))
    ]
    await eventually(lambda: len(waits) == len(readings))
    await logs.print("f-1", 1, "last", at=ended - 1)
    printed.set()
    assert await asyncio.gather(*readings) == ["last\n", "last\n"]


async def test_a_call_is_followed_from_its_queue_to_its_last_line(
    make_logs: MakeLogs, make_function: MakeFunction
) -> None:
    logs = make_logs(log_settle_seconds=600.0)
    await make_function("f")
    call = Call(logs.plane)
    await call.become("Queued")
    async with following(logs, call.key) as stream:
        began = await call.become("Running", "f-1")
        await logs.print("f-1", 1, "working", at=began + 1)
        await stream.has("working")
        ended = await call.become("Succeeded")
        await logs.print("f-1", 2, "last line", at=ended - 1)
        await stream.has("working", "last line")
        assert not stream.ended
        await logs.print("f-1", 3, "the next call", at=ended + 1_000)
        await stream.ends()
        assert stream.lines == ["working", "last line"]


async def test_a_followed_call_that_prints_nothing_more_ends_after_a_moment(
    make_logs: MakeLogs, make_function: MakeFunction
) -> None:
    logs = make_logs(log_settle_seconds=0.2)
    await make_function("f")
    call = Call(logs.plane)
    await call.become("Running", "f-1")
    async with following(logs, call.key) as stream:
        await call.become("Failed")
        await stream.ends()


async def test_a_retried_calls_log_shows_every_dispatch(make_logs: MakeLogs, make_function: MakeFunction) -> None:
    logs = make_logs(log_settle_seconds=0.2)
    await make_function("f", workers=2)
    call = Call(logs.plane)
    first = await call.become("Running", "f-1")
    await logs.print("f-1", 1, "try 1", at=first + 1)
    async with following(logs, call.key) as stream:
        await stream.has("try 1")
        await call.become("Queued")
        second = await call.become("Running", "f-2")
        await logs.print("f-1", 2, "another call", at=second + 1)
        await logs.print("f-2", 1, "try 2", at=second + 1)
        await stream.has("try 1", "try 2")
        await call.become("Succeeded")
        await stream.ends()
    assert await logs.text(call.key) == "try 1\ntry 2\n"
    assert await logs.text(call.key, LogOptions(tail_lines=1)) == "try 2\n"


async def test_a_call_whose_changes_are_compacted_goes_by_its_own_times(
    logs: Logs, make_function: MakeFunction
) -> None:
    await make_function("f")
    call = Call(logs.plane)
    began = await call.become("Running", "f-1")
    ended = await call.become("Succeeded")
    await logs.plane.database.execute("DELETE FROM changes")
    await logs.print("f-1", 1, "long before", at=began - 10 * SECOND)
    await logs.print("f-1", 2, "mine", at=began)
    await logs.print("f-1", 3, "long after", at=ended + 10 * SECOND)
    assert await logs.text(call.key) == "mine\n"


async def test_a_call_cancelled_in_the_queue_has_an_empty_log(logs: Logs) -> None:
    call = Call(logs.plane)
    await call.become("Cancelled")
    assert await logs.text(call.key) == ""
    async with following(logs, call.key) as stream:
        await stream.ends()


async def test_more_followers_than_allowed_are_told_to_come_back(
    make_logs: MakeLogs, make_function: MakeFunction
) -> None:
    logs = make_logs(log_followers_max=1)
    function = await make_function("f")
    async with following(logs, function) as stream:
        await logs.print("f-1", 1, "x")
        await stream.has("x")
        with pytest.raises(ApiError) as refused:
            await logs.text(function, FOLLOW)
        assert refused.value.reason is Reason.TOO_MANY_REQUESTS
    assert not logs.news._followers
    assert logs.news._polling is None


async def test_followers_hear_of_lines_after_the_database_was_away(
    logs: Logs, make_logs: MakeLogs, make_function: MakeFunction
) -> None:
    await make_function("f")
    with logs.news.follower() as follower:
        logs.news.set_topics(follower, ["f-1"])
        async with away(logs.plane.database, "followed logs wait for the database"):
            pass
        await make_logs().print("f-1", 1, "hello")
        heard = asyncio.create_task(follower.wait(None))
        await eventually(heard.done)
