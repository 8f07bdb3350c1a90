"""How much a worker may write: `spec.resources.disk` on a host whose workers write to memory.

A worker's folders are tmpfs of a fixed size: the kernel refuses what is too much, and gives everything back with the
last process. They have no file system of the host below them, so what a Function asks for must fit into its memory.
"""

from __future__ import annotations


class DiskUnavailableError(Exception):
    """This host cannot keep what was asked for; the message says how much it could, and what to change."""


def scratch_bytes(
    asked_bytes: int | None, *, given_bytes: int, memory_bytes: int, worker_memory_bytes_max: int | None
) -> int:
    """The size of each folder of a worker: what it asks for at least, and what every worker is given.

    `memory_bytes` is what it needs besides, `worker_memory_bytes_max` the most that this host gives one worker, None
    where nothing bounds it. Raises DiskUnavailableError.
    """
    if asked_bytes is None:
        return given_bytes
    free_bytes = None if worker_memory_bytes_max is None else max(0, worker_memory_bytes_max - memory_bytes)
    if free_bytes is not None and asked_bytes > free_bytes:
        raise DiskUnavailableError(
            f"`spec.resources.disk` asks for {_told(asked_bytes)}, and this host, whose workers write to memory, can "
            f"give {_told(free_bytes)} beside `spec.resources.memory`: ask for less, or add memory"
        )
    return max(given_bytes, asked_bytes)


def _told(size_bytes: int) -> str:
    return f"{size_bytes >> 20} MiB"
