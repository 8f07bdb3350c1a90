"""How many workers a Function should have, and which ones go: the one rule, pure.

`plan` looks at the calls and workers of one Function at one moment and says how many to start and whom to drain. It
keeps no state: whatever happened before is in its arguments, so asking twice does no harm and a lost answer is asked
again. `activities/autoscaler.py` gathers the facts and carries the plan out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from controlplane.capacity.rows import AttemptState, LiveWorker
from controlplane.images.use import ImageState

START_BACKOFF_SECONDS_MAX = 60.0
LOST_START_BACKOFF_SECONDS_MAX = 8.0
"""A start that the platform lost is repeated sooner: what was away takes half a minute to be found out, and calls wait
for it to come back."""


class DrainReason(StrEnum):
    """Why the pool lets a worker go."""

    IDLE = "Idle"
    SCALED_DOWN = "ScaledDown"
    STOPPED = "Stopped"
    ROLLED = "Rolled"
    DELETED = "FunctionDeleted"
    MAKES_ROOM = "MakesRoom"
    FAIR_SHARE = "FairShare"
    CANCELLED = "CallCancelled"
    UNFUNDED = "Unfunded"
    MAX_COST = "MaxCostReached"


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """A live worker of the pool."""

    uid: str
    current: bool
    """Whether it was started from the present revision of the Function, to run as many calls at once as it says."""
    ready: bool
    draining: bool
    busy: int
    """Calls it holds."""
    idle_since: datetime | None
    """When it last had something to do; None while it has, or is not ready."""


@dataclass(frozen=True, kw_only=True)
class PoolFacts:
    """Everything a plan depends on."""

    now: datetime
    wanted: bool
    """False when the Function is stopped or being deleted."""
    deleting: bool
    queued: int
    running: int
    alone: int = 0
    """Those of the queued and running calls that share no worker."""
    min_workers: int
    max_workers: int
    target_concurrency: int
    scaledown_window: timedelta
    members: Sequence[Member]
    peak_workers: int | None = None
    """The most workers that the load asked for during the whole last window; None when that is not known yet."""
    start_failures: int = 0
    """Starts of the present revision that failed, without one that succeeded since."""
    last_failure_at: datetime | None = None
    start_failures_max: int = 5
    lost_starts: int = 0
    """Starts of the present revision that the platform lost, without one that succeeded since."""
    last_lost_at: datetime | None = None
    host_room: int = 0
    """Workers that may still be started on the hosts, whoever they are for."""
    funded_room: int | None = None
    """Workers more that the organisation can pay for; None when nobody limits that."""
    give_back: int = 0
    """Workers that leave for other projects, which have fewer: those that idle first, and none before its calls end."""
    quota_room: int | None = None
    """Workers more that the quotas allow; None when none bounds them."""
    placeable: bool = True
    """Whether a host of this server does what the Function asks for."""
    image: ImageState = ImageState.READY
    """Whether workers can be started from the image, must wait for it, or never will be."""
    capped: bool = False
    """The Function has reached its `maxCostUSD`: no workers are wanted for it."""
    pressure: bool = False
    """Another Function found no room: idle workers go at once instead of after their window."""


@dataclass(frozen=True, kw_only=True)
class PoolPlan:
    """What to do now."""

    desired: int
    start: int = 0
    drain: tuple[tuple[str, DrainReason], ...] = ()
    failed: bool = False
    """Nothing is started any more: the present revision failed too often in a row, or has no image."""
    again_at: datetime | None = None
    """When the plan will change without any other cause."""
    lacks_room: bool = False
    """More would be started if the hosts had room."""
    lacks_funds: bool = False
    """More would be started if they could be paid."""
    lacks_quota: bool = False
    """More would be started if a quota allowed it."""


def member_of(worker: LiveWorker, revision: str, concurrency: int) -> Member:
    """What a plan wants to know of a worker, when these are the present revision and `targetConcurrency`."""
    row = worker.row
    ready = row.state == AttemptState.READY
    times = [time for time in (row.ready_at, row.last_busy_at) if time is not None]
    return Member(
        uid=row.uid,
        # A worker learns at its start how many calls it runs at once, and each is charged its share of that.
        current=row.pool == revision and row.concurrency == concurrency,
        ready=ready,
        draining=row.draining,
        busy=worker.busy,
        idle_since=max(times) if ready and not worker.busy and times else None,
    )


def desired_workers(facts: PoolFacts) -> int:
    """clamp(ceil((queued + running) / targetConcurrency), minWorkers, maxWorkers), and 0 when none are wanted.

    A call that runs alone takes a whole worker, whatever the target.
    """
    if not facts.wanted or facts.capped:
        return 0
    sharing = facts.queued + facts.running - facts.alone
    needed = -(-sharing // facts.target_concurrency) + facts.alone
    return max(facts.min_workers, min(needed, facts.max_workers))


def plan(facts: PoolFacts) -> PoolPlan:
    """How many workers to start and which to drain."""
    desired = desired_workers(facts)
    live = [member for member in facts.members if not member.draining]
    if not facts.wanted or facts.capped:
        reason = DrainReason.DELETED if facts.deleting else DrainReason.STOPPED
        if facts.wanted:
            reason = DrainReason.MAX_COST
        return PoolPlan(desired=0, drain=tuple((member.uid, reason) for member in live))
    current = [member for member in live if member.current]
    old = [member for member in live if not member.current]
    failed = facts.image is ImageState.FAILED or facts.start_failures >= facts.start_failures_max
    start, again_at = _to_start(facts, desired, current, failed=failed)
    funded = start if facts.funded_room is None else min(start, facts.funded_room)
    allowed = start if facts.quota_room is None else min(start, facts.quota_room)
    room = max(0, min(funded, allowed, facts.host_room))
    # Who leaves makes a place on the host and within quotas, but brings no money.
    rolled, rolled_again_at = _rolled(facts, desired, current, old, lacks_place=funded > 0 and room == 0)
    above = _above_most(facts, current)
    staying = [member for member in current if member.uid not in {uid for uid, _ in above}]
    idle, idle_again_at = _idle(facts, desired, staying)
    leaving = (*rolled, *above, *idle)
    shared = _given_back(facts.give_back - len(leaving), live, {uid for uid, _ in leaving})
    times = [time for time in (again_at, rolled_again_at, idle_again_at) if time is not None]
    return PoolPlan(
        desired=desired,
        start=room,
        drain=(*leaving, *shared),
        failed=failed,
        again_at=min(times, default=None),
        lacks_room=min(funded, allowed) > facts.host_room,
        lacks_funds=start > funded,
        lacks_quota=start > allowed,
    )


def start_backoff(failures: int) -> timedelta:
    """The pause after the nth failed start in a row: 1, 2, 4 … 60 seconds."""
    return timedelta(seconds=min(START_BACKOFF_SECONDS_MAX, 2.0 ** min(failures - 1, 10)))


def _to_start(
    facts: PoolFacts, desired: int, current: Sequence[Member], *, failed: bool
) -> tuple[int, datetime | None]:
    """How many workers of the present revision are missing, and when that changes by time alone."""
    missing = desired - len(current)
    if missing <= 0 or failed or not facts.placeable or facts.image is ImageState.PENDING:
        return 0, None
    earliest = _not_before(facts)
    if facts.now < earliest:
        return 0, earliest
    if not facts.start_failures:
        return missing, None
    # One at a time is tried until one succeeds, with growing pauses, so that a broken version costs little.
    return (0 if any(not member.ready for member in current) else 1), None


def _not_before(facts: PoolFacts) -> datetime:
    """When the pauses after failed and lost starts are over."""
    times = [facts.now]
    if facts.last_failure_at is not None and facts.start_failures:
        times.append(facts.last_failure_at + start_backoff(facts.start_failures))
    if facts.last_lost_at is not None and facts.lost_starts:
        pause = min(start_backoff(facts.lost_starts), timedelta(seconds=LOST_START_BACKOFF_SECONDS_MAX))
        times.append(facts.last_lost_at + pause)
    return max(times)


def _rolled(
    facts: PoolFacts, desired: int, current: Sequence[Member], old: Sequence[Member], *, lacks_place: bool
) -> tuple[tuple[tuple[str, DrainReason], ...], datetime | None]:
    """Workers of older revisions that are no longer needed, and when that changes by time alone.

    One that takes calls goes only when a new one takes calls in its place; one that does not yet goes as soon as a new
    one is started in its place. When no new one finds a place, one old worker makes it, or the roll would never begin;
    the next one only if that was not enough, because one that ends its calls fills its place until it is gone.
    """
    ready = sum(member.ready for member in current)
    starting = [member for member in old if not member.ready]
    serving = sorted((member for member in old if member.ready), key=_most_idle_first)
    kept, again_at = max(0, desired - ready), None
    if not kept and serving:
        kept, again_at = _kept_unproven(facts, current, serving[-1])
    spared = max(0, desired - len(current) - min(kept, len(serving)))
    leaving = [*starting[: max(0, len(starting) - spared)], *serving[: max(0, len(serving) - kept)]]
    makes_place = lacks_place and len(current) == ready and not any(member.draining for member in facts.members)
    if makes_place and not leaving:
        leaving = [*starting, *serving][:1]
    return tuple((member.uid, DrainReason.ROLLED) for member in leaving), again_at


def _kept_unproven(facts: PoolFacts, current: Sequence[Member], last: Member) -> tuple[int, datetime | None]:
    """Whether the last old worker stays although no call asks for one, and until when (decision 0046).

    Calls that come one after the other leave moments without any. If the new revision was begun, or cannot be, and none
    of its workers takes calls, the next call must find the old one, for as long as it would have idled.
    """
    is_begun = bool(current) or facts.start_failures > 0 or facts.lost_starts > 0
    is_doubtful = is_begun or facts.image is ImageState.FAILED or not facts.placeable
    if not is_doubtful or facts.pressure or any(member.ready for member in current):
        return 0, None
    due = (last.idle_since or facts.now) + facts.scaledown_window
    return (1, due) if due > facts.now else (0, None)


def _idle(
    facts: PoolFacts, desired: int, current: Sequence[Member]
) -> tuple[tuple[tuple[str, DrainReason], ...], datetime | None]:
    """Workers above the desired number that were idle for the whole window, and when the next one will have been.

    Steady light traffic goes round all workers, so none of them is ever idle that long; what the load asked for at most
    during the window tells that fewer would do.
    """
    idle = sorted((member for member in current if member.idle_since is not None), key=_most_idle_first)
    excess = min(len(idle), max(0, len(current) - desired))
    unneeded = 0 if facts.peak_workers is None else max(0, len(current) - max(facts.peak_workers, desired))
    drain: list[tuple[str, DrainReason]] = []
    again_at: datetime | None = None
    for number, member in enumerate(idle[:excess]):
        due = (member.idle_since or facts.now) + facts.scaledown_window
        if due <= facts.now or number < unneeded:
            drain.append((member.uid, DrainReason.IDLE))
        elif facts.pressure:
            drain.append((member.uid, DrainReason.MAKES_ROOM))
        else:
            again_at = due if again_at is None else min(again_at, due)
    return tuple(drain), again_at


def _above_most(facts: PoolFacts, current: Sequence[Member]) -> tuple[tuple[str, DrainReason], ...]:
    """Workers above `maxWorkers`, which was lowered: those that take no calls yet, idle ones, then those with the
    fewest calls, which they end before they go. Under steady load none would ever idle."""
    ordered = sorted(current, key=lambda member: (member.ready, *_most_idle_first(member)))
    return tuple(
        (member.uid, DrainReason.SCALED_DOWN) for member in ordered[: max(0, len(current) - facts.max_workers)]
    )


def _given_back(count: int, live: Sequence[Member], leaving: set[str]) -> tuple[tuple[str, DrainReason], ...]:
    """The workers that leave for other projects: idle ones, then those that do not take calls yet, then those with the
    fewest calls, which they end before they go."""

    def cost(member: Member) -> tuple[int, tuple[bool, float, int, str]]:
        stage = 0 if member.ready and not member.busy else 1 if not member.ready else 2
        return stage, _most_idle_first(member)

    staying = sorted((member for member in live if member.uid not in leaving), key=cost)
    return tuple((member.uid, DrainReason.FAIR_SHARE) for member in staying[: max(0, count)])


def _most_idle_first(member: Member) -> tuple[bool, float, int, str]:
    """Those that idle longest, then those that hold the fewest calls."""
    since = member.idle_since
    return (since is None, 0.0 if since is None else since.timestamp(), member.busy, member.uid)
