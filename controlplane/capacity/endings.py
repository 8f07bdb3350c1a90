"""What the end of a worker's process means: the words of its Attempt, pure.

The node tells how the process ended, the row tells whether it had been ready and whether anybody had asked it to go;
here the two become phase, reason and message of the Attempt (API reference, Attempt `status`). Whether an end counts
against the Function is decided by its reason, in `capacity/rows.py`.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType


@dataclass(frozen=True, kw_only=True)
class WorkerEnd:
    """How a process ended, as its node or its workflow saw it. `outcome` is a word of the worker contract."""

    outcome: str
    exit_code: int | None = None
    signal: int | None = None
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class AttemptEnd:
    """What the Attempt says for good."""

    phase: str
    reason: str
    message: str
    exit_code: int | None = None
    signal: int | None = None


@dataclass(frozen=True, kw_only=True)
class Loss:
    """What the end of a worker means for the calls it held. `how` names the worker and is the subject of a
    sentence about them; `suspicious` tells that one of them may have ended it."""

    suspicious: bool
    how: str


_BY_ITSELF = frozenset({"Exited", "OutOfMemory", "Drained"})
"""A worker that was asked to go finishes its calls first: one that went with calls in its hands was ended by one."""
_SHUT_DOWN = frozenset({"Drained", "Killed"})
"""How workers end that nobody but their stopping node asked to go."""
_OUT_OF_MEMORY = "OutOfMemory"
_START_TIMED_OUT = "StartTimedOut"
_TIMED_OUT = "StartupTimeout"
_LEASE = "LeaseExpired"
_DRAINED_REASONS = MappingProxyType(
    {
        "Stopped": "Stopped",
        "FunctionDeleted": "Stopped",
        "Unfunded": "Unfunded",
        "MaxCostReached": "MaxCostReached",
    }
)
"""What the Attempt says of a worker that was asked to go; of any other reason that it was released."""


_TRIGGERS = MappingProxyType(
    {_TIMED_OUT: "StartupTimeout", "Unfunded": "Funding", "MaxCostReached": "Funding", "Stopped": "User"}
)
"""What interrupted a worker, by the reason of its Attempt. What it was lost to is told by how it ended."""


def attempt_end(end: WorkerEnd, *, was_ready: bool, drain_reason: str | None) -> AttemptEnd:
    """Phase, reason and message of an attempt whose process is gone."""
    told = {"exit_code": end.exit_code, "signal": end.signal}
    if _is_lost(end, drain_reason):
        message = end.message or "its node lost the worker"
        if drain_reason == _LEASE:
            message = "the worker sent no claim for the length of its lease"
        return AttemptEnd(phase="Failed", reason="NodeLost", message=message, **told)
    when = "" if was_ready else " before its first claim"
    if end.outcome == _OUT_OF_MEMORY:
        # Whoever had asked it to go: what it ran was too large, and the next one will meet the same limit.
        return AttemptEnd(phase="Failed", reason=_OUT_OF_MEMORY, message=_how(end) + when, **told)
    if drain_reason == _TIMED_OUT or (end.outcome == _START_TIMED_OUT and drain_reason is None):
        message = "the worker did not take calls in the time it had"
        return AttemptEnd(phase="Failed", reason=_TIMED_OUT, message=message, **told)
    if drain_reason is not None:
        reason = _DRAINED_REASONS.get(drain_reason, "Released")
        return AttemptEnd(phase="Cancelled", reason=reason, message=f"let go: {drain_reason}", **told)
    if end.outcome == "NotStarted":
        return AttemptEnd(phase="Failed", reason="StartFailed", message=end.message or "it was not started", **told)
    if end.outcome in _SHUT_DOWN:
        return AttemptEnd(phase="Cancelled", reason="Released", message="its node shut down", **told)
    if end.outcome == "Exited" and end.exit_code == 0 and was_ready:
        return AttemptEnd(phase="Succeeded", reason="Exited", message="the worker ended by itself", **told)
    return AttemptEnd(phase="Failed", reason="CustomerExit", message=_how(end) + when, **told)


def interruption_trigger(end: WorkerEnd, told: AttemptEnd, *, was_ready: bool, drain_reason: str | None) -> str | None:
    """What interrupted the worker; None for one that ended by itself or was let go because nobody needed it."""
    if told.reason == "NodeLost":
        if end.outcome == "NodeRestarted":
            return "ProviderEvidence"
        return "ReadinessFailed" if end.outcome == "PlatformAway" and not was_ready else "HeartbeatLoss"
    if end.outcome in _SHUT_DOWN and drain_reason is None:
        # Its node said that it would go, and gave it time to.
        return "PreemptionNotice"
    return _TRIGGERS.get(told.reason)


def worker_loss(end: WorkerEnd, drain_reason: str | None) -> Loss:
    """What to hold against the calls of a worker that is gone.

    A process that died while its node lived, and one that fell silent until its node killed it, may have been brought
    down by what it ran. A node that vanished or stopped, and an API that did not answer, say nothing about the calls.
    """
    if end.outcome == "Killed" and drain_reason == _LEASE:
        return Loss(suspicious=True, how="its worker sent no claim for the length of its lease and was killed")
    if end.outcome in _BY_ITSELF:
        return Loss(suspicious=True, how=_how(end).replace("the worker", "its worker", 1))
    return Loss(suspicious=False, how="its worker was lost")


def outlived(
    deadline: datetime, *, end: WorkerEnd, drain_reason: str | None, kill_at: datetime | None, grace_seconds: int
) -> bool:
    """Whether a worker that told no end of a call was still there when its kill was ordered, past the call's deadline
    and the grace in which the end might have been told.

    Who had said nothing for its lease has had longer than a grace. A worker of which nobody saw the end may have died
    before the deadline, so it is not taken for late.
    """
    if end.outcome not in _SHUT_DOWN or kill_at is None:
        return False
    grace = timedelta(0) if drain_reason == _LEASE else timedelta(seconds=grace_seconds)
    return deadline + grace <= kill_at


def is_platforms_fault(end: WorkerEnd, drain_reason: str | None) -> bool:
    """Whether the platform ended a worker that nobody had asked to go, so that it pays for its start and its stop."""
    if end.outcome in _SHUT_DOWN and drain_reason is None:
        return True
    return _is_lost(end, drain_reason) and not worker_loss(end, drain_reason).suspicious


def _is_lost(end: WorkerEnd, drain_reason: str | None) -> bool:
    """Whether the platform lost the worker. It says nothing about the Function then, however late the worker was."""
    if end.outcome == "PlatformAway":
        # A worker that nobody wanted any more was not missed.
        return drain_reason in (None, _TIMED_OUT, _LEASE)
    return end.outcome in ("NodeLost", "NodeRestarted") or drain_reason == _LEASE


def _how(end: WorkerEnd) -> str:
    if end.outcome == "OutOfMemory":
        return "the worker needed more memory than `spec.resources.memory` grants and was ended"
    if end.signal is not None:
        return f"the worker was ended by signal {end.signal}{_signal_name(end.signal)}"
    if end.exit_code is not None:
        return f"the worker exited with code {end.exit_code}"
    return end.message or "the worker ended"


def _signal_name(number: int) -> str:
    try:
        return f" ({signal.Signals(number).name})"
    except ValueError:
        return ""
