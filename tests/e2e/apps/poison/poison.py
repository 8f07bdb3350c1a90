"""Calls that end the worker they run on, and calls that only share it with them."""

import ctypes
import os
import sys
import time

import nodus

app = nodus.App("poison")


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no message can be had")


def _raise() -> None:
    raise UnspeakableError


POISONS = {
    "exit": lambda: os._exit(1),
    "sys.exit": lambda: sys.exit(3),
    "segfault": lambda: ctypes.string_at(0),
    "unspeakable": _raise,
}


@app.function(timeout="300s", max_workers=2, target_concurrency=4, scaledown_window="20m")
def shared(kind: str) -> str:
    if kind == "innocent":
        time.sleep(3)
        return kind
    time.sleep(1)  # the innocents run by now
    POISONS[kind]()
    return "survived"


@app.function(timeout="300s", max_workers=3, scaledown_window="20m")
def alone(kind: str) -> str:
    POISONS[kind]()
    return "survived"
