"""What one attempt may use of the way out. The settings are the node's (`egress_…` in `controlplane/settings.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

LOOKUP_THREADS = 64
"""Names looked up at once for all attempts; the resolver of libc blocks the thread that asks."""


@dataclass(frozen=True, kw_only=True)
class EgressLimits:
    """Bounds of one attempt's connections; sizes in bytes, times in seconds."""

    connections_max: int = 128
    head_bytes_max: int = 16_384
    head_seconds_max: float = 10.0
    connect_seconds_max: float = 15.0
    hello_seconds_max: float = 30.0
    idle_seconds_max: float = 900.0
    bytes_per_second_max: int = 128 << 20
    lookups_max: int = 4
    decisions_max: int = 100


@dataclass(frozen=True, kw_only=True)
class EgressSettings:
    """What a node is told of its way out.

    `ports` are those that an allow-list reaches, `closed_ports` those that Open does not. `opened` are ranges such as
    `10.20.0.0/16` that workers may reach although they are private. `closed_endpoints`, (host, port), are the server's
    own parts, which they may never. Names are looked up as `resolv_conf` says.
    """

    ports: frozenset[int] = frozenset({80, 443})
    closed_ports: frozenset[int] = frozenset({25})
    opened: Sequence[str] = ()
    closed_endpoints: Sequence[tuple[str, int]] = ()
    resolv_conf: Path = Path("/etc/resolv.conf")
    limits: EgressLimits = field(default_factory=EgressLimits)
