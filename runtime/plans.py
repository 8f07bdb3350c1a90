"""What a node is to run for an attempt, in its own words: the plan of a worker.

Whoever takes an attempt (`activities/run_worker.py`) makes the plan of its lease; `supervisor.py` carries it out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from runtime.egress.limits import EgressSettings
from runtime.egress.rules import EgressRules, Policy, allowed_hosts
from runtime.gpus import GpuRequest
from runtime.process import Command
from runtime.variables import WorkerIdentity


@dataclass(frozen=True, kw_only=True)
class EgressPlan:
    """What a worker may reach: nothing, the names in `hosts`, or any name. All of it passes the node's proxy, unless it
    is `direct`: without a sandbox there is nothing that would lead through one."""

    policy: Policy = "Deny"
    hosts: Sequence[str] = ()
    direct: bool = False

    @property
    def proxied(self) -> bool:
        """Whether there is a proxy to pass."""
        return self.policy != "Deny" and not self.direct

    def rules(self, settings: EgressSettings) -> EgressRules:
        """As the proxy applies it."""
        return EgressRules(
            policy=self.policy,
            hosts=allowed_hosts(self.hosts),
            ports=settings.ports,
            closed_ports=settings.closed_ports,
        )


@dataclass(frozen=True, kw_only=True)
class StartPlan:
    """What is started: `command`, or the public worker when it is empty; before it, `init_command`, if there is one."""

    command: Sequence[str] = ()
    init_command: Sequence[str] = ()
    init_seconds_max: int = 0

    def applied(self, command: Command) -> Command:
        """What init is told in place of the `command` of the public worker."""
        return replace(
            command,
            arguments=self.command or command.arguments,
            preparation=self.init_command,
            preparation_seconds_max=self.init_seconds_max,
        )


@dataclass(frozen=True, kw_only=True)
class SidecarPlan:
    """What runs beside a worker, in a sandbox of its own on the worker's network.

    `python` is a minor whose environment it has; None takes that of the worker, image and all.
    """

    name: str
    command: Sequence[str]
    variables: Sequence[tuple[str, str]] = ()
    python: str | None = None
    start_seconds_max: float = 60.0


@dataclass(frozen=True, kw_only=True)
class WorkerPlan:
    """What to run: whose calls, on which Python, with which credential and variables."""

    identity: WorkerIdentity
    python: str
    token: str
    variables: Sequence[tuple[str, str]] = ()
    directory: str | None = None
    image: str | None = None
    memory_bytes_max: int | None = None
    memory_bytes_least: int = 0
    disk_bytes_least: int | None = None
    egress: EgressPlan = EgressPlan()
    start: StartPlan = StartPlan()
    sidecars: Sequence[SidecarPlan] = ()
    gpus: GpuRequest | None = None
    cpus_least: float | None = None
    cpus_max: float | None = None
