"""Deletes of whatever a selection finds (R-DEL-4): in pages, and nothing that was not found."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from controlplane.resources.deletion import Deleter
from controlplane.store.compaction import compact
from tests.fixtures.app import ServedApi, api_settings, serve

MERGE = {"Content-Type": "application/merge-patch+json"}


async def apps(project: ServedApi, *names: str, **labels: str) -> None:
    for name in names:
        await project.create("apps", {"metadata": {"name": name, "labels": labels}, "spec": {}})


async def remaining(project: ServedApi) -> list[str]:
    listed = (await project.client.get(f"{project.path}/apps")).json()
    return [item["metadata"]["name"] for item in listed["items"]]


async def delete_all(project: ServedApi, **query: str) -> dict[str, Any]:
    answer = await project.client.delete(f"{project.path}/apps", params=query)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


def before_the_first_page_is_deleted(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], Awaitable[Any]]) -> None:
    """Let something happen between the read of the first page and its delete."""
    delete_found = Deleter.delete_found
    happened: list[bool] = []

    async def delayed(self: Deleter, *arguments: Any) -> int:
        if not happened:
            happened.append(True)
            await happens()
        return await delete_found(self, *arguments)

    monkeypatch.setattr(Deleter, "delete_found", delayed)


async def test_deleting_a_collection_deletes_what_is_selected(project: ServedApi) -> None:
    await apps(project, "a", "b", team="x")
    await apps(project, "c")
    told = await delete_all(project, labelSelector="team=x")
    assert (told["kind"], told["status"], told["details"]["count"]) == ("Status", "Success", 2)
    assert await remaining(project) == ["c"]


async def test_a_collection_larger_than_a_page_is_deleted(database_url: str, tmp_path: Path) -> None:
    async with serve(api_settings(database_url, tmp_path, list_items_max=3)) as api:
        await apps(api, *(f"a-{number}" for number in range(8)))
        assert (await delete_all(api))["details"]["count"] == 8
        assert await remaining(api) == []


async def test_a_limit_deletes_one_page_and_its_token_the_next(project: ServedApi) -> None:
    await apps(project, "a", "b", "c", "d", "e")
    first = await delete_all(project, limit="2")
    assert first["details"]["count"] == 2
    assert await remaining(project) == ["c", "d", "e"]
    # It belongs to a snapshot: what came since is not of it.
    await apps(project, "dd")
    second = await delete_all(project, **{"limit": "2", "continue": first["metadata"]["continue"]})
    assert second["details"]["count"] == 2
    assert await remaining(project) == ["dd", "e"]
    rest = await delete_all(project, **{"continue": second["metadata"]["continue"]})
    assert "continue" not in rest["metadata"]
    assert await remaining(project) == ["dd"]


async def test_options_of_the_list_are_judged_as_in_a_list(project: ServedApi) -> None:
    await apps(project, "a")
    queries: list[dict[str, str]] = [
        {"limit": "-1"},
        {"continue": "made-up"},
        {"resourceVersion": "x"},
        {"resourceVersionMatch": "Exact"},
        {"sendInitialEvents": "true"},
    ]
    for query in queries:
        listed = await project.client.get(f"{project.path}/apps", params=query)
        deleted = await project.client.delete(f"{project.path}/apps", params=query)
        assert deleted.status_code == listed.status_code >= 400
    assert await remaining(project) == ["a"]


async def test_a_version_deletes_what_was_there_then(project: ServedApi) -> None:
    await apps(project, "a", "b")
    version = (await project.client.get(f"{project.path}/apps")).json()["metadata"]["resourceVersion"]
    await apps(project, "c")
    told = await delete_all(project, resourceVersion=version, resourceVersionMatch="Exact")
    assert told["details"]["count"] == 2
    assert await remaining(project) == ["c"]


async def test_a_rehearsal_counts_and_deletes_nothing(project: ServedApi) -> None:
    await apps(project, "a", "b")
    assert (await delete_all(project, dryRun="All"))["details"]["count"] == 2
    assert await remaining(project) == ["a", "b"]


async def test_what_stops_matching_before_its_delete_is_left(
    project: ServedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    await apps(project, "a", "b", team="x")

    async def saved() -> httpx.Response:
        return await project.client.patch(
            f"{project.path}/apps/a", json={"metadata": {"labels": {"team": "y"}}}, headers=MERGE
        )

    before_the_first_page_is_deleted(monkeypatch, saved)
    assert (await delete_all(project, labelSelector="team=x"))["details"]["count"] == 1
    assert await remaining(project) == ["a"]


async def test_a_namesake_that_came_since_is_left(project: ServedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    await apps(project, "a", "b", team="x")

    async def replaced() -> None:
        await project.client.delete(f"{project.path}/apps/a")
        await apps(project, "a", team="x")

    before_the_first_page_is_deleted(monkeypatch, replaced)
    assert (await delete_all(project, labelSelector="team=x"))["details"]["count"] == 1
    assert await remaining(project) == ["a"]


async def test_a_page_whose_snapshot_is_gone_is_expired_and_deletes_nothing(api: ServedApi) -> None:
    await apps(api, "a", "b", "c")
    first = await delete_all(api, limit="1")
    await api.core.database.execute("UPDATE changes SET time = time - interval '2 days'")
    await compact(api.core.database, api.core.settings, api.core.clock.now())
    answer = await api.client.delete(f"{api.path}/apps", params={"continue": first["metadata"]["continue"]})
    assert (answer.status_code, answer.json()["reason"]) == (410, "Expired")
    assert await remaining(api) == ["b", "c"]
