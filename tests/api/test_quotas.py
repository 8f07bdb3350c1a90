"""Quotas as clients read them: limits as the operator set them, and what is used at the moment."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.limits.quotas import Counter, Quota, set_quota
from tests.api.test_access import key
from tests.fixtures.app import CALL, ROOT, ServedApi
from tests.fixtures.http_worker import start_worker

QUOTAS = f"{ROOT}/quotas"


async def limit(api: ServedApi, counter: Counter, amount: int, project: str = "") -> None:
    await set_quota(api.core.database, Quota(org="default", project=project, counter=counter, amount_max=amount))


@pytest.fixture
async def bounded(api: ServedApi) -> ServedApi:
    """A server whose organisation and two projects have quotas and something of each counter."""
    for name in ("ml", "web"):
        assert (await api.client.post(f"{ROOT}/projects", json={"metadata": {"name": name}})).status_code == 201
        await limit(api, Counter.FUNCTIONS, 7, name)
    await limit(api, Counter.MEMORY, 64 << 30)
    await limit(api, Counter.CPUS, 2_500)
    await api.function()
    await api.create("functioncalls", {"metadata": {"name": "c"}, "spec": CALL})
    await api.upload(b"x" * 1_000)
    worker = await start_worker(api)
    await api.core.database.execute(
        "UPDATE attempts SET cpu_milli = 1500, memory_bytes = 1 << 30, gpus = 2 WHERE uid = $1", worker.attempt
    )
    return api


async def listed(api: ServedApi, **request: Any) -> dict[str, dict[str, Any]]:
    answer = await api.client.get(QUOTAS, **request)
    assert answer.status_code == 200, answer.text
    return {item["metadata"]["name"]: item for item in answer.json()["items"]}


async def test_what_is_used_is_told_beside_what_there_may_be(bounded: ServedApi) -> None:
    found = await listed(bounded)
    assert list(found) == ["default", "project-ml", "project-web"]
    whole = (await bounded.client.get(f"{QUOTAS}/default")).json()
    assert whole == found["default"] | {"kind": "Quota", "apiVersion": "nodus.dev/v1"}
    assert whole["spec"] == {"limits": {"cpus": "2500m", "memory": "64Gi"}}
    assert whole["status"]["used"] == {
        "projects": "3",
        "functions": "1",
        "functioncalls.queued": "1",
        "workers": "1",
        "gpus": "2",
        "cpus": "1500m",
        "memory": "1Gi",
        "storage": "1000",
    }
    of_project = (await bounded.client.get(f"{QUOTAS}/project-ml")).json()
    assert of_project["spec"] == {"project": "ml", "limits": {"functions": "7"}}
    assert of_project["status"]["used"]["functions"] == "0"
    assert "projects" not in of_project["status"]["used"]


async def test_lists_are_pages_and_can_be_selected(bounded: ServedApi) -> None:
    page = (await bounded.client.get(QUOTAS, params={"limit": "2"})).json()
    assert [item["metadata"]["name"] for item in page["items"]] == ["default", "project-ml"]
    rest = await listed(bounded, params={"limit": "2", "continue": page["metadata"]["continue"]})
    assert list(rest) == ["project-web"]
    assert list(await listed(bounded, params={"fieldSelector": "spec.project=web"})) == ["project-web"]
    assert list(await listed(bounded, params={"fieldSelector": "metadata.name=default"})) == ["default"]
    assert await listed(bounded, params={"labelSelector": "team=ml"}) == {}
    table = await bounded.client.get(QUOTAS, headers={"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"})
    assert [row["cells"][:3] for row in table.json()["rows"]][:2] == [
        ["default", "<none>", "cpus 1500m/2500m, memory 1Gi/64Gi"],
        ["project-ml", "ml", "functions 0/7"],
    ]


async def test_a_credential_of_some_projects_sees_their_quotas_alone(bounded: ServedApi) -> None:
    headers = await key(bounded, ["*"], ["ml"])
    assert list(await listed(bounded, headers=headers)) == ["project-ml"]
    codes = [
        (await bounded.client.get(f"{QUOTAS}/{name}", headers=headers)).status_code
        for name in ("default", "project-web", "project-ml")
    ]
    assert codes == [404, 404, 200]
    blind = await key(bounded, ["apps:read"], ["*"])
    assert (await bounded.client.get(QUOTAS, headers=blind)).status_code == 403


async def test_nobody_sets_a_quota_over_the_api_and_one_of_nothing_is_told(api: ServedApi) -> None:
    body = {"metadata": {"name": "default"}, "spec": {"limits": {"workers": "1000"}}}
    refused = [
        await api.client.post(QUOTAS, json=body),
        await api.client.put(f"{QUOTAS}/default", json=body),
        await api.client.delete(f"{QUOTAS}/default"),
    ]
    assert {answer.status_code for answer in refused} == {405}
    [(name, alone)] = (await listed(api)).items()
    assert (name, alone["spec"]["limits"], alone["status"]["used"]["workers"]) == ("default", {}, "0")
    # The quota of a project that is gone is not shown.
    await limit(api, Counter.FUNCTIONS, 1, "gone")
    assert list(await listed(api)) == ["default"]
