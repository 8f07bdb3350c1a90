from __future__ import annotations

import asyncio

from activities.starter import AttachBoard, TransitionMeter


async def test_a_workflow_is_in_flight_until_it_has_attached() -> None:
    board = AttachBoard()
    board.started("a")
    board.started("b")
    assert (board.count, board.is_pending("a")) == (2, True)
    board.attached("a")
    assert board.changed.is_set()
    assert (board.count, board.is_pending("a")) == (1, False)
    board.attached("started by another process")
    assert board.count == 1


async def test_a_workflow_that_does_not_come_is_forgotten_and_reported_once() -> None:
    board = AttachBoard()
    board.started("a")
    assert board.overdue(60) == []
    await asyncio.sleep(0)
    assert board.overdue(-1) == ["a"]
    assert board.overdue(-1) == []


def test_the_pace_is_that_of_the_last_second() -> None:
    meter = TransitionMeter()
    for tenth in range(20):
        meter.saw(3, now=tenth / 10)
    assert meter.per_second(now=1.95) == 30
    assert meter.per_second(now=2.5) == 12
    assert meter.per_second(now=10.0) == 0
