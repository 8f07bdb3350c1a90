"""The app that is measured: a function that does nothing, written with the public SDK.

A worker takes eight calls at a time, as the floor's worker takes a hundred activities: whoever maps over short calls
would say so, and both sides are tuned alike.
"""

from __future__ import annotations

import nodus

app = nodus.App("bench")

WORKERS = 2


@app.function(min_workers=WORKERS, max_workers=WORKERS, target_concurrency=8, scaledown_window="20m", timeout="60s")
def noop(value: int) -> int:
    return value
