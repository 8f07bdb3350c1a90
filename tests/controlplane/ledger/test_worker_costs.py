"""What a worker costs is its life, cut into segments, whatever its calls took of it and however often it is settled."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.ledger.pricing import Billing, call_charge_micro_usd, worker_seconds
from controlplane.ledger.worker_costs import Life, Portion, Segment, Served, Terms, portions, whole_seconds

START = datetime(2026, 11, 29, 12, 0, 0, 250_000, tzinfo=UTC)
RATE = 36_000
TEARDOWN_MAX = 45


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


UNSERVED = Served(settled_seconds=0, settled_call_seconds=0, call_seconds=0)


@dataclass
class Worker:
    """A worker that is settled now and then, and the sums of what it came to."""

    terms: Terms
    ready_at: datetime | None
    drained_at: datetime | None
    ended_at: datetime
    at_fault: bool
    calls: list[tuple[datetime, datetime]]
    settled: list[Portion] = field(default_factory=list)
    served: Served = UNSERVED

    def taken(self, now: datetime) -> int:
        """Seconds that calls were charged for, and those that the ones in its hands had taken in full."""
        begun = [(start, end) for start, end in self.calls if start <= now]
        done = sum(worker_seconds(start, end) for start, end in begun if end <= now)
        return done + sum(int((now - start).total_seconds()) for start, end in begun if end > now)

    def settle(self, now: datetime, ended_at: datetime | None = None) -> None:
        call_seconds = self.taken(now)
        held = any(start <= now < end for start, end in self.calls)
        stopped = [end for _, end in self.calls if end <= now] + [self.drained_at or now]
        life = Life(
            started_at=START,
            ready_at=self.ready_at if self.ready_at is None or self.ready_at <= now else None,
            stopped_at=max(stopped) if self.drained_at is not None and self.drained_at <= now and not held else None,
            ended_at=ended_at,
            now=now,
        )
        served = Served(
            settled_seconds=self.served.settled_seconds,
            settled_call_seconds=self.served.settled_call_seconds,
            call_seconds=call_seconds,
        )
        found = portions(self.terms, life, served, at_fault=self.at_fault, teardown_seconds_max=TEARDOWN_MAX)
        self.settled += found
        running = sum(each.seconds for each in found if each.segment is Segment.RUNNING)
        self.served = Served(
            settled_seconds=served.settled_seconds + running, settled_call_seconds=call_seconds, call_seconds=0
        )

    def total(self, *segments: Segment) -> tuple[int, int, int]:
        """Seconds, seconds that the platform paid, and micro-USD."""
        chosen = [each for each in self.settled if each.segment in segments]
        return (
            sum(each.seconds for each in chosen),
            sum(each.covered_seconds for each in chosen),
            sum(each.amount_micro_usd for each in chosen),
        )


billings = st.builds(Billing, increment_seconds=st.integers(1, 600), minimum_seconds=st.integers(1, 600))


@st.composite
def lives(draw: st.DrawFn) -> tuple[Worker, list[datetime]]:
    """A worker's life with calls on its places, and the moments at which it is settled before its end."""
    shares = draw(st.integers(1, 4))
    boot, serving, stopping = (draw(st.integers(0, 900_000)) / 1_000 for _ in range(3))
    ready_at = draw(st.sampled_from([at(boot), None]))
    calls: list[tuple[datetime, datetime]] = []
    if ready_at is not None:
        for _ in range(shares):
            moment = 0.0
            for pause, length in draw(st.lists(st.tuples(st.integers(0, 90_000), st.integers(1, 300_000)), max_size=5)):
                begin, moment = moment + pause / 1_000, moment + (pause + length) / 1_000
                if moment <= serving:
                    calls.append((at(boot + begin), at(boot + moment)))
    worker = Worker(
        terms=Terms(
            rate_micro_usd_per_hour=draw(st.integers(1, 10**8)),
            shares=shares,
            restores=draw(st.booleans()),
            billing=draw(billings),
        ),
        ready_at=ready_at,
        drained_at=draw(st.sampled_from([None, at(boot + serving)])),
        ended_at=at(boot + serving + stopping),
        at_fault=draw(st.booleans()),
        calls=calls,
    )
    length = int((worker.ended_at - START).total_seconds() * 1_000)
    moments = sorted(draw(st.lists(st.integers(0, length), max_size=6)))
    return worker, [at(moment / 1_000) for moment in moments]


@given(lives())
def test_every_second_of_a_life_is_in_one_segment_and_nobody_pays_one_twice(
    drawn: tuple[Worker, list[datetime]],
) -> None:
    worker, moments = drawn
    for moment in moments:
        worker.settle(moment)
    worker.settle(worker.ended_at, worker.ended_at)
    seconds, covered, micro_usd = worker.total(*Segment)
    assert seconds + covered == whole_seconds(START, worker.ended_at)
    assert all(each.seconds >= 0 and each.covered_seconds >= 0 for each in worker.settled)
    start, unused = (Segment.RESTORE, Segment.BOOT) if worker.terms.restores else (Segment.BOOT, Segment.RESTORE)
    assert worker.total(unused) == (0, 0, 0)
    if worker.at_fault:
        assert worker.total(start, Segment.TEARDOWN)[::2] == (0, 0)
    assert worker.total(Segment.TEARDOWN)[0] <= TEARDOWN_MAX
    # What it lived is rounded once, with its stop; what the platform ended is not.
    rounding = {each.segment: each.rounding_seconds for each in worker.settled if each.rounding_seconds}
    billed = seconds if worker.at_fault else worker.terms.billing.billed_seconds(seconds)
    assert seconds + sum(rounding.values()) == billed
    assert rounding.keys() <= {Segment.TEARDOWN}
    # Calls, free places, start and stop are the whole: what calls did not take of the places is charged, once.
    running, _, idle_micro_usd = worker.total(Segment.RUNNING)
    places = running * worker.terms.shares
    idle = sum(each.charged_seconds for each in worker.settled if each.segment is Segment.RUNNING)
    calls = sum(worker_seconds(*call) for call in worker.calls)
    assert max(0, places - calls) <= idle <= places
    # No call here is shorter than what is charged for it by more than a second, so nothing else is lost.
    assert idle + calls - places <= len(worker.calls) + 1 + len(moments)
    # Each entry is rounded up once.
    exact = idle * worker.terms.rate_micro_usd_per_hour / (3_600 * worker.terms.shares)
    entries = sum(each.segment is Segment.RUNNING for each in worker.settled)
    assert exact - 1e-3 <= idle_micro_usd <= exact + entries + 1e-3
    assert micro_usd >= 0
    for each in worker.settled:
        rate = worker.terms.rate_micro_usd_per_hour
        assert each.amount_micro_usd == call_charge_micro_usd(each.charged_seconds, rate, each.shares)
        assert whole_seconds(each.period_start, each.period_end) == each.seconds + each.covered_seconds


@given(lives())
def test_settling_in_between_changes_nothing_of_an_idle_worker_but_when_it_is_charged(
    drawn: tuple[Worker, list[datetime]],
) -> None:
    worker, moments = drawn
    worker.calls = []
    once = Worker(worker.terms, worker.ready_at, worker.drained_at, worker.ended_at, worker.at_fault, [])
    for moment in moments:
        worker.settle(moment)
    for each in (worker, once):
        each.settle(each.ended_at, each.ended_at)
    for segment in Segment:
        assert worker.total(segment)[:2] == once.total(segment)[:2]


SEGMENTS = (Segment.BOOT, Segment.RUNNING, Segment.RESTORE, Segment.TEARDOWN)


@pytest.mark.parametrize(
    ("ready", "drained", "ended", "at_fault", "restores", "expected"),
    [
        (10.0, 60.0, 62.0, False, False, {"Boot": (10, 0), "Running": (50, 0), "Teardown": (2, 0)}),
        (10.0, 60.0, 62.0, False, True, {"Restore": (10, 0), "Running": (50, 0), "Teardown": (2, 0)}),
        (10.0, None, 60.0, True, False, {"Boot": (0, 10), "Running": (50, 0)}),
        (10.0, 60.0, 200.0, False, False, {"Boot": (10, 0), "Running": (50, 0), "Teardown": (45, 95)}),
        (None, None, 5.0, False, False, {"Boot": (5, 0)}),
        (None, 5.0, 7.0, False, False, {"Boot": (5, 0), "Teardown": (2, 0)}),
        (None, None, 300.0, True, False, {"Boot": (0, 300)}),
        # Parts of seconds are rounded up once, at the end, not in each segment.
        (0.4, 0.8, 1.1, False, False, {"Boot": (1, 0), "Teardown": (1, 0)}),
        (0.0, None, -5.0, False, False, {}),
    ],
)
def test_the_table_of_who_pays_for_what(
    ready: float | None,
    drained: float | None,
    ended: float,
    at_fault: bool,
    restores: bool,
    expected: dict[str, tuple[int, int]],
) -> None:
    worker = Worker(
        terms=Terms(rate_micro_usd_per_hour=RATE, shares=1, restores=restores),
        ready_at=None if ready is None else at(ready),
        drained_at=None if drained is None else at(drained),
        ended_at=at(ended),
        at_fault=at_fault,
        calls=[],
    )
    worker.settle(worker.ended_at, worker.ended_at)
    found = {str(segment): worker.total(segment)[:2] for segment in SEGMENTS if any(worker.total(segment)[:2])}
    assert found == expected


@pytest.mark.parametrize("shares", [1, 4])
def test_more_short_calls_than_seconds_leave_no_place_to_charge_and_never_a_negative_one(shares: int) -> None:
    calls = [(at(second / 100), at(second / 100 + 0.005)) for second in range(100, 1_000)]
    worker = Worker(
        terms=Terms(rate_micro_usd_per_hour=RATE, shares=shares, restores=False),
        ready_at=at(1),
        drained_at=None,
        ended_at=at(11),
        at_fault=False,
        calls=calls,
    )
    worker.settle(worker.ended_at, worker.ended_at)
    assert worker.total(Segment.RUNNING) == (10, 0, 0)


@pytest.mark.parametrize(
    ("increment", "minimum", "seconds", "billed"),
    [(1, 1, 0, 0), (1, 1, 7, 7), (60, 1, 1, 60), (60, 1, 60, 60), (60, 1, 61, 120), (1, 60, 5, 60), (60, 90, 5, 90),
     (60, 90, 61, 120), (60, 90, 0, 0)],
)  # fmt: skip
def test_the_time_of_a_worker_is_rounded_to_increments_and_the_minimum(
    increment: int, minimum: int, seconds: int, billed: int
) -> None:
    assert Billing(increment_seconds=increment, minimum_seconds=minimum).billed_seconds(seconds) == billed


@given(billings, st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**9), st.integers(0, 10**9))
def test_what_is_billed_never_falls_with_time_or_rate_and_is_held_before(
    billing: Billing, seconds: int, more_seconds: int, rate: int, more_rate: int
) -> None:
    def cost(of_seconds: int, at_rate: int) -> int:
        return call_charge_micro_usd(billing.billed_seconds(of_seconds), at_rate, 1)

    assert (
        0 <= cost(seconds, rate) <= cost(seconds + more_seconds, rate) <= cost(seconds + more_seconds, rate + more_rate)
    )
    assert seconds <= billing.billed_seconds(seconds)


@given(billings, st.integers(0, 10**5), st.integers(1, 10**4), st.integers(0, 10**4), st.integers(0, 10**5))
def test_what_is_held_pays_for_the_rounding_whenever_within_the_window_a_worker_ends(
    billing: Billing, lived: int, window: int, after: int, payable: int
) -> None:
    held = billing.held_seconds(lived, window)
    assert billing.billed_seconds(lived + min(after, window)) - lived <= held
    longest = billing.window_seconds(lived, payable)
    if longest > 0:
        assert billing.held_seconds(lived, longest) <= payable
        assert billing.held_seconds(lived, longest + 1) > payable


@given(lives(), st.integers(0, 300))
def test_a_longer_stop_is_never_charged_less(drawn: tuple[Worker, list[datetime]], more_seconds: int) -> None:
    worker, _ = drawn
    longer = replace(worker, ended_at=worker.ended_at + timedelta(seconds=more_seconds), settled=[])
    if worker.drained_at is None:
        return  # What ends without a stop has no longer one.
    for each in (worker, longer):
        each.settle(each.ended_at, each.ended_at)
    assert worker.total(*Segment)[2] <= longer.total(*Segment)[2]
