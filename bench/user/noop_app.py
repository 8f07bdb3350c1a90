"""The app that is measured: a function that does nothing, written with the public SDK."""

from __future__ import annotations

import nodus

app = nodus.App("bench")

WORKERS = 2


@app.function(min_workers=WORKERS, max_workers=WORKERS, scaledown_window="20m", timeout="60s")
def noop(value: int) -> int:
    return value
