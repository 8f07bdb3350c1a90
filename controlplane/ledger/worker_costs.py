"""What a worker costs beyond its calls: its life in whole seconds, cut into segments, pure.

A worker begins to cost when its process starts and ends when that is gone; what comes before is the platform's. Its
life is rounded up to whole seconds once and then cut: Boot to the first claim (Restore, when it replaces a worker that
the platform lost), Running to its stop, Teardown to its end. In Running it has `shares` places. The seconds of them
that its calls were charged for are the calls'; the rest is idle and its Function's. So calls, idle places, start and
stop add up to what the ledger holds for a Function, and no second of a place is charged twice. What the increment and
the minimum of its class add is charged with Teardown. The tables of docs/decisions/0027 and 0038 say who pays what;
`calls/worker_settlement.py` applies them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from controlplane.ledger.pricing import PER_SECOND, SECONDS_PER_HOUR, Billing, call_charge_micro_usd

_SECOND = timedelta(seconds=1)


class Segment(StrEnum):
    """What a worker was doing; the words of the protocol."""

    BOOT = "Boot"
    RUNNING = "Running"
    RESTORE = "Restore"
    TEARDOWN = "Teardown"


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What was agreed when the worker was started, for all of its life."""

    rate_micro_usd_per_hour: int
    shares: int
    """Places of the worker; each costs that part of the rate."""
    restores: bool
    """Whether it replaces a worker that the platform lost: its start is Restore then."""
    billing: Billing = PER_SECOND
    """How its time is rounded up when it has ended."""


@dataclass(frozen=True, kw_only=True)
class Life:
    """When a worker came to where. `ended_at` is None while it lives, and it is charged to `now` at most."""

    started_at: datetime
    """Its process started."""
    ready_at: datetime | None
    """Its first claim."""
    stopped_at: datetime | None
    """It was told to go and held no call any more; None while it has not or does."""
    ended_at: datetime | None
    """Its process was gone, or it was last heard of where nobody saw that."""
    now: datetime


@dataclass(frozen=True, kw_only=True)
class Served:
    """How far Running is settled, and what the calls took of it, in seconds of places since the first claim."""

    settled_seconds: int
    """Of the worker."""
    settled_call_seconds: int
    """What its calls had taken when that was settled."""
    call_seconds: int
    """What they have taken by now, those in its hands up to now among them."""


@dataclass(frozen=True, kw_only=True)
class Portion:
    """A piece of a worker's life that is settled: `seconds` of the worker, `charged_seconds` at a share of its rate."""

    segment: Segment
    period_start: datetime
    period_end: datetime
    seconds: int
    """Whole seconds that are not the platform's."""
    covered_seconds: int
    """Whole seconds that are."""
    charged_seconds: int
    """Seconds of a place for Running, of the worker for what has no places."""
    shares: int
    amount_micro_usd: int
    rounding_seconds: int = 0
    """Seconds that nobody had the worker and that are charged with the last portion all the same (decision 0038)."""


def whole_seconds(since: datetime, until: datetime) -> int:
    """Seconds between the two, a begun one counted; never negative, whatever was done to the clock."""
    return max(0, -(-(until - since) // _SECOND))


def portions(terms: Terms, life: Life, served: Served, *, at_fault: bool, teardown_seconds_max: int) -> list[Portion]:
    """What of the life is to be settled now, oldest first.

    Of a worker that lives only Running is: whether its start is charged is known at its end. `at_fault` tells that
    the platform ended it, which then pays for its start and its stop.
    """
    running_from, running_until, ended = _cuts(life, served.settled_seconds)
    found = []
    if life.ended_at is not None:
        start = Segment.RESTORE if terms.restores else Segment.BOOT
        found.append(_overhead(terms, life, start, 0, running_from, 0 if at_fault else running_from))
    found.append(_running(terms, life, served, running_from, running_until))
    if life.ended_at is not None:
        paid = 0 if at_fault else min(ended - running_until, teardown_seconds_max)
        lived = running_until + paid
        # What the platform ended is not rounded: its owner had no say in when that was.
        rounding = 0 if at_fault else terms.billing.billed_seconds(lived) - lived
        found.append(_overhead(terms, life, Segment.TEARDOWN, running_until, ended, paid, rounding))
    return [portion for portion in found if portion.seconds or portion.covered_seconds or portion.rounding_seconds]


def within(found: Sequence[Portion], terms: Terms, most_micro_usd: int) -> list[Portion]:
    """The same portions charged with no more than that together, oldest first; the platform pays the rest."""
    cut, left_micro_usd = [], most_micro_usd
    for portion in found:
        if portion.amount_micro_usd > left_micro_usd:
            portion = _cut(portion, terms, left_micro_usd)
        left_micro_usd -= portion.amount_micro_usd
        cut.append(portion)
    return cut


def _cut(portion: Portion, terms: Terms, most_micro_usd: int) -> Portion:
    """The portion with as many whole seconds charged as that pays for."""
    rate, shares = terms.rate_micro_usd_per_hour, portion.shares
    paid_seconds = min(portion.charged_seconds, most_micro_usd * SECONDS_PER_HOUR * shares // rate)
    charged = replace(
        portion,
        charged_seconds=paid_seconds,
        amount_micro_usd=call_charge_micro_usd(paid_seconds, rate, shares),
    )
    if portion.segment is Segment.RUNNING:
        return charged  # Its seconds are the worker's, whatever its places are charged.
    lived_seconds = min(paid_seconds, portion.seconds)
    return replace(
        charged,
        seconds=lived_seconds,
        covered_seconds=portion.covered_seconds + portion.seconds - lived_seconds,
        rounding_seconds=paid_seconds - lived_seconds,
    )


def _cuts(life: Life, settled_seconds: int) -> tuple[int, int, int]:
    """Whole seconds from the start to the first claim, to the stop and to the end."""
    if life.ended_at is None:
        # What has just begun is settled the next time, when it is whole.
        ended = max(0, (life.now - life.started_at) // _SECOND)
    else:
        ended = whole_seconds(life.started_at, life.ended_at)
    stopped = ended if life.stopped_at is None else min(ended, whole_seconds(life.started_at, life.stopped_at))
    if life.ready_at is None:
        return stopped, stopped, ended
    ready = whole_seconds(life.started_at, life.ready_at)
    # What was settled as Running stays that: its end may turn out to have been before, when nobody saw it.
    ready, settled = (min(ready, ended), 0) if not settled_seconds else (ready, ready + settled_seconds)
    stopped = max(ready, stopped, settled)
    return ready, stopped, max(ended, stopped)


def _running(terms: Terms, life: Life, served: Served, start: int, end: int) -> Portion:
    begin = min(end, start + served.settled_seconds)
    seconds = end - begin
    taken = max(0, served.call_seconds - served.settled_call_seconds)
    idle_seconds = max(0, seconds * terms.shares - taken)
    return Portion(
        segment=Segment.RUNNING,
        period_start=life.started_at + begin * _SECOND,
        period_end=life.started_at + end * _SECOND,
        seconds=seconds,
        covered_seconds=0,
        charged_seconds=idle_seconds,
        shares=terms.shares,
        amount_micro_usd=call_charge_micro_usd(idle_seconds, terms.rate_micro_usd_per_hour, terms.shares),
    )


def _overhead(
    terms: Terms, life: Life, segment: Segment, start: int, end: int, paid_seconds: int, rounding_seconds: int = 0
) -> Portion:
    charged_seconds = paid_seconds + rounding_seconds
    return Portion(
        segment=segment,
        period_start=life.started_at + start * _SECOND,
        period_end=life.started_at + end * _SECOND,
        seconds=paid_seconds,
        covered_seconds=end - start - paid_seconds,
        charged_seconds=charged_seconds,
        shares=1,
        amount_micro_usd=call_charge_micro_usd(charged_seconds, terms.rate_micro_usd_per_hour, 1),
        rounding_seconds=rounding_seconds,
    )
