from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from activities.pool_memory import PENDING_MAX, PoolMemory
from controlplane.capacity.function_status import Observation
from controlplane.capacity.pool import Member, PoolFacts, desired_workers, plan

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
WINDOW = timedelta(seconds=60)


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def test_the_peak_is_unknown_until_a_whole_window_was_seen() -> None:
    memory = PoolMemory(since=NOW)
    memory.note_load(at(1), 5, WINDOW)
    assert memory.peak(at(30), WINDOW) is None
    assert memory.peak(at(60), WINDOW) == 5


def test_a_load_counts_until_a_window_after_it_was_replaced() -> None:
    memory = PoolMemory(since=at(-600))
    for seconds, workers in ((0, 5), (10, 2), (20, 1)):
        memory.note_load(at(seconds), workers, WINDOW)
    memory.note_load(at(65), 0, WINDOW)
    assert memory.peak(at(65), WINDOW) == 5
    memory.note_load(at(71), 0, WINDOW)
    assert memory.peak(at(71), WINDOW) == 2
    memory.note_load(at(200), 0, WINDOW)
    assert memory.peak(at(200), WINDOW) == 0


def test_only_calls_that_found_an_idle_worker_tell_how_warm_the_pool_is() -> None:
    memory = PoolMemory(since=NOW)
    memory.queued("too early", 1.0)
    memory.claimed("too early", 2.0)
    assert memory.warm is None
    memory.seen = Observation(idle=1)
    for number, wait in enumerate((0.1, 0.2, 0.9)):
        memory.queued(str(number), 10.0)
        memory.claimed(str(number), 10.0 + wait)
    memory.queued("cancelled", 10.0)
    memory.ended("cancelled")
    memory.claimed("cancelled", 99.0)
    assert memory.warm is not None
    assert (round(memory.warm.p50_seconds, 3), round(memory.warm.p90_seconds, 3)) == (0.2, 0.9)


def test_calls_that_never_run_take_no_room_for_ever() -> None:
    memory = PoolMemory(since=NOW, seen=Observation(idle=1))
    for number in range(PENDING_MAX * 2):
        memory.queued(str(number), 0.0)
    assert len(memory.pending) == PENDING_MAX


@given(
    low=st.integers(0, 6),
    more=st.integers(1, 6),
    period=st.integers(1, 10),
    windows=st.integers(2, 5),
    turn=st.integers(0, 7),
)
def test_a_load_that_goes_to_and_fro_over_a_threshold_neither_starts_nor_ends_workers(
    low: int, more: int, period: int, windows: int, turn: int
) -> None:
    """Whichever workers the calls are given to: `turn` shifts them every second."""
    window = timedelta(seconds=2 * period * windows)
    start = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
    memory = PoolMemory(since=start)
    idle_since: dict[str, datetime | None] = {}
    changes: list[tuple[int, int, int]] = []
    for second in range(6 * period * windows):
        now = start + timedelta(seconds=second)
        calls = low + more * (second // period % 2)
        names = list(idle_since)
        shift = second * turn % max(1, len(names))
        for place, name in enumerate(names[shift:] + names[:shift]):
            idle_since[name] = None if place < calls else idle_since[name] or now
        running = sum(since is None for since in idle_since.values())
        seen = PoolFacts(
            now=now, wanted=True, deleting=False, queued=calls - running, running=running, min_workers=0,
            max_workers=20, target_concurrency=1, scaledown_window=window, host_room=32,
            peak_workers=memory.peak(now, window),
            members=[
                Member(uid=name, current=True, ready=True, draining=False, busy=int(since is None), idle_since=since)
                for name, since in idle_since.items()
            ],
        )  # fmt: skip
        memory.note_load(now, desired_workers(seen), window)
        told = plan(seen)
        for name, _ in told.drain:
            del idle_since[name]
        idle_since |= {f"{second}-{number}": now for number in range(told.start)}
        changes.append((second, told.start, len(told.drain)))
    settled = 2 * period
    assert [change for change in changes if change[0] > settled and change[1:] != (0, 0)] == []
    assert len(idle_since) == low + more
