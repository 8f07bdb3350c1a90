"""What a worker starts with, as the spec of a Function says it: its command, what comes before it and what runs beside.

The node (`runtime/supervisor.py`) is told it with the lease; the sweeper asks how long a start may take.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.kinds.catalog import python_of
from controlplane.machinery.documents import value_at
from controlplane.machinery.kind import Document
from controlplane.machinery.quantities import parse_duration

INIT_TIMEOUT_DEFAULT = "5m"
"""For an `initCommand` that names none; what fetches a model takes minutes, what hangs should be told of."""
SIDECAR_TIMEOUT_DEFAULT = "1m"
"""For a sidecar that names none; what takes longer than its process to begin is its own affair."""


@dataclass(frozen=True, kw_only=True)
class SidecarStart:
    """A helper beside the worker. `python` is the minor of its image, None for the worker's own environment."""

    name: str
    command: Sequence[str]
    python: str | None
    seconds_max: int

    def to_json(self) -> Document:
        """As a node is told."""
        return {
            "name": self.name,
            "command": list(self.command),
            "python": self.python,
            "secondsMax": self.seconds_max,
        }


@dataclass(frozen=True, kw_only=True)
class WorkerStart:
    """`command` replaces the public worker; empty means that. `init_command` must end with 0 within its time, after
    each of `sidecars` has begun within its own."""

    command: Sequence[str]
    init_command: Sequence[str]
    init_seconds_max: int
    sidecars: Sequence[SidecarStart] = ()

    @property
    def before_seconds_max(self) -> int:
        """How long all of it may take that comes before the worker."""
        return self.init_seconds_max + sum(sidecar.seconds_max for sidecar in self.sidecars)

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
        sidecars=tuple(_sidecar(sidecar, spec) for sidecar in spec.get("sidecars") or ()),
    )


def _sidecar(told: Document, spec: Document) -> SidecarStart:
    image = told.get("image")
    return SidecarStart(
        name=told["name"],
        command=told["command"],
        python=(python_of(image) or spec["python"]) if image else None,
        seconds_max=math.ceil(parse_duration(told.get("startupTimeout") or SIDECAR_TIMEOUT_DEFAULT)),
    )
