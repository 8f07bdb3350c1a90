"""Which processes of the host belong to a worker that has no sandbox, and their end.

A sandbox ends with its first process. Without one, what a worker starts may leave its parent, its group and its
session, so it is sought by everything the kernel still knows: who descends from its init (`init.py` adopts orphans),
who is in its session, and, where each worker is a user of the host, who has its uid. A worker that shares the node's
user and has killed its own init can hide what it has detached; its guarantees tell that it shares.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PASSES_MAX = 200
PASS_SECONDS = 0.05
"""Between two looks; a killed process needs a moment to go, and one that forks faster meets the limit of its user."""
KILL_PASSES_MAX = 5


@dataclass(frozen=True, kw_only=True)
class _Process:
    pid: int
    parent: int
    session: int
    uid: int


def members(init: int | None, uid: int | None) -> list[int]:
    """The living processes of a worker, without its first one, `init`: by that if its number is still its own, and by
    the `uid` if nobody else has it."""
    known = list(_processes())
    family = set() if init is None else {init}
    while True:
        grown = {process.pid for process in known if process.parent in family} - family
        if not grown:
            break
        family |= grown
    if init is not None:
        family |= {process.pid for process in known if process.session == init}
    if uid is not None:
        family |= {process.pid for process in known if process.uid == uid}
    return sorted(family - {init, os.getpid(), 0, 1})


def kill(init: int | None, uid: int | None) -> None:
    """SIGKILL all of them that can be found now; what is born meanwhile is left to `gone`."""
    for _ in range(KILL_PASSES_MAX):
        found = members(init, uid)
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not found:
            return


async def gone(init: int | None, uid: int | None) -> list[int]:
    """Kill until none is left; those that would not go in some ten seconds."""
    left: list[int] = []
    for _ in range(PASSES_MAX):
        await asyncio.to_thread(kill, init, uid)
        left = await asyncio.to_thread(members, init, uid)
        if not left:
            return []
        await asyncio.sleep(PASS_SECONDS)
    return left


def started_at(pid: int) -> str | None:
    """When a process started, in ticks of the kernel: with the pid, a name that no other process ever has. None when
    there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(") ")[2].split()[19]
    except (OSError, IndexError):
        return None


def _processes() -> Iterator[_Process]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            found = _process(int(name))
            if found is not None:
                yield found


def _process(pid: int) -> _Process | None:
    """None of one that is gone, or only waits to be forgotten."""
    try:
        state, parent, _, session = (
            Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(") ")[2].split()[:4]
        )
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except (OSError, ValueError):
        return None
    if state in "ZX":
        return None
    # Of the four the real one: the owner of the folder in /proc is root's for some programs.
    uid = next((int(line.split()[1]) for line in status.splitlines() if line.startswith("Uid:")), -1)
    return _Process(pid=pid, parent=int(parent), session=int(session), uid=uid)
