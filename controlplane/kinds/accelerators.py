"""Which accelerators this deployment offers to Functions.

What a host has, only its node knows; what a Function may ask for must be answered when it is written. So an operator
says what every node has (`accelerators_offered`), and whoever opens the store tells it here, once, at its start. What a
node then lacks all the same fails the start of the worker (`runtime/gpus.py`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from controlplane.machinery.kind import Document

_offered: tuple[frozenset[str], ...] = ()


def offer_accelerators(names: Sequence[str]) -> None:
    """Let Functions ask for these from now on, by family (`H100`) or by whole name (`NVIDIA H100 80GB HBM3`)."""
    global _offered
    _offered = tuple(_words(name) for name in names)


def are_offered(request: Document) -> bool:
    """Whether one of the types that a `gpu` names is among them: a whole name offers its families as well."""
    return any(_words(wanted) <= offered for wanted in request["type"] for offered in _offered)


def _words(name: str) -> frozenset[str]:
    return frozenset(re.split(r"[^a-z0-9]+", name.lower())) - {"", "nvidia"}
