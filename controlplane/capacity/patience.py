"""How long the calls of a Function wait for a worker before they fail, and from when, pure.

`placement.queueTimeout` is about capacity. While a Function is stopped, or its workers do not start, room is not what
its calls lack, so that time is no part of the wait: it begins anew when the Ready condition turns. The sweeper fails
whoever has waited too long (`activities/sweeper.py`, `EndUnserved` in `calls/recovery.py`).
"""

from __future__ import annotations

from datetime import datetime, timedelta

from controlplane.clock import parse_time
from controlplane.machinery.quantities import parse_duration
from controlplane.store.contract import Document

_LACKS_NO_ROOM = frozenset({"Stopped", "StartupFailed"})


def queue_patience(function: Document) -> timedelta | None:
    """The longest wait; None when calls of this Function wait for ever."""
    spec = function["spec"]
    timeout = spec.get("placement", {}).get("queueTimeout")
    seconds = parse_duration(timeout) if timeout is not None else 0.0
    return timedelta(seconds=seconds) if seconds > 0 and spec.get("state") != "Stopped" else None


def waits_since(function: Document, now: datetime) -> datetime:
    """The moment before which no wait counts: `now` when nobody waits for room, or nothing is known yet."""
    for condition in function["status"].get("conditions", []):
        if condition["type"] == "Ready":
            counts = condition["status"] == "True" or condition.get("reason") not in _LACKS_NO_ROOM
            return parse_time(condition["lastTransitionTime"]) if counts else now
    return now
