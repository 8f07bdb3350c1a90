"""What the projects on a host miss, as the last looks at their Functions found it, and what follows for this round.

The autoscaler notes each Function's missing workers as it looks and asks here how many places the Function may fill and
whether its project gives some back; the rule is `controlplane/capacity/shares.py`. All of it may be lost: a controller
that begins anew learns it again from the first looks, and what is not confirmed for a while is forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.capacity.rows import NodeLoad
from controlplane.capacity.shares import ProjectLoad, given_back, granted
from controlplane.limits.worker_quotas import project_key
from controlplane.store.contract import Key


@dataclass
class Round:
    """The places of one round of looks: what is taken in it is no longer there."""

    grants: dict[str, int]
    returns: dict[str, int]
    is_short: bool
    """More places are missing than are free."""

    def take(self, project: str, *, started: int, drained: int) -> None:
        """Note what one Function's plan did."""
        self.grants[project] = max(0, self.grants.get(project, 0) - started)
        self.returns[project] = max(0, self.returns.get(project, 0) - drained)


class HostShares:
    """The memory of one process; times are of the event loop's clock."""

    def __init__(self, workers_max: int, grace_seconds: float, remembered_seconds: float) -> None:
        self._workers_max = workers_max
        self._grace_seconds = grace_seconds
        self._remembered_seconds = remembered_seconds
        self._missing: dict[Key, tuple[int, float]] = {}
        self._over_quota: dict[Key, float] = {}
        self._unfair_since: float | None = None

    def note(self, function: Key, missing: int, at: float, *, lacks_quota: bool = False) -> None:
        """A Function could use so many workers more, whatever room there is; perhaps even more but for a quota."""
        self._missing.pop(function, None)
        self._over_quota.pop(function, None)
        if missing:
            self._missing[function] = (missing, at)
        if lacks_quota:
            self._over_quota[function] = at

    def is_over_quota(self, org: str) -> bool:
        """Whether workers that idle in the organisation keep a place within a quota that others wait for."""
        return any(key.org == org for key in self._over_quota)

    def round(self, node: NodeLoad, at: float) -> Round:
        """What the places of the node are for now."""
        before = at - self._remembered_seconds
        self._missing = {key: noted for key, noted in self._missing.items() if noted[1] > before}
        self._over_quota = {key: noted_at for key, noted_at in self._over_quota.items() if noted_at > before}
        missing: dict[str, int] = {}
        for key, (count, _) in self._missing.items():
            project = project_key(key.org, key.project)
            missing[project] = missing.get(project, 0) + count
        loads = {
            project: ProjectLoad(workers=node.staying.get(project, 0), missing=missing.get(project, 0))
            for project in {*node.staying, *missing}
        }
        free = max(0, self._workers_max - node.live)
        returns = given_back(free + node.leaving, loads)
        if not returns:
            self._unfair_since = None
        elif self._unfair_since is None:
            self._unfair_since = at
        is_due = self._unfair_since is not None and at >= self._unfair_since + self._grace_seconds
        return Round(granted(free, loads), returns if is_due else {}, sum(missing.values()) > free)
