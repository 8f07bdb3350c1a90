"""What a figure must be: printed beside it, and compared with it at the end of the run, which fails when it is missed.

A bound is printed nowhere else. The figures of `bench/machinery` have more to say and keep theirs in `report.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Bound:
    """The least or the most that a figure may be."""

    least: float | None = None
    most: float | None = None

    def __str__(self) -> str:
        return f"must be >= {self.least:g}" if self.least is not None else f"must be <= {self.most:g}"

    def met_by(self, value: float) -> bool:
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)


def missed(figures: Mapping[str, float], bounds: Mapping[str, Bound]) -> list[str]:
    """A sentence for each figure beyond its bound."""
    beyond = {name: bound for name, bound in bounds.items() if not bound.met_by(figures[name])}
    return [f"{name} is {figures[name]:.2f} and {bound}" for name, bound in beyond.items()]
