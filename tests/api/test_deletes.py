"""Deletes over real HTTP: finalizers, propagation, preconditions, and what the garbage collector finishes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fixtures.app import CALL, FUNCTION, ROOT, ServedApi
from tests.fixtures.eventually import eventually

MERGE = {"Content-Type": "application/merge-patch+json"}
WORKERS = "nodus.dev/workers"


async def status_of(project: ServedApi, plural: str, name: str) -> int:
    return (await project.client.get(f"{project.path}/{plural}/{name}")).status_code


async def delete(project: ServedApi, plural: str, name: str, **options: Any) -> dict[str, Any]:
    answer = await project.client.request("DELETE", f"{project.path}/{plural}/{name}", json=options)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


async def app_with_members(project: ServedApi) -> None:
    """An App that owns a Function, a Secret, and through the Function nothing else."""
    await project.create("apps", {"metadata": {"name": "a"}, "spec": {}})
    labels = {"sdk.nodus.dev/app": "a"}
    await project.create("functions", {"metadata": {"name": "a-f", "labels": labels}, "spec": FUNCTION})
    secret = {"metadata": {"name": "a-s", "labels": labels}, "spec": {"stringData": {"K": "v"}}}
    await project.create("secrets", secret)


async def test_an_object_with_a_finalizer_stays_until_it_is_taken_off(project: ServedApi) -> None:
    metadata = {"name": "a", "finalizers": ["example.org/wait"]}
    await project.create("apps", {"metadata": metadata, "spec": {}})
    first = await delete(project, "apps", "a")
    assert first["metadata"]["deletionTimestamp"]
    assert first["metadata"]["generation"] == 2
    assert (await delete(project, "apps", "a")) == first
    joined = await project.client.patch(
        f"{project.path}/apps/a",
        json={"metadata": {"finalizers": ["example.org/wait", "example.org/b"]}},
        headers=MERGE,
    )
    assert joined.status_code == 422
    done = await project.client.patch(f"{project.path}/apps/a", json={"metadata": {"finalizers": []}}, headers=MERGE)
    assert done.status_code == 200
    assert await status_of(project, "apps", "a") == 404


async def test_the_write_that_lets_an_object_go_answers_what_watchers_see_of_it(project: ServedApi) -> None:
    """Not a state that was never stored, under a version that meant another."""
    metadata = {"name": "a", "finalizers": ["example.org/wait"]}
    created = await project.create("apps", {"metadata": metadata, "spec": {}})
    last_rv = created["metadata"]["resourceVersion"]
    async with project.watch("apps", resourceVersion=last_rv) as events:
        marked = await delete(project, "apps", "a")
        path = f"{project.path}/apps/a"
        let_go = await project.client.patch(path, json={"metadata": {"finalizers": []}}, headers=MERGE)
        _, deleted = await events.take(2)
    assert deleted["type"] == "DELETED"
    assert let_go.json() == deleted["object"]
    assert int(let_go.json()["metadata"]["resourceVersion"]) > int(marked["metadata"]["resourceVersion"])


async def test_a_foreground_delete_goes_after_everything_it_owns(project: ServedApi) -> None:
    await app_with_members(project)
    deleted = await delete(project, "apps", "a", propagationPolicy="Foreground")
    assert deleted["metadata"]["finalizers"] == ["foregroundDeletion"]
    assert await status_of(project, "secrets", "a-s") == 404
    function = (await project.client.get(f"{project.path}/functions/a-f")).json()
    assert function["metadata"]["finalizers"] == [WORKERS]
    assert function["status"]["phase"] == "Terminating"
    assert await status_of(project, "apps", "a") == 200
    await project.deps.resources.deleter.release(project.object_key("Function", "a-f"), WORKERS)
    assert await status_of(project, "functions", "a-f") == 404
    assert await status_of(project, "apps", "a") == 404


def ready(document: dict[str, Any]) -> tuple[str, str]:
    [condition] = [found for found in document["status"]["conditions"] if found["type"] == "Ready"]
    return condition["status"], condition["reason"]


@pytest.mark.parametrize("propagation", ["Foreground", "Background"])
async def test_an_app_that_is_being_deleted_says_so(project: ServedApi, propagation: str) -> None:
    await app_with_members(project)
    metadata = {"metadata": {"finalizers": ["example.org/wait"]}}
    await project.client.patch(f"{project.path}/apps/a", json=metadata, headers=MERGE)
    deleted = await delete(project, "apps", "a", propagationPolicy=propagation)
    assert deleted["status"]["phase"] == "Terminating"
    assert deleted["status"]["message"] == "it is being deleted"
    assert ready(deleted) == ("False", "Deleted")
    query = {"fieldSelector": "status.phase=Terminating"}
    [listed] = (await project.client.get(f"{project.path}/apps", params=query)).json()["items"]
    assert listed == deleted


async def test_every_kind_that_waits_for_something_says_that_it_is_being_deleted(project: ServedApi) -> None:
    held = {"name": "x", "finalizers": ["example.org/wait"]}
    specs: dict[str, Any] = {"apps": {}, "functions": FUNCTION, "secrets": {"stringData": {"K": "v"}}}
    for plural, spec in specs.items():
        await project.create(plural, {"metadata": held, "spec": spec})
        deleted = await delete(project, plural, "x")
        assert deleted["status"]["phase"] == "Terminating"
        assert ready(deleted) == ("False", "Deleted")


async def test_what_waits_for_its_controller_and_its_dependents_goes_with_the_last_of_them(project: ServedApi) -> None:
    function = await project.create("functions", {"metadata": {"name": "f"}, "spec": FUNCTION})
    reference = {
        "apiVersion": "nodus.dev/v1",
        "kind": "Function",
        "name": "f",
        "uid": function["metadata"]["uid"],
    }
    metadata = {"name": "s", "ownerReferences": [reference]}
    await project.create("secrets", {"metadata": metadata, "spec": {"stringData": {"K": "v"}}})
    deleted = await delete(project, "functions", "f", propagationPolicy="Foreground")
    assert deleted["metadata"]["finalizers"] == [WORKERS, "foregroundDeletion"]
    await project.deps.resources.deleter.release(project.object_key("Function", "f"), WORKERS)
    assert await status_of(project, "secrets", "s") == 404
    assert await status_of(project, "functions", "f") == 404


async def test_a_background_delete_goes_at_once_and_its_dependents_follow(project: ServedApi) -> None:
    await app_with_members(project)
    gone = await delete(project, "apps", "a")
    assert (gone["kind"], gone["status"]) == ("Status", "Success")
    assert await status_of(project, "apps", "a") == 404
    assert await status_of(project, "secrets", "a-s") == 404
    assert (await project.client.get(f"{project.path}/functions/a-f")).json()["status"]["phase"] == "Terminating"


async def test_an_orphaning_delete_leaves_its_dependents_without_an_owner(project: ServedApi) -> None:
    await app_with_members(project)
    await delete(project, "apps", "a", propagationPolicy="Orphan")
    assert await status_of(project, "apps", "a") == 404
    function = (await project.client.get(f"{project.path}/functions/a-f")).json()
    assert "ownerReferences" not in function["metadata"]
    await project.deps.resources.deleter.collect()
    assert await status_of(project, "functions", "a-f") == 200


async def test_the_policy_may_come_in_the_query(project: ServedApi) -> None:
    await app_with_members(project)
    answer = await project.client.delete(f"{project.path}/apps/a?propagationPolicy=Foreground&gracePeriodSeconds=0")
    assert answer.json()["metadata"]["finalizers"] == ["foregroundDeletion"]
    wrong = await project.client.delete(f"{project.path}/apps/a?propagationPolicy=Sideways")
    assert (wrong.status_code, wrong.json()["reason"]) == (422, "Invalid")


async def test_objects_whose_owner_is_missing_are_collected(project: ServedApi) -> None:
    owner = {"apiVersion": "nodus.dev/v1", "kind": "App", "name": "ghost", "uid": "app_gone"}
    await project.create("images", {"metadata": {"name": "i", "ownerReferences": [owner]}, "spec": IMAGE})
    await project.create("images", {"metadata": {"name": "kept"}, "spec": IMAGE})
    await project.deps.resources.deleter.collect()
    assert await status_of(project, "images", "i") == 404
    assert await status_of(project, "images", "kept") == 200


async def test_an_object_with_a_living_owner_survives_the_end_of_another(project: ServedApi) -> None:
    owners = []
    for name in ("a", "b"):
        app = await project.create("apps", {"metadata": {"name": name}, "spec": {}})
        owners.append({"apiVersion": "nodus.dev/v1", "kind": "App", "name": name, "uid": app["metadata"]["uid"]})
    await project.create("images", {"metadata": {"name": "i", "ownerReferences": owners}, "spec": IMAGE})
    await delete(project, "apps", "a")
    assert await status_of(project, "images", "i") == 200
    await delete(project, "apps", "b")
    assert await status_of(project, "images", "i") == 404


async def owners_named(project: ServedApi, *names: str, **said: bool) -> list[dict[str, Any]]:
    """References to new Apps."""
    owners = []
    for name in names:
        app = await project.create("apps", {"metadata": {"name": name}, "spec": {}})
        uid = app["metadata"]["uid"]
        owners.append({"apiVersion": "nodus.dev/v1", "kind": "App", "name": name, "uid": uid, **said})
    return owners


async def test_a_foreground_delete_leaves_what_another_living_object_owns(project: ServedApi) -> None:
    first, second = await owners_named(project, "a", "b")
    for name, owners in (("both", [first, second]), ("one", [first])):
        await project.create("images", {"metadata": {"name": name, "ownerReferences": owners}, "spec": IMAGE})
    await delete(project, "apps", "a", propagationPolicy="Foreground")
    assert await status_of(project, "apps", "a") == 404
    assert await status_of(project, "images", "one") == 404
    left = (await project.client.get(f"{project.path}/images/both")).json()
    assert left["metadata"]["ownerReferences"] == [second]
    assert "deletionTimestamp" not in left["metadata"]
    await delete(project, "apps", "b", propagationPolicy="Foreground")
    assert await status_of(project, "images", "both") == 404


async def test_two_owners_that_go_together_take_what_both_of_them_own(project: ServedApi) -> None:
    owners = await owners_named(project, "a", "b", blockOwnerDeletion=True)
    held = {"name": "held", "ownerReferences": owners[:1], "finalizers": ["example.org/wait"]}
    await project.create("images", {"metadata": held, "spec": IMAGE})
    await project.create("images", {"metadata": {"name": "both", "ownerReferences": owners}, "spec": IMAGE})
    await delete(project, "apps", "a", propagationPolicy="Foreground")
    # It waits for what is held, and has given up what the other owns.
    assert await status_of(project, "apps", "a") == 200
    [kept] = (await project.client.get(f"{project.path}/images/both")).json()["metadata"]["ownerReferences"]
    assert kept["name"] == "b"
    await project.create("images", {"metadata": {"name": "late", "ownerReferences": owners}, "spec": IMAGE})
    await delete(project, "apps", "b", propagationPolicy="Foreground")
    assert [await status_of(project, "images", name) for name in ("both", "late")] == [404, 404]
    assert [await status_of(project, "apps", name) for name in ("a", "b")] == [200, 404]


@pytest.mark.parametrize(
    ("said", "app"), [({"blockOwnerDeletion": True}, 200), ({"blockOwnerDeletion": False}, 404), ({}, 404)]
)
async def test_a_foreground_delete_waits_for_dependents_that_block_it(
    project: ServedApi, said: dict[str, bool], app: int
) -> None:
    owners = await owners_named(project, "a", **said)
    others = await owners_named(project, "other", blockOwnerDeletion=True)
    for name, references in (("alone", owners), ("shared", [*owners, *others])):
        metadata = {"name": name, "ownerReferences": references, "finalizers": ["example.org/wait"]}
        await project.create("images", {"metadata": metadata, "spec": IMAGE})
        # Whoever else owns it, it is on its way already.
        await delete(project, "images", name)
    await delete(project, "apps", "a", propagationPolicy="Foreground")
    assert await status_of(project, "apps", "a") == app
    for name in ("alone", "shared"):
        path = f"{project.path}/images/{name}"
        await project.client.patch(path, json={"metadata": {"finalizers": []}}, headers=MERGE)
    await project.deps.resources.deleter.collect()
    assert await status_of(project, "apps", "a") == 404


async def test_a_reference_that_no_text_of_the_database_can_hold_blocks_nobody_else(project: ServedApi) -> None:
    owners = await owners_named(project, "a", blockOwnerDeletion=True)
    strange = {**owners[0], "uid": "app_\0", "blockOwnerDeletion": True}
    metadata = {"name": "i", "ownerReferences": [*owners, strange], "finalizers": ["example.org/wait"]}
    await project.create("images", {"metadata": metadata, "spec": IMAGE})
    await delete(project, "apps", "a", propagationPolicy="Foreground")
    assert await status_of(project, "apps", "a") == 200
    released: dict[str, Any] = {"metadata": {"finalizers": []}}
    await project.client.patch(f"{project.path}/images/i", json=released, headers=MERGE)
    await project.deps.resources.deleter.collect()
    assert await status_of(project, "apps", "a") == 404


async def test_preconditions_guard_a_delete(project: ServedApi) -> None:
    app = await project.create("apps", {"metadata": {"name": "a"}, "spec": {}})
    for preconditions in ({"uid": "app_other"}, {"resourceVersion": "1"}):
        answer = await project.client.request("DELETE", f"{project.path}/apps/a", json={"preconditions": preconditions})
        assert (answer.status_code, answer.json()["reason"]) == (409, "Conflict")
    await delete(project, "apps", "a", preconditions={"uid": app["metadata"]["uid"]})
    assert await status_of(project, "apps", "a") == 404


async def test_a_namesake_created_after_a_delete_is_another_object(project: ServedApi) -> None:
    first = await project.create("apps", {"metadata": {"name": "a"}, "spec": {}})
    await delete(project, "apps", "a")
    second = await project.create("apps", {"metadata": {"name": "a"}, "spec": {}})
    assert first["metadata"]["uid"] != second["metadata"]["uid"]


async def test_a_name_is_taken_while_its_object_is_being_deleted(project: ServedApi) -> None:
    await project.function()
    await delete(project, "functions", "f")
    answer = await project.client.post(f"{project.path}/functions", json={"metadata": {"name": "f"}, "spec": FUNCTION})
    assert (answer.status_code, answer.json()["reason"]) == (409, "AlreadyExists")
    assert "is being deleted" in answer.json()["message"]


async def test_deleting_a_queued_call_removes_it_at_once(project: ServedApi) -> None:
    await project.function()
    await project.create("functioncalls", {"metadata": {"name": "c"}, "spec": CALL})
    assert (await delete(project, "functioncalls", "c"))["status"] == "Success"
    assert (
        await project.core.database.fetchval("SELECT count(*) FROM calls WHERE project = $1", project.project_name) == 0
    )


async def test_a_project_takes_everything_in_it_along(project: ServedApi) -> None:
    await app_with_members(project)
    await project.create("functioncalls", {"metadata": {"name": "c"}, "spec": {**CALL, "function": "a-f"}})
    answer = await project.client.delete(f"{ROOT}/projects/{project.project_name}")
    assert answer.json()["status"]["phase"] == "Terminating"
    refused = await project.client.post(f"{project.path}/apps", json={"metadata": {"name": "late"}, "spec": {}})
    assert (refused.status_code, refused.json()["reason"]) == (403, "Forbidden")
    assert await status_of(project, "functioncalls", "c") == 404
    await project.deps.resources.deleter.release(project.object_key("Function", "a-f"), WORKERS)
    await project.deps.resources.deleter.collect()

    async def is_gone() -> bool:
        return (await project.client.get(f"{ROOT}/projects/{project.project_name}")).status_code == 404

    await eventually(is_gone)


@pytest.mark.parametrize("content", [b"", b"{}", b'{"apiVersion":"v1","kind":"DeleteOptions"}'])
async def test_delete_options_may_be_absent(project: ServedApi, content: bytes) -> None:
    await project.create("apps", {"metadata": {"name": "a"}, "spec": {}})
    answer = await project.client.request("DELETE", f"{project.path}/apps/a", content=content)
    assert answer.status_code == 200


async def test_deleting_what_is_not_there_is_not_found(project: ServedApi) -> None:
    answer = await project.client.delete(f"{project.path}/apps/a")
    assert (answer.status_code, answer.json()["message"]) == (404, 'apps.nodus.dev "a" not found')


IMAGE = {"base": "nodus/python:3.11", "python": "3.11"}


async def test_a_deploy_to_a_function_that_is_going_is_refused_instead_of_lost(project: ServedApi) -> None:
    await app_with_members(project)
    await delete(project, "apps", "a")
    path = f"{project.path}/functions/a-f"
    labelled = {"metadata": {"labels": {"team": "a"}}}
    assert (await project.client.patch(path, json=labelled, headers=MERGE)).status_code == 200
    changed = {"spec": {"scaling": {"maxWorkers": 9}}}
    refused = await project.client.patch(path, json=changed, headers=MERGE)
    assert (refused.status_code, refused.json()["reason"]) == (409, "Conflict")
    assert "is being deleted" in refused.json()["message"]
    # A deploy that changes nothing else makes the App anew, which would own what is going.
    await project.create("apps", {"metadata": {"name": "a"}, "spec": {}})
    adopted = await project.client.patch(path, json={"metadata": {"annotations": {"x": "y"}}}, headers=MERGE)
    assert adopted.status_code == 409
    await project.deps.resources.deleter.release(project.object_key("Function", "a-f"), WORKERS)
    assert await status_of(project, "functions", "a-f") == 404
