"""lightkube: a client of generic resources, with delete options in the query and deletes of collections."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from lightkube import ApiError, AsyncClient, KubeConfig
from lightkube.generic_resource import create_namespaced_resource
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.types import CascadeType, PatchType

from tests.fixtures.clients import ClientSide
from tests.fixtures.eventually import eventually

App: Any = create_namespaced_resource(
    "nodus.dev",
    "v1",
    "App",
    "apps",
    verbs=["delete", "deletecollection", "get", "list", "patch", "post", "put", "watch"],
)


async def test_objects_live_and_die(client_side: ClientSide) -> None:
    config = KubeConfig.from_file(client_side.kubeconfig)
    lightkube: Any = AsyncClient(
        config=config, namespace=client_side.project, field_manager="lightkube", trust_env=False
    )
    seen: list[tuple[str, str]] = []

    async def watching() -> None:
        # Without a version: what there is comes first, as ADDED.
        async for event, found in lightkube.watch(App):
            seen.append((event, found.metadata.name))
            if event == "DELETED":
                return

    first = await lightkube.create(App(metadata=ObjectMeta(name="a", labels={"team": "x"}), spec={}))
    assert first.metadata.uid.startswith("app_")
    watcher = asyncio.create_task(watching())
    # From here on it misses nothing.
    await eventually(lambda: seen)
    await lightkube.create(App(metadata=ObjectMeta(name="b", labels={"team": "x"}), spec={}))
    assert (await lightkube.get(App, "a")).metadata.name == "a"
    assert [item.metadata.name async for item in lightkube.list(App, labels={"team": "x"}, chunk_size=1)] == ["a", "b"]
    patched = await lightkube.patch(App, "a", {"spec": {"description": "new"}}, patch_type=PatchType.MERGE)
    assert patched.spec["description"] == "new"
    patched.spec["description"] = "newer"
    assert (await lightkube.replace(patched)).spec["description"] == "newer"
    await lightkube.delete(App, "a", cascade=CascadeType.BACKGROUND)
    await asyncio.wait_for(watcher, 60)
    assert seen[0] == ("ADDED", "a")
    assert seen[-1] == ("DELETED", "a")
    assert sorted(seen) == sorted(
        [("ADDED", "a"), ("ADDED", "b"), ("MODIFIED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]
    )
    await lightkube.deletecollection(App)
    assert [item async for item in lightkube.list(App)] == []
    with pytest.raises(ApiError) as raised:
        await lightkube.get(App, "a")
    assert raised.value.status.reason == "NotFound"
    await lightkube.close()
