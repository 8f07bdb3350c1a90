"""Pure decisions of workflows: what follows from a failure of the machinery around a call or a worker.

What follows from the end of a *dispatch* is `controlplane.calls.decide`, shared with the transaction that records it.
Here is what only workflows meet: an activity that never told what became of it. Everything here runs again on replay,
so it depends on its arguments alone.
"""

from __future__ import annotations

from datetime import timedelta

from temporalio.exceptions import ActivityError, ApplicationError, CancelledError, TimeoutError, TimeoutType

from activities.run_worker_contract import NODE_LOST, PLATFORM_AWAY, WorkerExit
from controlplane.calls.decide import Decision, Facts, Finish, Recover, Retry

REISSUE_DELAY_MIN = timedelta(milliseconds=500)
REISSUE_DELAY_MAX = timedelta(seconds=30)


def reissue_delay(failures: int) -> timedelta:
    """The pause before an activity that failed `failures` times in a row is scheduled again: doubling, then
    constant."""
    doublings = min(failures - 1, 16)
    return min(REISSUE_DELAY_MAX, REISSUE_DELAY_MIN * (1 << doublings))


def told_decision(facts: Facts, decision: Decision) -> str:
    """A decision about one dispatch and the facts it was made on, for people."""
    used = f"retries {facts.retries}/{facts.retries_max}, recoveries {facts.recoveries}/{facts.recoveries_max}"
    return f"dispatch {facts.dispatch} {facts.cause} ({used}): {_action(decision)}"


def _action(decision: Decision) -> str:
    match decision:
        case Finish(phase=phase, reason=reason):
            return f"end it as {phase}{f' ({reason})' if reason else ''}"
        case Retry(delay_seconds=delay):
            return f"retry in {delay:.1f} s"
        case Recover():
            return "offer it again at once"


def exit_of_silent_worker(error: ActivityError) -> WorkerExit:
    """What to take for a worker's end when its activity failed instead of telling it."""
    match error.cause:
        case CancelledError():
            return WorkerExit(outcome=PLATFORM_AWAY, message="the worker was drained before a node had started it")
        case TimeoutError(type=TimeoutType.SCHEDULE_TO_START):
            return WorkerExit(outcome=PLATFORM_AWAY, message="no node process took the worker; is the node running?")
        case TimeoutError(type=TimeoutType.HEARTBEAT):
            return WorkerExit(outcome=NODE_LOST, message="the node stopped sending heartbeats")
        case TimeoutError():
            return WorkerExit(outcome=NODE_LOST, message="the worker outlived the longest run of an attempt")
        case ApplicationError() as cause:
            return WorkerExit(outcome=NODE_LOST, message=f"the node could not tell what became of it: {cause.type}")
        case _:
            return WorkerExit(outcome=NODE_LOST, message="the node could not tell what became of the worker")
