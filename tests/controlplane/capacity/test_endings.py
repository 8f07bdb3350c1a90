from __future__ import annotations

from typing import get_args

import pytest

from activities import run_worker_contract as words
from controlplane.capacity.endings import (
    WorkerEnd,
    attempt_end,
    interruption_trigger,
    is_platforms_fault,
    worker_loss,
)
from controlplane.kinds.attempt import InterruptionTrigger


@pytest.mark.parametrize(
    ("end", "was_ready", "drain_reason", "phase", "reason"),
    [
        (WorkerEnd(outcome=words.EXITED, exit_code=1), False, None, "Failed", "CustomerExit"),
        (WorkerEnd(outcome=words.EXITED, exit_code=0), False, None, "Failed", "CustomerExit"),
        (WorkerEnd(outcome=words.EXITED, exit_code=0), True, None, "Succeeded", "Exited"),
        (WorkerEnd(outcome=words.EXITED, exit_code=3), True, None, "Failed", "CustomerExit"),
        (WorkerEnd(outcome=words.EXITED, signal=11), True, None, "Failed", "CustomerExit"),
        (WorkerEnd(outcome=words.EXITED, signal=9), True, None, "Failed", "CustomerExit"),
        (WorkerEnd(outcome=words.EXITED, exit_code=137), True, None, "Failed", "CustomerExit"),
        (WorkerEnd(outcome=words.OUT_OF_MEMORY, signal=9), True, None, "Failed", "OutOfMemory"),
        (WorkerEnd(outcome=words.OUT_OF_MEMORY, signal=9), False, None, "Failed", "OutOfMemory"),
        (WorkerEnd(outcome=words.OUT_OF_MEMORY, signal=9), True, "Idle", "Failed", "OutOfMemory"),
        (WorkerEnd(outcome=words.START_TIMED_OUT, signal=9), False, None, "Failed", "StartupTimeout"),
        (WorkerEnd(outcome=words.START_TIMED_OUT, signal=9), False, "Stopped", "Cancelled", "Stopped"),
        (WorkerEnd(outcome=words.KILLED, signal=9), True, None, "Cancelled", "Released"),
        (WorkerEnd(outcome=words.KILLED, signal=9), False, None, "Cancelled", "Released"),
        (WorkerEnd(outcome=words.NOT_STARTED), False, None, "Failed", "StartFailed"),
        (WorkerEnd(outcome=words.NOT_STARTED), False, "Idle", "Cancelled", "Released"),
        (WorkerEnd(outcome=words.DRAINED, exit_code=0), True, "Idle", "Cancelled", "Released"),
        (WorkerEnd(outcome=words.DRAINED, exit_code=0), True, "Stopped", "Cancelled", "Stopped"),
        (WorkerEnd(outcome=words.DRAINED, exit_code=0), True, "FunctionDeleted", "Cancelled", "Stopped"),
        (WorkerEnd(outcome=words.DRAINED, exit_code=0), True, None, "Cancelled", "Released"),
        (WorkerEnd(outcome=words.KILLED, signal=9), True, "DeadlineExceeded", "Cancelled", "Released"),
        (WorkerEnd(outcome=words.KILLED, signal=9), False, "StartupTimeout", "Failed", "StartupTimeout"),
        (WorkerEnd(outcome=words.KILLED, signal=9), True, "LeaseExpired", "Failed", "NodeLost"),
        (WorkerEnd(outcome=words.NODE_LOST), True, None, "Failed", "NodeLost"),
        (WorkerEnd(outcome=words.NODE_LOST), True, "Idle", "Failed", "NodeLost"),
        (WorkerEnd(outcome=words.NODE_RESTARTED), True, None, "Failed", "NodeLost"),
        (WorkerEnd(outcome=words.NODE_LOST), False, "StartupTimeout", "Failed", "NodeLost"),
        (WorkerEnd(outcome=words.NOT_STARTED), False, "StartupTimeout", "Failed", "StartupTimeout"),
        (WorkerEnd(outcome=words.PLATFORM_AWAY), False, None, "Failed", "NodeLost"),
        (WorkerEnd(outcome=words.PLATFORM_AWAY), False, "StartupTimeout", "Failed", "NodeLost"),
        (WorkerEnd(outcome=words.PLATFORM_AWAY, exit_code=1), True, None, "Failed", "NodeLost"),
        (WorkerEnd(outcome=words.PLATFORM_AWAY), False, "Idle", "Cancelled", "Released"),
        (WorkerEnd(outcome=words.PLATFORM_AWAY), False, "FunctionDeleted", "Cancelled", "Stopped"),
    ],
)
def test_every_end_has_its_words(
    end: WorkerEnd, was_ready: bool, drain_reason: str | None, phase: str, reason: str
) -> None:
    told = attempt_end(end, was_ready=was_ready, drain_reason=drain_reason)
    assert (told.phase, told.reason) == (phase, reason)
    assert told.message
    assert (told.exit_code, told.signal) == (end.exit_code, end.signal)


@pytest.mark.parametrize(
    ("outcome", "was_ready", "drain_reason", "trigger"),
    [
        (words.NODE_LOST, True, None, "HeartbeatLoss"),
        (words.KILLED, True, "LeaseExpired", "HeartbeatLoss"),
        (words.NODE_RESTARTED, True, None, "ProviderEvidence"),
        (words.PLATFORM_AWAY, False, None, "ReadinessFailed"),
        (words.PLATFORM_AWAY, True, None, "HeartbeatLoss"),
        (words.START_TIMED_OUT, False, None, "StartupTimeout"),
        (words.KILLED, False, "StartupTimeout", "StartupTimeout"),
        (words.DRAINED, True, "Unfunded", "Funding"),
        (words.KILLED, True, "MaxCostReached", "Funding"),
        (words.DRAINED, True, "Stopped", "User"),
        (words.KILLED, True, "FunctionDeleted", "User"),
        (words.DRAINED, True, None, "PreemptionNotice"),
        (words.KILLED, True, None, "PreemptionNotice"),
        (words.DRAINED, True, "Idle", None),
        (words.KILLED, True, "DeadlineExceeded", None),
        (words.EXITED, True, None, None),
        (words.OUT_OF_MEMORY, True, None, None),
        (words.NOT_STARTED, False, None, None),
    ],
)
def test_a_worker_that_was_interrupted_says_by_what(
    outcome: str, was_ready: bool, drain_reason: str | None, trigger: str | None
) -> None:
    end = WorkerEnd(outcome=outcome)
    told = attempt_end(end, was_ready=was_ready, drain_reason=drain_reason)
    assert interruption_trigger(end, told, was_ready=was_ready, drain_reason=drain_reason) == trigger
    assert trigger in (None, *get_args(InterruptionTrigger))


@pytest.mark.parametrize(
    ("end", "drain_reason", "suspicious", "told"),
    [
        (WorkerEnd(outcome=words.EXITED, exit_code=1), None, True, "exited with code 1"),
        (WorkerEnd(outcome=words.EXITED, exit_code=0), None, True, "exited with code 0"),
        (WorkerEnd(outcome=words.EXITED, signal=11), None, True, "signal 11 (SIGSEGV)"),
        (WorkerEnd(outcome=words.EXITED, signal=63), None, True, "signal 63"),
        (WorkerEnd(outcome=words.OUT_OF_MEMORY, signal=9), None, True, "more memory than `spec.resources.memory`"),
        (WorkerEnd(outcome=words.DRAINED, signal=11), "Idle", True, "signal 11"),
        (WorkerEnd(outcome=words.KILLED, signal=9), "LeaseExpired", True, "no claim for the length of its lease"),
        (WorkerEnd(outcome=words.KILLED, signal=9), "FunctionDeleted", False, "was lost"),
        (WorkerEnd(outcome=words.KILLED, signal=9), None, False, "was lost"),
        (WorkerEnd(outcome=words.NODE_LOST), None, False, "was lost"),
        (WorkerEnd(outcome=words.NODE_LOST), "LeaseExpired", False, "was lost"),
        (WorkerEnd(outcome=words.NODE_RESTARTED), None, False, "was lost"),
        (WorkerEnd(outcome=words.PLATFORM_AWAY, exit_code=1), None, False, "was lost"),
        (WorkerEnd(outcome=words.NOT_STARTED), None, False, "was lost"),
    ],
)
def test_only_an_end_that_a_call_may_have_caused_is_held_against_calls(
    end: WorkerEnd, drain_reason: str | None, suspicious: bool, told: str
) -> None:
    loss = worker_loss(end, drain_reason)
    assert loss.suspicious is suspicious
    assert loss.how.startswith("its worker ")
    assert told in loss.how


@pytest.mark.parametrize(
    ("outcome", "drain_reason", "at_fault"),
    [
        (words.NODE_LOST, None, True),
        (words.NODE_RESTARTED, "Idle", True),
        (words.PLATFORM_AWAY, None, True),
        (words.PLATFORM_AWAY, "Idle", False),
        (words.DRAINED, None, True),
        (words.KILLED, None, True),
        (words.DRAINED, "Idle", False),
        (words.DRAINED, "Unfunded", False),
        (words.KILLED, "DeadlineExceeded", False),
        (words.KILLED, "LeaseExpired", False),
        (words.NODE_LOST, "LeaseExpired", True),
        (words.EXITED, None, False),
        (words.OUT_OF_MEMORY, None, False),
        (words.START_TIMED_OUT, None, False),
        (words.NOT_STARTED, None, False),
    ],
)
def test_the_platform_pays_for_starts_of_workers_that_it_ended_itself(
    outcome: str, drain_reason: str | None, at_fault: bool
) -> None:
    assert is_platforms_fault(WorkerEnd(outcome=outcome), drain_reason) is at_fault


def test_a_worker_that_cannot_be_paid_says_so_in_its_attempt() -> None:
    told = attempt_end(WorkerEnd(outcome=words.DRAINED, exit_code=0), was_ready=True, drain_reason="Unfunded")
    assert (told.phase, told.reason, told.message) == ("Cancelled", "Unfunded", "let go: Unfunded")
