"""Cascades larger than a step, and steps that anybody may repeat."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from controlplane.store import finalizers
from tests.fixtures.app import ServedApi

IMAGE = {"base": "nodus/python:3.11", "python": "3.11"}


async def owner_of_images(project: ServedApi, count: int) -> dict[str, Any]:
    app = await project.create("apps", {"metadata": {"name": "a"}, "spec": {}})
    reference = {"apiVersion": "nodus.dev/v1", "kind": "App", "name": "a", "uid": app["metadata"]["uid"]}
    for number in range(count):
        metadata = {"name": f"i-{number}", "ownerReferences": [reference]}
        await project.create("images", {"metadata": metadata, "spec": IMAGE})
    return app


async def remaining(project: ServedApi) -> int:
    listed = [(await project.client.get(f"{project.path}/{plural}")).json()["items"] for plural in ("apps", "images")]
    return sum(map(len, listed))


@pytest.mark.parametrize("policy", ["Foreground", "Background"])
async def test_a_cascade_of_many_steps_ends(project: ServedApi, policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controlplane.resources.deletion.DEPENDENTS_MAX", 2)
    await owner_of_images(project, 5)
    await project.client.delete(f"{project.path}/apps/a?propagationPolicy={policy}")
    assert await remaining(project) == 0


async def test_a_cascade_that_was_cut_off_is_finished_by_the_collector(
    project: ServedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controlplane.resources.deletion.STEPS_MAX", 0)
    await owner_of_images(project, 3)
    await project.client.delete(f"{project.path}/apps/a?propagationPolicy=Foreground")
    assert await remaining(project) == 4
    monkeypatch.undo()
    await project.deps.resources.deleter.collect()
    assert await remaining(project) == 0


async def test_objects_that_wait_for_somebody_else_do_not_hide_those_that_may_go(
    project: ServedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controlplane.resources.deletion.STEPS_MAX", 0)
    for number in range(3):
        metadata = {"name": f"waits-{number}", "finalizers": ["example.org/wait"]}
        await project.create("apps", {"metadata": metadata, "spec": {}})
        await project.client.delete(f"{project.path}/apps/waits-{number}")
    await owner_of_images(project, 1)
    await project.client.delete(f"{project.path}/apps/a?propagationPolicy=Foreground")
    await project.deps.resources.deleter.collect()
    # The image's own going is a step of the next pass.
    await project.deps.resources.deleter.collect()
    assert (await project.client.get(f"{project.path}/apps/a")).status_code == 404


async def test_collectors_that_run_at_once_do_not_disturb_each_other(
    project: ServedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controlplane.resources.deletion.STEPS_MAX", 0)
    await owner_of_images(project, 4)
    await project.client.delete(f"{project.path}/apps/a?propagationPolicy=Foreground")
    monkeypatch.undo()
    await asyncio.gather(*(project.deps.resources.deleter.collect() for _ in range(3)))
    assert await remaining(project) == 0


async def test_releasing_what_is_gone_or_not_held_is_harmless(project: ServedApi) -> None:
    deleter = project.deps.resources.deleter
    await deleter.release(project.object_key("App", "nope"), finalizers.WORKERS)
    created = await project.create("apps", {"metadata": {"name": "a"}, "spec": {}})
    await deleter.release(project.object_key("App", "a"), finalizers.WORKERS)
    assert (await project.client.get(f"{project.path}/apps/a")).json() == created


async def test_a_collection_larger_than_a_step_is_deleted(project: ServedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controlplane.resources.deletion.DEPENDENTS_MAX", 3)
    for number in range(8):
        await project.create("images", {"metadata": {"name": f"i-{number}"}, "spec": IMAGE})
    answer = await project.client.delete(f"{project.path}/images")
    assert answer.json()["details"]["count"] == 8
    assert await remaining(project) == 0
