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


@pytest.fixture
def version_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files of a version 2 tree in which this process is; no kernel stands behind it."""
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    (tmp_path / "cgroup.subtree_control").write_text("")
    proc = {
        "/proc/self/cgroup": "0::/\n",
        "/proc/self/mountinfo": f"42 41 0:26 / {tmp_path} rw - cgroup2 cgroup2 rw,nsdelegate\n",
    }
    read = Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda path, *given: proc.get(str(path)) or read(path, *given))
    return tmp_path


def test_version_2_hands_its_controllers_down_to_the_groups_of_workers(version_2: Path) -> None:
    opened = open_cgroups("x")
    assert opened.limits == {"memory", "pids", "cpu"}
    for folder in (version_2, version_2 / "nodus-x"):
        assert (folder / "cgroup.subtree_control").read_text() == "+memory +pids +cpu"
    opened.create("one", Limits(memory_bytes_max=1024)).add(4711)
    assert (version_2 / "nodus-x" / "one" / "memory.max").read_text() == "1024"
    assert (version_2 / "nodus-x" / "one" / "cgroup.procs").read_text() == "4711"


def test_version_2_offers_only_the_controllers_that_the_group_above_has(version_2: Path) -> None:
    (version_2 / "cgroup.controllers").write_text("pids\n")
    assert open_cgroups("x").limits == {"pids"}


def test_version_2_without_a_controller_sets_no_limits_and_leaves_no_folder(version_2: Path) -> None:
    (version_2 / "cgroup.controllers").write_text("\n")
    assert open_cgroups("x").limits == frozenset()
    assert not (version_2 / "nodus-x").exists()


def test_version_2_that_may_not_hand_down_sets_no_limits(version_2: Path) -> None:
    # What the kernel says where the group itself holds processes; a folder in place of the file refuses as well.
    (version_2 / "cgroup.subtree_control").unlink()
    (version_2 / "cgroup.subtree_control").mkdir()
    assert open_cgroups("x").limits == frozenset()


def test_version_2_tells_of_ends_for_want_of_memory_and_kills_a_group_at_once(version_2: Path) -> None:
    group = open_cgroups("x").create("one", Limits())
    folder = version_2 / "nodus-x" / "one"
    (folder / "memory.events").write_text("low 0\nhigh 0\nmax 7\noom 2\noom_kill 3\noom_group_kill 1\n")
    assert group.out_of_memory_kills() == 3
    sleeper = subprocess.Popen(["sleep", "600"])
    try:
        (folder / "cgroup.procs").write_text(f"{sleeper.pid}\n")
        (folder / "cgroup.kill").write_text("")
        group.remove()
        # The kernel ends all of them at the one word; nobody reads pids that might be others by then.
        assert (folder / "cgroup.kill").read_text() == "1"
        assert sleeper.poll() is None
        # A kernel before 5.14 has no such file.
        (folder / "cgroup.kill").unlink()
        group.remove()
        assert sleeper.wait(60) == -9
    finally:
        sleeper.kill()
        sleeper.wait()


def test_a_group_that_cannot_be_made_in_every_tree_is_left_in_none(tmp_path: Path) -> None:
    there, gone = (_Hierarchy(folder=tmp_path / name, controllers=("pids",), version=1) for name in ("a", "b"))
    there.folder.mkdir()
    with pytest.raises(FileNotFoundError):
        Cgroups([there, gone]).create("one", Limits())
    assert list(there.folder.iterdir()) == []


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
    assert sleeper.wait(60) == -9
    after.reap()
    after.close()
    assert open_cgroups_left(instance) == []


def open_cgroups_left(instance: str) -> list[Path]:
    return [path for path in Path("/sys/fs/cgroup").rglob(f"nodus-{instance}") if path.is_dir()]
