"""Functions that raise what is hard to carry, take what they are given, and tell when they ran."""

import asyncio
import sys
import threading
import time
import types
import urllib.error

import nodus

app = nodus.App("quirks")


class TwoArgumentsError(Exception):
    def __init__(self, code, text):
        super().__init__(code, text)


class LockedError(Exception):
    def __init__(self):
        super().__init__("holds a lock")
        self.lock = threading.Lock()


class SpeechlessError(Exception):
    def __str__(self):
        raise RuntimeError("cannot say it")


def absent(text):
    """An exception of a module that only this process has."""
    module = types.ModuleType("only_here")
    exec("class Absent(Exception): pass", module.__dict__)
    sys.modules["only_here"] = module
    return module.Absent(text)


FAILURES = {
    "http": lambda: urllib.error.HTTPError("http://example.com", 418, "teapot", {}, None),
    "two": lambda: TwoArgumentsError(7, "seven"),
    "absent": lambda: absent("nowhere else"),
    "timeout": lambda: TimeoutError("too slow"),
    "cancelled": lambda: asyncio.CancelledError("stop"),
    "lock": LockedError,
    "stop": lambda: StopIteration("no more"),
    "interrupt": lambda: KeyboardInterrupt("by hand"),
    "speechless": SpeechlessError,
}


@app.function(timeout="20s", max_workers=1, scaledown_window="20m")
def fail(how):
    raise FAILURES[how]()


@app.function(timeout="20s", max_workers=1, scaledown_window="20m")
async def fail_later(how):
    await asyncio.sleep(0)
    raise FAILURES[how]()


@app.function(timeout="60s", max_workers=1, scaledown_window="20m")
def chain():
    try:
        raise KeyError("the cause")
    except KeyError as error:
        raise absent("the effect") from error


@app.function(timeout="120s", max_workers=2, scaledown_window="20m")
def echo(value):
    return value


@app.function(timeout="60s", max_workers=1, scaledown_window="20m")
def stamp(seconds):
    """When it began and when it ended."""
    began = time.monotonic()
    time.sleep(seconds)
    return began, time.monotonic()


@app.function(timeout="120s", max_workers=1, scaledown_window="20m")
def nested(count):
    return list(nodus.Function.from_name("quirks", "echo").map(range(count)))


@app.function(timeout="120s", max_workers=1, target_concurrency=16, scaledown_window="20m")
async def nothing():
    pass


@app.function(timeout="16s", max_workers=1, target_concurrency=16, scaledown_window="20m")
def crowd(seconds):
    time.sleep(seconds)
