"""What must hold after a fault run, whatever was done to the system: pure rules over what was seen and what is left.

Each rule of `RULES` looks at the history of clients and workers (`history.py`), at the change log and at what the run
left behind, and answers with sentences about what is wrong. `test_checker.py` gives each of them a run that it must
refuse. Rules do not know which faults there were: no fault excuses a wrong state.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any

from controlplane.ledger.pricing import call_charge_micro_usd, worker_seconds
from controlplane.machinery.quantities import parse_money
from tests.faults.history import BEGAN, CREATED, ENDED, FINISHED, SEEN, STARTED, Event
from tests.faults.turns import waiting_sessions_passed_over

TERMINAL = frozenset({"Succeeded", "Failed", "Cancelled"})
ON_A_WORKER = frozenset({"Running", "Cancelling"})
LOST_REASONS = frozenset({"RecoveryLimitExceeded"})
"""Ends of a dispatch whose last moment only the server knows."""


@dataclass(frozen=True, kw_only=True)
class Logged:
    """One row of the change log about a call."""

    rv: int
    time: datetime
    type: str
    name: str
    document: Mapping[str, Any]

    @property
    def status(self) -> Mapping[str, Any]:
        """The call's status after the change."""
        status: Mapping[str, Any] = self.document["status"]
        return status

    @property
    def phase(self) -> str:
        """The call's phase after the change."""
        return str(self.status["phase"])


@dataclass(frozen=True, kw_only=True)
class Remains:
    """What the run left: read from PostgreSQL, Temporal and the process table when everything had come to rest."""

    log: Sequence[Logged]
    """Every change of every call, in order."""
    functions: Sequence[Mapping[str, Any]] = ()
    """The documents of all Functions."""
    loads: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By Function name: queued, running, pending, charge_micro_usd, and worker_micro_usd, for workers themselves."""
    concurrency: Mapping[str, int] = field(default_factory=dict)
    """`targetConcurrency` by Function name."""
    rate_micro_usd_per_hour: int = 0
    ledger_breaches: Sequence[str] = ()
    """Where the ledger does not balance, or says something else than the calls."""
    open_rows: Sequence[str] = ()
    """Names of calls that still have a row in the queue's table."""
    open_attempts: Sequence[str] = ()
    open_holds: Sequence[str] = ()
    """Accounts of workers that are not closed, and holds that nothing ended."""
    open_workflows: Sequence[str] = ()
    processes: Sequence[str] = ()
    """Workers that still run."""

    def by_call(self) -> dict[str, list[Logged]]:
        """The changes of each call by its uid, in order."""
        found: dict[str, list[Logged]] = defaultdict(list)
        for change in self.log:
            found[change.document["metadata"]["uid"]].append(change)
        return found


Rule = Callable[[Sequence[Event], Remains], Iterable[str]]


def check(history: Sequence[Event], remains: Remains) -> list[str]:
    """Every violation of every rule, each with the name of its rule."""
    return [f"{rule.__name__}: {problem}" for rule in RULES for problem in rule(history, remains)]


def one_final_phase(history: Sequence[Event], remains: Remains) -> Iterable[str]:
    """A call that was created ends, once, and nothing changes its phase, result, error or cost afterwards."""
    for changes in remains.by_call().values():
        ends = [change for change in changes if change.phase in TERMINAL]
        if not ends:
            yield f"{changes[-1].name} never ended: {changes[-1].phase}"
        for before, after in pairwise(ends):
            if before.status != after.status:
                yield f"{after.name} changed after its end: {dict(before.status)} became {dict(after.status)}"
        if ends and any(change.phase not in TERMINAL for change in changes if change.rv > ends[0].rv):
            yield f"{ends[0].name} left {ends[0].phase} again"


def every_created_call_is_known(history: Sequence[Event], remains: Remains) -> Iterable[str]:
    """What a client was told exists is in the change log, once, and nothing else is."""
    uids = Counter(event["uid"] for event in history if event["event"] == CREATED)
    known = {uid: changes[0].name for uid, changes in remains.by_call().items()}
    for event in history:
        if event["event"] == CREATED and event["uid"] not in known:
            yield f"{event['call']} was promised to {event['by']} and does not exist"
    yield from (f"{uid} was promised {count} times" for uid, count in uids.items() if count > 1)
    yield from (f"{name} exists and nobody was told so" for uid, name in known.items() if uid not in uids)


def calls_end_as_their_kind_must(history: Sequence[Event], remains: Remains) -> Iterable[str]:
    """What was done to the system changes how long a call takes, not how it ends."""
    final = {changes[0].document["metadata"]["uid"]: changes[-1] for changes in remains.by_call().values()}
    for event in history:
        if event["event"] == CREATED and event["uid"] in final:
            status = final[event["uid"]].status
            if status["phase"] not in event["phases"]:
                told = {key: status.get(key) for key in ("phase", "reason", "message", "retries", "recoveries")}
                yield f"{event['call']} ({event['kind']}) ended as {told}"


def executions_are_counted(history: Sequence[Event], remains: Remains) -> Iterable[str]:
    """No call began more often than once and once more for each retry and recovery that it counts."""
    runs = Counter(event["call"] for event in history if event["event"] == BEGAN)
    allowed = {name: 1 + status.get("retries", 0) + status.get("recoveries", 0) for name, status in _last(remains)}
    for call, count in runs.items():
        if count > allowed.get(call, 0):
            yield f"{call} began {count} times, {allowed.get(call, 0)} are accounted for"


def recoveries_are_losses(history: Sequence[Event], remains: Remains) -> Iterable[str]:
    """No call counts more recoveries than it had workers that may have been lost: each is lost once, and the one whose
    result counts was not."""
    for changes in remains.by_call().values():
        workers = {change.status["worker"]["attempt"] for change in changes if "worker" in change.status}
        last = changes[-1]
        lost, recoveries = len(workers) - (last.phase == "Succeeded"), last.status.get("recoveries", 0)
        if recoveries > lost:
            yield f"{last.name} counts {recoveries} recoveries and can have lost {lost} workers"


def results_come_from_the_last_worker(history: Sequence[Event], remains: Remains) -> Iterable[str]:
    """A result is what the worker to which the call is bound delivered, and it was delivered once."""
    delivered: dict[tuple[str, str], set[str]] = defaultdict(set)
    for event in history:
        if event["event"] == FINISHED and event["outcome"] == "Succeeded":
            delivered[event["call"], event["attempt"]].add(event["digest"])
    for name, status in _last(remains):
        if status["phase"] != "Succeeded":
            if "result" in status:
                yield f"{name} is {status['phase']} and has a result"
            continue
        attempt = status["worker"]["attempt"]
        if status["result"]["sha256"] not in delivered[name, attempt]:
            yield f"{name} has a result that {attempt} did not deliver"


def workers_hold_no_more_than_they_may(history: Sequence[Event], remains: Remains) -> Iterable[str]:
    """No worker runs more calls at once than its Function's target concurrency, and none twice at once."""
    most = {event["attempt"]: event["concurrency"] for event in history if event["event"] == STARTED}
    running: dict[str, dict[str, str]] = defaultdict(dict)
    for event in history:
        if event["event"] == BEGAN:
            held = running[event["attempt"]]
            if event["call"] in held.values():
                yield f"{event['attempt']} runs {event['call']} twice at once"
            held[event["run"]] = event["call"]
            if len(held) > most.get(event["attempt"], 0):
                yield f"{event['attempt']} runs {len(held)} calls, {most[event['attempt']]} are allowed"
        elif event["event"] == FINISHED:
            running[event["attempt"]].pop(event["run"], None)


def sessions_take_turns(history: Sequence[Event], remains: Remains) -> Iterable[str]:
    """First in, first out inside a session, and no session is served twice while another waits all the time."""
    yield from waiting_sessions_passed_over([(c.rv, c.type, c.phase, c.document) for c in remains.log])


def waiters_end_in_time(history: Sequence[Event], remains: Remains) -> Iterable[str]:
    """Whoever waits for a call learns its end, within the bound it had, and learns the truth."""
    told = {(event["by"], event["call"]): event for event in history if event["event"] == ENDED}
    final = dict(_last(remains))
    for event in history:
        if event["event"] != CREATED:
            continue
        end = told.get((event["by"], event["call"]))
        if end is None or not end["phase"]:
            yield f"{event['by']} still waits for {event['call']} ({event['kind']})"
        elif end["at"] - event["at"] > event["bound_seconds"]:
            waited = end["at"] - event["at"]
            yield f"{event['by']} waited {waited:.1f} s for {event['call']}, {event['bound_seconds']} s are the bound"
        elif event["call"] in final and end["phase"] != final[event["call"]]["phase"]:
            yield f"{event['by']} was told {end['phase']} of {event['call']}, it is {final[event['call']]['phase']}"


def watches_tell_a_straight_story(history: Sequence[Event], remains: Remains) -> Iterable[str]:
    """What one watcher sees of a call goes forward, and no end that it saw is taken back."""
    last: dict[tuple[str, str], Event] = {}
    for event in history:
        if event["event"] != SEEN:
            continue
        before = last.get((event["by"], event["uid"]))
        last[event["by"], event["uid"]] = event
        if before is None:
            continue
        if event["rv"] <= before["rv"]:
            yield f"{event['by']} saw {event['call']} at {event['rv']} after {before['rv']}"
        if before["phase"] in TERMINAL and event["phase"] != before["phase"]:
            yield f"{event['by']} saw {event['call']} go from {before['phase']} to {event['phase']}"
        if any(event[counter] < before[counter] for counter in ("retries", "recoveries")):
            yield f"{event['by']} saw the counters of {event['call']} go back"


def charges_follow_the_intervals(history: Sequence[Event], remains: Remains) -> Iterable[str]:
    """Each call costs what its dispatches lasted, and each Function what its calls and its workers cost."""
    totals: Counter[str] = Counter()
    for changes in remains.by_call().values():
        function = changes[0].document["spec"]["function"]
        charged = parse_money(changes[-1].status.get("costUSD", "0"))
        totals[function] += charged
        least, most = _bounds_of_charge(changes, remains.concurrency[function], remains.rate_micro_usd_per_hour)
        if not least <= charged <= most:
            yield f"{changes[0].name} was charged {charged} micro-USD, its dispatches make {least} to {most}"
    for name, load in remains.loads.items():
        workers = load["worker_micro_usd"]
        if load["charge_micro_usd"] != totals[name] + workers:
            yield (
                f"{name} was charged {load['charge_micro_usd']} micro-USD, its calls {totals[name]} and its workers "
                f"{workers}"
            )


def the_ledger_balances(history: Sequence[Event], remains: Remains) -> Iterable[str]:
    """Whatever died between two writes, every charge is in the ledger once, and the ledger agrees with itself."""
    yield from remains.ledger_breaches


def nothing_is_left_open(history: Sequence[Event], remains: Remains) -> Iterable[str]:
    """No row of a call, no attempt, no hold, no workflow and no worker outlives the run."""
    kinds = ("open_rows", "open_attempts", "open_holds", "open_workflows", "processes")
    for kind in kinds:
        left = getattr(remains, kind)
        if left:
            yield f"{kind}: {', '.join(sorted(left)[:10])}"


def counters_agree(history: Sequence[Event], remains: Remains) -> Iterable[str]:
    """What a Function says of its queue, workers and cost is what is there: nothing, and what its calls cost."""
    for name, load in remains.loads.items():
        if any(load[counter] for counter in ("queued", "running", "pending")):
            yield f"the tally of {name} is {dict(load)}"
    for function in remains.functions:
        name, status = function["metadata"]["name"], function["status"]
        if any(status.get("queue", {}).values()):
            yield f"the status of {name} says {status['queue']} of its queue"
        if any(status.get("workers", {}).values()):
            yield f"the status of {name} says {status['workers']} of its workers"
        total = parse_money(status.get("cost", {}).get("totalUSD", "0"))
        if name in remains.loads and total != remains.loads[name]["charge_micro_usd"]:
            yield f"the status of {name} says {total} micro-USD, {remains.loads[name]['charge_micro_usd']} were charged"


RULES: Sequence[Rule] = (
    one_final_phase,
    every_created_call_is_known,
    calls_end_as_their_kind_must,
    executions_are_counted,
    recoveries_are_losses,
    results_come_from_the_last_worker,
    workers_hold_no_more_than_they_may,
    sessions_take_turns,
    waiters_end_in_time,
    watches_tell_a_straight_story,
    charges_follow_the_intervals,
    the_ledger_balances,
    nothing_is_left_open,
    counters_agree,
)


def _last(remains: Remains) -> Iterable[tuple[str, Mapping[str, Any]]]:
    """Name and last status of every call."""
    return [(changes[-1].name, changes[-1].status) for changes in remains.by_call().values()]


def _bounds_of_charge(changes: Sequence[Logged], concurrency: int, rate: int) -> tuple[int, int]:
    """The least and the most that a call may cost by the written rule.

    A dispatch that its worker ended costs its whole length. One that never reached its worker costs nothing, and of
    one whose worker was lost or had to be stopped only the server knows how far it came.
    """
    least = most = 0
    begun: Logged | None = None
    for before, after in pairwise(changes):
        if after.phase == "Running" and before.phase != "Running":
            begun = after
        if begun is None or after.phase in ON_A_WORKER:
            continue
        charge = call_charge_micro_usd(worker_seconds(begun.time, after.time), rate, concurrency)
        undelivered = after.phase == "Queued" and _retries(after) == _retries(before)
        unclear = after.phase in ("Recovering", "Cancelled") or after.status.get("reason") in LOST_REASONS
        unclear = unclear or after.status.get("reason") == "DeadlineExceeded"
        least += 0 if undelivered or unclear else charge
        most += 0 if undelivered else charge
        begun = None
    return least, most


def _retries(change: Logged) -> int:
    return int(change.status.get("retries", 0))
