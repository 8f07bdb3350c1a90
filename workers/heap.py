"""How a process of the server looks for garbage: rarely, and never among what it keeps for good.

Reference counts free nearly everything at once; the collector is there for the few cycles. With Python's defaults it
ran after every few requests, took a twelfth of an API process's time under load, and at times walked through every
object of every library, which stopped all clients of the process for 50 ms.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

YOUNG_OBJECTS = 20_000
"""Objects made and not freed before the collector looks at the young ones. A page of 500 holds some 2,000 for a
moment, so one list does not cause a look. What waits in cycles meanwhile is some megabytes at most."""


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Import in here what a process runs.

    Libraries make hundreds of thousands of objects that stay for good. Looking for garbage among them would be a
    seventh of a start, and part of every later collection.
    """
    gc.disable()
    try:
        yield
    finally:
        keep()
        gc.set_threshold(YOUNG_OBJECTS)
        gc.enable()


def keep() -> None:
    """Take everything that is alive now for permanent: no later collection looks at it."""
    gc.freeze()
