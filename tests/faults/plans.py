"""What calls of a fault run do, and how each kind of them may end, whatever happens to the system meanwhile."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of call. `ask` is what its client asks for while it runs: nothing, `cancel` or `delete`."""

    body: Mapping[str, Any]
    phases: frozenset[str]
    spec: Mapping[str, Any] = field(default_factory=dict)
    ask: str = ""
    once: bool = False
    """The body raises the first time it is run."""
    held: bool = False
    """The body goes on until the gate of its run is opened."""
    encoding: str = "Pickle"

    def input(self, marks: str, gate: str) -> dict[str, str]:
        """The payload that tells the worker what to do; `marks` is a folder for what a body must remember."""
        plan = {**self.body, **({"marks": marks} if self.once else {}), **({"gate": gate} if self.held else {})}
        told = {"kwargs": plan} if self.encoding == "JSON" else plan
        return {"encoding": self.encoding, "inline": base64.b64encode(json.dumps(told).encode()).decode()}


SUCCEEDED = frozenset({"Succeeded"})
STOPPED = frozenset({"Succeeded", "Cancelled"})

KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "succeed": Kind(body={"kind": "succeed", "seconds": 0.05}, phases=SUCCEEDED),
        "slow": Kind(body={"kind": "succeed", "seconds": 3}, phases=SUCCEEDED),
        "billed": Kind(body={"kind": "succeed", "seconds": 20, "reports": 5}, phases=SUCCEEDED),
        "json": Kind(body={"kind": "succeed"}, phases=SUCCEEDED, encoding="JSON"),
        "retry": Kind(body={"kind": "succeed"}, phases=SUCCEEDED, once=True),
        "blob": Kind(body={"kind": "succeed", "bytes": 100_000}, phases=SUCCEEDED),
        "held": Kind(body={"kind": "succeed"}, phases=SUCCEEDED, held=True),
        "raise": Kind(body={"kind": "raise"}, phases=frozenset({"Failed"})),
        "deadline": Kind(body={"kind": "succeed", "seconds": 60}, phases=frozenset({"Failed"}), spec={"timeout": "2s"}),
        "cancel": Kind(body={"kind": "succeed", "seconds": 1.5}, phases=STOPPED, ask="cancel"),
        "delete": Kind(body={"kind": "succeed", "seconds": 1.5}, phases=STOPPED, ask="delete"),
    }
)

FUNCTION: Mapping[str, Any] = MappingProxyType(
    {
        "code": {"module": "app", "qualname": "f"},
        "python": "3.11",
        "timeout": "120s",
        "scaling": {"maxWorkers": 4, "targetConcurrency": 3, "scaledownWindow": "60s"},
        "retries": {"maxRetries": 3, "initialDelay": "200ms", "maxDelay": "1s"},
        # As many as there can be faults: a call that ends for want of recoveries would hide what became of it.
        "recovery": {"maxAttempts": 20},
    }
)
"""The spec of the Functions that are called."""
