"""What the sweeper is made of: things to do every so often, whoever brings them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Chore:
    """Something to do every so often."""

    name: str
    every_seconds: float
    do: Callable[[], Awaitable[None]]
