"""kopf: an operator that watches, holds objects by its finalizer and keeps its progress in their annotations."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import kopf
import pytest

from tests.fixtures.clients import ClientSide
from tests.fixtures.eventually import eventually

FINALIZER = "tests.nodus.dev/held"
HANDLED = "tests.nodus.dev/last-handled-configuration"


async def test_an_operator_sees_its_objects_come_change_and_go(
    client_side: ClientSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(client_side.kubeconfig))
    api = client_side.api
    seen: list[Any] = []
    registry = kopf.OperatorRegistry()
    here: Any = {"registry": registry}

    @kopf.on.startup(**here)
    def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.posting.enabled = False
        settings.persistence.finalizer = FINALIZER
        settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix="tests.nodus.dev")
        settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix="tests.nodus.dev")

    @kopf.on.login(**here)
    def login(**words: Any) -> Any:
        return kopf.login_with_kubeconfig(**words)

    @kopf.on.create("nodus.dev", "v1", "apps", **here)
    def created(name: str | None, **_: Any) -> None:
        seen.append(("created", name))

    @kopf.on.update("nodus.dev", "v1", "apps", field="spec.description", **here)
    def updated(name: str | None, new: Any, **_: Any) -> None:
        seen.append(("updated", name, new))

    @kopf.on.delete("nodus.dev", "v1", "apps", **here)
    def deleted(name: str | None, **_: Any) -> None:
        seen.append(("deleted", name))

    stop, ready = asyncio.Event(), asyncio.Event()
    operating = asyncio.create_task(
        kopf.operator(
            registry=registry, standalone=True, namespaces=[client_side.project], stop_flag=stop, ready_flag=ready
        )
    )
    try:
        await asyncio.wait_for(ready.wait(), 60)
        await api.create("apps", {"metadata": {"name": "a"}, "spec": {}})
        await eventually(lambda: ("created", "a") in seen)
        path = f"{api.path}/apps/a"
        await eventually(lambda: _held(api.client, path))
        merge = {"Content-Type": "application/merge-patch+json"}
        await api.client.patch(path, json={"spec": {"description": "new"}}, headers=merge)
        await eventually(lambda: ("updated", "a", "new") in seen)
        answer = await api.client.delete(path)
        assert answer.json()["metadata"]["finalizers"] == [FINALIZER]
        await eventually(lambda: seen[-1] == ("deleted", "a"))
        await eventually(lambda: _gone(api.client, path))
        assert seen == [("created", "a"), ("updated", "a", "new"), ("deleted", "a")]
    finally:
        stop.set()
        await asyncio.wait_for(operating, 60)


async def _held(client: httpx.AsyncClient, path: str) -> bool:
    """Whether the operator holds the object and has noted what it handled: an update before that is a part of it."""
    metadata = (await client.get(path)).json()["metadata"]
    return FINALIZER in metadata.get("finalizers", []) and HANDLED in metadata.get("annotations", {})


async def _gone(client: httpx.AsyncClient, path: str) -> bool:
    return (await client.get(path)).status_code == 404
