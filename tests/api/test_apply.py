"""Server-side apply and field owners over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import orjson
import pytest
import yaml

from tests.fixtures.app import CALL, FUNCTION, ROOT, ServedApi

APPLY = {"Content-Type": "application/apply-patch+yaml"}
MERGE = {"Content-Type": "application/merge-patch+json"}
JSON_PATCH = {"Content-Type": "application/json-patch+json"}
Document = dict[str, Any]


async def apply(
    api: ServedApi, spec: Document | None = None, *, manager: str = "ci", name: str = "f", **query: str
) -> httpx.Response:
    """Apply a Function."""
    body = {
        "apiVersion": "nodus.dev/v1",
        "kind": "Function",
        "metadata": {"name": name},
        "spec": FUNCTION if spec is None else spec,
    }
    return await api.client.patch(
        f"{api.path}/functions/{name}", json=body, headers=APPLY, params={"fieldManager": manager, **query}
    )


def managers(document: Document) -> list[tuple[str, str, str]]:
    """Who owns something, by name: entries are in the order of their times."""
    return sorted(
        (entry["manager"], entry["operation"], entry.get("subresource", ""))
        for entry in document["metadata"].get("managedFields", [])
    )


async def test_an_apply_creates_and_then_changes(project: ServedApi) -> None:
    created = await apply(project)
    assert created.status_code == 201, created.text
    assert managers(created.json()) == [("ci", "Apply", "")]
    changed = await apply(project, {**FUNCTION, "timeout": "7s"})
    assert changed.status_code == 200
    assert (changed.json()["spec"]["timeout"], changed.json()["metadata"]["generation"]) == ("7s", 2)
    back = await apply(project)
    assert back.json()["spec"]["timeout"] == "300s"


async def test_applying_the_same_again_changes_nothing(project: ServedApi) -> None:
    first = (await apply(project, {**FUNCTION, "env": [{"name": "A", "value": "1"}]})).json()
    before = await project.row_count()
    again = await apply(project, {**FUNCTION, "env": [{"name": "A", "value": "1"}], "timeout": None})
    assert again.status_code == 200
    assert again.json() == first
    assert await project.row_count() == before


SPECS: dict[str, Document] = {
    "apps": {"description": "one"},
    "functioncalls": {**CALL, "function": "callee"},
    "functions": {**FUNCTION, "env": [{"name": "A"}], "scaling": {"maxWorkers": 3}, "secrets": ["known"]},
    "images": {"base": "nodus/python:3.11", "python": "3.11"},
    "secrets": {"stringData": {"A": "x"}, "data": {"B": "eA=="}},
}


@pytest.mark.parametrize("plural", SPECS)
async def test_every_kind_can_be_applied_and_applied_again(project: ServedApi, plural: str) -> None:
    await project.function("callee")
    await project.create("secrets", {"metadata": {"name": "known"}, "spec": {"stringData": {"A": "x"}}})
    body = {"metadata": {"name": "x", "labels": {"team": "a"}, "creationTimestamp": None}, "spec": SPECS[plural]}

    async def send(content: Document) -> httpx.Response:
        return await project.client.patch(f"{project.path}/{plural}/x?fieldManager=ci", json=content, headers=APPLY)

    first = await send(body)
    assert first.status_code == 201, first.text
    assert managers(first.json()) == [("ci", "Apply", "")]
    again = await send({**body, "status": {"phase": "Ignored"}})
    assert (again.status_code, again.json()) == (200, first.json())
    changed = await send({**body, "metadata": {"name": "x", "labels": {"team": "b"}}})
    assert changed.json()["metadata"]["labels"]["team"] == "b"
    assert changed.json()["metadata"]["generation"] == 1
    assert changed.json()["spec"] == first.json()["spec"]


async def test_a_conflict_is_a_409_with_a_cause_for_each_field_and_force_ends_it(project: ServedApi) -> None:
    await apply(project, {**FUNCTION, "timeout": "7s"})
    refused = await apply(project, {"timeout": "8s", "code": {"module": "x"}}, manager="other")
    assert (refused.status_code, refused.json()["reason"]) == (409, "Conflict")
    assert refused.json()["details"]["causes"] == [
        {"reason": "FieldManagerConflict", "field": field, "message": 'conflict with "ci"'}
        for field in (".spec.code.module", ".spec.timeout")
    ]
    taken = await apply(project, {"timeout": "8s"}, manager="other", force="True")
    assert taken.json()["spec"]["timeout"] == "8s"
    assert managers(taken.json()) == [("ci", "Apply", ""), ("other", "Apply", "")]
    again = await apply(project, {**FUNCTION, "timeout": "7s"})
    assert again.json()["message"] == 'Apply failed with 1 conflict: conflict with "other": .spec.timeout'


async def test_yaml_is_read_too(project: ServedApi) -> None:
    body = yaml.safe_dump({"apiVersion": "nodus.dev/v1", "kind": "Function", "spec": FUNCTION}).encode()
    answer = await project.client.patch(
        f"{project.path}/functions/f?fieldManager=ci", content=body, headers={**APPLY, "User-Agent": "x"}
    )
    assert answer.status_code == 201, answer.text


@pytest.mark.parametrize(
    ("query", "body", "status", "field"),
    [
        ("", {}, 422, "fieldManager"),
        ("?fieldManager=" + "x" * 129, {}, 422, "fieldManager"),
        ("?fieldManager=a%0Ab", {}, 422, "fieldManager"),
        ("?fieldManager=ci&force=maybe", {}, 422, "force"),
        ("?fieldManager=ci", {"metadata": {"managedFields": [{}]}}, 400, None),
        ("?fieldManager=ci", {"metadata": {"name": "other"}}, 400, None),
        ("?fieldManager=ci", {"kind": "App"}, 400, None),
        ("?fieldManager=ci", [], 400, None),
        ("?fieldManager=ci", {"metadata": {"uid": "fn_other"}}, 409, None),
    ],
)
async def test_what_is_no_apply_is_refused(
    project: ServedApi, query: str, body: Any, status: int, field: str | None
) -> None:
    await project.function()
    answer = await project.client.patch(f"{project.path}/functions/f{query}", json=body, headers=APPLY)
    assert answer.status_code == status, answer.text
    assert field is None or [cause["field"] for cause in answer.json()["details"]["causes"]] == [field]


async def test_an_apply_for_an_object_that_must_exist_creates_none(project: ServedApi) -> None:
    for metadata, status in (({"uid": "fn_gone"}, 409), ({"resourceVersion": "5"}, 400)):
        body = {"metadata": metadata, "spec": FUNCTION}
        answer = await project.client.patch(f"{project.path}/functions/f?fieldManager=ci", json=body, headers=APPLY)
        assert answer.status_code == status, answer.text
    gone = await project.client.patch(
        f"{project.path}/functions/f/scale?fieldManager=ci", json={"spec": {"replicas": 1}}, headers=APPLY
    )
    assert gone.status_code == 404


async def test_force_means_nothing_for_other_patches(project: ServedApi) -> None:
    await project.function()
    answer = await project.client.patch(f"{project.path}/functions/f?force=true", json={}, headers=MERGE)
    assert (answer.status_code, answer.json()["details"]["causes"][0]["field"]) == (422, "force")


async def test_an_apply_with_a_version_loses_against_a_later_write(project: ServedApi) -> None:
    version = (await apply(project)).json()["metadata"]["resourceVersion"]
    await apply(project, {**FUNCTION, "timeout": "7s"})
    body = {"metadata": {"name": "f", "resourceVersion": version}, "spec": FUNCTION}
    answer = await project.client.patch(f"{project.path}/functions/f?fieldManager=ci", json=body, headers=APPLY)
    assert answer.status_code == 409
    assert "the object has been modified" in answer.json()["message"]


async def test_every_write_records_who_wrote(project: ServedApi) -> None:
    agent = {"User-Agent": "kubectl/v1.37 (linux/amd64)"}
    created = await project.create("functions", {"metadata": {"name": "f"}, "spec": FUNCTION}, headers=agent)
    [entry] = created["metadata"]["managedFields"]
    assert (entry["manager"], entry["operation"], entry["fieldsType"]) == ("kubectl", "Update", "FieldsV1")
    assert entry["fieldsV1"]["f:spec"].keys() == {f"f:{name}" for name in FUNCTION}
    await project.client.patch(
        f"{project.path}/functions/f?fieldManager=merge", json={"spec": {"timeout": "7s"}}, headers=MERGE
    )
    operations = [{"op": "add", "path": "/metadata/labels/team", "value": "a"}]
    await project.client.patch(f"{project.path}/functions/f?fieldManager=json", json=operations, headers=JSON_PATCH)
    current = (await project.client.get(f"{project.path}/functions/f")).json()
    current["spec"]["scaling"]["maxWorkers"] = 3
    replaced = await project.client.put(f"{project.path}/functions/f?fieldManager=put", json=current)
    assert managers(replaced.json()) == [(name, "Update", "") for name in ("json", "kubectl", "merge", "put")], (
        replaced.text
    )
    owned = {entry["manager"]: entry["fieldsV1"] for entry in replaced.json()["metadata"]["managedFields"]}
    assert owned["merge"] == {"f:spec": {"f:timeout": {}}}
    assert owned["json"] == {"f:metadata": {"f:labels": {"f:team": {}}}}
    assert owned["put"] == {"f:spec": {"f:scaling": {"f:maxWorkers": {}}}}


async def test_a_write_that_changes_nothing_records_nothing(project: ServedApi) -> None:
    created = await project.function()
    for request in (
        project.client.patch(f"{project.path}/functions/f", json={"spec": FUNCTION}, headers=MERGE),
        project.client.patch(f"{project.path}/functions/f", json=[], headers=JSON_PATCH),
        project.client.put(f"{project.path}/functions/f", json=created),
    ):
        assert (await request).json() == created


async def test_values_of_a_secret_are_owned_one_by_one_and_never_told(project: ServedApi) -> None:
    path = f"{project.path}/secrets/s"

    async def apply_values(manager: str, **values: Any) -> httpx.Response:
        body = {"metadata": {"name": "s"}, "spec": values}
        return await project.client.patch(path, json=body, headers=APPLY, params={"fieldManager": manager})

    spec = {"stringData": {"A": "hidden-one", "B": "hidden-two"}}
    created = await project.create("secrets", {"metadata": {"name": "s"}, "spec": spec})
    same = await project.client.patch(path, json={"spec": {"stringData": {"A": "hidden-one"}}}, headers=MERGE)
    assert same.json() == created
    shared = await apply_values("ci", stringData={"A": "hidden-one", "C": "hidden-three"})
    assert shared.status_code == 200, shared.text
    assert (shared.json()["status"]["keys"], shared.json()["status"]["version"]) == (["A", "B", "C"], 2)
    assert (await apply_values("ci", stringData={"A": "hidden-one", "C": "hidden-three"})).json() == shared.json()
    refused = await apply_values("ci", stringData={"A": "hidden-other"})
    assert refused.status_code == 409
    assert [cause["field"] for cause in refused.json()["details"]["causes"]] == [".spec.stringData.A"]
    left = await apply_values("ci")
    assert left.json()["status"]["keys"] == ["A", "B"]
    assert not any("hidden" in answer.text for answer in (same, shared, refused, left))


async def test_calls_record_no_owners_before_somebody_applies(project: ServedApi) -> None:
    await project.function()
    created = await project.create("functioncalls", {"metadata": {"name": "c"}, "spec": CALL})
    assert managers(created) == []
    path = f"{project.path}/functioncalls/c"
    body = {"metadata": {"name": "c", "labels": {"team": "a"}}}
    applied = await project.client.patch(path + "?fieldManager=ci", json=body, headers=APPLY)
    assert managers(applied.json()) == [("before-first-apply", "Update", ""), ("ci", "Apply", "")]
    cancelled = await project.client.patch(
        path + "?fieldManager=x", json={"spec": {"state": "Cancelled"}}, headers=MERGE
    )
    assert cancelled.json()["status"]["phase"] == "Cancelled"
    assert ("x", "Update", "") in managers(cancelled.json())


async def test_an_object_from_client_side_apply_moves_to_server_side_apply(project: ServedApi) -> None:
    """The requests of `kubectl apply --server-side` over an object of `kubectl apply`."""
    last = {"kubectl.kubernetes.io/last-applied-configuration": "{}"}
    spec = {**FUNCTION, "timeout": "7s"}
    created = await project.create(
        "functions",
        {"metadata": {"name": "f", "annotations": last}, "spec": spec},
        params={"fieldManager": "kubectl-client-side-apply"},
    )
    assert managers(created) == [("kubectl-client-side-apply", "Update", "")]
    live = (await apply(project, spec, manager="kubectl")).json()
    entries = [entry for entry in live["metadata"]["managedFields"] if entry["manager"] == "kubectl"]
    operations = [
        {"op": "replace", "path": "/metadata/managedFields", "value": entries},
        {"op": "replace", "path": "/metadata/resourceVersion", "value": live["metadata"]["resourceVersion"]},
    ]
    path = f"{project.path}/functions/f"
    moved = await project.client.patch(path + "?fieldManager=kubectl", json=operations, headers=JSON_PATCH)
    assert managers(moved.json()) == [("kubectl", "Apply", "")], moved.text
    # Nothing else owns the timeout any more, so leaving it out removes it.
    assert (await apply(project, FUNCTION, manager="kubectl")).json()["spec"]["timeout"] == "300s"
    late = await project.client.patch(path, json=operations, headers=JSON_PATCH)
    assert late.status_code == 409


async def test_managed_fields_that_make_no_sense_are_invalid(project: ServedApi) -> None:
    await project.function()
    body = {"metadata": {"managedFields": [{"manager": "x"}]}}
    answer = await project.client.patch(f"{project.path}/functions/f", json=body, headers=MERGE)
    assert (answer.status_code, answer.json()["reason"]) == (422, "Invalid")
    assert answer.json()["details"]["causes"][0]["field"] == "metadata.managedFields[0]"
    cleared = await project.client.patch(
        f"{project.path}/functions/f", json={"metadata": {"managedFields": [{}]}}, headers=MERGE
    )
    assert managers(cleared.json()) == []


async def test_appliers_race_without_losing_a_field(project: ServedApi) -> None:
    await project.function()
    answers = await asyncio.gather(
        *(
            project.client.patch(
                f"{project.path}/functions/f?fieldManager=m{number}",
                json={"metadata": {"name": "f", "labels": {f"l{number}": "x"}}},
                headers=APPLY,
            )
            for number in range(6)
        )
    )
    assert [answer.status_code for answer in answers] == [200] * 6
    document = (await project.client.get(f"{project.path}/functions/f")).json()
    assert {f"l{number}" for number in range(6)} <= document["metadata"]["labels"].keys()
    assert {(f"m{number}", "Apply", "") for number in range(6)} <= set(managers(document))


async def test_two_creators_by_apply_make_one_object(project: ServedApi) -> None:
    answers = await asyncio.gather(*(apply(project, manager=f"m{number}") for number in range(4)))
    assert sorted(answer.status_code for answer in answers) == [200, 200, 200, 201]
    document = (await project.client.get(f"{project.path}/functions/f")).json()
    assert {(f"m{number}", "Apply", "") for number in range(4)} == set(managers(document))


async def test_what_an_orphaning_delete_takes_away_has_no_owner(project: ServedApi) -> None:
    owners = [await project.create("apps", {"metadata": {"name": name}, "spec": {}}) for name in ("one", "two")]
    references = [
        {"apiVersion": "nodus.dev/v1", "kind": "App", "name": app["metadata"]["name"], "uid": app["metadata"]["uid"]}
        for app in owners
    ]
    body = {"metadata": {"name": "child", "ownerReferences": references}, "spec": {}}
    applied = await project.client.patch(f"{project.path}/apps/child?fieldManager=ci", json=body, headers=APPLY)
    assert applied.status_code == 201, applied.text
    options = {"propagationPolicy": "Orphan"}
    await project.client.request("DELETE", f"{project.path}/apps/one", json=options)
    child = (await project.client.get(f"{project.path}/apps/child")).json()
    assert [owner["name"] for owner in child["metadata"]["ownerReferences"]] == ["two"]
    [entry] = child["metadata"]["managedFields"]
    [left] = entry["fieldsV1"]["f:metadata"]["f:ownerReferences"]
    assert orjson.loads(left.removeprefix("k:")) == {"uid": owners[1]["metadata"]["uid"]}


async def test_kinds_of_the_organisation_and_read_only_kinds(project: ServedApi) -> None:
    name = f"{project.project_name}-2"
    answer = await project.client.patch(
        f"{ROOT}/projects/{name}?fieldManager=ci", json={"spec": {"displayName": "two"}}, headers=APPLY
    )
    assert answer.status_code == 201, answer.text
    assert orjson.loads(answer.content)["spec"]["displayName"] == "two"
    refused = await project.client.patch(f"{project.path}/attempts/x?fieldManager=ci", json={}, headers=APPLY)
    assert refused.status_code == 405
