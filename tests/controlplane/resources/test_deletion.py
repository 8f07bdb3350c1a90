"""Cascades larger than a step, and steps that anybody may repeat."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from controlplane.resources.mutations import Delete
from controlplane.store import finalizers
from controlplane.store.writer import Writer
from tests.fixtures.app import ServedApi
from tests.fixtures.eventually import eventually

IMAGE = {"base": "nodus/python:3.11", "python": "3.11"}


async def reference_to(project: ServedApi, name: str) -> dict[str, Any]:
    app = (await project.client.get(f"{project.path}/apps/{name}")).json()
    return {"apiVersion": "nodus.dev/v1", "kind": "App", "name": name, "uid": app["metadata"]["uid"]}


async def owner_of_images(project: ServedApi, count: int) -> dict[str, Any]:
    app = await project.create("apps", {"metadata": {"name": "a"}, "spec": {}})
    reference = await reference_to(project, "a")
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


async def test_objects_that_wait_for_others_do_not_hide_one_that_is_due(
    project: ServedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many they are: the collector goes round."""
    held = {"finalizers": ["example.org/wait"]}
    for number in range(6):
        await project.create("apps", {"metadata": {**held, "name": f"a-{number}"}, "spec": {}})
        await project.client.delete(f"{project.path}/apps/a-{number}")
    monkeypatch.setattr("controlplane.resources.deletion.STEPS_MAX", 0)
    await project.create("apps", {"metadata": {"name": "z"}, "spec": {}})
    reference = await reference_to(project, "z")
    await project.create("images", {"metadata": {"name": "i", "ownerReferences": [reference]}, "spec": IMAGE})
    await project.client.delete(f"{project.path}/apps/z?propagationPolicy=Foreground")
    monkeypatch.undo()
    monkeypatch.setattr("controlplane.resources.deletion.DEPENDENTS_MAX", 2)

    async def is_gone() -> bool:
        await project.deps.resources.deleter.collect()
        return (await project.client.get(f"{project.path}/apps/z")).status_code == 404

    # The server is shared: other tests may have left some that wait.
    await eventually(is_gone)


async def test_what_changed_hands_since_it_was_found_is_not_deleted(
    project: ServedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = await owner_of_images(project, 1)
    await project.create("apps", {"metadata": {"name": "b"}, "spec": {}})
    adopter = await reference_to(project, "b")
    write = Writer.write
    adopted: list[bool] = []

    async def adopted_first(self: Writer, mutation: Any) -> Any:
        if isinstance(mutation, Delete) and mutation._key.name == "i-0" and not adopted:
            adopted.append(True)
            change = {"metadata": {"ownerReferences": [adopter]}}
            path, merge = f"{project.path}/images/i-0", {"Content-Type": "application/merge-patch+json"}
            assert (await project.client.patch(path, json=change, headers=merge)).status_code == 200
        return await write(self, mutation)

    monkeypatch.setattr(Writer, "write", adopted_first)
    await project.client.delete(f"{project.path}/apps/{app['metadata']['name']}")
    assert adopted
    kept = (await project.client.get(f"{project.path}/images/i-0")).json()
    assert kept["metadata"]["ownerReferences"] == [adopter]


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
