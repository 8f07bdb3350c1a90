"""Which worker gets which call of one look: the least loaded one with room, and a suspect a worker of its own, pure.

A suspect is a call that may have brought a worker down (docs/decisions/0013-suspects-run-alone.md). It takes a worker
that runs nothing, which takes nothing beside it. When every worker runs something, the least loaded of them is kept
from taking more: it is idle all the sooner, and a stream of other calls cannot put the suspect off for ever.
`calls/dispatcher.py` seats what `calls/fairness.py` picked; `calls/claims.py` closes the wishes of a worker that
already runs a suspect.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from controlplane.calls.wants import Want


class Seats:
    """The room that the wishes of one Function have left."""

    def __init__(self, wants: Iterable[Want]) -> None:
        free = [(want.load, position, want) for position, want in enumerate(wants) if want.room > 0]
        heapq.heapify(free)
        self._free = free

    def take(self) -> Want | None:
        """A place for a call that may share its worker; None when there is none."""
        if not self._free:
            return None
        load, position, want = self._free[0]
        if want.room > 1:
            heapq.heapreplace(self._free, (load + 1, position, want))
        else:
            heapq.heappop(self._free)
        return want

    def take_alone(self) -> Want | None:
        """An idle worker, all of it; None when there is none, and then the least loaded one takes no more either."""
        if not self._free:
            return None
        load, _, want = heapq.heappop(self._free)
        want.full = True
        return want if load == 0 else None
