from __future__ import annotations

import pytest

from activities import run_worker_contract as words
from controlplane.capacity.endings import WorkerEnd, attempt_end


@pytest.mark.parametrize(
    ("end", "was_ready", "drain_reason", "phase", "reason"),
    [
        (WorkerEnd(outcome=words.EXITED, exit_code=1), False, None, "Failed", "CustomerExit"),
        (WorkerEnd(outcome=words.EXITED, exit_code=0), False, None, "Failed", "CustomerExit"),
        (WorkerEnd(outcome=words.EXITED, exit_code=0), True, None, "Succeeded", "Exited"),
        (WorkerEnd(outcome=words.EXITED, exit_code=3), True, None, "Failed", "CustomerExit"),
        (WorkerEnd(outcome=words.EXITED, signal=11), True, None, "Failed", "CustomerExit"),
        (WorkerEnd(outcome=words.OUT_OF_MEMORY, signal=9), True, None, "Failed", "CustomerExit"),
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
