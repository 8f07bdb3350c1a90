"""Lists over real HTTP: selectors, pages at one snapshot, versions, and the forms clients ask for."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest

from controlplane.store.compaction import compact
from tests.fixtures.app import CALL, ROOT, ServedApi
from tests.fixtures.eventually import WITHIN_SECONDS

TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}
MERGE = {"Content-Type": "application/merge-patch+json"}


async def apps(project: ServedApi, *names: str, **labels: str) -> None:
    for name in names:
        await project.create("apps", {"metadata": {"name": name, "labels": labels}, "spec": {}})


async def listed(project: ServedApi, plural: str = "apps", **query: str) -> dict[str, Any]:
    answer = await project.client.get(f"{project.path}/{plural}", params=query)
    assert answer.status_code == 200, answer.text
    page: dict[str, Any] = answer.json()
    return page


def names(page: dict[str, Any]) -> list[str]:
    return [item["metadata"]["name"] for item in page["items"]]


async def test_an_empty_list_has_items_and_a_version(project: ServedApi) -> None:
    page = await listed(project)
    assert page["items"] == []
    assert int(page["metadata"]["resourceVersion"]) > 0
    assert "continue" not in page["metadata"]


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("team=x", ["a"]),
        ("team==x", ["a"]),
        ("team!=x", ["b", "c"]),
        ("team", ["a", "b"]),
        ("!team", ["c"]),
        ("team in (x,y)", ["a", "b"]),
        ("team notin (x)", ["b", "c"]),
        ("team=x,team=y", []),
    ],
)
async def test_labels_select(project: ServedApi, selector: str, expected: list[str]) -> None:
    await apps(project, "a", team="x")
    await apps(project, "b", team="y")
    await apps(project, "c")
    assert names(await listed(project, labelSelector=selector)) == expected


async def test_fields_select_and_may_be_repeated(project: ServedApi) -> None:
    await project.function("f")
    await project.function("g")
    for function, session in (("f", "s1"), ("f", "s2"), ("g", "s1")):
        body = {
            "metadata": {"name": f"{function}-{session}"},
            "spec": {**CALL, "function": function, "session": session},
        }
        await project.create("functioncalls", body)
    for selector, expected in {
        "spec.function=f": ["f-s1", "f-s2"],
        "spec.function!=f": ["g-s1"],
        "spec.session=s1,spec.function==f": ["f-s1"],
        "metadata.name=f-s1,metadata.name=f-s1": ["f-s1"],
        "status.phase=Queued": ["f-s1", "f-s2", "g-s1"],
        "status.reason=": ["f-s1", "f-s2", "g-s1"],
        "spec.mapId=": ["f-s1", "f-s2", "g-s1"],
        f"metadata.namespace={project.project_name}": ["f-s1", "f-s2", "g-s1"],
    }.items():
        assert names(await listed(project, "functioncalls", fieldSelector=selector)) == expected, selector


async def test_a_field_that_cannot_select_is_named(project: ServedApi) -> None:
    answer = await project.client.get(f"{project.path}/apps", params={"fieldSelector": "spec.nope=1"})
    assert (answer.status_code, answer.json()["message"]) == (400, "field label not supported: spec.nope")


async def test_pages_show_one_snapshot_whatever_happens_between(project: ServedApi) -> None:
    await apps(project, "a", "b", "d", "e")
    first = await listed(project, limit="2")
    assert names(first) == ["a", "b"]
    await apps(project, "c")
    await project.client.delete(f"{project.path}/apps/d")
    await project.client.patch(f"{project.path}/apps/e", json={"spec": {"description": "new"}}, headers=MERGE)
    second = await listed(project, limit="2", **{"continue": first["metadata"]["continue"]})
    assert names(second) == ["d", "e"]
    assert "description" not in second["items"][1]["spec"]
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    assert "continue" not in second["metadata"]
    assert names(await listed(project)) == ["a", "b", "c", "e"]


async def test_all_projects_are_listed_on_the_path_without_one(project: ServedApi) -> None:
    await apps(project, "a", scope="everywhere")
    answer = (await project.client.get(f"{ROOT}/apps", params={"labelSelector": "scope=everywhere"})).json()
    assert [item["metadata"]["namespace"] for item in answer["items"]] == [project.project_name]
    assert (await project.client.post(f"{ROOT}/apps", json={})).status_code == 405
    assert (await project.client.get(f"{ROOT}/apps/a")).status_code == 404


@pytest.mark.parametrize(
    ("query", "status", "reason"),
    [
        ({"limit": "many"}, 400, "BadRequest"),
        ({"limit": "-1"}, 400, "BadRequest"),
        ({"resourceVersion": "newest"}, 400, "BadRequest"),
        ({"continue": "nonsense"}, 400, "BadRequest"),
        ({"continue": base64.urlsafe_b64encode(b"[1]").decode()}, 400, "BadRequest"),
        ({"resourceVersionMatch": "Exact"}, 422, "Invalid"),
        ({"resourceVersionMatch": "Exact", "resourceVersion": "0"}, 422, "Invalid"),
        ({"resourceVersionMatch": "Closest", "resourceVersion": "1"}, 422, "Invalid"),
        ({"resourceVersionMatch": "NotOlderThan", "resourceVersion": "99999999999"}, 504, "Timeout"),
        ({"resourceVersionMatch": "Exact", "resourceVersion": "99999999999"}, 504, "Timeout"),
    ],
)
async def test_options_that_cannot_be_served_are_refused(
    project: ServedApi, query: dict[str, str], status: int, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controlplane.resources.reading.CATCH_UP_SECONDS_MAX", 0.1)
    answer = await project.client.get(f"{project.path}/apps", params=query)
    assert (answer.status_code, answer.json()["reason"]) == (status, reason)
    if reason == "Timeout":
        assert answer.json()["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"


@pytest.mark.parametrize("below", ["", "/status", "/scale"])
async def test_one_object_is_read_not_older_than_asked(
    project: ServedApi, below: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = await project.function()
    url = f"{project.path}/functions/f{below}"
    current = int(function["metadata"]["resourceVersion"])
    for asked in ("", "0", "1", str(current)):
        answer = await project.client.get(url, params={"resourceVersion": asked})
        assert answer.json()["metadata"]["resourceVersion"] == str(current)
    assert (await project.client.get(url, params={"resourceVersion": "newest"})).status_code == 400
    monkeypatch.setattr("controlplane.resources.reading.CATCH_UP_SECONDS_MAX", WITHIN_SECONDS)
    reading = asyncio.create_task(project.client.get(url, params={"resourceVersion": str(current + 1)}))
    await apps(project, "a")
    assert (await reading).status_code == 200
    monkeypatch.setattr("controlplane.resources.reading.CATCH_UP_SECONDS_MAX", 0.1)
    refused = await project.client.get(url, params={"resourceVersion": "99999999999"})
    assert (refused.status_code, refused.json()["reason"]) == (504, "Timeout")
    assert "Too large resource version" in refused.json()["message"]
    assert refused.json()["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"
    assert refused.headers["retry-after"] == "1"


async def test_a_version_that_is_about_to_come_is_waited_for(
    project: ServedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controlplane.resources.reading.CATCH_UP_SECONDS_MAX", WITHIN_SECONDS)
    ahead = str(int((await listed(project))["metadata"]["resourceVersion"]) + 1)
    listing = asyncio.create_task(listed(project, resourceVersion=ahead, resourceVersionMatch="NotOlderThan"))
    await apps(project, "a")
    page = await listing
    assert names(page) == ["a"]
    assert int(page["metadata"]["resourceVersion"]) >= int(ahead)


async def test_a_token_counts_only_for_the_list_it_came_from(project: ServedApi) -> None:
    await apps(project, "a", "b", team="x")
    token = (await listed(project, limit="1"))["metadata"]["continue"]
    for query in ({"labelSelector": "team=x"}, {"resourceVersion": "5"}):
        answer = await project.client.get(f"{project.path}/apps", params={"continue": token, **query})
        assert (answer.status_code, answer.json()["reason"]) == (400, "BadRequest")
    elsewhere = await project.client.get(f"{ROOT}/apps", params={"continue": token})
    assert elsewhere.status_code == 400


async def test_an_exact_version_is_shown_as_it_was(project: ServedApi) -> None:
    await apps(project, "a")
    before = (await listed(project))["metadata"]["resourceVersion"]
    await apps(project, "b")
    for query in ({"resourceVersionMatch": "Exact"}, {"limit": "10"}):
        page = await listed(project, resourceVersion=before, **query)
        assert names(page) == ["a"]
        assert page["metadata"]["resourceVersion"] == before
    assert names(await listed(project, resourceVersion=before)) == ["a", "b"]
    assert names(await listed(project, resourceVersion=before, resourceVersionMatch="NotOlderThan")) == ["a", "b"]
    assert names(await listed(project, resourceVersion="0", limit="10")) == ["a", "b"]


async def test_a_snapshot_that_was_compacted_is_expired(api: ServedApi) -> None:
    await apps(api, "a", "b", "c")
    token = (await listed(api, limit="1"))["metadata"]["continue"]
    await apps(api, "d")
    await api.core.database.execute("UPDATE changes SET time = time - interval '2 days'")
    await compact(api.core.database, api.core.settings, api.core.clock.now())
    answer = await api.client.get(f"{api.path}/apps", params={"continue": token})
    assert (answer.status_code, answer.json()["reason"]) == (410, "Expired")
    # Who accepts a list of two times goes on where it stopped.
    fresh = answer.json()["metadata"]["continue"]
    rest = await listed(api, limit="2", **{"continue": fresh})
    assert names(rest) == ["b", "c"]
    assert int(rest["metadata"]["resourceVersion"]) > 0
    assert names(await listed(api, **{"continue": rest["metadata"]["continue"]})) == ["d"]
    exact = await api.client.get(f"{api.path}/apps", params={"resourceVersion": "1", "resourceVersionMatch": "Exact"})
    assert (exact.status_code, exact.json()["metadata"]) == (410, {})


async def test_what_remains_is_told_while_it_is_cheap(project: ServedApi) -> None:
    await apps(project, "a", "b", "c", "d", team="x")
    page = await listed(project, limit="1")
    assert page["metadata"]["remainingItemCount"] == 3
    page = await listed(project, limit="1", **{"continue": page["metadata"]["continue"]})
    assert page["metadata"]["remainingItemCount"] == 2
    table = (await project.client.get(f"{project.path}/apps", params={"limit": "1"}, headers=TABLE)).json()
    assert table["metadata"]["remainingItemCount"] == 3
    assert "remainingItemCount" not in (await listed(project, limit="1", labelSelector="team=x"))["metadata"]


async def test_a_list_is_watched_from_its_own_version_without_a_gap_or_a_repeat(project: ServedApi) -> None:
    """Writers run all the time; every list with the watch from its version ends at what there is (R-LIST-1)."""
    writers = [asyncio.create_task(churn(project, number)) for number in range(4)]
    states = []
    for _ in range(3):
        page = await listed(project)
        state = {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in page["items"]}
        states.append((int(page["metadata"]["resourceVersion"]), state))
    await asyncio.gather(*writers)
    last = await listed(project)
    end = {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in last["items"]}
    for rv, state in states:
        query = {"resourceVersion": str(rv), "allowWatchBookmarks": "true", "timeoutSeconds": "1"}
        async with project.watch("apps", **query) as events:
            *seen, bookmark = await events.rest()
        assert bookmark["type"] == "BOOKMARK"
        for event in seen:
            name, at = event["object"]["metadata"]["name"], event["object"]["metadata"]["resourceVersion"]
            assert int(at) > rv
            assert (name in state) is (event["type"] != "ADDED")
            if event["type"] == "DELETED":
                del state[name]
            else:
                state[name] = at
        assert state == end


async def churn(project: ServedApi, number: int) -> None:
    """Creates, changes and deletes of apps that nobody else writes."""
    for turn in range(8):
        name = f"a{number}-{turn % 3}"
        await project.client.post(f"{project.path}/apps", json={"metadata": {"name": name}, "spec": {}})
        await project.client.patch(
            f"{project.path}/apps/{name}", json={"metadata": {"labels": {"turn": str(turn)}}}, headers=MERGE
        )
        if turn % 2:
            await project.client.delete(f"{project.path}/apps/{name}")


async def test_a_page_ends_early_when_its_objects_are_large(project: ServedApi) -> None:
    await project.function()
    inline = base64.b64encode(b"x" * 60_000).decode()
    items = [
        {"metadata": {"generateName": "f-"}, "spec": {"function": "f", "input": {"inline": inline}}} for _ in range(80)
    ]
    body = {"kind": "FunctionCallList", "items": items}
    assert (await project.client.post(f"{project.path}/functions/f/calls", json=body)).status_code == 201
    assert (await project.client.post(f"{project.path}/functions/f/calls", json=body)).status_code == 201
    first = await project.client.get(f"{project.path}/functioncalls")
    page = first.json()
    assert len(first.content) < 9 << 20
    assert 1 < len(page["items"]) < 160
    rest = await listed(project, "functioncalls", **{"continue": page["metadata"]["continue"]})
    assert len(page["items"]) + len(rest["items"]) == 160


async def test_a_table_has_cells_in_the_order_of_its_columns(project: ServedApi) -> None:
    await project.function()
    answer = (await project.client.get(f"{project.path}/functions", headers=TABLE)).json()
    assert (answer["kind"], answer["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    columns = [(column["name"], column["priority"]) for column in answer["columnDefinitions"]]
    shown = [name for name, priority in columns if priority == 0]
    assert shown == ["Name", "Phase", "Ready", "Queued", "Running", "$/H", "Spend", "Age"]
    [row] = answer["rows"]
    cells = dict(zip((name for name, _ in columns), row["cells"], strict=True))
    assert cells["Name"] == "f"
    assert cells["Phase"] == "Running"
    assert cells["Ready"] == 0
    assert cells["Age"].endswith("s")
    assert row["object"]["kind"] == "PartialObjectMetadata"
    assert row["object"]["metadata"]["labels"]["nodus.dev/created-by"]
    assert answer["metadata"]["resourceVersion"].isdigit()


async def test_a_table_carries_the_token_and_as_much_of_the_object_as_asked(project: ServedApi) -> None:
    await apps(project, "a", "b")
    path = f"{project.path}/apps"
    first = (await project.client.get(path, params={"limit": "1"}, headers=TABLE)).json()
    assert len(first["rows"]) == 1
    assert first["metadata"]["continue"]
    whole = (await project.client.get(path, params={"includeObject": "Object"}, headers=TABLE)).json()
    assert whole["rows"][0]["object"]["kind"] == "App"
    none = (await project.client.get(path, params={"includeObject": "None"}, headers=TABLE)).json()
    assert "object" not in none["rows"][0]
    beta = {"Accept": "application/json;as=Table;v=v1beta1;g=meta.k8s.io"}
    assert (await project.client.get(f"{path}/a", headers=beta)).json()["apiVersion"] == "meta.k8s.io/v1beta1"
    assert len((await project.client.get(f"{path}/a", headers=TABLE)).json()["rows"]) == 1


async def test_metadata_alone_can_be_asked_for(project: ServedApi) -> None:
    await apps(project, "a")
    accept = {"Accept": "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"}
    answer = (await project.client.get(f"{project.path}/apps", headers=accept)).json()
    assert answer["kind"] == "PartialObjectMetadataList"
    assert set(answer["items"][0]) == {"kind", "apiVersion", "metadata"}
    accept = {"Accept": "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"}
    one = (await project.client.get(f"{project.path}/apps/a", headers=accept)).json()
    assert (one["kind"], one["metadata"]["name"]) == ("PartialObjectMetadata", "a")


@pytest.mark.parametrize(
    ("accept", "status"),
    [
        ("*/*", 200),
        ("application/*", 200),
        ("application/json", 200),
        ("application/vnd.kubernetes.protobuf,application/json", 200),
        ("application/json;as=Something;g=meta.k8s.io;v=v1,application/json", 200),
        ("text/html;q=0.9, application/json;q=0.1", 200),
        ("application/vnd.kubernetes.protobuf", 406),
        ("application/cbor", 406),
        ("application/json;as=Table;g=meta.k8s.io;v=v9", 406),
    ],
)
async def test_the_accepted_types_decide_the_form_or_a_refusal(project: ServedApi, accept: str, status: int) -> None:
    answer = await project.client.get(f"{project.path}/apps", headers={"Accept": accept})
    assert answer.status_code == status
    assert answer.json()["kind"] == ("AppList" if status == 200 else "Status")
