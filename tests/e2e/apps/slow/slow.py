"""Calls that take as long as they are told."""

import time

import nodus

app = nodus.App("slow")


@app.function(timeout="120s", max_workers=4, scaledown_window="20m")
def nap(index: int, seconds: float) -> int:
    time.sleep(seconds)
    return index
