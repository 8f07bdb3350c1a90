"""What a node of isolation level none cannot keep, and so refuses by name.

Without a sandbox a worker has the network and the files of its host. A Function that asks for less than the network, or
for files of its own, is told so before anything of it starts; everything else runs as in a sandbox (`plain.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from runtime import sandbox
from runtime.plans import WorkerPlan

_HERE = "this node runs workers without a sandbox (isolation level none)"


class UnwalledError(Exception):
    """A demand that needs walls; the message names it, what is missing, and what to do."""


def _asks_for_elsewhere(plan: WorkerPlan) -> bool:
    directory = Path(plan.directory or "")
    return directory.is_absolute() and not directory.is_relative_to(sandbox.WORKSPACE)


_DEMANDS: tuple[tuple[Callable[[WorkerPlan], bool], str], ...] = (
    (
        lambda plan: plan.egress.policy != "Open",
        "the policy of `spec.network.egress` cannot be kept: it needs a network namespace, and {here}, on the network "
        "of its host. Give the node a sandbox, or set `spec.network.egress.policy` to Open",
    ),
    (
        lambda plan: plan.image is not None,
        "an Image with steps cannot be used: its files need a mount namespace, and {here}. Give the node a sandbox, or "
        "install what the Function needs in its code",
    ),
    (
        _asks_for_elsewhere,
        "`spec.workingDir` cannot be had: a folder outside /workspace needs a mount namespace, and {here}. Name a "
        "folder below /workspace, or a relative one",
    ),
)


def admitted(plan: WorkerPlan, *, free_bytes: int) -> WorkerPlan:
    """The plan as such a node carries it out: straight to the network, on the disk, which has `free_bytes` left.

    Raises UnwalledError.
    """
    for asked, refusal in _DEMANDS:
        if asked(plan):
            raise UnwalledError(refusal.format(here=_HERE))
    if plan.disk_bytes_least is not None and plan.disk_bytes_least > free_bytes:
        raise UnwalledError(
            f"`spec.resources.disk` asks for {plan.disk_bytes_least >> 20} MiB, and the disk of this node has "
            f"{free_bytes >> 20} MiB left: ask for less, or make room"
        )
    return replace(plan, egress=replace(plan.egress, direct=True), disk_bytes_least=None)
