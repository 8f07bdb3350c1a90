"""Ten faults that home-made Kubernetes APIs had in the field, each as the test that would have found it.

Each test names the reports it stands for; the reports tell what clients suffered.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from controlplane.settings import Settings
from controlplane.store.compaction import compact
from tests.fixtures.app import CALL, FUNCTION, ServedApi, api_settings, client_of, listening, serve
from tests.fixtures.eventually import WITHIN_SECONDS, eventually
from workers.edge import open_edge
from workers.wiring import open_core

Document = dict[str, Any]
APPLY = {"Content-Type": "application/apply-patch+yaml"}
MERGE = {"Content-Type": "application/merge-patch+json"}
WATCH_LIST = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}


async def create(api: ServedApi, name: str, **metadata: Any) -> dict[str, Any]:
    return await api.create("apps", {"metadata": {"name": name, **metadata}, "spec": {}})


async def list_version(api: ServedApi) -> str:
    return str((await api.client.get(f"{api.path}/apps")).json()["metadata"]["resourceVersion"])


def version(thing: dict[str, Any]) -> int:
    return int(thing["metadata"]["resourceVersion"])


@pytest.mark.parametrize("selector", [{}, {"labelSelector": "no=such"}, {"fieldSelector": "metadata.name=nope"}])
async def test_1_a_watch_list_always_tells_where_its_list_ends(project: ServedApi, selector: dict[str, str]) -> None:
    """antrea#8123, kcp#3871, cozystack#2786, static-kas#43: informers and kubectl hang without the bookmark."""
    await create(project, "a")
    async with project.watch("apps", **WATCH_LIST, **selector) as events:
        seen = [await events.next() for _ in range(1 if selector else 2)]
        assert [event["type"] for event in seen[:-1]] == ["ADDED"] * (len(seen) - 1)
        assert seen[-1]["type"] == "BOOKMARK"
        assert seen[-1]["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
        assert seen[-1]["object"]["kind"] == "App"


async def test_2_writes_of_two_servers_at_once_are_all_seen_in_order(database_url: str, tmp_path: Path) -> None:
    """kine#676, agents-at-scale-ark#3123, SQLStreamStore#121: numbers taken in another order than they commit."""
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(serve(api_settings(database_url, tmp_path / "1")))
        two_settings = one.core.settings.model_copy(update={"data_dir": tmp_path / "2"})
        two = await stack.enter_async_context(_replica(two_settings, one))
        since = await list_version(one)
        watching = [
            await stack.enter_async_context(api.watch("apps", resourceVersion=since)) for api in (one, two, two)
        ]

        async def write(api: ServedApi, name: str) -> None:
            for number in range(10):
                await create(api, f"{name}-{number}")

        await asyncio.gather(*(write(api, f"{at}{n}") for at, api in (("a", one), ("b", two)) for n in range(8)))
        for events in watching:
            seen = await events.take(160)
            versions = [version(event["object"]) for event in seen]
            assert versions == sorted(set(versions))
            assert len({event["object"]["metadata"]["name"] for event in seen}) == 160


@asynccontextmanager
async def _replica(settings: Settings, first: ServedApi) -> AsyncIterator[ServedApi]:
    """Another server over the same database, entered with the key of the first."""
    async with (
        open_core(settings) as core,
        open_edge(core) as (deps, stop),
        listening(deps, before_end=stop) as url,
        client_of(url, first.key) as client,
    ):
        yield replace(first, url=url, core=core, deps=deps, client=client)


async def test_3_a_watch_from_a_lists_version_replays_nothing(project: ServedApi) -> None:
    """agents-at-scale-ark#2680: everything came again as ADDED."""
    await create(project, "a")
    async with project.watch("apps", resourceVersion=await list_version(project)) as events:
        await create(project, "b")
        first = await events.next()
    assert (first["type"], first["object"]["metadata"]["name"]) == ("ADDED", "b")


async def test_4_a_delete_has_a_version_of_its_own_to_resume_from(project: ServedApi) -> None:
    """kubernetes#58545, #63356: DELETED carried the object's last version, so a resume replayed."""
    made = await create(project, "a")
    async with project.watch("apps", resourceVersion=str(version(made))) as events:
        await project.client.delete(f"{project.path}/apps/a")
        deleted = await events.next()
    assert deleted["type"] == "DELETED"
    assert version(deleted["object"]) > version(made)
    assert deleted["object"]["metadata"]["uid"] == made["metadata"]["uid"]
    async with project.watch("apps", resourceVersion=str(version(deleted["object"]))) as events:
        await create(project, "b")
        assert (await events.next())["object"]["metadata"]["name"] == "b"


async def test_5_the_headers_of_a_quiet_watch_do_not_wait_for_an_event(project: ServedApi) -> None:
    """kubernetes#75837, #10678, charmed-kubernetes#172: the client blocks until something happens."""
    since = await list_version(project)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(project.url.rpartition(":")[2]))
    try:
        writer.write(
            f"GET {project.path}/apps?watch=1&resourceVersion={since} HTTP/1.1\r\nHost: here\r\n"
            f"Accept-Encoding: gzip\r\nAuthorization: Bearer {project.key}\r\n\r\n".encode()
        )
        # Nothing is written meanwhile, so nothing but the server's own haste can bring them.
        async with asyncio.timeout(WITHIN_SECONDS):
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
        assert head.startswith(b"http/1.1 200")
        assert b"transfer-encoding: chunked" in head
        for absent in (b"content-length", b"content-encoding"):
            assert absent not in head
    finally:
        writer.close()


async def test_6_the_object_of_an_error_event_is_a_complete_status(api: ServedApi) -> None:
    """kubeclipper#996, kube-rs#1986: without kind and apiVersion it cannot be decoded, and nobody lists again."""
    old = await _forgotten(api)
    for query in ({"resourceVersion": old}, {"resourceVersion": old, "allowWatchBookmarks": "true"}):
        async with api.watch("apps", **query) as events:
            [error] = await events.rest()
        assert error["type"] == "ERROR"
        status = error["object"]
        assert (status["kind"], status["apiVersion"], status["status"]) == ("Status", "v1", "Failure")
        assert (status["code"], status["reason"]) == (410, "Expired")
        assert status["message"]


async def test_7_the_list_after_an_expired_watch_can_be_watched(api: ServedApi) -> None:
    """headlamp#7451, python-base#57 and #199, lightkube#108, airflow#21087, kubernetes#49992: 410 for ever."""
    old = await _forgotten(api)
    async with api.watch("apps", resourceVersion=old) as events:
        assert [event["type"] for event in await events.rest()] == ["ERROR"]
    # Nothing was written since, so the log has nothing beyond the version of the list.
    fresh = await list_version(api)
    async with api.watch("apps", resourceVersion=fresh, timeoutSeconds="1") as events:
        assert await events.rest() == []
    exact = {"resourceVersion": fresh, "resourceVersionMatch": "Exact"}
    assert (await api.client.get(f"{api.path}/apps", params=exact)).status_code == 200


async def _forgotten(api: ServedApi) -> str:
    """A version that memory and the log no longer hold, while no write came after they were emptied."""
    await create(api, "a")
    old = await list_version(api)
    for number in range(3):
        await api.client.patch(f"{api.path}/apps/a", json={"metadata": {"labels": {"n": str(number)}}}, headers=MERGE)
    await api.core.database.execute("UPDATE changes SET time = time - interval '2 days'")
    await compact(api.core.database, api.core.settings, api.core.clock.now())
    api.core.feed._ring.clear()
    return old


@pytest.mark.parametrize(
    ("plural", "body"),
    [
        ("apps", {"metadata": {"name": "x"}, "spec": {}}),
        ("functions", {"metadata": {"name": "x"}, "spec": FUNCTION}),
        ("functioncalls", {"metadata": {"name": "x"}, "spec": CALL}),
        ("images", {"metadata": {"name": "x"}, "spec": {"base": "nodus/python:3.11"}}),
        ("secrets", {"metadata": {"name": "x"}, "spec": {"stringData": {"K": "v"}}}),
    ],
)
async def test_8_a_new_object_has_a_status_with_conditions(
    project: ServedApi, plural: str, body: dict[str, Any]
) -> None:
    """kr8s#747, #768: waiting for a condition crashed on objects without status or with conditions null."""
    await project.function()
    async with project.watch(plural, fieldSelector="metadata.name=x") as events:
        created = await project.create(plural, body)
        added = (await events.next())["object"]
    for seen in (created, added):
        assert isinstance(seen["status"].get("conditions", []), list)
        assert seen["status"]


async def test_9_writing_what_is_there_changes_nothing_and_tells_nobody(project: ServedApi) -> None:
    """kubernetes#116861: each apply with `creationTimestamp: null` made a version, and controllers never rested."""
    made = await create(project, "a", labels={"x": "1"})
    path = f"{project.path}/apps/a"
    same = {"metadata": {"creationTimestamp": None, "labels": {"x": "1"}}, "spec": {}, "status": {}}
    async with project.watch("apps", resourceVersion=str(version(made))) as events:
        for _ in range(3):
            patched = (await project.client.patch(path, json=same, headers=MERGE)).json()
            replaced = (
                await project.client.put(path, json={**same, "metadata": {**same["metadata"], "name": "a"}})
            ).json()
            assert version(patched) == version(replaced) == version(made)
        # The first apply makes its manager an owner, which is a change; what it says again is none, not even of a time.
        applied = await apply(project, same)
        assert (await events.next())["object"] == applied
        assert "ctl" in [entry["manager"] for entry in applied["metadata"]["managedFields"]]
        for _ in range(3):
            assert await apply(project, same) == applied
        await create(project, "b")
        assert (await events.next())["object"]["metadata"]["name"] == "b"


async def apply(project: ServedApi, body: Document) -> Document:
    """Apply the App a on the server as a controller does, with all that Go's encoder adds to it."""
    whole = {"apiVersion": "nodus.dev/v1", "kind": "App", **body, "metadata": {**body["metadata"], "name": "a"}}
    answer = await project.client.patch(
        f"{project.path}/apps/a", params={"fieldManager": "ctl", "force": "true"}, json=whole, headers=APPLY
    )
    assert answer.status_code == 200, answer.text
    applied: Document = answer.json()
    return applied


async def test_10_a_stalled_watcher_is_cut_and_loses_nothing(database_url: str, tmp_path: Path) -> None:
    """agents-at-scale-ark#1397: a full buffer dropped 50 of 150 events, and the watch went on as if nothing was."""
    async with serve(api_settings(database_url, tmp_path, watch_buffer_events_max=20)) as api:
        since = await list_version(api)
        stalled = socket.socket()
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
        stalled.setblocking(False)
        await asyncio.get_running_loop().sock_connect(stalled, ("127.0.0.1", int(api.url.rpartition(":")[2])))
        reader, writer = await asyncio.open_connection(sock=stalled, limit=1 << 16)
        writer.write(
            f"GET {api.path}/apps?watch=1&resourceVersion={since} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n"
            f"Authorization: Bearer {api.key}\r\n\r\n".encode()
        )
        await eventually(lambda: len(api.core.feed.subscriptions) == 1)
        # Larger in all than what the kernel holds for a connection.
        note = {"note": "x" * 100_000}
        for number in range(150):
            await create(api, f"a{number:03}", annotations=note)
        lines = (await asyncio.wait_for(reader.read(-1), WITHIN_SECONDS)).splitlines()
        writer.close()
        # Chunks hold whole lines; their sizes stand between them.
        seen = [orjson.loads(line)["object"] for line in lines if line.startswith(b'{"type"')]
        assert 0 < len(seen) < 150
        resume = str(version(seen[-1]))
        async with api.watch("apps", resourceVersion=resume) as events:
            seen += [event["object"] for event in await events.take(150 - len(seen))]
        assert [item["metadata"]["name"] for item in seen] == [f"a{number:03}" for number in range(150)]
