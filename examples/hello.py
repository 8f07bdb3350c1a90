"""A tour of Functions in one file. Run it with `nodus run examples/hello.py`.

Every function below the App runs in a worker of the server; `main` runs here and calls them.
"""

from __future__ import annotations

import time

import nodus

app = nodus.App("hello", description="a tour of Functions")


@app.function(max_workers=2, timeout="60s")
def square(x: int) -> int:
    return x * x


@app.function(timeout="60s")
def greet(name: str) -> str:
    print(f"greeting {name}, in the worker")
    return f"hello, {name}"


@app.function(timeout="60s")
def parse(text: str) -> int:
    return int(text)


@app.function(timeout="60s")
def megabyte() -> bytes:
    return b"x" * 1_000_000


@app.cls(timeout="60s")
class Counter:
    """One object a worker: `enter` runs before its first call, `exit` when the worker goes."""

    @nodus.enter()
    def open(self) -> None:
        self.total = 100
        print("counter opened, in the worker")

    @nodus.method()
    def add(self, amount: int) -> int:
        self.total += amount
        return self.total

    @nodus.exit()
    def close(self) -> None:
        print("counter closed, in the worker")


def step(title: str) -> None:
    print(f"\n{title}", flush=True)


@app.local_entrypoint()
def main() -> None:
    step("remote: one call, and its result")
    print("  ", greet.remote("world"))

    step("spawn: start now, collect later")
    calls = [greet.spawn(name) for name in ("Ada", "Grace")]
    print("  ", ", ".join(call.get(timeout=60) for call in calls))

    step("map: 100 inputs, results in order")
    begun = time.monotonic()
    squares = list(square.map(range(100)))
    assert squares == [x * x for x in range(100)]
    print(f"   {squares[:5]} … {squares[-1]} in {time.monotonic() - begun:.1f} s")

    step("an exception arrives as its own type, with the remote traceback")
    try:
        parse.remote("twelve")
    except ValueError as error:
        print("  ", f"ValueError: {error}")
        told = str(error.__cause__).rstrip()
        for line in told[told.rindex("  File ") :].splitlines():
            print("  ", line)
    else:
        raise AssertionError("parse('twelve') must raise")

    step("a class keeps its state in the worker")
    counter = Counter()
    print("  ", counter.add.remote(5), counter.add.remote(7))

    step("a result of 1 MB travels as a blob")
    print("  ", f"{len(megabyte.remote()):,} bytes")
