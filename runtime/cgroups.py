"""Hard limits of workers through the kernel's control groups, version 1 and 2.

All groups of one node hang below one folder beside the node's own processes, so that the limits an operator set on
the node hold for its workers too, and leftovers of a crash are found by name. Where the kernel's files are not ours
to write (an unprivileged server, a container with a read-only tree, a version 2 group that may not delegate because
it holds processes itself) there are no limits, `Cgroups.limits` says which exist, and nothing pretends otherwise.

Version 2 with controllers is written from the kernel's documentation. Its tests know the files of such a tree and have
no kernel behind them: it has not run on such a host yet.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_CONTROLLERS = ("memory", "pids", "cpu")
_CPU_PERIOD_MICROSECONDS = 100_000
"""The kernel's own default; a group gets its processor time once in each."""
_SHARES_PER_CPU = 1_024
_SHARES_MIN, _SHARES_MAX = 2, 262_144


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Caps of one group; None leaves the resource to the group above.

    `cpus_least` is what it gets when all want the processors, in processors; `cpus_max` is more than it ever gets.
    """

    memory_bytes_max: int | None = None
    pids_max: int | None = None
    cpus_least: float | None = None
    cpus_max: float | None = None


@dataclass(frozen=True)
class _Hierarchy:
    """One mounted tree: our folder in it, which controllers it can limit, and which version it speaks."""

    folder: Path
    controllers: tuple[str, ...]
    version: int


class Cgroup:
    """The group of one attempt; in version 1 a folder in each tree."""

    def __init__(self, folders: Iterable[tuple[Path, _Hierarchy]]) -> None:
        self._folders = list(folders)

    def add(self, pid: int) -> None:
        """Move a process in; everything it starts afterwards is inside as well."""
        for folder, _ in self._folders:
            (folder / "cgroup.procs").write_text(str(pid))

    def limit(self, limits: Limits) -> None:
        """Set these limits from now on; one this host cannot set is left out."""
        for folder, hierarchy in self._folders:
            _limit(folder, hierarchy, limits)

    def out_of_memory_kills(self) -> int:
        """How many processes of this group the kernel has killed for want of memory."""
        for folder, hierarchy in self._folders:
            if "memory" in hierarchy.controllers:
                name = "memory.oom_control" if hierarchy.version == 1 else "memory.events"
                for line in (folder / name).read_text().splitlines():
                    if line.startswith("oom_kill "):
                        return int(line.split()[1])
        return 0

    def remove(self) -> None:
        """Kill what is left inside and delete the group; one the kernel is still emptying waits for the next reap."""
        for folder, _ in self._folders:
            _kill_all(folder)
            with contextlib.suppress(OSError):
                folder.rmdir()


class Cgroups:
    """Makes the groups of one node, named by `instance`."""

    def __init__(self, hierarchies: Iterable[_Hierarchy]) -> None:
        self._hierarchies = list(hierarchies)

    @property
    def limits(self) -> frozenset[str]:
        """The controllers that can limit a worker on this host: a subset of memory, pids and cpu."""
        return frozenset(name for hierarchy in self._hierarchies for name in hierarchy.controllers)

    def create(self, name: str, limits: Limits) -> Cgroup:
        """A group for one attempt. A limit this host cannot set is left out; see `limits`."""
        folders: list[tuple[Path, _Hierarchy]] = []
        try:
            for hierarchy in self._hierarchies:
                folder = hierarchy.folder / name
                folder.mkdir(exist_ok=True)
                folders.append((folder, hierarchy))
                _limit(folder, hierarchy, limits)
        except OSError:
            Cgroup(folders).remove()
            raise
        return Cgroup(folders)

    def limit_all(self, limits: Limits) -> None:
        """Cap all workers of the node together."""
        for hierarchy in self._hierarchies:
            _limit(hierarchy.folder, hierarchy, limits)

    def reap(self) -> None:
        """Kill and remove the groups a crashed node left behind; for the start, when no worker can be ours."""
        for hierarchy in self._hierarchies:
            for folder in [entry for entry in hierarchy.folder.iterdir() if entry.is_dir()]:
                _kill_all(folder)
                with contextlib.suppress(OSError):
                    folder.rmdir()

    def close(self) -> None:
        """Remove everything of the node; no worker may be left."""
        self.reap()
        for hierarchy in self._hierarchies:
            with contextlib.suppress(OSError):
                hierarchy.folder.rmdir()


def open_cgroups(instance: str) -> Cgroups:
    """Find the trees this process is in and make the folder `nodus-<instance>` in each that can limit something."""
    memberships = Path("/proc/self/cgroup").read_text()
    mounts = Path("/proc/self/mountinfo").read_text()
    opened = []
    for own, controllers, version in _own_groups(memberships, mounts):
        folder = own / f"nodus-{instance}"
        # A tree that is not ours to write, or not ours to hand down, sets no limits.
        with contextlib.suppress(OSError):
            folder.mkdir(exist_ok=True)
            try:
                usable = controllers if version == 1 else _delegated(own, folder, controllers)
            except OSError:
                usable = ()
            if usable:
                opened.append(_Hierarchy(folder=folder, controllers=usable, version=version))
            else:
                folder.rmdir()
    return Cgroups(opened)


def _own_groups(memberships: str, mounts: str) -> list[tuple[Path, tuple[str, ...], int]]:
    """(folder of our group, wanted controllers it has, version) for each mounted tree with one of `_CONTROLLERS`."""
    ours: dict[str, str] = {}
    for line in memberships.splitlines():
        _, controllers, path = line.split(":", 2)
        ours.update(dict.fromkeys(controllers.split(","), path))
    found = []
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        root, mount_point = before.split()[3:5]
        kind, _, options = after.split(maxsplit=2)
        if kind == "cgroup":
            wanted = tuple(name for name in _CONTROLLERS if name in options.split(","))
            member = ours.get(wanted[0]) if wanted else None
            version = 1
        elif kind == "cgroup2":
            wanted, member, version = _CONTROLLERS, ours.get(""), 2
        else:
            continue
        if member is not None and wanted:
            # A tree may be mounted from below its root (a container): our path then counts from that folder.
            below = os.path.relpath(member, root) if member.startswith(root) else "."
            found.append((Path(mount_point, below), wanted, version))
    return found


def _delegated(own: Path, folder: Path, controllers: tuple[str, ...]) -> tuple[str, ...]:
    """Version 2: hand the controllers down to `folder`'s children; returns those that went."""
    available = (own / "cgroup.controllers").read_text().split()
    usable = tuple(name for name in controllers if name in available)
    if usable:
        wanted = " ".join(f"+{name}" for name in usable)
        (own / "cgroup.subtree_control").write_text(wanted)
        (folder / "cgroup.subtree_control").write_text(wanted)
    return usable


def _limit(folder: Path, hierarchy: _Hierarchy, limits: Limits) -> None:
    for controller, name, value in _settings(limits, hierarchy.version):
        if controller in hierarchy.controllers:
            (folder / name).write_text(value)


def _settings(limits: Limits, version: int) -> Iterable[tuple[str, str, str]]:
    """(controller, file, content) for each limit that is set, in the order in which they are written."""
    if limits.memory_bytes_max is not None:
        yield "memory", {1: "memory.limit_in_bytes", 2: "memory.max"}[version], str(limits.memory_bytes_max)
    if limits.pids_max is not None:
        yield "pids", "pids.max", str(limits.pids_max)
    if limits.cpus_least is not None:
        shares = min(_SHARES_MAX, max(_SHARES_MIN, round(limits.cpus_least * _SHARES_PER_CPU)))
        # The kernel's documented conversion between the two scales, [2, 262144] and [1, 10000].
        weight = 1 + (shares - _SHARES_MIN) * 9_999 // (_SHARES_MAX - _SHARES_MIN)
        yield "cpu", *{1: ("cpu.shares", str(shares)), 2: ("cpu.weight", str(weight))}[version]
    if limits.cpus_max is not None:
        quota = max(1_000, round(limits.cpus_max * _CPU_PERIOD_MICROSECONDS))
        both = {1: ("cpu.cfs_quota_us", str(quota)), 2: ("cpu.max", f"{quota} {_CPU_PERIOD_MICROSECONDS}")}
        yield "cpu", *both[version]


def _kill_all(folder: Path) -> None:
    try:
        if (folder / "cgroup.kill").exists():
            (folder / "cgroup.kill").write_text("1")
            return
        pids = [int(line) for line in (folder / "cgroup.procs").read_text().split()]
    except OSError:
        return
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
