"""Images built by the real uv in real sandboxes, from the package index, and what workers would get of them."""

from __future__ import annotations

import asyncio
import dataclasses
import gzip
import io
import os
import re
import stat
import subprocess
import tarfile
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import pytest

from runtime import trees
from runtime.host import Host
from runtime.image_builder import BuildLimits, BuiltImage, ImageBuilder, ImageFailedError, Stage
from runtime.image_steps import steps_of
from runtime.images import ImageMissingError, ImagesFullError, ImageStore, Manifest
from tests.fixtures.eventually import eventually
from tests.runtime.conftest import OWN_MINOR, Log

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
]

LIMITS = BuildLimits(
    builds_max=2,
    seconds_max=180,
    disk_bytes_max=1 << 30,
    images_disk_bytes_max=10 << 30,
    memory_bytes_max=1 << 30,
)
BLOB = "sha256:" + "a" * 64

Build = Callable[..., Coroutine[Any, Any, BuiltImage]]


def archive(files: Mapping[str, bytes]) -> bytes:
    """A tar.gz as the public SDK makes it."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return gzip.compress(raw.getvalue(), mtime=0)


@pytest.fixture
async def host(host: Host, tmp_path: Path) -> Host:
    """A host whose images are this test's own; the environment they start from is shared."""
    host.images = ImageStore(tmp_path / "images")
    host.images.sweep()
    return host


@pytest.fixture
def build(host: Host, log: Log) -> Build:
    """Build steps as an Image has them."""

    async def begin(
        *steps: dict[str, Any], blob: bytes = b"", limits: BuildLimits = LIMITS, python: str = OWN_MINOR
    ) -> BuiltImage:
        async def fetch(reference: str, path: Path) -> None:
            assert reference == BLOB
            path.write_bytes(blob)

        builder = ImageBuilder(host, limits, os.environ)
        return await builder.build(python, steps_of({"steps": list(steps)}), fetch, log, told.append)

    told: list[Stage] = []
    return begin


async def failure(building: Awaitable[BuiltImage]) -> ImageFailedError:
    with pytest.raises(ImageFailedError) as error:
        await building
    return error.value


def leftovers(host: Host) -> list[str]:
    folder = host.images.folder("image-" + "0" * 20).parent
    return [entry.name for entry in folder.iterdir() if entry.name.startswith(".")]


async def test_a_package_of_the_index_is_installed_once(host: Host, build: Build, log: Log) -> None:
    step = {"pipInstall": {"packages": ["iniconfig==2.0.0"]}}
    built = await build(step)
    assert not built.cached
    assert built.digest.startswith("sha256:")
    tree = host.images.folder(built.key) / "tree"
    assert list(tree.glob("env/lib/python*/site-packages/iniconfig/__init__.py"))
    assert list(tree.glob("env/lib/python*/site-packages/nodus/_worker.py"))
    assert any("iniconfig" in line for line in log.text())
    again = await build(step)
    assert again == dataclasses.replace(built, cached=True)
    assert leftovers(host) == []


async def test_what_is_built_can_be_read_by_all_and_written_by_none(host: Host, build: Build) -> None:
    built = await build(
        {"run": ["chmod 700 /workspace; echo x > s; chmod 4711 s; mkfifo pipe; ln -s /etc/shadow link"]}
    )
    files = host.images.folder(built.key) / "tree" / "files" / "workspace"
    found = {entry.name: entry.lstat() for entry in files.iterdir()}
    assert set(found) == {"s", "link"}
    assert stat.S_IMODE(found["s"].st_mode) == 0o755
    assert {(status.st_uid, status.st_gid) for status in found.values()} == {(0, 0)}
    environment = await host.environment(OWN_MINOR, print, built.key)
    assert [inside for _, inside in environment.mounts] == [Path("/workspace/s")]


async def test_files_variables_and_a_folder_of_an_image(host: Host, build: Build) -> None:
    built = await build(
        {"copy": {"blob": BLOB, "dest": "/data/models"}},
        {"env": {"A": "1", "B": "x y"}},
        {"workdir": "/srv/app"},
        {"run": ['test "$A" = 1', "test -f /data/models/sub/weights", "test $(pwd) = /srv/app"]},
        {"env": {"A": "2"}},
        blob=archive({"sub/weights": b"w", "top": b"t"}),
    )
    environment = await host.environment(OWN_MINOR, print, built.key)
    assert dict(environment.variables) == {"A": "2", "B": "x y"}
    assert environment.directory == "/srv/app"
    assert environment.scratch == (Path("/srv"),)
    assert [inside for _, inside in environment.mounts] == [Path("/data")]


async def test_a_single_file_gets_the_name_of_its_place(host: Host, build: Build) -> None:
    places = ("/workspace/a.txt", "/workspace/b.txt", "/workspace/folder", "/workspace/c.d")
    built = await build(*({"copy": {"blob": BLOB, "dest": place}} for place in places), blob=archive({"a.txt": b"x"}))
    workspace = host.images.folder(built.key) / "tree/files/workspace"
    found = sorted(str(path.relative_to(workspace)) for path in workspace.rglob("*") if path.is_file())
    assert found == ["a.txt", "b.txt", "c.d/a.txt", "folder/a.txt"]


async def test_a_project_is_synchronised_beside_the_workers_packages(host: Host, build: Build) -> None:
    project = b'[project]\nname = "p"\nversion = "1"\nrequires-python = ">=3.10"\ndependencies = ["iniconfig==2.0.0"]\n'
    built = await build({"uvSync": {"project": BLOB}}, blob=archive({"pyproject.toml": project}))
    packages = {path.name for path in (host.images.folder(built.key) / "tree").glob("env/lib/python*/site-packages/*")}
    assert {"iniconfig", "nodus", "httpx"} <= packages


def project(version: str) -> str:
    """A project that depends on some version of one package."""
    lines = ["[project]", 'name = "p"', 'version = "1"', 'requires-python = ">=3.10"', f'dependencies = ["{version}"]']
    return "\n".join([*lines, ""])


@pytest.fixture
def locked(host: Host, tmp_path: Path) -> dict[str, bytes]:
    """A project that would take any version of its package, and the lock that uv made when it wanted an old one."""
    folder = tmp_path / "project"
    folder.mkdir()
    for version in ("iniconfig==2.0.0", "iniconfig>=2"):
        (folder / "pyproject.toml").write_text(project(version))
        subprocess.run([host.uv, "lock", "--project", folder], check=True, capture_output=True, timeout=120)
    return {name: (folder / name).read_bytes() for name in ("pyproject.toml", "uv.lock")}


@pytest.mark.parametrize("minor", ["3.10", "3.12", "3.13"])
@pytest.mark.parametrize("frozen", [True, False])
async def test_a_projects_lock_decides_on_every_python(
    host: Host, build: Build, locked: dict[str, bytes], minor: str, frozen: bool
) -> None:
    step = {"uvSync": {"project": BLOB, "frozen": frozen}}
    check = f"import iniconfig, sys; assert '%d.%d' % sys.version_info[:2] == '{minor}', sys.version"
    built = await build(step, {"run": [f'python -c "{check}"']}, blob=archive(locked), python=minor)
    [site] = (host.images.folder(built.key) / "tree").glob("env/lib/python*/site-packages")
    assert site.parent.name == f"python{minor}"
    assert {"iniconfig-2.0.0.dist-info", "nodus"} <= {path.name for path in site.iterdir()}


async def test_a_lock_whose_hash_is_not_that_of_the_package_is_refused(
    build: Build, log: Log, locked: dict[str, bytes]
) -> None:
    forged = re.sub(rb"sha256:[0-9a-f]{64}", b"sha256:" + b"0" * 64, locked["uv.lock"])
    step = {"uvSync": {"project": BLOB, "frozen": True}}
    error = await failure(build(step, blob=archive({**locked, "uv.lock": forged})))
    assert (error.reason, str(error)) == ("StepFailed", "step 1 (uvSync) ended with exit code 1")
    assert any("hash mismatch" in line.lower() for line in log.text())


@pytest.mark.parametrize(
    ("step", "reason", "told", "printed"),
    [
        ({"pipInstall": {"packages": ["no-such-package-of-ours"]}}, "StepFailed", "step 1 (pipInstall)", "not found"),
        ({"pipInstall": {"packages": ["--help"]}}, "StepFailed", "step 1 (pipInstall)", "--help"),
        ({"pipInstall": {"packages": ["nodus-compute==0.1"]}}, "StepFailed", "step 1 (pipInstall)", "nodus-compute"),
        ({"uvPipInstall": {"packages": ["x"], "indexURL": "https://a.example"}}, "StepFailed", "step 1", "INDEX_HOSTS"),
        ({"run": ["echo told >&2; exit 7"]}, "StepFailed", "step 1 (run) ended with exit code 7", "told"),
        ({"run": ["rm -r /nodus/env/lib/python*/site-packages/nodus"]}, "StepFailed", "worker", "nodus"),
        ({"copy": {"blob": BLOB, "dest": "/data"}}, "StepFailed", "step 1 (copy)", "cannot be unpacked"),
    ],
)  # fmt: skip
async def test_a_build_that_fails_says_what_and_leaves_nothing(
    host: Host, build: Build, log: Log, step: dict[str, Any], reason: str, told: str, printed: str
) -> None:
    error = await failure(build(step, blob=b"no archive"))
    assert error.reason == reason
    assert told in str(error)
    assert any(printed in line for line in log.text()), log.text()
    assert host.images.keys() == []
    assert leftovers(host) == []


@pytest.mark.parametrize(
    "line",
    [
        "touch /usr/x",
        "touch /etc/x",
        "cat /etc/shadow",
        "test -e /nodus/env/lib && test -S /run/nodus/api.sock",
        "python -c \"import socket; socket.create_connection(('192.0.2.1', 443), 5)\"",
        "python -c \"import socket; assert socket.create_connection(('127.0.0.1', 3128), 5).recv(1)\"",
        'python -c "import os; os.setuid(0)"',
        "test $(id -u) -lt 200000",
    ],
)
async def test_commands_of_a_build_can_do_no_more_than_a_worker(host: Host, build: Build, line: str) -> None:
    error = await failure(build({"run": [line]}))
    assert error.reason == "StepFailed"


async def test_an_archive_cannot_leave_its_place(host: Host, build: Build) -> None:
    error = await failure(build({"copy": {"blob": BLOB, "dest": "/data"}}, blob=archive({"../../nodus/env/x": b"x"})))
    assert error.reason == "StepFailed"


async def test_a_python_this_host_lacks_is_named(host: Host, log: Log) -> None:
    builder = ImageBuilder(host, LIMITS, os.environ)

    async def fetch(reference: str, path: Path) -> None:
        raise AssertionError

    error = await failure(builder.build("3.99", [], fetch, log, lambda _: None))
    assert error.reason == "BaseNotFound"
    assert "NODUS_PYTHON_3_99" in str(error)


async def test_a_build_ends_in_time(build: Build, host: Host) -> None:
    limits = dataclasses.replace(LIMITS, seconds_max=3)
    error = await failure(build({"run": ["sleep 100"]}, limits=limits))
    assert error.reason == "BuildTimeout"
    assert leftovers(host) == []


async def test_a_build_is_held_to_its_disk(build: Build) -> None:
    limits = dataclasses.replace(LIMITS, disk_bytes_max=300 << 20)
    error = await failure(build({"run": ["head -c 400M /dev/zero > big; sleep 60"]}, limits=limits))
    assert "disk" in str(error)


async def test_a_build_is_held_to_its_memory(build: Build) -> None:
    limits = dataclasses.replace(LIMITS, memory_bytes_max=128 << 20)
    error = await failure(build({"run": ['python -c "b = bytearray(1 << 30)"']}, limits=limits))
    assert "step 1 (run) used more memory than it may" in str(error)


async def test_a_tree_too_deep_to_walk_is_refused_and_removed(host: Host, build: Build) -> None:
    deep = "python -c \"import os\nfor _ in range(1500): os.mkdir('d'); os.chdir('d')\""
    error = await failure(build({"run": [deep]}))
    assert "nested" in str(error)
    assert leftovers(host) == []


async def test_builds_of_one_key_at_once_build_it_once(build: Build) -> None:
    step = {"run": ["date +%N > stamp"]}
    first, second = await asyncio.gather(build(step), build(step))
    assert {first.cached, second.cached} == {True, False}
    assert first.digest == second.digest


async def test_a_cancelled_build_leaves_nothing(build: Build, host: Host, log: Log) -> None:
    building = asyncio.create_task(build({"run": ["echo begun; sleep 100"]}))
    await eventually(lambda: "begun" in log.text())
    building.cancel()
    with pytest.raises(asyncio.CancelledError):
        await building
    assert leftovers(host) == []


async def test_an_image_that_changed_on_the_disk_is_missing(host: Host, build: Build, tmp_path: Path) -> None:
    built = await build({"run": ["echo a > a"]})
    (host.images.folder(built.key) / "tree/files/workspace/a").write_text("b")
    # What was checked once in the life of a node stays checked; nothing but the node can write to it.
    await host.images.manifest(built.key)
    after_a_restart = ImageStore(tmp_path / "images")
    with pytest.raises(ImageMissingError, match="was built"):
        await after_a_restart.manifest(built.key)
    assert after_a_restart.keys() == []


async def test_what_a_dead_node_was_building_is_removed_at_the_start(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    for name in (".image-" + "0" * 20 + ".building", ".image-" + "1" * 20 + ".removing", "py3.11-" + "0" * 20):
        (folder / name / "tree").mkdir(parents=True)
    store = ImageStore(folder)
    store.sweep()
    assert [entry.name for entry in folder.iterdir()] == ["py3.11-" + "0" * 20]
    assert store.keys() == []


async def test_only_what_nobody_needs_is_collected(host: Host, build: Build) -> None:
    built = await build({"run": ["echo a > a"]})
    store = host.images
    assert await store.collect(frozenset(), idle_seconds=3_600) == []
    assert await store.collect(frozenset({built.key}), idle_seconds=-1) == []
    with store.lease(built.key):
        assert await store.collect(frozenset(), idle_seconds=-1) == []
    assert await store.collect(frozenset(), idle_seconds=-1) == [built.key]
    with pytest.raises(ImageMissingError):
        await store.manifest(built.key)


def test_the_digest_of_a_tree_is_that_of_its_content(tmp_path: Path) -> None:
    def tree(name: str, **files: str) -> Path:
        root = tmp_path / name
        root.mkdir()
        for file, content in files.items():
            (root / file).write_text(content)
        return root

    same = {trees.summary(tree(name, a="1", b="2")).digest for name in ("x", "y")}
    others = {
        trees.summary(root).digest
        for root in (tree("p", a="1", b="3"), tree("q", a="1", c="2"), tree("r", a="12", b=""), tree("s", ab="12"))
    }
    assert len(same) == 1
    assert len(others) == 4
    assert not same & others


IMAGE_BYTES = 1 << 20


def key_of(number: int) -> str:
    return f"image-{number:020d}"


async def publish(store: ImageStore, number: int, used_at: float, fit: int) -> None:
    """An image of a megabyte and some, in a budget in which so many fit."""
    tree = store.building(key_of(number)) / "tree"
    (tree / "env").mkdir(parents=True)
    (tree / "env" / "file").write_bytes(os.urandom(IMAGE_BYTES))
    manifest = Manifest(
        digest=f"sha256:{number}",
        size_bytes=IMAGE_BYTES,
        python_version="3.11.9",
        executable="/usr/bin/python3",
        variables={},
        directory=None,
        scratch=[],
        start_hooks=[],
    )
    await store.publish_within(int((fit + 0.5) * IMAGE_BYTES), key_of(number), manifest)
    os.utime(store.folder(key_of(number)), (used_at, used_at))


async def test_images_that_nobody_names_go_first_and_then_those_used_longest_ago(tmp_path: Path) -> None:
    store = ImageStore(tmp_path)
    for number in (1, 2, 3, 4):
        await publish(store, number, used_at=number, fit=4)
    await store.collect(frozenset(map(key_of, (1, 2, 4))), idle_seconds=1e12)
    assert store.keys() == [key_of(number) for number in (1, 2, 3, 4)]
    await publish(store, 5, used_at=5, fit=4)
    assert store.keys() == [key_of(number) for number in (1, 2, 4, 5)]
    # Nobody names the newest one yet; its Function only waits for it. Then those that are named, the oldest first.
    await store.collect(frozenset(map(key_of, (1, 2, 4, 5))), idle_seconds=1e12)
    with store.lease(key_of(1)):
        await publish(store, 6, used_at=6, fit=3)
    assert store.keys() == [key_of(number) for number in (1, 5, 6)]


async def test_an_image_that_does_not_fit_beside_those_in_use_removes_none(tmp_path: Path) -> None:
    store = ImageStore(tmp_path)
    for number in (1, 2, 3):
        await publish(store, number, used_at=number, fit=3)
    with store.lease(key_of(1)), store.lease(key_of(2)), pytest.raises(ImagesFullError, match="images in use take"):
        await publish(store, 4, used_at=4, fit=2)
    assert store.keys() == [key_of(number) for number in (1, 2, 3)]


async def test_a_build_that_does_not_fit_says_so_and_leaves_nothing(host: Host, build: Build) -> None:
    small = dataclasses.replace(LIMITS, images_disk_bytes_max=1 << 20)
    error = await failure(build({"run": ["true"]}, limits=small))
    assert error.reason == "StepFailed"
    assert "no room for the image: it takes" in str(error)
    assert "IMAGES_DISK_BYTES_MAX" in str(error)
    assert leftovers(host) == []
    assert host.images.keys() == []
