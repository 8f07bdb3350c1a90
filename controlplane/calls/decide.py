"""What happens to a call after one dispatch of it: the one rule, pure.

`decide` is asked twice with the same facts: by the transaction that records an outcome (`calls/outcomes.py`), which
applies an end at once, and by the call's workflow (`workflows/decisions.py`), which waits out a backoff or offers
the call again. Both must agree and a replay must repeat the answer, so nothing here reads a clock, a setting or
anything but its argument, and only the standard library is imported. Facts travel through Temporal and hold no user
payload.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any


class Cause(StrEnum):
    """How a dispatch ended."""

    SUCCEEDED = "succeeded"
    RAISED = "raised"
    """The function raised; the only cause that uses the caller's retries."""
    DEADLINE = "deadline"
    """The worker stopped it at its deadline, or the deadline and its grace passed in silence."""
    CANCELLED = "cancelled"
    """The worker stopped it because a cancel was asked for, or it can no longer do so."""
    LOST = "lost"
    """The worker died or vanished; uses the recoveries of the call, never the retries."""
    BAD_RESULT = "badResult"
    """The worker reported a result the server cannot keep; `Facts.reason` says why."""
    UNSERIALIZABLE = "unserializable"
    """The worker could not read the arguments or write the result. The function raised nothing, and running it again
    would meet the same, so it uses no retry."""
    UNSERVED = "unserved"
    """No worker took it in the time its Function waits for one; `Facts.detail` says so."""
    FUNCTION_DELETED = "functionDeleted"


@dataclass(frozen=True, kw_only=True)
class Facts:
    """All that a decision may depend on, as of the end of one dispatch."""

    call_uid: str
    cause: Cause
    dispatch: int
    """Which dispatch ended, from 1; 0 for a call that never ran. Fences what the workflow answers."""
    cancel_requested: bool = False
    retries: int = 0
    """Retries used before this outcome."""
    retries_max: int = 0
    initial_delay_seconds: float = 1.0
    backoff_coefficient: float = 2.0
    max_delay_seconds: float = 60.0
    jitter_fraction: float = 0.0
    """By how much of itself a delay may be lengthened, so that calls which failed together do not return together."""
    recoveries: int = 0
    """Recoveries used before this outcome."""
    recoveries_max: int = 3
    excused: bool = False
    """One of those recoveries does not count: nobody knows which of the calls on that worker ended it."""
    unproven: bool = False
    """The same about this loss, which therefore does not count either; a call has at most one of the two."""
    fail_on_loss: bool = False
    """`spec.recovery.onInterruption: Fail`: the first loss ends the call."""
    reason: str = ""
    detail: str = ""

    def to_json(self) -> dict[str, Any]:
        """The facts as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Facts:
        """The facts back from `to_json`; names a newer server added are ignored."""
        known = {field.name for field in fields(cls)}
        kept = {name: part for name, part in value.items() if name in known}
        return cls(**{**kept, "cause": Cause(kept["cause"])})


@dataclass(frozen=True, kw_only=True)
class Finish:
    """The call ends. `message` is empty when only the outcome itself can word it (an exception)."""

    phase: str
    reason: str = ""
    message: str = ""


@dataclass(frozen=True)
class Retry:
    """Offer the call again after this many seconds; counts one retry."""

    delay_seconds: float


@dataclass(frozen=True)
class Recover:
    """Offer the call again at once, at the head of its session; counts one recovery."""


Decision = Finish | Retry | Recover


def decide(facts: Facts) -> Decision:
    """What follows from one dispatch's end. A cancel that was asked for wins over everything, even a result."""
    if facts.cancel_requested or facts.cause is Cause.CANCELLED:
        return Finish(phase="Cancelled", reason="Cancelled", message="the call was cancelled")
    match facts.cause:
        case Cause.SUCCEEDED:
            return Finish(phase="Succeeded")
        case Cause.RAISED:
            if facts.retries < facts.retries_max:
                return Retry(retry_delay_seconds(facts))
            return Finish(phase="Failed", reason="RemoteError")
        case Cause.DEADLINE:
            return Finish(phase="Failed", reason="DeadlineExceeded", message="the call ran longer than its timeout")
        case Cause.LOST:
            return _after_loss(facts)
        case Cause.UNSERIALIZABLE:
            return Finish(phase="Failed", reason="RemoteError")
        case Cause.UNSERVED:
            return Finish(phase="Failed", reason="CapacityUnavailable", message=facts.detail)
        case Cause.BAD_RESULT:
            return Finish(phase="Failed", reason=facts.reason, message=facts.detail)
        case Cause.FUNCTION_DELETED:
            return Finish(phase="Failed", reason="FunctionDeleted", message="the Function was deleted")


def retry_delay_seconds(facts: Facts) -> float:
    """The pause before the next retry: min(maxDelay, initialDelay x coefficient^(n-1)), which it is never shorter
    than, and the call's jitter.

    The jitter comes from the uid and the retry's number, so that every replay of the workflow computes the same.
    """
    delay = min(facts.max_delay_seconds, facts.initial_delay_seconds * facts.backoff_coefficient**facts.retries)
    digest = hashlib.sha256(f"{facts.call_uid}/{facts.retries + 1}".encode()).digest()
    share = int.from_bytes(digest[:4]) / 2**32
    return delay * (1.0 + facts.jitter_fraction * share)


def _after_loss(facts: Facts) -> Decision:
    lost = facts.detail or "its worker was lost"
    if facts.fail_on_loss:
        return Finish(
            phase="Failed",
            reason="RecoveryLimitExceeded",
            message=f"{lost}, and `recovery.onInterruption` of its Function is Fail",
        )
    counted = facts.recoveries - facts.excused
    if facts.unproven or counted < facts.recoveries_max:
        return Recover()
    not_counted = ", one of which is not counted," if facts.excused else ""
    return Finish(
        phase="Failed",
        reason="RecoveryLimitExceeded",
        message=f"{lost}; the call had {facts.recoveries} recoveries before{not_counted} and `recovery.maxAttempts` "
        f"of its Function is {facts.recoveries_max}: look for the cause in the log of the call",
    )
