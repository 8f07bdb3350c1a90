"""Deadlines on their way to a worker whose host has another time than the server."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from runtime import deadlines
from runtime.deadlines import HEAD_BYTES_MAX, DeadlineMover
from tests.fixtures.eventually import eventually
from tests.runtime.scripted_api import ScriptedApi
from tests.runtime.test_supervisor import APP, Start, start

__all__ = ["start"]

DEADLINE = "2026-11-29T23:59:58.250000Z"
HOST_TIME = 1_795_996_800.125
"""Of this host, for as long as a test takes."""


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time passes on an answer's way."""
    monkeypatch.setattr(deadlines, "time", SimpleNamespace(time=lambda: HOST_TIME))


def answer(body: bytes, ahead_seconds: float | None) -> bytes:
    """An answer of a server that this host is so far ahead of; None when the server does not tell its time."""
    now = "" if ahead_seconds is None else f"nodus-now: {HOST_TIME - ahead_seconds:.6f}\r\n"
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n{now}content-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def passed(whole: bytes, piece: int) -> bytes:
    mover = DeadlineMover()
    pieces = [whole[at : at + piece] for at in range(0, len(whole), piece)]
    return b"".join(mover.feed(each) for each in pieces) + mover.rest()


def calls(*deadlines: str) -> bytes:
    given = [{"id": "a", "input": {"inline": "x" * 50}, "deadline": deadline} for deadline in deadlines]
    return json.dumps({"calls": given, "cancel": []}, separators=(",", ":")).encode()


@pytest.mark.usefixtures("still")
@pytest.mark.parametrize("ahead_seconds", [600, -600, 86_400 * 400, -3_600.5])
@pytest.mark.parametrize("piece", [1, 7, 64, 100_000])
def test_each_deadline_is_moved_and_nothing_else(ahead_seconds: float, piece: int) -> None:
    texts = [DEADLINE, "2026-11-29T23:59:58Z", DEADLINE]
    whole = answer(calls(*texts), ahead_seconds)
    moved = passed(whole, piece)
    assert len(moved) == len(whole)
    head, _, body = moved.partition(b"\r\n\r\n")
    assert head == whole.partition(b"\r\n\r\n")[0]
    for given, text in zip(json.loads(body)["calls"], texts, strict=True):
        apart = datetime.fromisoformat(given["deadline"]) - datetime.fromisoformat(text)
        assert abs(apart - timedelta(seconds=ahead_seconds)) < timedelta(seconds=2)
        assert given["input"] == {"inline": "x" * 50}


@pytest.mark.usefixtures("still")
@pytest.mark.parametrize("ahead_seconds", [0, 0.9, -0.9, None])
def test_an_answer_of_a_server_with_the_same_time_passes_as_it_is(ahead_seconds: float | None) -> None:
    whole = answer(calls(DEADLINE), ahead_seconds)
    assert passed(whole, 10) == whole


@pytest.mark.usefixtures("still")
@pytest.mark.parametrize("deadline", ["9999-12-31T23:59:59Z", "2026-02-30T00:00:00Z", "soon"])
def test_what_cannot_be_moved_passes_as_it_is(deadline: str) -> None:
    whole = answer(calls(deadline), 600)
    assert passed(whole, 10) == whole


def test_an_answer_without_an_end_of_its_head_is_not_kept_for_ever() -> None:
    mover = DeadlineMover()
    assert mover.feed(b"x" * HEAD_BYTES_MAX) == b""
    assert mover.feed(b"y") == b"x" * HEAD_BYTES_MAX + b"y"


@pytest.mark.case("C45")
@pytest.mark.parametrize("ahead_seconds", [600, -600])
async def test_a_worker_on_a_host_that_is_minutes_off_keeps_the_deadline_of_the_server(
    api: ScriptedApi, start: Start, ahead_seconds: int
) -> None:
    source = "import asyncio\n@app.function()\nasync def target(s):\n    await asyncio.sleep(s)\n"
    api.set_code({"app.py": APP + source})
    api.ahead_seconds = ahead_seconds
    for name, sleeps, may_run in (("short", 0, 60), ("long", 120, 2)):
        api.call(name, sleeps)
        api.queue[-1]["may_run_seconds"] = may_run
    start()
    await eventually(lambda: len(api.outcomes) == 2)
    ends: dict[str, Any] = {name: record["outcome"] for name, record in api.outcomes.items()}
    assert ends == {"short": "Succeeded", "long": "DeadlineExceeded"}
