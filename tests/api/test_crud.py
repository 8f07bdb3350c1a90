"""The generic verbs over real HTTP and a real store."""

from __future__ import annotations

import asyncio
import urllib.parse
from typing import Any

import pytest

from tests.fixtures.app import CALL, FUNCTION, ROOT, ServedApi

MERGE = {"Content-Type": "application/merge-patch+json"}
JSON_PATCH = {"Content-Type": "application/json-patch+json"}

KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "apps": ({"description": "one"}, {"description": "two"}),
    "functions": (FUNCTION, {"timeout": "90s"}),
    "functioncalls": ({**CALL, "function": "callee"}, {"state": "Cancelled"}),
    "secrets": ({"stringData": {"KEY": "value"}}, {"stringData": {"KEY": "other"}}),
    "images": ({"base": "nodus/python:3.11", "python": "3.11"}, {"base": "nodus/python:3.12", "python": "3.12"}),
    "projects": ({"displayName": "one"}, {"displayName": "two"}),
}
"""What each writable kind is created with and changed to."""


@pytest.mark.parametrize("plural", KINDS)
async def test_each_kind_is_created_read_changed_listed_and_deleted(project: ServedApi, plural: str) -> None:
    spec, change = KINDS[plural]
    path = ROOT if plural == "projects" else project.path
    await project.function("callee")

    created = await project.client.post(f"{path}/{plural}", json={"metadata": {"name": "x"}, "spec": spec})
    assert created.status_code == 201, created.text
    first = created.json()
    assert first["metadata"]["uid"].partition("_")[0] == project.deps.kinds[plural].uid_prefix
    assert first["metadata"]["generation"] == 1
    assert first["metadata"]["labels"]["nodus.dev/created-by"].startswith("usr_")
    assert first["metadata"].get("namespace", "") == (project.project_name if path == project.path else "")

    read = await project.client.get(f"{path}/{plural}/x")
    assert read.json() == first
    assert read.headers["etag"] == f'"{first["metadata"]["resourceVersion"]}"'

    changed = await project.client.patch(f"{path}/{plural}/x", json={"spec": change}, headers=MERGE)
    assert changed.status_code == 200, changed.text
    second = changed.json()
    assert second["metadata"]["generation"] == 2
    assert int(second["metadata"]["resourceVersion"]) > int(first["metadata"]["resourceVersion"])

    listed = (await project.client.get(f"{path}/{plural}")).json()
    assert listed["kind"] == f"{first['kind']}List"
    assert [item["metadata"]["name"] for item in listed["items"] if item["metadata"]["name"] == "x"] == ["x"]

    deleted = await project.client.delete(f"{path}/{plural}/x")
    assert deleted.status_code == 200, deleted.text
    if plural == "projects":
        assert deleted.json()["status"]["phase"] == "Terminating"
    elif plural == "functions":
        # Its workers must stop first; the autoscaler takes the finalizer off.
        assert deleted.json()["status"]["phase"] == "Terminating"
        await project.deps.resources.deleter.release(project.object_key("Function", "x"), "nodus.dev/workers")
    else:
        assert deleted.json()["details"]["uid"] == first["metadata"]["uid"]
    assert (await project.client.get(f"{path}/{plural}/x")).status_code == 404


async def test_kinds_that_only_the_server_writes_refuse_writes(project: ServedApi) -> None:
    for path in (f"{project.path}/attempts", f"{ROOT}/events"):
        assert (await project.client.post(path, json={})).status_code == 405
        assert (await project.client.delete(path)).status_code == 405
        assert (await project.client.put(f"{path}/x", json={})).status_code == 405
    # Other tests may have Events meanwhile; none of them is of this project.
    params = {"fieldSelector": f"involvedObject.namespace={project.project_name}"}
    for path in (f"{project.path}/attempts", f"{ROOT}/events?{urllib.parse.urlencode(params)}"):
        assert (await project.client.get(path)).json()["items"] == []


async def test_a_repeated_create_may_spell_out_what_is_empty(project: ServedApi) -> None:
    empty: dict[str, Any] = {"env": [], "secrets": [], "command": None, "args": []}
    plain = {"metadata": {"name": "f"}, "spec": FUNCTION}
    spelt = {"metadata": {"name": "f"}, "spec": {**FUNCTION, **empty}}
    for first, second in ((plain, spelt), (spelt, plain)):
        assert (await project.client.post(f"{project.path}/functions", json=first)).status_code == 201
        for query in ("", "?dryRun=All"):
            again = await project.client.post(f"{project.path}/functions{query}", json=second)
            assert again.status_code == 200, again.text
        await project.client.delete(f"{project.path}/functions/f")
        await project.deps.resources.deleter.release(project.object_key("Function", "f"), "nodus.dev/workers")


async def test_creating_an_equal_object_again_returns_the_stored_one(project: ServedApi) -> None:
    first = await project.function()
    again = await project.client.post(
        f"{project.path}/functions", json={"metadata": {"name": "f", "labels": {"other": "label"}}, "spec": FUNCTION}
    )
    assert again.status_code == 200
    assert again.json() == first


async def test_creating_a_different_object_under_a_taken_name_tells_where_they_differ(project: ServedApi) -> None:
    await project.function()
    spec = {**FUNCTION, "timeout": "10s", "scaling": {"maxWorkers": 3}}
    answer = await project.client.post(f"{project.path}/functions", json={"metadata": {"name": "f"}, "spec": spec})
    assert (answer.status_code, answer.json()["reason"]) == (409, "AlreadyExists")
    assert answer.json()["details"]["diff"] == ["spec.scaling.maxWorkers", "spec.timeout"]


async def test_a_generated_name_is_the_prefix_and_five_characters(project: ServedApi) -> None:
    await project.function()
    body = {"metadata": {"generateName": "f" * 58 + "-"}, "spec": CALL}
    one, two = await project.create("functioncalls", body), await project.create("functioncalls", body)
    assert one["metadata"]["name"] != two["metadata"]["name"]
    assert len(one["metadata"]["name"]) == 63
    assert one["metadata"]["name"].startswith("f" * 58)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"kind": "App"}, "kind"),
        ({"apiVersion": "v1"}, "apiVersion"),
        ({"metadata": {"name": "f", "namespace": "other"}}, "namespace"),
        ({"metadata": {"name": "f", "resourceVersion": "1"}}, "resourceVersion"),
    ],
)
async def test_a_body_that_contradicts_its_path_is_a_bad_request(
    project: ServedApi, body: dict[str, Any], told: str
) -> None:
    answer = await project.client.post(
        f"{project.path}/functions", json={"metadata": {"name": "f"}, "spec": FUNCTION, **body}
    )
    assert (answer.status_code, answer.json()["reason"]) == (400, "BadRequest")
    assert told in answer.json()["message"]


async def test_what_the_server_owns_in_metadata_is_ignored_or_stamped(project: ServedApi) -> None:
    created = await project.create(
        "functions",
        {
            "metadata": {
                "name": "f",
                "uid": "mine",
                "generation": 7,
                "creationTimestamp": None,
                "labels": {"nodus.dev/created-by": "me", "team": "a"},
            },
            "spec": FUNCTION,
            "status": {"phase": "Failed"},
        },
    )
    metadata = created["metadata"]
    assert metadata["uid"].startswith("fn_")
    assert metadata["generation"] == 1
    assert metadata["labels"]["team"] == "a"
    assert metadata["labels"]["nodus.dev/created-by"].startswith("usr_")
    assert created["status"]["phase"] == "Running"


async def test_an_unknown_project_is_not_found_by_every_verb(project: ServedApi) -> None:
    path = f"{ROOT}/namespaces/nowhere/functions"
    answers = [
        await project.client.get(path),
        await project.client.get(f"{path}/f"),
        await project.client.post(path, json={"metadata": {"name": "f"}, "spec": FUNCTION}),
        await project.client.delete(f"{path}/f"),
    ]
    assert [(answer.status_code, answer.json()["details"]["kind"]) for answer in answers] == [(404, "projects")] * 4


async def test_the_message_of_a_missing_object_is_the_one_kubectl_users_know(project: ServedApi) -> None:
    answer = (await project.client.get(f"{project.path}/functions/nope")).json()
    assert answer["message"] == 'functions.nodus.dev "nope" not found'
    assert answer["details"] == {"name": "nope", "group": "nodus.dev", "kind": "functions"}


async def test_who_misses_a_call_is_told_how_long_finished_ones_are_kept(project: ServedApi) -> None:
    absent = await project.client.get(f"{project.path}/functioncalls/absent")
    assert (absent.status_code, absent.json()["message"]) == (404, 'functioncalls.nodus.dev "absent" not found')
    assert "A finished call is forgotten 7 days after its end" in absent.json()["fix"]
    assert "forgotten" not in (await project.client.get(f"{project.path}/functions/absent")).json()["fix"]


async def test_a_patch_that_changes_nothing_writes_nothing(project: ServedApi) -> None:
    created = await project.function(timeout="1m30s")
    for patch in ({"spec": {"timeout": "90s"}}, {"metadata": {"creationTimestamp": None}}, {"status": {"phase": "x"}}):
        answer = await project.client.patch(f"{project.path}/functions/f", json=patch, headers=MERGE)
        assert answer.json() == created


async def test_null_in_a_merge_patch_removes_a_label(project: ServedApi) -> None:
    await project.create("functions", {"metadata": {"name": "f", "labels": {"a": "1", "b": "2"}}, "spec": FUNCTION})
    patched = await project.client.patch(
        f"{project.path}/functions/f", json={"metadata": {"labels": {"a": None}}}, headers=MERGE
    )
    assert patched.json()["metadata"]["labels"].get("a") is None
    assert patched.json()["metadata"]["labels"]["b"] == "2"
    assert patched.json()["metadata"]["generation"] == 1


async def test_json_patches_apply_in_order_and_their_tests_are_optimistic_locks(project: ServedApi) -> None:
    await project.function()
    path = f"{project.path}/functions/f"
    change = [
        {"op": "test", "path": "/spec/state", "value": "Running"},
        {"op": "replace", "path": "/spec/state", "value": "Stopped"},
    ]
    assert (await project.client.patch(path, json=change, headers=JSON_PATCH)).json()["spec"]["state"] == "Stopped"
    again = await project.client.patch(path, json=change, headers=JSON_PATCH)
    assert (again.status_code, again.json()["reason"]) == (422, "Invalid")
    nowhere = await project.client.patch(path, json=[{"op": "remove", "path": "/spec/nope"}], headers=JSON_PATCH)
    assert (nowhere.status_code, nowhere.json()["reason"]) == (422, "Invalid")


async def test_a_patch_of_another_type_is_told_which_types_are_accepted(project: ServedApi) -> None:
    await project.function()
    for content_type in ("application/strategic-merge-patch+json", "application/apply-patch+cbor", "application/json"):
        answer = await project.client.patch(
            f"{project.path}/functions/f", content=b"{}", headers={"Content-Type": content_type}
        )
        assert (answer.status_code, answer.json()["reason"]) == (415, "UnsupportedMediaType")
        assert "application/merge-patch+json, application/json-patch+json" in answer.json()["message"]


async def test_a_stale_resource_version_is_a_conflict_and_none_means_last_write_wins(project: ServedApi) -> None:
    first = await project.function()
    stale = first["metadata"]["resourceVersion"]
    path = f"{project.path}/functions/f"
    await project.client.patch(path, json={"spec": {"timeout": "10s"}}, headers=MERGE)

    locked = {"metadata": {"resourceVersion": stale}, "spec": {"timeout": "20s"}}
    answers = [
        await project.client.patch(path, json=locked, headers=MERGE),
        await project.client.put(path, json={**first, "spec": {**FUNCTION, "timeout": "20s"}}),
    ]
    assert [(answer.status_code, answer.json()["reason"]) for answer in answers] == [(409, "Conflict")] * 2
    assert "the object has been modified" in answers[0].json()["message"]

    replaced = await project.client.put(path, json={"metadata": {"name": "f"}, "spec": {**FUNCTION, "timeout": "20s"}})
    assert replaced.json()["spec"]["timeout"] == "20s"
    assert replaced.json()["metadata"]["uid"] == first["metadata"]["uid"]


async def test_unlocked_patches_by_many_writers_all_land(project: ServedApi) -> None:
    await project.function()
    answers = await asyncio.gather(
        *(
            project.client.patch(
                f"{project.path}/functions/f", json={"metadata": {"labels": {f"w{number}": "x"}}}, headers=MERGE
            )
            for number in range(6)
        )
    )
    assert [answer.status_code for answer in answers] == [200] * 6
    labels = (await project.client.get(f"{project.path}/functions/f")).json()["metadata"]["labels"]
    assert {f"w{number}" for number in range(6)} <= labels.keys()


async def test_dry_runs_judge_everything_and_store_nothing(project: ServedApi) -> None:
    await project.function()
    before = await project.row_count()
    created = await project.client.post(
        f"{project.path}/functioncalls?dryRun=All",
        json={"metadata": {"name": "c"}, "spec": CALL},
        headers={"Idempotency-Key": "rehearsal"},
    )
    assert created.status_code == 200
    assert created.json()["spec"]["timeout"] == "300s"
    assert "resourceVersion" not in created.json()["metadata"]
    patched = await project.client.patch(
        f"{project.path}/functions/f?dryRun=All", json={"spec": {"timeout": "10s"}}, headers=MERGE
    )
    assert patched.json()["spec"]["timeout"] == "10s"
    secret = await project.client.post(
        f"{project.path}/secrets?dryRun=All", json={"metadata": {"name": "s"}, "spec": {"stringData": {"K": "hidden"}}}
    )
    assert "hidden" not in secret.text
    assert (await project.client.delete(f"{project.path}/functions/f?dryRun=All")).status_code == 200
    assert (
        await project.client.request("DELETE", f"{project.path}/functions/f", json={"dryRun": ["All"]})
    ).status_code == 200
    assert (await project.client.delete(f"{project.path}/functions?dryRun=All")).status_code == 200
    assert await project.row_count() == before
    assert (await project.client.get(f"{project.path}/functions/f")).json()["spec"]["timeout"] == "300s"
    wrong = await project.client.post(f"{project.path}/functions?dryRun=Some", json={"metadata": {"name": "g"}})
    assert (wrong.status_code, wrong.json()["reason"]) == (422, "Invalid")


async def test_the_etag_of_a_dry_run_binds_the_real_create(project: ServedApi) -> None:
    await project.function()
    body = {"metadata": {"name": "c"}, "spec": CALL}
    rehearsed = await project.client.post(f"{project.path}/functioncalls?dryRun=All", json=body)
    other = {"metadata": {"name": "c"}, "spec": {**CALL, "timeout": "5s"}}
    etag = rehearsed.headers["etag"]
    refused = await project.client.post(f"{project.path}/functioncalls", json=other, headers={"If-Match": etag})
    assert (refused.status_code, refused.json()["reason"]) == (412, "PreconditionFailed")
    assert (
        await project.client.post(f"{project.path}/functioncalls", json=body, headers={"If-Match": etag})
    ).status_code == 201
    anything = {"metadata": {"name": "d"}, "spec": CALL}
    assert (
        await project.client.post(f"{project.path}/functioncalls", json=anything, headers={"If-Match": "*"})
    ).status_code == 201


async def test_a_secret_never_shows_its_values(project: ServedApi) -> None:
    body = {"metadata": {"name": "s"}, "spec": {"stringData": {"TOKEN": "very-hidden"}}}
    created = await project.client.post(f"{project.path}/secrets", json=body, headers={"Idempotency-Key": "s"})
    replayed = await project.client.post(f"{project.path}/secrets", json=body, headers={"Idempotency-Key": "s"})
    equal = await project.client.post(f"{project.path}/secrets", json=body)
    different = await project.client.post(
        f"{project.path}/secrets", json={"metadata": {"name": "s"}, "spec": {"stringData": {"TOKEN": "another-value"}}}
    )
    patched = await project.client.patch(
        f"{project.path}/secrets/s", json={"spec": {"stringData": {"MORE": "also-hidden"}}}, headers=MERGE
    )
    answers = [created, replayed, equal, different, patched, await project.client.get(f"{project.path}/secrets")]
    assert [answer.status_code for answer in answers] == [201, 201, 200, 409, 200, 200]
    assert patched.json()["status"]["keys"] == ["MORE", "TOKEN"]
    assert patched.json()["status"]["version"] == 2
    everything = "".join(answer.text for answer in answers)
    assert "hidden" not in everything
    assert "another-value" not in everything


async def test_yaml_and_bodies_without_a_type_are_read(project: ServedApi) -> None:
    yaml = "metadata: {name: y}\nspec:\n  python: '3.11'\n  code: {module: app, qualname: f}\n"
    answer = await project.client.post(
        f"{project.path}/functions", content=yaml, headers={"Content-Type": "application/yaml"}
    )
    assert answer.status_code == 201, answer.text
    request = project.client.build_request("POST", f"{project.path}/apps", content=b'{"metadata":{"name":"a"}}')
    request.headers.pop("content-type", None)
    assert (await project.client.send(request)).status_code == 201


async def test_pretty_answers_are_indented(project: ServedApi) -> None:
    await project.function()
    assert '\n  "metadata": {' in (await project.client.get(f"{project.path}/functions/f?pretty=true")).text


async def test_status_is_read_below_the_object(project: ServedApi) -> None:
    created = await project.function()
    assert (await project.client.get(f"{project.path}/functions/f/status")).json() == created
    assert (await project.client.post(f"{project.path}/functions/f/status", json=created)).status_code == 405
    await project.create("secrets", {"metadata": {"name": "s"}, "spec": {"stringData": {"A": "x"}}})
    assert (await project.client.post(f"{project.path}/secrets/s/status", json={})).status_code == 405
    assert (await project.client.get(f"{project.path}/secrets/s/scale")).status_code == 404


async def test_a_post_of_a_batch_below_a_function_creates_all_calls_in_order(project: ServedApi) -> None:
    await project.function()
    items = [{"metadata": {"generateName": "f-"}, "spec": {**CALL, "mapId": "m", "mapIndex": n}} for n in range(250)]
    for path in (f"{project.path}/functions/f/calls", f"{project.path}/functioncalls"):
        body = {"apiVersion": "nodus.dev/v1", "kind": "FunctionCallList", "items": items}
        answer = await project.client.post(path, json=body)
        assert answer.status_code == 201, answer.text
        assert [item["spec"]["mapIndex"] for item in answer.json()["items"]] == list(range(250))
        assert {item["metadata"]["labels"]["nodus.dev/map"] for item in answer.json()["items"]} == {"m"}
    listed = (await project.client.get(f"{project.path}/functioncalls")).json()
    assert len(listed["items"]) == 500
