"""What a measurement found: figures with their bounds, printed one a line and written as JSON.

Wall-clock figures depend on the machine and on who else uses it, so each has a floor beside it that was taken in the
same run: where the floor alone takes most of what is allowed, the machine was too busy to tell anything. CPU and memory
figures do not depend on that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

FLOOR_SHARE_MAX = 0.5


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured number. `bound` is what it must stay under; `floor` is what the least possible work took, at the
    same percentile."""

    name: str
    value: float
    unit: str
    bound: float | None = None
    floor: float | None = None
    note: str = ""

    @property
    def verdict(self) -> str:
        """`met`, `MISSED`, or `not told` when the floor shows that the machine was too busy; "" without a bound."""
        if self.bound is None:
            return ""
        if self.value < self.bound:
            return "met"
        return "not told" if self.floor is not None and self.floor > self.bound * FLOOR_SHARE_MAX else "MISSED"

    def line(self) -> str:
        words = [f"{self.name:<48} {self.value:>9.2f} {self.unit:<6}"]
        if self.bound is not None:
            words.append(f"{self.verdict}: must be < {self.bound:g}")
        if self.floor:
            words.append(f"floor {self.floor:.2f}, ratio {self.value / self.floor:.2f}")
        if self.note:
            words.append(self.note)
        return "  ".join(words)

    def as_json(self) -> dict[str, object]:
        return {**asdict(self), "verdict": self.verdict}


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that `percent` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
