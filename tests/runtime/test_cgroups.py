"""Where the groups of a node are, and what is done with leftovers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from runtime.cgroups import Cgroups, Limits, _Hierarchy, _own_groups, open_cgroups

HYBRID = """\
41 30 0:25 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755
42 41 0:26 / /sys/fs/cgroup/unified rw shared:9 - cgroup2 cgroup2 rw,nsdelegate
43 41 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
44 41 0:28 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
45 41 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu
"""


def test_each_version_is_found_where_it_is_mounted_and_we_are() -> None:
    memberships = "8:pids:/\n4:memory:/box/ours\n1:cpu:/\n0::/box\n"
    assert _own_groups(memberships, HYBRID) == [
        (Path("/sys/fs/cgroup/unified/box"), ("memory", "pids", "cpu"), 2),
        (Path("/sys/fs/cgroup/memory/box/ours"), ("memory",), 1),
        (Path("/sys/fs/cgroup/pids"), ("pids",), 1),
        (Path("/sys/fs/cgroup/cpu"), ("cpu",), 1),
    ]


def test_a_tree_mounted_from_below_its_root_counts_from_there() -> None:
    mounts = "43 41 0:27 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    assert _own_groups("4:memory:/docker/abc/x\n", mounts) == [(Path("/sys/fs/cgroup/memory/x"), ("memory",), 1)]
    assert _own_groups("4:memory:/\n", mounts) == [(Path("/sys/fs/cgroup/memory"), ("memory",), 1)]


@pytest.mark.parametrize(
    ("version", "written"),
    [
        (1, {"memory.limit_in_bytes": "1024", "pids.max": "7", "cpu.shares": "512", "cpu.cfs_quota_us": "150000"}),
        (2, {"memory.max": "1024", "pids.max": "7", "cpu.weight": "20", "cpu.max": "150000 100000"}),
    ],
)
def test_each_limit_is_written_in_the_words_of_the_version(
    version: int, written: dict[str, str], tmp_path: Path
) -> None:
    trees = Cgroups([_Hierarchy(folder=tmp_path, controllers=("memory", "pids", "cpu"), version=version)])
    limits = Limits(memory_bytes_max=1024, pids_max=7, cpus_least=0.5, cpus_max=1.5)
    trees.create("x", Limits()).limit(limits)
    assert {path.name: path.read_text() for path in (tmp_path / "x").iterdir()} == written
    # A resource that nobody limits is left to the group above.
    trees.create("y", Limits())
    assert list((tmp_path / "y").iterdir()) == []


def test_a_limit_is_left_out_where_its_controller_is_missing(tmp_path: Path) -> None:
    trees = Cgroups([_Hierarchy(folder=tmp_path, controllers=("pids",), version=2)])
    trees.create("x", Limits(memory_bytes_max=1, pids_max=7, cpus_least=1, cpus_max=1))
    assert [path.name for path in (tmp_path / "x").iterdir()] == ["pids.max"]


def test_a_host_without_groups_sets_no_limits_and_says_so() -> None:
    none = Cgroups([])
    group = none.create("x", Limits(memory_bytes_max=1, pids_max=1))
    group.add(os.getpid())
    assert none.limits == frozenset()
    assert group.out_of_memory_kills() == 0
    group.remove()


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_what_a_killed_node_left_behind_is_killed_and_removed() -> None:
    instance = f"reap-{os.getpid()}"
    before = open_cgroups(instance)
    assert before.limits == {"memory", "pids", "cpu"}
    sleeper = subprocess.Popen(["sleep", "600"])
    before.create("lost", Limits()).add(sleeper.pid)
    after = open_cgroups(instance)
    after.reap()
    assert sleeper.wait(5) == -9
    after.reap()
    after.close()
    assert open_cgroups_left(instance) == []


def open_cgroups_left(instance: str) -> list[Path]:
    return [path for path in Path("/sys/fs/cgroup").rglob(f"nodus-{instance}") if path.is_dir()]
