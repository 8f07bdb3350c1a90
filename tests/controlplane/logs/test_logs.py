"""Storing and reading logs: order, bounds, parts of a log."""

from __future__ import annotations

import time

import pytest

from controlplane.errors import ApiError, Reason
from controlplane.logs.reader import LogOptions
from controlplane.logs.rows import LogChunk, remove_old_chunks
from controlplane.store.contract import Key
from tests.controlplane.logs.conftest import SECOND, Logs, MakeFunction, MakeLogs
from tests.fixtures.plane import Plane, PutObject

HOUR = 3600 * SECOND


async def test_a_repeated_chunk_is_stored_once(logs: Logs, make_function: MakeFunction) -> None:
    function = await make_function("f")
    for _ in range(3):
        await logs.print("f-1", 1, "once")
    await logs.print("f-1", 2, "then")
    assert await logs.text(function) == "once\nthen\n"


async def test_lines_of_all_workers_come_in_the_order_of_their_arrival(logs: Logs, make_function: MakeFunction) -> None:
    function = await make_function("f", workers=2)
    for seq, attempt in enumerate(("f-1", "f-2", "f-2", "f-1"), start=1):
        await logs.print(attempt, seq, f"{attempt} {seq}")
    assert await logs.text(function) == "f-1 1\nf-2 2\nf-2 3\nf-1 4\n"


async def test_another_functions_lines_are_not_in_it(logs: Logs, make_function: MakeFunction) -> None:
    function, other = await make_function("f"), await make_function("g")
    await logs.print("f-1", 1, "mine")
    await logs.print("g-1", 1, "theirs")
    assert await logs.text(function) == "mine\n"
    assert await logs.text(other) == "theirs\n"


async def test_colours_nul_and_carriage_returns_are_kept_as_they_were_printed(
    logs: Logs, make_function: MakeFunction
) -> None:
    function = await make_function("f")
    printed = ["\x1b[31mred\x1b[0m", "50%\r60%", "a\0b", "ünïcode 🎉", ""]
    await logs.print("f-1", 1, *printed)
    assert await logs.text(function) == "".join(f"{text}\n" for text in printed)
    assert await logs.text(function, LogOptions(tail_lines=3)) == "".join(f"{text}\n" for text in printed[2:])


@pytest.mark.parametrize("tail", [0, 1, 2, 5, 6, 7, 100])
@pytest.mark.parametrize("kind", ["Function", "Attempt"])
async def test_tail_gives_the_last_lines_whatever_chunks_they_are_in(
    logs: Logs, make_function: MakeFunction, tail: int, kind: str
) -> None:
    function = await make_function("f")
    await logs.print("f-1", 1, "1", "2", "3")
    await logs.print("f-1", 2, "4")
    await logs.print("f-1", 3, "5", "6")
    key = function if kind == "Function" else await attempt_object(logs.plane, "f-1")
    wanted = "".join(f"{number}\n" for number in range(1, 7)[max(0, 6 - tail) :])
    assert await logs.text(key, LogOptions(tail_lines=tail)) == wanted


async def attempt_object(plane: Plane, uid: str, phase: str = "Running") -> Key:
    key = Key("Attempt", "default", "default", uid)
    metadata = {"name": uid, "namespace": "default", "uid": uid}
    document = {"metadata": metadata, "spec": {"slot": "0", "epoch": 1}, "status": {"phase": phase}}
    await plane.writer.write(PutObject(key, document))
    return key


async def test_tail_goes_over_more_chunks_than_one_page(logs: Logs, make_function: MakeFunction) -> None:
    function = await make_function("f", workers=2)
    for seq in range(1, 701):
        await logs.print("f-1" if seq % 2 else "f-2", seq, str(seq))
    # Most of it is history, the rest has just arrived.
    await logs.plane.database.execute(
        "UPDATE log_chunks SET received_at = received_at - interval '1 hour' WHERE seq <= 600"
    )
    assert (await logs.text(function)).split() == [str(seq) for seq in range(1, 701)]
    assert (await logs.text(function, LogOptions(tail_lines=650))).split() == [str(seq) for seq in range(51, 701)]


async def test_since_goes_by_the_time_of_the_lines(logs: Logs, make_function: MakeFunction) -> None:
    function = await make_function("f")
    now = time.time_ns()
    await logs.writer.append(
        "f-1",
        [
            LogChunk(1, [(now - 48 * HOUR, "stdout", "old")]),
            LogChunk(2, [(now - 12 * HOUR, "stdout", "half"), (now - 1 * HOUR, "stderr", "new")]),
        ],
    )
    assert await logs.text(function, LogOptions(since_seconds=24 * 3600)) == "half\nnew\n"
    assert await logs.text(function, LogOptions(since_seconds=2 * 3600)) == "new\n"
    assert await logs.text(function, LogOptions(since_seconds=2 * 3600, tail_lines=5)) == "new\n"
    assert await logs.text(function, LogOptions(since_seconds=24 * 3600, tail_lines=1)) == "new\n"
    assert await logs.text(function, LogOptions(since_seconds=1 << 40)) == "old\nhalf\nnew\n"


async def test_timestamps_have_nanoseconds(logs: Logs, make_function: MakeFunction) -> None:
    function = await make_function("f")
    await logs.print("f-1", 1, "x", at=1_764_417_600_000_000_042)
    assert await logs.text(function, LogOptions(timestamps=True)) == "2025-11-29T12:00:00.000000042Z x\n"


async def test_one_worker_can_be_chosen_by_number_or_name(logs: Logs, make_function: MakeFunction) -> None:
    function = await make_function("f", workers=2)
    await make_function("g")
    for attempt in ("f-1", "f-2", "g-1"):
        await logs.print(attempt, 1, attempt)
    assert await logs.text(function, LogOptions(attempt="2")) == "f-2\n"
    assert await logs.text(function, LogOptions(attempt="f-1")) == "f-1\n"
    for attempt in ("3", "0", "g-1", "no-such", "999999999999999999999"):
        assert await logs.text(function, LogOptions(attempt=attempt)) == ""


async def test_an_apps_log_is_that_of_its_members(plane: Plane, logs: Logs, make_function: MakeFunction) -> None:
    app = await plane.create("App", {"metadata": {"name": "a"}, "spec": {}})
    assert app["status"]
    spec = {"code": {"module": "app", "qualname": "f"}, "python": "3.11"}
    for name in ("a-f", "a-g"):
        body = {"metadata": {"name": name, "labels": {"sdk.nodus.dev/app": "a"}}, "spec": spec}
        created = await plane.create("Function", body)
        await plane.attempt(name, function=name, function_uid=created["metadata"]["uid"])
    await make_function("other")
    for attempt in ("a-f", "other-1", "a-g"):
        await logs.print(attempt, 1, attempt)
    assert await logs.text(Key("App", "default", "default", "a")) == "a-f\na-g\n"


@pytest.mark.parametrize("kind", ["Function", "App", "Attempt", "FunctionCall"])
async def test_the_log_of_nothing_is_not_found(logs: Logs, kind: str) -> None:
    with pytest.raises(ApiError) as refused:
        await logs.text(Key(kind, "default", "default", "missing"))
    assert refused.value.reason is Reason.NOT_FOUND


async def test_lines_of_an_attempt_nobody_knows_are_refused(logs: Logs) -> None:
    with pytest.raises(ApiError) as refused:
        await logs.print("unknown", 1, "x")
    assert refused.value.reason is Reason.NOT_FOUND


async def test_a_flood_keeps_its_end_and_says_what_is_gone(make_logs: MakeLogs, make_function: MakeFunction) -> None:
    logs = make_logs(log_attempt_bytes_max=10_000)
    function = await make_function("f")
    for seq in range(1, 201):
        await logs.print("f-1", seq, f"{seq:04d}" + "x" * 980)
    stored = await logs.plane.database.fetchval("SELECT sum(size_bytes) FROM log_chunks")
    assert 9_000 <= stored <= 12_000
    first, *rest = (await logs.text(function)).splitlines()
    assert first == f"nodus: {200_000 - stored} bytes of this log are gone: only its end is kept"
    assert rest[-1].startswith("0200")
    assert await logs.text(function, LogOptions(tail_lines=1)) == rest[-1] + "\n"


async def test_a_line_longer_than_the_limit_is_cut(make_logs: MakeLogs, make_function: MakeFunction) -> None:
    logs = make_logs(log_line_bytes_max=10)
    function = await make_function("f")
    await logs.print("f-1", 1, "x" * 10, "y" * 11, "€€€€")
    assert await logs.text(function) == f"{'x' * 10}\n{'y' * 10} … [cut]\n€€€ … [cut]\n"


async def test_old_chunks_are_removed(logs: Logs, make_function: MakeFunction) -> None:
    function = await make_function("f")
    await logs.print("f-1", 1, "old")
    await logs.plane.database.execute("UPDATE log_chunks SET received_at = now() - interval '8 days'")
    await logs.print("f-1", 2, "new")
    cutoff = await logs.plane.database.fetchval("SELECT now() - interval '7 days'")
    assert await remove_old_chunks(logs.plane.database, cutoff) == 1
    assert await remove_old_chunks(logs.plane.database, cutoff) == 0
    assert (await logs.text(function)).endswith("new\n")
    assert "old" not in await logs.text(function)
