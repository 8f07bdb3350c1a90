"""Workers that wait in built images, and the images in which none may."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from runtime.environments import Environment
from runtime.host import Host, HostLimits
from runtime.image_builder import ImageBuilder
from runtime.image_steps import steps_of
from runtime.start_hooks import start_hooks
from runtime.templates import Template, worker_template
from runtime.warm import IMAGE_MEMORY_BYTES_MAX
from tests.fixtures.eventually import eventually
from tests.runtime.conftest import LIMITS, OWN_MINOR, Log, kept_full
from tests.runtime.scripted_api import ScriptedApi
from tests.runtime.test_images import LIMITS as BUILD_LIMITS
from tests.runtime.test_warm import inspected, waiting_process

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
]

STEPS = [{"env": {"OF_THE_IMAGE": "1"}}, {"workdir": "/opt/app"}, {"run": ["echo here > /opt/app/file"]}]


@pytest.fixture
def host_limits() -> HostLimits:
    """One warm worker."""
    return dataclasses.replace(LIMITS, warm_workers_max=1)


@pytest.fixture
async def image(host: Host, log: Log) -> str:
    """The key of an image of a few steps."""

    async def fetch(reference: str, path: Path) -> None:
        raise AssertionError(f"{reference} is no blob of these steps")

    builder = ImageBuilder(host, BUILD_LIMITS, os.environ)
    return (await builder.build(OWN_MINOR, steps_of({"steps": STEPS}), fetch, log, lambda stage: None)).key


@pytest.fixture
async def template(host: Host, image: str) -> Template:
    environment = await host.environment(OWN_MINOR, print, image)
    assert environment.may_wait
    return worker_template(environment, host.limits.scratch_bytes_max)


@pytest.fixture
async def filled(host: Host, template: Template) -> AsyncIterator[Host]:
    """The host with a worker that waits in the image."""
    async with kept_full(host, template):
        yield host


async def test_a_worker_that_waits_in_an_image_is_like_one_that_starts_in_it(
    filled: Host, image: str, api: ScriptedApi, log: Log
) -> None:
    given = {"image": image, "variables": [("MINE", "1")], "memory_bytes_max": 300 << 20, "cpus_least": 1.0}
    waited = waiting_process(filled)
    warm = await inspected(filled, log, api, **given)
    assert not waited.is_running(), "the worker that waited was the one that ran"
    assert (warm["environ"]["OF_THE_IMAGE"], warm["folder"]) == ("1", "/opt/app")
    await eventually(lambda: filled.warm.waiting == 1)
    # Without a bound of its own in place of that of waiting, an attempt starts in a sandbox of its own.
    waited = waiting_process(filled)
    unbounded = await inspected(filled, log, api, **{**given, "memory_bytes_max": None, "cpus_least": None})
    assert waited.is_running()
    warm.pop("started_with")
    unbounded.pop("started_with")
    assert warm == unbounded


async def test_it_waits_with_little_and_keeps_its_image(filled: Host, image: str) -> None:
    [worker] = filled.warm._waiting
    limits = [folder / "memory.limit_in_bytes" for folder, _ in worker.cell.group._folders]
    [told] = [path.read_text() for path in limits if path.exists()]
    assert int(told) == IMAGE_MEMORY_BYTES_MAX
    assert await filled.images.collect(frozenset(), 0) == []
    # A Function that names the image still wants its worker; when none does, both go.
    filled.warm.forget_images(frozenset({image}))
    process = waiting_process(filled)
    assert process.is_running()
    filled.warm.forget_images(frozenset())
    # It is no longer counted before it has ended, and gives its image back after that.
    await eventually(lambda: filled.warm.waiting == 0 and not process.is_running())
    assert await eventually(lambda: filled.images.collect(frozenset(), 0)) == [image]


async def test_an_image_in_which_no_worker_can_start_holds_up_no_other(
    host: Host, template: Template, environment: Environment
) -> None:
    shutil.rmtree(host.images.folder(template.image or ""))
    keeping = asyncio.create_task(host.warm.run())
    host.warm.expect(template)
    await eventually(lambda: not host.warm._wanted)
    host.warm.expect(worker_template(environment, host.limits.scratch_bytes_max))
    await eventually(lambda: host.warm.waiting == 1)
    keeping.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await keeping


@pytest.fixture
def copied(environment: Environment, tmp_path: Path) -> Path:
    """What is of interest of an image that adds nothing."""
    site = next(environment.path.glob("lib/python3*/site-packages"))
    copy = tmp_path / "image" / site.relative_to(environment.path)
    shutil.copytree(site, copy, ignore=lambda folder, names: [] if folder.endswith(".dist-info") else _modules(names))
    return copy


def _modules(names: list[str]) -> list[str]:
    return [name for name in names if not name.endswith((".dist-info", ".pth"))]


def test_images_that_add_packages_add_nothing_to_a_start(environment: Environment, copied: Path) -> None:
    (copied / "numpy").mkdir()
    (copied / "numpy-2.0.dist-info").mkdir()
    (copied / "numpy-2.0.dist-info" / "entry_points.txt").write_text("[console_scripts]\nf2py = numpy:main\n")
    assert start_hooks(copied.parents[2], environment.path) == []


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tracing.pth", "import tracing"),
        ("_virtualenv.pth", "import other"),
        ("sitecustomize.py", ""),
        ("usercustomize/__init__.py", ""),
        ("large.pth", "#" * 100_000),
        ("logfire-4.0.dist-info/entry_points.txt", "[pydantic]\nlogfire = logfire.plugin:plugin\n"),
        ("large-1.0.dist-info/entry_points.txt", "#" * 100_000),
    ],
)
def test_no_worker_waits_in_an_image_that_runs_something_at_a_start(
    name: str, content: str, environment: Environment, copied: Path
) -> None:
    (copied / name).parent.mkdir(exist_ok=True)
    (copied / name).write_text(content)
    assert start_hooks(copied.parents[2], environment.path) == [name.partition("/")[0]]


def test_no_worker_waits_in_an_image_that_replaces_a_package_of_the_worker(
    environment: Environment, copied: Path, tmp_path: Path
) -> None:
    [found] = copied.glob("pydantic-*.dist-info")
    found.rename(copied / "pydantic-9.0.dist-info")
    assert start_hooks(copied.parents[2], environment.path) == [found.name]
    link = tmp_path / "linked" / "lib"
    link.parent.mkdir()
    link.symlink_to(environment.path / "lib")
    assert start_hooks(link.parent, environment.path) == ["site-packages"]
