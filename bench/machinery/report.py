"""What a measurement found: figures with their bounds, printed one a line and written as JSON.

Wall-clock figures depend on the machine and on who else uses it, so each line has its floor or its CPU time beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured number. `bound` is what it must stay under; `floor` what the least possible work took."""

    name: str
    value: float
    unit: str
    bound: float | None = None
    floor: float | None = None
    note: str = ""

    @property
    def met(self) -> bool:
        return self.bound is None or self.value < self.bound

    def line(self) -> str:
        words = [f"{self.name:<44} {self.value:>9.2f} {self.unit:<8}"]
        if self.bound is not None:
            words.append(f"{'met' if self.met else 'MISSED'}: must be < {self.bound:g}")
        if self.floor:
            words.append(f"floor {self.floor:.2f}, ratio {self.value / self.floor:.2f}")
        if self.note:
            words.append(self.note)
        return "  ".join(words)

    def as_json(self) -> dict[str, object]:
        return {**asdict(self), "met": self.met}


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that `percent` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
