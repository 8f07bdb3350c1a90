"""What the sweeper is made of: things to do every so often, whoever brings them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Chore:
    """Something to do every so often."""

    name: str
    every_seconds: float
    do: Callable[[], Awaitable[None]]


class Keeper(Protocol):
    """Who brings chores of a matter of its own."""

    @property
    def chores(self) -> Sequence[Chore]: ...
