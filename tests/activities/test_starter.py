from __future__ import annotations

import asyncio

import pytest

from activities.pacing import Pacing, Traffic, TransitionMeter
from activities.starter import AttachBoard


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


def test_a_moment_without_changes_is_quiet() -> None:
    meter = TransitionMeter()
    assert meter.is_quiet(now=0.0)
    meter.saw(1, now=5.0)
    assert not meter.is_quiet(now=5.1)
    assert meter.is_quiet(now=5.2)


PACING = Pacing(in_flight_max=32, busy_transitions=40, trickle_per_second=2.0)


@pytest.mark.parametrize(
    ("quiet", "pace", "pressure", "in_flight", "pause"),
    [
        (True, 0, 0.0, 32, 0.0),
        (True, 500, 0.9, 32, 0.0),
        (False, 10, 0.1, 1, 0.0),
        (False, 200, 0.1, 1, 0.5),
        (False, 200, 0.5, 2, 0.0),
        (False, 200, 0.75, 16, 0.0),
        (False, 200, 1.0, 32, 0.0),
        (False, 200, 9.0, 32, 0.0),
    ],
)
def test_workflows_start_in_pauses_until_the_backlog_presses(
    quiet: bool, pace: int, pressure: float, in_flight: int, pause: float
) -> None:
    traffic = Traffic(quiet=quiet, transitions_per_second=pace, pressure=pressure)
    assert (PACING.in_flight(traffic), PACING.pause_seconds(traffic)) == (in_flight, pause)
