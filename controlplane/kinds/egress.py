"""What `spec.network.egress` means: the policy that holds where none is named, and the hosts behind each preset.

The node's proxy (`runtime/egress/`) knows names and nothing of presets. It is told names from here with the lease, but
for presets of packages: where those come from only a node knows (`runtime/package_indexes.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from controlplane.machinery.documents import value_at
from controlplane.machinery.kind import Document

Policy = Literal["Deny", "AllowList", "Open"]
POLICY_DEFAULT: Policy = "Open"
"""For a Function that names none: the protocol's."""

PRESETS: Mapping[str, Sequence[str]] = {
    "python-packages": (),
    "huggingface": ("huggingface.co", "*.huggingface.co", "hf.co", "*.hf.co"),
    "github": ("github.com", "*.github.com", "*.githubusercontent.com"),
    "npm-packages": (),
}
"""Curated lists by name: where the clients of each service go, their downloads included. Those without are a node's."""


@dataclass(frozen=True, kw_only=True)
class EgressPolicy:
    """What a worker may reach: nothing, the names in `hosts` (exact or `*.suffix`), or any name.

    `presets` are those whose hosts the node adds.
    """

    policy: Policy
    hosts: Sequence[str] = ()
    presets: Sequence[str] = ()

    def to_json(self) -> Document:
        """As a node is told."""
        return {"policy": self.policy, "hosts": list(self.hosts), "presets": list(self.presets)}


def egress_policy(spec: Document) -> EgressPolicy:
    """What the spec of a Function allows."""
    egress = value_at(spec, "network.egress") or {}
    policy: Policy = egress.get("policy") or POLICY_DEFAULT
    if policy != "AllowList":
        return EgressPolicy(policy=policy)
    presets = list(dict.fromkeys(egress.get("presets") or ()))
    curated = [host for name in presets for host in PRESETS.get(name, ())]
    return EgressPolicy(
        policy=policy,
        hosts=list(dict.fromkeys([*(egress.get("allow") or ()), *curated])),
        presets=tuple(name for name in presets if not PRESETS.get(name)),
    )
