"""A thread that writes to a tree is waited for, also by who was cancelled: next, the tree is removed."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from runtime import trees

SECONDS_MAX = 30


async def test_a_tree_is_not_left_while_a_thread_still_writes_to_it(tmp_path: Path) -> None:
    began, go_on = threading.Event(), threading.Event()

    def write(name: str) -> None:
        began.set()
        assert go_on.wait(SECONDS_MAX)
        (tmp_path / name).write_text("late")

    writing = asyncio.create_task(trees.to_end(write, "file"))
    assert await asyncio.to_thread(began.wait, SECONDS_MAX)
    for _ in range(2):
        writing.cancel()
        await asyncio.sleep(0)
    assert not writing.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert (tmp_path / "file").read_text() == "late"


async def test_it_gives_back_what_the_work_made_and_raised() -> None:
    assert await trees.to_end(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await trees.to_end(divmod, 7, 0)
