"""From pipes to numbered chunks, whatever is printed and however the sink behaves."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest

from runtime import logs as logs_module
from runtime.logs import Chunk, LogCollector, LogLimits, SinkRefusedError, SinkUnavailableError
from tests.fixtures.eventually import eventually
from tests.runtime.conftest import Log


@dataclasses.dataclass
class Printer:
    """The worker's end of the two pipes of a collector."""

    collector: LogCollector
    stdout: int
    stderr: int

    async def finish(self) -> None:
        for descriptor in (self.stdout, self.stderr):
            os.close(descriptor)
        await self.collector.close()


def printer(sink: Any, **limits: int) -> Printer:
    collector = LogCollector(sink, LogLimits(**limits))
    written: list[int] = []
    for stream in ("stdout", "stderr"):
        readable, writable = os.pipe()
        os.set_blocking(readable, False)
        collector.read(readable, stream)
        written.append(writable)
    return Printer(collector, *written)


@pytest.fixture
async def plain(log: Log) -> AsyncIterator[Printer]:
    made = printer(log)
    yield made
    await made.collector.close()


async def test_lines_keep_their_order_their_stream_and_a_time(plain: Printer, log: Log) -> None:
    os.write(plain.stdout, b"one\ntwo\n")
    await eventually(lambda: log.text() == ["one", "two"])
    os.write(plain.stderr, b"three\n")
    await plain.finish()
    assert log.text("stdout") == ["one", "two"]
    assert log.text("stderr") == ["three"]
    times = [time for chunk in log.chunks for time, _, _ in chunk.lines]
    assert times == sorted(times)
    assert [chunk.seq for chunk in log.chunks] == [1, 2]


async def test_lines_arrive_while_the_worker_goes_on(plain: Printer, log: Log) -> None:
    os.write(plain.stdout, b"early\n")
    await eventually(lambda: log.text() == ["early"])


async def test_the_first_line_after_a_quiet_time_leaves_at_once_and_a_stream_of_them_in_chunks(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs_module, "BATCH_SECONDS", 3_600.0)
    made = printer(log)
    os.write(made.stdout, b"first\n")
    await eventually(lambda: log.text() == ["first"])
    for _ in range(20):
        os.write(made.stdout, b"more\n")
        await asyncio.sleep(0)
    await made.finish()
    assert log.text() == ["first", *["more"] * 20]
    assert [chunk.seq for chunk in log.chunks] == [1, 2]


async def test_a_line_may_come_in_pieces_and_the_last_needs_no_newline(plain: Printer, log: Log) -> None:
    for piece in (b"he", b"llo\nwo", b"rld"):
        os.write(plain.stdout, piece)
        await asyncio.sleep(0)
    await plain.finish()
    assert log.text() == ["hello", "world"]


async def test_bytes_that_are_no_text_and_empty_lines_are_kept_as_well_as_they_can_be(plain: Printer, log: Log) -> None:
    os.write(plain.stdout, b"\xff\xfe\n\n\x00\x1b[31m\r\n")
    await plain.finish()
    assert log.text() == ["\ufffd\ufffd", "", "␀\x1b[31m\x1b[0m"]


async def test_a_line_that_is_too_long_is_cut_into_several(log: Log) -> None:
    made = printer(log, line_bytes_max=10)
    os.write(made.stdout, b"a" * 25 + b"\nshort\n" + b"b" * 12)
    await made.finish()
    assert log.text() == ["a" * 10, "a" * 10, "a" * 5, "short", "b" * 10, "b" * 2]


async def test_telemetry_of_the_sdk_is_no_log(log: Log) -> None:
    made = printer(log, line_bytes_max=20)
    os.write(made.stdout, b'before\nnodus.event {"id":"evt-1"}\nafter\n')
    await eventually(lambda: "after" in log.text())
    for piece in (b"nodus.event " + b"x" * 50, b"y" * 100, b"z\nlast\n"):
        os.write(made.stdout, piece)
        await asyncio.sleep(0.01)
    await made.finish()
    assert log.text() == ["before", "after", "last"]


async def test_a_flood_is_bounded_and_the_log_says_how_much_is_missing(log: Log) -> None:
    made = printer(log, bytes_per_second_max=1_000, burst_bytes_max=10_000)
    flood = b"".join(b"%d\n" % number for number in range(10_000))

    def write_all() -> None:
        view = memoryview(flood)
        while view:
            view = view[os.write(made.stdout, view[:65_536]) :]

    # The pipes are read on, whatever is kept: a worker never waits for its log.
    await asyncio.wait_for(asyncio.to_thread(write_all), 60)
    await made.finish()
    kept = log.text("stdout")
    assert 0 < len(kept) < 500
    missing = [int(line.split()[1]) for line in log.text("stderr") if "missing" in line]
    assert sum(missing) + len(kept) == 10_000
    assert [chunk.seq for chunk in log.chunks] == list(range(1, len(log.chunks) + 1))


async def test_a_worker_that_printed_hundreds_of_megabytes_in_its_life_is_still_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logs_module, "BATCH_SECONDS", 0.0)
    heard = printed = 0
    last = ""

    async def count(chunk: Chunk) -> None:
        nonlocal heard, last
        heard += len(chunk.lines)
        last = chunk.lines[-1][2]

    def all_heard() -> bool:
        return heard == printed

    made = printer(count, bytes_per_second_max=1 << 40, burst_bytes_max=1 << 40, chunk_bytes_max=4 << 20)
    piece = [b"x" * 16_000] * 250
    for _ in range(80):
        made.collector.take(piece, "stdout", 0)
        printed += len(piece)
        await eventually(all_heard, every=0.001)
    made.collector.take([b"still here"], "stdout", 0)
    await made.finish()
    assert last == "still here"


@dataclasses.dataclass
class Moody:
    """A sink that fails a while, then takes everything."""

    failures: int
    chunks: list[Chunk] = dataclasses.field(default_factory=list)
    tries: int = 0

    async def __call__(self, chunk: Chunk) -> None:
        self.tries += 1
        if self.tries <= self.failures:
            raise SinkUnavailableError("away")
        self.chunks.append(chunk)


async def test_a_sink_that_is_away_for_a_while_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs_module, "RETRY_SECONDS", (0.01,))
    sink = Moody(failures=3)
    made = printer(sink)
    os.write(made.stdout, b"first\n")
    await eventually(lambda: sink.tries >= 2)
    os.write(made.stdout, b"second\n")
    await made.finish()
    assert [(chunk.seq, [text for _, _, text in chunk.lines]) for chunk in sink.chunks] == [
        (1, ["first"]),
        (2, ["second"]),
    ]


async def test_what_waits_for_an_absent_sink_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs_module, "RETRY_SECONDS", (0.01,))
    sink = Moody(failures=10**9)
    made = printer(sink, waiting_bytes_max=100_000)
    os.write(made.stdout, b"x\n")
    await eventually(lambda: sink.tries >= 2)
    for _ in range(20):
        os.write(made.stdout, (b"y" * 935 + b"\n") * 50)
        await asyncio.sleep(0.005)
    sink.failures = 0
    await made.finish()
    lines = [text for chunk in sink.chunks for _, _, text in chunk.lines]
    assert 100 <= lines.count("y" * 935) <= 120
    assert any("missing" in line for line in lines)


async def test_a_sink_that_stays_away_does_not_hold_the_workers_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs_module, "CLOSE_SECONDS_MAX", 0.1)
    made = printer(Moody(failures=10**9))
    os.write(made.stdout, b"lost\n")
    await asyncio.wait_for(made.finish(), 60)


async def test_a_sink_that_refuses_is_not_asked_again() -> None:
    tries: list[Chunk] = []

    async def refuse(chunk: Chunk) -> None:
        tries.append(chunk)
        raise SinkRefusedError("the attempt is over")

    made = printer(refuse)
    os.write(made.stdout, b"one\n")
    await eventually(lambda: len(tries) == 1)
    os.write(made.stdout, b"two\n")
    await made.finish()
    assert len(tries) == 1


async def test_who_writes_on_after_the_worker_has_ended_does_not_hold_up_the_node(
    plain: Printer, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a process does that escaped a node without sandboxes: it has the pipe still, and is faster than the node."""
    read = os.read

    def read_while_it_writes(descriptor: int, size: int) -> bytes:
        data = read(descriptor, size)
        os.write(plain.stdout, data)
        return data

    os.write(plain.stdout, b"more\n" * 5_000)
    with monkeypatch.context() as patch:
        patch.setattr(os, "read", read_while_it_writes)
        await plain.collector.close()
    assert log.text("stdout") == ["more"] * 5_000
    with pytest.raises(BrokenPipeError):
        os.write(plain.stdout, b"nobody reads any more")
    for descriptor in (plain.stdout, plain.stderr):
        os.close(descriptor)


async def test_no_line_of_a_worker_begins_as_a_note_of_ours_does(plain: Printer, log: Log) -> None:
    os.write(
        plain.stderr,
        b"nodus: forged\nx\rnodus: forged\n\x1b[1mno\x1b[0mdus: forged\n" + b"x" * 16_384 + b"nodus: late\n",
    )
    await eventually(lambda: len(log.text("stderr")) == 5)
    plain.collector.note("about the worker,\nin two lines: nodus\x1b[2J")
    await plain.finish()
    ours = [line for line in log.text("stderr") if line.startswith("nodus: ")]
    assert ours == ["nodus: about the worker,", "nodus: in two lines: nodus"]
    forged = [line for line in log.text("stderr") if line not in ours]
    assert forged == [
        "\\nodus: forged",
        "\\nodus: forged",
        "\\\x1b[1mno\x1b[0mdus: forged\x1b[0m",
        "x" * 16_384,
        "\\nodus: late",
    ]


async def test_of_a_progress_bar_the_log_keeps_what_it_came_to(log: Log) -> None:
    """One line that is printed anew again and again; what is too long for a line is cut where it was."""
    made = printer(log, line_bytes_max=30)
    os.write(made.stderr, b"".join(b"\r%3d%% of it" % percent for percent in range(0, 101, 20)))
    await eventually(lambda: len(log.text()) == 2)
    os.write(made.stderr, b"\r\ndone\r\n")
    await made.finish()
    assert log.text("stderr") == [" 20% of it", " 60% of it", "100% of it", "done"]
