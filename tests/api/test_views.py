"""`/status` and `/scale`: other forms of one object."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.fixtures.app import APPROVED, CALL, ServedApi

MERGE = {"Content-Type": "application/merge-patch+json"}
JSON_PATCH = {"Content-Type": "application/json-patch+json"}
APPLY = {"Content-Type": "application/apply-patch+yaml"}


def owners(document: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [
        (entry["manager"], entry["operation"], entry.get("subresource", ""))
        for entry in document["metadata"].get("managedFields", [])
    ]


async def test_a_client_adds_changes_and_removes_conditions_of_its_own(project: ServedApi) -> None:
    created = await project.function()
    path = f"{project.path}/functions/f/status"
    body = {"status": {"conditions": [APPROVED]}, "spec": {"timeout": "1s"}, "metadata": {"labels": {"x": "y"}}}
    added = await project.client.patch(path + "?fieldManager=reviewer", json=body, headers=MERGE)
    assert added.status_code == 200, added.text
    servers = created["status"]["conditions"]
    assert added.json()["status"] == {**created["status"], "conditions": [*servers, APPROVED]}
    assert added.json()["spec"] == created["spec"]
    assert added.json()["metadata"]["generation"] == 1
    assert added.json()["metadata"]["labels"] == created["metadata"]["labels"]
    assert ("reviewer", "Update", "status") in owners(added.json())
    assert (await project.client.patch(path, json=body, headers=MERGE)).json() == added.json()
    # A change of the object itself leaves them, and what it says about the status is ignored.
    patched = await project.client.patch(
        f"{project.path}/functions/f", json={"spec": {"timeout": "9s"}, "status": {"conditions": []}}, headers=MERGE
    )
    assert APPROVED in patched.json()["status"]["conditions"]
    current = patched.json()
    current["status"]["conditions"] = servers
    removed = await project.client.put(path, json=current)
    assert removed.json()["status"]["conditions"] == servers
    assert not any(subresource for _, _, subresource in owners(removed.json()))
    stale = await project.client.put(path, json=current)
    assert stale.status_code == 409


async def test_conditions_are_applied_by_their_type(project: ServedApi) -> None:
    await project.function()
    path = f"{project.path}/functions/f/status"

    async def apply(manager: str, *conditions: Any, force: str = "false") -> httpx.Response:
        return await project.client.patch(
            path,
            json={"status": {"conditions": list(conditions)}},
            headers=APPLY,
            params={"fieldManager": manager, "force": force},
        )

    other = {**APPROVED, "type": "example.com/Tested"}
    await apply("one", APPROVED)
    both = await apply("two", other)
    types = [condition["type"] for condition in both.json()["status"]["conditions"]]
    assert types[-2:] == ["example.com/Approved", "example.com/Tested"]
    refused = await apply("two", other, {**APPROVED, "status": "False"})
    assert refused.status_code == 409
    assert '"one" with subresource "status"' in refused.json()["message"]
    assert '.status.conditions[type="example.com/Approved"].status' in refused.json()["message"]
    left = await apply("one")
    assert [condition["type"] for condition in left.json()["status"]["conditions"]][-1] == "example.com/Tested"
    assert len(left.json()["status"]["conditions"]) == len(types) - 1


async def test_a_call_keeps_a_clients_condition_through_its_phases(project: ServedApi) -> None:
    await project.function()
    await project.create("functioncalls", {"metadata": {"name": "c"}, "spec": CALL})
    path = f"{project.path}/functioncalls/c"
    operation = {"op": "add", "path": "/status/conditions/-", "value": APPROVED}
    added = await project.client.patch(path + "/status", json=[operation], headers=JSON_PATCH)
    assert APPROVED in added.json()["status"]["conditions"], added.text
    body = {"status": {"conditions": [{**APPROVED, "status": "False"}]}}
    applied = await project.client.patch(path + "/status?fieldManager=ci", json=body, headers=APPLY)
    # Nobody's ownership was recorded so far, and the server's part of a status has no owner.
    assert {name for name, _, _ in owners(applied.json())} == {"ci", "before-first-apply"}
    assert not any(
        "f:phase" in entry["fieldsV1"].get("f:status", {}) for entry in applied.json()["metadata"]["managedFields"]
    )
    await project.client.patch(
        path + "/status?fieldManager=ci", json={"status": {"conditions": [APPROVED]}}, headers=APPLY
    )
    cancelled = await project.client.patch(path, json={"spec": {"state": "Cancelled"}}, headers=MERGE)
    assert cancelled.json()["status"]["phase"] == "Cancelled"
    assert APPROVED in cancelled.json()["status"]["conditions"]


@pytest.mark.parametrize(
    ("status", "field"),
    [
        ({"phase": "Succeeded"}, "status.phase"),
        ({"bogus": 1}, "status.bogus"),
        ({"workers": {"ready": 7}}, "status.workers"),
        ({"conditions": [{**APPROVED, "type": "Ready"}]}, "status.conditions[0]"),
        ({"conditions": [{**APPROVED, "type": "nodus.dev/Mine"}]}, "status.conditions[0]"),
        ({"conditions": [APPROVED, APPROVED]}, "status.conditions[1].type"),
        ({"conditions": [{**APPROVED, "status": "Maybe"}]}, "status.conditions[0].status"),
        ({"conditions": [{**APPROVED, "lastTransitionTime": "now"}]}, "status.conditions[0].lastTransitionTime"),
        ({"conditions": [{**APPROVED, "reason": "x" * 1025}]}, "status.conditions[0].reason"),
        ({"conditions": [{"type": "example.com/X"}]}, "status.conditions[0].status"),
        ({"conditions": [{**APPROVED, "type": f"example.com/{n}"} for n in range(17)]}, "status.conditions"),
        ({"conditions": "x"}, "status.conditions"),
        ([], "status"),
    ],
)
async def test_what_the_server_observed_is_not_a_clients_to_change(project: ServedApi, status: Any, field: str) -> None:
    created = await project.function()
    answer = await project.client.patch(f"{project.path}/functions/f/status", json={"status": status}, headers=MERGE)
    assert (answer.status_code, answer.json()["reason"]) == (422, "Invalid"), answer.text
    assert field in [cause["field"] for cause in answer.json()["details"]["causes"]]
    assert (await project.client.get(f"{project.path}/functions/f")).json() == created


async def test_a_status_that_changes_nothing_or_is_rehearsed_writes_nothing(project: ServedApi) -> None:
    created = await project.function()
    path = f"{project.path}/functions/f/status"
    assert (await project.client.put(path, json=created)).json() == created
    body = {"status": {"conditions": [APPROVED]}}
    rehearsed = await project.client.patch(path + "?dryRun=All", json=body, headers=MERGE)
    assert APPROVED in rehearsed.json()["status"]["conditions"]
    assert (await project.client.get(path)).json() == created


async def test_a_function_is_scaled_by_its_least_number_of_workers(project: ServedApi) -> None:
    created = await project.function(scaling={"minWorkers": 1, "maxWorkers": 5})
    path = f"{project.path}/functions/f/scale"
    read = (await project.client.get(path)).json()
    assert (read["kind"], read["apiVersion"]) == ("Scale", "autoscaling/v1")
    assert (read["spec"], read["status"]) == ({"replicas": 1}, {"replicas": 0})
    assert read["metadata"].keys() == {"name", "namespace", "uid", "resourceVersion", "creationTimestamp"}

    patched = await project.client.patch(
        path + "?fieldManager=hpa", json={"spec": {"replicas": 3}, "status": {"replicas": 9}}, headers=MERGE
    )
    assert (patched.json()["spec"], patched.json()["status"]) == ({"replicas": 3}, {"replicas": 0})
    document = (await project.client.get(f"{project.path}/functions/f")).json()
    assert document["spec"] == {**created["spec"], "scaling": {**created["spec"]["scaling"], "minWorkers": 3}}
    assert ("hpa", "Update", "scale") in owners(document)

    assert (await project.client.put(path, json=read)).status_code == 409
    del read["metadata"]["resourceVersion"]
    assert (await project.client.put(path, json=read)).json()["spec"] == {"replicas": 1}
    operation = {"op": "replace", "path": "/spec/replicas", "value": 2}
    assert (await project.client.patch(path, json=[operation], headers=JSON_PATCH)).json()["spec"] == {"replicas": 2}
    body = {"apiVersion": "autoscaling/v1", "kind": "Scale", "spec": {"replicas": 4}}
    refused = await project.client.patch(path + "?fieldManager=ci", json=body, headers=APPLY)
    assert ".spec.scaling.minWorkers" in refused.json()["message"]
    taken = await project.client.patch(path + "?fieldManager=ci&force=true", json=body, headers=APPLY)
    assert taken.json()["spec"] == {"replicas": 4}


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"spec": {"replicas": 11}}, 422, "spec.scaling.minWorkers"),
        ({"spec": {"replicas": -1}}, 422, "spec.scaling.minWorkers"),
        ({"spec": {"replicas": "3"}}, 422, "spec.replicas"),
        ({"spec": {"replicas": True}}, 422, "spec.replicas"),
        ({"spec": None}, 422, "spec.replicas"),
        ({"kind": "Function"}, 400, None),
        ({"metadata": {"name": "other"}}, 400, None),
        ({"metadata": {"uid": "fn_other"}}, 409, None),
    ],
)
async def test_a_scale_that_does_not_fit_is_refused(
    project: ServedApi, body: Any, status: int, field: str | None
) -> None:
    created = await project.function()
    answer = await project.client.patch(f"{project.path}/functions/f/scale", json=body, headers=MERGE)
    assert answer.status_code == status, answer.text
    assert field is None or field in [cause["field"] for cause in answer.json()["details"]["causes"]]
    assert (await project.client.get(f"{project.path}/functions/f")).json() == created
