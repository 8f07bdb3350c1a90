"""Watches over real HTTP: what comes first, what comes next, and how they end (R-WATCH-1 to R-WATCH-11)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.datastructures import QueryParams

from api.watch import opening
from controlplane.store.compaction import compact
from tests.fixtures.app import CALL, FUNCTION, ROOT, ServedApi, api_settings, serve
from tests.fixtures.eventually import WITHIN_SECONDS, eventually

MERGE = {"Content-Type": "application/merge-patch+json"}
TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}


def told(event: dict[str, Any]) -> tuple[str, str]:
    return event["type"], event["object"]["metadata"]["name"]


async def create(project: ServedApi, name: str, **labels: str) -> dict[str, Any]:
    return await project.create("apps", {"metadata": {"name": name, "labels": labels}, "spec": {}})


async def relabel(project: ServedApi, name: str, **labels: str | None) -> dict[str, Any]:
    answer = await project.client.patch(
        f"{project.path}/apps/{name}", json={"metadata": {"labels": labels}}, headers=MERGE
    )
    patched: dict[str, Any] = answer.json()
    return patched


async def version(project: ServedApi) -> str:
    """The version of a list made now."""
    listed = (await project.client.get(f"{project.path}/apps")).json()
    return str(listed["metadata"]["resourceVersion"])


async def test_headers_arrive_at_once_on_a_quiet_watch(project: ServedApi) -> None:
    # Nothing happens and no bookmark was asked for, so all that ends the wait for the headers is that they left.
    async with project.watch("apps", resourceVersion=await version(project)) as events:
        headers = events.response.headers
        assert headers["content-type"] == "application/json"
        assert headers["cache-control"] == "no-cache"
        assert headers["x-accel-buffering"] == "no"
        assert "content-length" not in headers


@pytest.mark.parametrize("parameters", [{}, {"resourceVersion": "0"}, {"resourceVersion": ""}])
async def test_without_a_version_today_comes_first_and_then_what_changes(
    project: ServedApi, parameters: dict[str, str]
) -> None:
    await create(project, "a")
    await create(project, "b")
    async with project.watch("apps", **parameters) as events:
        assert sorted(map(told, await events.take(2))) == [("ADDED", "a"), ("ADDED", "b")]
        await create(project, "c")
        assert told(await events.next()) == ("ADDED", "c")


async def test_from_a_version_only_later_changes_come_each_once_and_in_order(project: ServedApi) -> None:
    await create(project, "a")
    since = await version(project)
    async with project.watch("apps", resourceVersion=since) as events:
        await relabel(project, "a", x="1")
        await create(project, "b")
        await project.client.delete(f"{project.path}/apps/a")
        seen = await events.take(3)
    assert list(map(told, seen)) == [("MODIFIED", "a"), ("ADDED", "b"), ("DELETED", "a")]
    versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in seen]
    assert versions == sorted(set(versions))
    assert versions[0] > int(since)
    async with project.watch("apps", resourceVersion=str(versions[-1])) as events:
        await create(project, "c")
        assert told(await events.next()) == ("ADDED", "c")


async def test_objects_that_enter_and_leave_a_selector_are_added_and_deleted(project: ServedApi) -> None:
    await create(project, "a", team="x")
    async with project.watch("apps", resourceVersion=await version(project), labelSelector="team=x") as events:
        await create(project, "b", team="y")
        await relabel(project, "b", team="x")
        left = await relabel(project, "a", team="y")
        await relabel(project, "b", other="z")
        seen = await events.take(3)
    assert list(map(told, seen)) == [("ADDED", "b"), ("DELETED", "a"), ("MODIFIED", "b")]
    assert seen[1]["object"]["metadata"]["resourceVersion"] == left["metadata"]["resourceVersion"]
    assert seen[1]["object"]["metadata"]["labels"]["team"] == "x"


async def test_one_object_is_watched_by_its_name(project: ServedApi) -> None:
    await create(project, "a")
    async with project.watch("apps", fieldSelector="metadata.name=a") as events:
        assert told(await events.next()) == ("ADDED", "a")
        await create(project, "b")
        await relabel(project, "a", x="1")
        assert told(await events.next()) == ("MODIFIED", "a")


async def test_a_watch_list_tells_where_the_present_ends(project: ServedApi) -> None:
    await create(project, "a")
    async with project.watch(
        "apps", sendInitialEvents="true", resourceVersionMatch="NotOlderThan", allowWatchBookmarks="true"
    ) as events:
        assert told(await events.next()) == ("ADDED", "a")
        end = await events.next()
        assert end["type"] == "BOOKMARK"
        assert end["object"]["kind"] == "App"
        assert end["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
        assert set(end["object"]) == {"apiVersion", "kind", "metadata"}
        await create(project, "b")
        assert told(await events.next()) == ("ADDED", "b")


async def test_a_watch_list_without_initial_events_begins_now(project: ServedApi) -> None:
    await create(project, "a")
    async with project.watch("apps", sendInitialEvents="false", resourceVersionMatch="NotOlderThan") as events:
        await create(project, "b")
        assert told(await events.next()) == ("ADDED", "b")


@pytest.mark.parametrize(
    ("parameters", "status"),
    [
        ({"sendInitialEvents": "true"}, 422),
        ({"sendInitialEvents": "true", "resourceVersionMatch": "Exact", "resourceVersion": "1"}, 422),
        ({"resourceVersionMatch": "NotOlderThan", "resourceVersion": "1"}, 422),
        ({"sendInitialEvents": "maybe", "resourceVersionMatch": "NotOlderThan"}, 400),
        ({"resourceVersion": "newest"}, 400),
        ({"timeoutSeconds": "-1"}, 400),
        ({"labelSelector": "a in ("}, 400),
        ({"fieldSelector": "spec.nope=1"}, 400),
        ({"watch": "false", "sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}, 422),
    ],
)
async def test_a_watch_that_cannot_be_served_as_asked_is_refused(
    project: ServedApi, parameters: dict[str, str], status: int
) -> None:
    answer = await project.client.get(f"{project.path}/apps", params={"watch": "true", **parameters})
    assert answer.status_code == status


@pytest.mark.case("C51")
async def test_bookmarks_come_only_when_asked_and_move_on_while_others_write(database_url: str, tmp_path: Path) -> None:
    async with serve(api_settings(database_url, tmp_path, bookmark_seconds=1)) as api:
        since = await version(api)
        async with (
            api.watch("apps", resourceVersion=since, allowWatchBookmarks="true") as asked,
            api.watch("apps", resourceVersion=since) as unasked,
        ):
            function = await api.function()
            bookmark = await asked.next()
            while bookmark["object"]["metadata"]["resourceVersion"] != function["metadata"]["resourceVersion"]:
                bookmark = await asked.next()
            assert bookmark["type"] == "BOOKMARK"
            await create(api, "a")
            assert told(await unasked.next()) == ("ADDED", "a")


async def test_a_watch_that_ends_by_time_tells_last_how_far_it_got(project: ServedApi) -> None:
    since = await version(project)
    query = {"resourceVersion": since, "allowWatchBookmarks": "true"}
    function: dict[str, Any] = {}
    bookmark: dict[str, Any] = {}
    wrote_in_time = False
    for seconds in (2, 10, 60):  # a busy machine may not have written anything before the watch ends
        began = time.monotonic()
        async with project.watch("apps", **query, timeoutSeconds=str(seconds)) as events:
            function = await project.function(f"f{seconds}")
            wrote_in_time = time.monotonic() - began < seconds
            *_, bookmark = await events.rest(within=seconds + WITHIN_SECONDS)
        if wrote_in_time:
            break
    assert wrote_in_time
    assert bookmark["type"] == "BOOKMARK"
    assert set(bookmark["object"]) == {"apiVersion", "kind", "metadata"}
    assert set(bookmark["object"]["metadata"]) == {"resourceVersion"}
    last = bookmark["object"]["metadata"]["resourceVersion"]
    assert int(last) >= int(function["metadata"]["resourceVersion"])
    async with project.watch("apps", resourceVersion=last) as events:
        await create(project, "a")
        assert told(await events.next()) == ("ADDED", "a")


async def test_a_busy_watch_gets_its_bookmarks_as_well(database_url: str, tmp_path: Path) -> None:
    async with serve(api_settings(database_url, tmp_path, bookmark_seconds=1)) as api:
        await create(api, "a")
        async with api.watch("apps", resourceVersion=await version(api), allowWatchBookmarks="true") as events:
            seen: list[dict[str, Any]] = []
            while len([event for event in seen if event["type"] == "BOOKMARK"]) < 2:
                # Never quiet for as long as a bookmark would need to come by itself.
                await relabel(api, "a", x=str(len(seen)))
                seen.append(await events.next())
        versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in seen]
        assert versions == sorted(versions)


async def test_a_version_to_come_is_waited_for_and_nothing_before_it_is_shown(project: ServedApi) -> None:
    await create(project, "a")
    ahead = str(int(await version(project)) + 1)
    async with project.watch("apps", resourceVersion=ahead) as events:
        await create(project, "b")
        await create(project, "c")
        assert told(await events.next()) == ("ADDED", "c")


@pytest.mark.case("C51")
async def test_a_version_older_than_the_log_ends_in_an_error_event(database_url: str, tmp_path: Path) -> None:
    # A memory of one change, so that the log must be asked.
    async with serve(api_settings(database_url, tmp_path, ring_events_max=1)) as api:
        await create(api, "a")
        old = await version(api)
        for number in range(3):
            await relabel(api, "a", x=str(number))
        await api.core.database.execute("UPDATE changes SET time = time - interval '2 days'")
        await compact(api.core.database, api.core.settings, api.core.clock.now())
        async with api.watch("apps", resourceVersion=old) as events:
            [error] = await events.rest()
        assert error["type"] == "ERROR"
        status = error["object"]
        assert (status["kind"], status["apiVersion"]) == ("Status", "v1")
        assert (status["code"], status["reason"]) == (410, "Expired")
        async with api.watch("apps", resourceVersion=await version(api)) as events:
            await create(api, "b")
            assert told(await events.next()) == ("ADDED", "b")


@pytest.mark.parametrize(
    ("asked", "least", "most"), [("", 30, 60), ("0", 30, 60), ("7", 7, 7), ("60", 60, 60), ("86400", 60, 60)]
)
def test_a_watch_lasts_as_long_as_asked_or_else_a_random_time(asked: str, least: float, most: float) -> None:
    lengths = {opening(QueryParams({"timeoutSeconds": asked}), 60).seconds_max for _ in range(50)}
    assert all(least <= length <= most for length in lengths)
    # All clients of a server that restarts must not come back together.
    assert (len(lengths) > 40) is (least != most)


async def test_a_watch_ends_cleanly_at_its_timeout(project: ServedApi) -> None:
    started = time.monotonic()
    async with project.watch("apps", resourceVersion=await version(project), timeoutSeconds="1") as events:
        assert await events.rest() == []
    assert time.monotonic() - started > 0.9


async def test_tables_are_watched_row_by_row_with_the_columns_first(project: ServedApi) -> None:
    await create(project, "a")
    query = {"watch": "true"}
    async with project.client.stream("GET", f"{project.path}/apps", params=query, headers=TABLE) as response:
        lines = response.aiter_lines()
        await create(project, "b")
        first, second = [httpx.Response(200, text=await anext(lines)).json() for _ in range(2)]
    assert first["object"]["kind"] == second["object"]["kind"] == "Table"
    assert [row["cells"][0] for row in first["object"]["rows"]] == ["a"]
    assert first["object"]["columnDefinitions"][0]["name"] == "Name"
    assert second["object"]["columnDefinitions"] == []
    assert second["object"]["rows"][0]["object"]["metadata"]["name"] == "b"


async def test_all_projects_are_watched_on_the_path_without_one(project: ServedApi) -> None:
    since = await version(project)
    query = {"watch": "true", "resourceVersion": since, "labelSelector": "team=everywhere"}
    async with project.client.stream("GET", f"{ROOT}/apps", params=query) as response:
        await create(project, "a", team="everywhere")
        event = httpx.Response(200, text=await anext(response.aiter_lines())).json()
    assert event["object"]["metadata"]["namespace"] == project.project_name


async def test_a_client_that_leaves_frees_its_watch(api: ServedApi) -> None:
    subscriptions = api.core.feed.subscriptions
    async with api.watch("apps", resourceVersion=await version(api)):
        await eventually(lambda: len(subscriptions) == 1)
    await eventually(lambda: len(subscriptions) == 0)


async def test_a_server_that_stops_ends_its_streams_at_once(database_url: str, tmp_path: Path) -> None:
    async with serve(api_settings(database_url, tmp_path)) as api:
        async with api.watch("apps", resourceVersion=await version(api)) as events:
            api.deps.stopping.set()
            assert await events.rest() == []
        assert (await api.client.get("/readyz")).status_code == 503


async def test_a_thousand_writes_reach_a_selective_watcher_once_and_in_order(project: ServedApi) -> None:
    await project.function()
    since = (await project.client.get(f"{project.path}/functioncalls")).json()["metadata"]["resourceVersion"]
    async with project.watch("functioncalls", resourceVersion=since, fieldSelector="spec.mapId=m") as events:
        items = [
            {"metadata": {"generateName": "f-"}, "spec": {**CALL, "mapId": "m" if n % 2 else "o", "mapIndex": n}}
            for n in range(1_000)
        ]
        body = {"kind": "FunctionCallList", "items": items}
        assert (await project.client.post(f"{project.path}/functions/f/calls", json=body)).status_code == 201
        seen = await events.take(500)
    assert [event["object"]["spec"]["mapIndex"] for event in seen] == list(range(1, 1_000, 2))


async def test_a_watcher_of_one_function_sees_its_whole_life(project: ServedApi) -> None:
    # From a version: what comes first without one is as of a moment after the headers, which may be that of the delete.
    since = await version(project)
    async with project.watch("functions", fieldSelector="metadata.name=f", resourceVersion=since) as events:
        await project.create("functions", {"metadata": {"name": "f"}, "spec": FUNCTION})
        await project.client.delete(f"{project.path}/functions/f")
        await project.deps.resources.deleter.release(project.object_key("Function", "f"), "nodus.dev/workers")
        seen = await events.take(3)
    assert [event["type"] for event in seen] == ["ADDED", "MODIFIED", "DELETED"]
    assert seen[1]["object"]["metadata"]["deletionTimestamp"]


async def test_a_credential_has_so_many_streams_open_and_no_more(database_url: str, tmp_path: Path) -> None:
    async with serve(api_settings(database_url, tmp_path, streams_per_credential_max=2)) as api:
        async with api.watch("apps"), api.watch("functions"):
            for plural in ("apps", "functions"):
                refused = await api.client.get(f"{api.path}/{plural}", params={"watch": "true"})
                assert (refused.status_code, refused.json()["reason"]) == (429, "TooManyRequests")
            assert (await api.client.get(f"{api.path}/apps")).status_code == 200

        async def has_room() -> bool:
            answer = await api.client.get(f"{api.path}/apps", params={"watch": "true", "timeoutSeconds": "1"})
            return answer.status_code == 200

        await eventually(has_room)
