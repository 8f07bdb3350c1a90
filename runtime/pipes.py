"""The pipes between a node and a sandbox: opened before it, each end closed once, read and written without blocking."""

from __future__ import annotations

import asyncio
import contextlib
import os

from runtime import sandbox

PIPE_BYTES_MAX = 4_096
"""Of one read. What init and bubblewrap say is shorter; what is longer was said by somebody else."""


class Descriptors:
    """What one start opens: the child's ends are closed here once it has them, ours only if it never came to be."""

    def __init__(self) -> None:
        self._child_ends: list[int] = []
        self._our_ends: list[int] = []

    def memory(self, content: bytes) -> int:
        """A file in memory with this content, for the child."""
        self._child_ends.append(sandbox.memory_file(content))
        return self._child_ends[-1]

    def pipe_from_child(self) -> tuple[int, int]:
        """(our reading end, the child's writing end)"""
        ours, childs = os.pipe2(os.O_CLOEXEC)
        return self._keep(ours, childs)

    def pipe_to_child(self) -> tuple[int, int]:
        """(our writing end, the child's reading end)"""
        childs, ours = os.pipe2(os.O_CLOEXEC)
        return self._keep(ours, childs)

    def _keep(self, ours: int, childs: int) -> tuple[int, int]:
        self._our_ends.append(ours)
        self._child_ends.append(childs)
        os.set_blocking(ours, False)
        return ours, childs

    def close_child_ends(self) -> None:
        """Once the child has them."""
        _close_all(self._child_ends)

    def close(self) -> None:
        """Close everything; for a start that came to nothing."""
        _close_all(self._child_ends)
        _close_all(self._our_ends)


def _close_all(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())


async def readable(descriptor: int) -> None:
    """Return when `descriptor` has something to read; a pidfd has when its process is gone."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(descriptor, _tell, ready)
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)


async def first_word(descriptor: int) -> bytes:
    """What init says first; ValueError when it ended, and its sandbox with it, without having said anything."""
    await readable(descriptor)
    told = os.read(descriptor, PIPE_BYTES_MAX)
    if not told:
        raise ValueError("it ended before the worker began")
    return told


async def write_all(descriptor: int, content: bytes) -> None:
    """Write everything, as fast as the other end takes it; OSError when that is gone."""
    left = memoryview(content)
    while left:
        try:
            left = left[os.write(descriptor, left) :]
        except BlockingIOError:
            await writable(descriptor)


async def writable(descriptor: int) -> None:
    """Return when `descriptor` takes more, or never will."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_writer(descriptor, _tell, ready)
    try:
        await ready
    finally:
        loop.remove_writer(descriptor)


def _tell(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


async def read_until_closed(descriptor: int) -> bytes:
    """All that comes until nobody has the other end any more, or a little more than PIPE_BYTES_MAX of it."""
    told = b""
    while True:
        await readable(descriptor)
        chunk = os.read(descriptor, PIPE_BYTES_MAX)
        if not chunk or len(told) > PIPE_BYTES_MAX:
            return told
        told += chunk


def what_is_left(descriptor: int, bytes_max: int = PIPE_BYTES_MAX) -> bytes:
    """What is in a pipe now, at most `bytes_max` of it; nothing rather than an error when there is nothing."""
    with contextlib.suppress(BlockingIOError):
        return os.read(descriptor, bytes_max)
    return b""
