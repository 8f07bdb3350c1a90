"""The wait for capacity counts from when a Function could have had a worker."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from controlplane.capacity.patience import queue_patience, waits_since

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


def function(timeout: str = "600s", state: str = "Running", **ready: str) -> dict[str, Any]:
    conditions = [{"type": "Ready", "lastTransitionTime": "2026-11-29T09:00:00Z", **ready}] if ready else []
    spec = {"state": state, "placement": {"queueTimeout": timeout}}
    return {"spec": spec, "status": {"conditions": conditions}}


@pytest.mark.parametrize(
    ("stored", "seconds"),
    [(function(), 600), (function("0s"), None), (function(state="Stopped"), None)],
)
def test_patience_is_the_queue_timeout_and_a_stopped_function_has_no_end_of_it(
    stored: dict[str, Any], seconds: int | None
) -> None:
    assert queue_patience(stored) == (None if seconds is None else timedelta(seconds=seconds))


@pytest.mark.parametrize(
    ("stored", "hours_ago"),
    [
        (function(status="True", reason="ScaledToZero"), 3),
        (function(status="False", reason="Starting"), 3),
        (function(status="False", reason="Stopped"), 0),
        (function(status="False", reason="StartupFailed"), 0),
        (function(), 0),
    ],
)
def test_only_a_function_that_lacks_room_lets_the_wait_count(stored: dict[str, Any], hours_ago: int) -> None:
    assert waits_since(stored, NOW) == NOW - timedelta(hours=hours_ago)
