"""What a worker starts with, as the spec of a Function says it: its command, and what must succeed before.

The node (`runtime/supervisor.py`) is told it with the lease; the sweeper asks how long a start may take.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.machinery.documents import value_at
from controlplane.machinery.kind import Document
from controlplane.machinery.quantities import parse_duration

INIT_TIMEOUT_DEFAULT = "5m"
"""For an `initCommand` that names none; what fetches a model takes minutes, what hangs should be told of."""


@dataclass(frozen=True, kw_only=True)
class WorkerStart:
    """`command` replaces the public worker; empty means that. `init_command` must end with 0 within its time."""

    command: Sequence[str]
    init_command: Sequence[str]
    init_seconds_max: int

    def to_json(self) -> Document:
        """As a node is told."""
        init = {"command": list(self.init_command), "secondsMax": self.init_seconds_max}
        return {"command": list(self.command), "initCommand": init}


def worker_start(spec: Document) -> WorkerStart:
    """How the workers of a Function start."""
    init = value_at(spec, "initCommand.command") or []
    timeout = value_at(spec, "initCommand.timeout") or INIT_TIMEOUT_DEFAULT
    command = spec.get("command") or []
    return WorkerStart(
        command=[*command, *(spec.get("args") or [])] if command else [],
        init_command=init,
        init_seconds_max=math.ceil(parse_duration(timeout)) if init else 0,
    )
