"""A program that makes one call and ends."""

import nodus

app = nodus.App("once")


@app.function()
def half(x: float) -> float:
    return x / 2


@app.local_entrypoint()
def main():
    print("a half:", half.remote(5), flush=True)
