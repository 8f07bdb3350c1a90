"""kr8s: an object-oriented client that asks for paths with a slash at the end and reads objects by list."""

from __future__ import annotations

import asyncio
from typing import Any

import kr8s
import pytest
from kr8s.asyncio.objects import new_class

from tests.fixtures.clients import ClientSide


async def test_objects_live_and_die(client_side: ClientSide) -> None:
    api: Any = await kr8s.asyncio.api(kubeconfig=str(client_side.kubeconfig), namespace=client_side.project)
    assert (await api.version())["major"] == "1"
    assert (await api.whoami()).startswith("usr_")
    kinds = {resource["name"] for resource in await api.api_resources()}
    assert {"apps", "functions", "selfsubjectreviews"} <= kinds
    app_class: Any = new_class("App", "nodus.dev/v1", asyncio=True, namespaced=True)
    app = await app_class({"metadata": {"name": "a", "labels": {"team": "x"}}, "spec": {}}, api=api)
    await app.create()
    assert await app.exists()
    # A status without conditions breaks this at once.
    with pytest.raises(TimeoutError):
        await app.wait("condition=Nothing", timeout=0.5)

    seen: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    async def watching() -> None:
        async for event, found in api.watch("apps.nodus.dev", namespace=client_side.project):
            seen.put_nowait((event, found.metadata.get("labels", {}).get("team", "")))

    watcher = asyncio.create_task(watching())
    async with asyncio.timeout(60):
        assert await seen.get() == ("ADDED", "x")
        await app.patch({"metadata": {"labels": {"team": "y"}}})
        assert await seen.get() == ("MODIFIED", "y")
        found = [
            item.name
            async for item in api.get("apps.nodus.dev", namespace=client_side.project, label_selector="team=y")
        ]
        assert found == ["a"]
        await app.refresh()
        assert app.labels["team"] == "y"
        await app.delete()
        await app.wait("delete", timeout=60)
        assert await seen.get() == ("DELETED", "y")
    watcher.cancel()
    await asyncio.gather(watcher, return_exceptions=True)
    with pytest.raises(kr8s.NotFoundError):
        await app_class.get("a", api=api, namespace=client_side.project, timeout=0.5)
