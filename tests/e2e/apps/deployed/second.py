"""The second version: one member changed, one gone, one new."""

import nodus

app = nodus.App("shop")


@app.function(timeout="60s")
def kept(value: int) -> str:
    return f"second {value}"


@app.function(timeout="60s")
def added(value: int) -> int:
    return value
