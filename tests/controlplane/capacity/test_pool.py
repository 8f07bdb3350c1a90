"""The pool rule as a table, and what must hold whatever the facts are."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.capacity.pool import DrainReason, Member, PoolFacts, PoolPlan, desired_workers, plan, start_backoff
from controlplane.images.use import ImageState

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


def member(uid: str, **changes: Any) -> Member:
    """A ready, idle worker of the present revision that has just had something to do."""
    told: dict[str, Any] = {"current": True, "ready": True, "draining": False, "busy": 0, "idle_since": NOW}
    return Member(uid=uid, **{**told, **changes})


def test_a_call_that_runs_alone_takes_a_whole_worker() -> None:
    assert desired_workers(facts(queued=9, running=3, target_concurrency=4)) == 3
    assert desired_workers(facts(queued=9, running=3, alone=4, target_concurrency=4)) == 6
    assert desired_workers(facts(queued=9, running=3, alone=12, max_workers=10)) == 10


def starting(uid: str, **changes: Any) -> Member:
    return member(uid, ready=False, idle_since=None, **changes)


def busy(uid: str, calls: int = 1, **changes: Any) -> Member:
    return member(uid, busy=calls, idle_since=None, **changes)


def idle_for(uid: str, seconds: float, **changes: Any) -> Member:
    return member(uid, idle_since=NOW - timedelta(seconds=seconds), **changes)


def facts(*members: Member, **changes: Any) -> PoolFacts:
    told: dict[str, Any] = {
        "now": NOW,
        "wanted": True,
        "deleting": False,
        "queued": 0,
        "running": 0,
        "min_workers": 0,
        "max_workers": 10,
        "target_concurrency": 1,
        "scaledown_window": timedelta(seconds=60),
        "host_room": 32,
    }
    return PoolFacts(members=members, **{**told, **changes})


@pytest.mark.parametrize(
    ("changes", "desired"),
    [
        ({}, 0),
        ({"queued": 1}, 1),
        ({"queued": 3, "running": 2}, 5),
        ({"queued": 9, "target_concurrency": 4}, 3),
        ({"queued": 8, "target_concurrency": 4}, 2),
        ({"queued": 500}, 10),
        ({"min_workers": 2}, 2),
        ({"min_workers": 2, "queued": 1}, 2),
        ({"min_workers": 2, "queued": 5, "wanted": False}, 0),
    ],
)
def test_the_desired_number_follows_the_calls_between_its_bounds(changes: dict[str, Any], desired: int) -> None:
    assert desired_workers(facts(**changes)) == desired


def test_what_is_missing_is_started_and_what_is_starting_counts() -> None:
    assert plan(facts(queued=3)).start == 3
    assert plan(facts(starting("a"), busy("b"), queued=2, running=1)).start == 1
    assert plan(facts(starting("a"), queued=1)).start == 0


def test_a_draining_worker_counts_for_nothing() -> None:
    told = plan(facts(busy("a", draining=True), queued=0, running=1))
    assert (told.start, told.drain) == (1, ())


def test_a_worker_goes_once_it_was_idle_for_the_window_and_never_while_it_is_busy() -> None:
    told = plan(facts(idle_for("a", 60), idle_for("b", 59), busy("c"), running=1))
    assert told.drain == (("a", DrainReason.IDLE),)
    assert told.again_at == NOW + timedelta(seconds=1)


def test_the_least_number_stays_however_long_it_is_idle() -> None:
    told = plan(facts(idle_for("a", 900), idle_for("b", 800), min_workers=1))
    assert told.drain == (("a", DrainReason.IDLE),)


def test_a_window_of_zero_lets_an_idle_worker_go_at_once() -> None:
    assert plan(facts(idle_for("a", 0), scaledown_window=timedelta(0))).drain == (("a", DrainReason.IDLE),)


def test_light_traffic_that_goes_round_all_workers_does_not_keep_them_all() -> None:
    members = [idle_for(str(number), number) for number in range(5)]
    assert plan(facts(*members, running=1, peak_workers=None)).drain == ()
    assert len(plan(facts(*members, running=1, peak_workers=2)).drain) == 3
    assert plan(facts(*members, running=1, peak_workers=5)).drain == ()


def test_fewer_most_workers_let_the_least_busy_go_at_once_and_end_their_calls() -> None:
    pool = (busy("b3", calls=3), busy("b1"), idle_for("i", 1), starting("s"), busy("b2", calls=2))
    order = ["s", "i", "b1", "b2", "b3"]
    for most in range(1, 6):
        told = plan(facts(*pool, running=6, queued=9, max_workers=most))
        assert told.drain == tuple((uid, DrainReason.SCALED_DOWN) for uid in order[: 5 - most])
        assert told.start == 0


def test_a_stopped_function_lets_everyone_go_and_says_why() -> None:
    told = plan(facts(busy("a"), starting("b"), busy("c", draining=True), wanted=False, running=1))
    assert told.drain == (("a", DrainReason.STOPPED), ("b", DrainReason.STOPPED))
    assert plan(facts(busy("a"), wanted=False, deleting=True)).drain == (("a", DrainReason.DELETED),)
    at_its_cap = plan(facts(busy("a"), capped=True, queued=5))
    assert (at_its_cap.start, at_its_cap.drain) == (0, (("a", DrainReason.MAX_COST),))


def test_an_old_worker_goes_only_when_a_new_one_is_ready_in_its_place() -> None:
    old = [idle_for("a", 5, current=False), busy("b", current=False)]
    begun = plan(facts(*old, queued=1, running=1))
    assert (begun.start, begun.drain) == (2, ())
    halfway = plan(facts(*old, member("c"), starting("d"), queued=1, running=1))
    assert (halfway.start, halfway.drain) == (0, (("a", DrainReason.ROLLED),))
    done = plan(facts(*old, member("c"), member("d"), queued=1, running=1))
    assert {uid for uid, _ in done.drain} == {"a", "b"}


def test_old_workers_that_nothing_needs_go_at_once() -> None:
    told = plan(facts(idle_for("a", 5, current=False), idle_for("b", 1, current=False)))
    assert {reason for _, reason in told.drain} == {DrainReason.ROLLED}
    assert len(told.drain) == 2


@pytest.mark.case("C54")
def test_versions_that_only_start_never_take_the_place_of_the_one_that_serves() -> None:
    """Two deploys within one start: the second finds healthy workers and starting ones, and both are old."""
    v1 = [idle_for("v1a", 9, current=False), idle_for("v1b", 8, current=False)]
    v2 = [starting("v2a", current=False), starting("v2b", current=False)]
    begun = plan(facts(*v1, *v2, min_workers=2))
    assert (begun.start, {uid for uid, _ in begun.drain}) == (2, {"v2a", "v2b"})
    going = [starting("v2a", current=False, draining=True), starting("v2b", current=False, draining=True)]
    assert plan(facts(*v1, *going, starting("v3a"), starting("v3b"), min_workers=2)).drain == ()
    assert plan(facts(*v1, member("v3a"), starting("v3b"), min_workers=2)).drain == (("v1a", DrainReason.ROLLED),)


def test_an_old_worker_that_starts_is_kept_until_a_new_one_is_started_in_its_place() -> None:
    v2 = starting("v2", current=False)
    assert plan(facts(v2, queued=1, placeable=False)).drain == ()
    assert plan(facts(v2, starting("v3"), queued=1)).drain == (("v2", DrainReason.ROLLED),)


def test_a_moment_without_calls_drains_no_old_worker_while_the_new_revision_proves_nothing() -> None:
    old = idle_for("old", 20, current=False)
    for broken in (
        plan(facts(old, starting("new"))),
        plan(facts(old, start_failures=5, last_failure_at=NOW)),
        plan(facts(old, lost_starts=1, last_lost_at=NOW)),
        plan(facts(old, image=ImageState.FAILED)),
    ):
        assert (broken.drain, broken.again_at) == ((), NOW + timedelta(seconds=40))
    # Nobody keeps it for longer than it would have idled, or while others miss the place.
    failing = {"start_failures": 1, "last_failure_at": NOW}
    for gone in (
        plan(facts(idle_for("old", 60, current=False), **failing)),
        plan(facts(old, pressure=True, **failing)),
        plan(facts(old, member("new"))),
        plan(facts(old)),
    ):
        assert ("old", DrainReason.ROLLED) in gone.drain
    told = plan(facts(old, idle_for("older", 30, current=False), **failing))
    assert told.drain == (("older", DrainReason.ROLLED),)


def test_one_place_at_a_time_is_made_however_long_it_takes_and_none_for_want_of_money() -> None:
    old = [busy("a", current=False), busy("b", calls=2, current=False)]
    for full in ({"host_room": 0}, {"quota_room": 0}):
        load = {"queued": 1, "running": 3, **full}
        assert plan(facts(*old, **load)).drain == (("a", DrainReason.ROLLED),)
        assert plan(facts(busy("a", current=False, draining=True), old[1], **load)).drain == ()
        assert plan(facts(starting("c", current=False), *old, **load)).drain == (("c", DrainReason.ROLLED),)
        assert plan(facts(*old, funded_room=0, **load)).drain == ()
    assert plan(facts(*old, running=3, funded_room=0)).drain == ()


def test_a_full_host_gives_one_place_to_the_new_revision() -> None:
    old = [busy("a", current=False), idle_for("b", 1, current=False)]
    told = plan(facts(*old, queued=1, running=1, host_room=0))
    assert (told.start, told.drain, told.lacks_room) == (0, (("b", DrainReason.ROLLED),), True)
    assert plan(facts(*old, starting("c"), queued=1, running=1, host_room=0)).drain == ()


def test_a_version_that_does_not_start_is_tried_alone_with_growing_pauses_while_old_workers_serve() -> None:
    old = busy("a", current=False)
    failed = {"start_failures": 2, "last_failure_at": NOW - timedelta(seconds=1)}
    early = plan(facts(old, queued=5, running=1, **failed))
    assert (early.start, early.drain, early.again_at) == (0, (), NOW + timedelta(seconds=1))
    failed["last_failure_at"] = NOW - timedelta(seconds=2)
    assert plan(facts(old, queued=5, running=1, **failed)).start == 1
    assert plan(facts(old, starting("b"), queued=5, running=1, **failed)).start == 0


def test_after_too_many_failures_nothing_is_started_any_more() -> None:
    told = plan(facts(queued=5, start_failures=5, last_failure_at=NOW - timedelta(days=1)))
    assert (told.start, told.failed, told.again_at) == (0, True, None)


def test_lost_starts_never_fail_a_function_and_are_repeated_after_short_pauses_all_at_once() -> None:
    lost = {"lost_starts": 50, "last_lost_at": NOW - timedelta(seconds=7)}
    early = plan(facts(queued=3, **lost))
    assert (early.start, early.failed, early.again_at) == (0, False, NOW + timedelta(seconds=1))
    lost["last_lost_at"] = NOW - timedelta(seconds=8)
    assert plan(facts(queued=3, **lost)).start == 3
    assert plan(facts(queued=3, lost_starts=1, last_lost_at=NOW - timedelta(seconds=1))).start == 3


def test_nothing_starts_before_its_image_is_built_and_workers_that_serve_stay() -> None:
    old = member("old", current=False)
    assert plan(facts(old, queued=2, image=ImageState.PENDING)) == PoolPlan(desired=2)
    told = plan(facts(queued=2, image=ImageState.FAILED))
    assert (told.start, told.failed, told.drain) == (0, True, ())
    assert plan(facts(queued=2, image=ImageState.READY)).start == 2


def test_nothing_is_started_that_no_host_will_do_for_and_what_runs_stays() -> None:
    told = plan(facts(busy("old", current=False), queued=2, placeable=False))
    assert (told.start, told.drain, told.failed, told.lacks_room) == (0, (), False, False)


def test_the_pauses_double_up_to_a_minute() -> None:
    assert [start_backoff(n).total_seconds() for n in (1, 2, 3, 7, 50)] == [1, 2, 4, 60, 60]


def test_hosts_without_room_are_reported_and_idle_workers_of_others_make_room_at_once() -> None:
    told = plan(facts(queued=5, host_room=2))
    assert (told.start, told.lacks_room) == (2, True)
    assert plan(facts(idle_for("a", 1), pressure=True)).drain == (("a", DrainReason.MAKES_ROOM),)


@pytest.mark.parametrize(
    ("funded", "room", "expected"),
    [(None, 32, (5, False, False)), (7, 32, (5, False, False)), (2, 32, (2, True, False)), (0, 32, (0, True, False)),
     (4, 3, (3, True, True))],
)  # fmt: skip
def test_no_more_workers_start_than_can_be_paid_and_that_is_told_apart_from_room(
    funded: int | None, room: int, expected: tuple[int, bool, bool]
) -> None:
    told = plan(facts(queued=5, host_room=room, funded_room=funded))
    assert (told.start, told.lacks_funds, told.lacks_room) == expected


@pytest.mark.parametrize(("allowed", "expected"), [(None, (5, False)), (5, (5, False)), (3, (3, True)), (0, (0, True))])
def test_no_more_workers_start_than_quotas_allow_and_a_roll_makes_its_own_room(
    allowed: int | None, expected: tuple[int, bool]
) -> None:
    told = plan(facts(queued=5, quota_room=allowed))
    assert (told.start, told.lacks_quota, told.lacks_room, told.lacks_funds) == (*expected, False, False)
    roll = plan(facts(busy("old", current=False), running=1, quota_room=0))
    assert (roll.start, roll.drain) == (0, (("old", DrainReason.ROLLED),))


def test_workers_leave_for_others_idle_ones_first_then_starting_then_those_with_the_fewest_calls() -> None:
    pool = (busy("b2", calls=2), busy("b1"), starting("s"), idle_for("i1", 5), idle_for("i9", 9))
    order = ["i9", "i1", "s", "b1", "b2"]
    for count in range(7):
        told = plan(facts(*pool, running=3, min_workers=5, give_back=count))
        assert told.drain == tuple((uid, DrainReason.FAIR_SHARE) for uid in order[:count])
    # Who goes for another reason counts, and nobody goes twice.
    told = plan(facts(idle_for("i", 61), idle_for("j", 1), give_back=2))
    assert told.drain == (("i", DrainReason.IDLE), ("j", DrainReason.FAIR_SHARE))
    assert plan(facts(idle_for("i", 61), idle_for("j", 1), give_back=1)).drain == (("i", DrainReason.IDLE),)


members = st.builds(
    lambda uid, current, ready, draining, calls, seconds: Member(
        uid=uid,
        current=current,
        ready=ready,
        draining=draining,
        busy=calls if ready else 0,
        idle_since=NOW - timedelta(seconds=seconds) if ready and not calls else None,
    ),
    st.uuids().map(str),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.integers(0, 3),
    st.integers(0, 200),
)


@given(
    pool=st.lists(members, max_size=12, unique_by=lambda found: found.uid),
    queued=st.integers(0, 40),
    bounds=st.tuples(st.integers(0, 5), st.integers(5, 9)) | st.tuples(st.just(0), st.integers(1, 5)),
    room=st.integers(0, 12),
    wanted=st.booleans(),
    peak=st.none() | st.integers(0, 9),
)
def test_a_plan_stays_within_its_bounds(
    pool: list[Member], queued: int, bounds: tuple[int, int], room: int, wanted: bool, peak: int | None
) -> None:
    running = sum(found.busy for found in pool)
    seen = facts(
        *pool, queued=queued, running=running, wanted=wanted, host_room=room, peak_workers=peak,
        min_workers=bounds[0], max_workers=bounds[1],
    )  # fmt: skip
    told = plan(seen)
    drained = [uid for uid, _ in told.drain]
    live = {found.uid: found for found in pool if not found.draining}
    assert len(set(drained)) == len(drained)
    assert set(drained) <= set(live)
    assert 0 <= told.start <= room
    current = [found for found in live.values() if found.current]
    assert len(current) + told.start <= max(len(current), bounds[1])
    if wanted:
        kept = [found for found in current if found.uid not in drained]
        assert len(kept) >= min(len(current), bounds[0])
        ended_early = [uid for uid in drained if live[uid].current and live[uid].busy]
        assert len(ended_early) <= max(0, len(current) - bounds[1])
        assert len(kept) <= bounds[1]
    else:
        assert set(drained) == set(live)


@pytest.mark.case("C54")
@given(
    pool=st.lists(members, max_size=9, unique_by=lambda found: found.uid),
    queued=st.integers(0, 9),
    least=st.integers(0, 5),
    failures=st.integers(0, 6),
    funded=st.none() | st.integers(0, 3),
    image=st.sampled_from(ImageState),
)
def test_a_roll_never_leaves_fewer_workers_that_serve_than_the_load_asks_for(
    pool: list[Member], queued: int, least: int, failures: int, funded: int | None, image: ImageState
) -> None:
    """While there is room: whether the new version starts, fails or cannot be paid, and however often one looks."""
    running = sum(found.busy for found in pool)
    while True:
        seen = facts(
            *pool, queued=queued, running=running, min_workers=least, start_failures=failures, funded_room=funded,
            last_failure_at=NOW, image=image,
        )  # fmt: skip
        told = plan(seen)
        rolled = {uid for uid, reason in told.drain if reason is DrainReason.ROLLED}
        serving = [found for found in pool if found.ready and not found.draining]
        left = [found for found in serving if found.uid not in rolled]
        assert len(left) >= min(told.desired, len(serving))
        if not told.drain:
            break
        drained = {uid for uid, _ in told.drain}
        pool = [replace(found, draining=found.draining or found.uid in drained) for found in pool]


@given(
    pool=st.lists(members, min_size=1, max_size=9, unique_by=lambda found: found.uid),
    lacking=st.sampled_from(["host_room", "quota_room", "funded_room"]),
    queued=st.integers(1, 9),
)
def test_looks_at_a_pool_without_a_place_let_one_old_worker_go_until_it_is_gone(
    pool: list[Member], lacking: str, queued: int
) -> None:
    """However often one looks before it is gone."""
    pool = [replace(found, current=False, draining=False) for found in pool]
    load = {"queued": queued, "running": sum(found.busy for found in pool), "max_workers": 99, lacking: 0}
    gone: list[str] = []
    for _ in range(4):
        told = plan(facts(*pool, **load))
        gone += [uid for uid, _ in told.drain]
        pool = [replace(found, draining=found.uid in gone) for found in pool]
    serving = sum(found.ready for found in pool)
    needed = min(queued + load["running"], serving)
    makes = 0 if lacking == "funded_room" else 1
    assert sum(found.ready and not found.draining for found in pool) >= needed - makes
