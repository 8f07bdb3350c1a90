"""The first version of an App, with two members."""

import nodus

app = nodus.App("shop")


@app.function(timeout="60s")
def kept(value: int) -> str:
    return f"first {value}"


@app.function(timeout="60s")
def dropped(value: int) -> int:
    return value
