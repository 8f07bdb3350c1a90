"""What nodes ask: leases, log batches, phases."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

import httpx
import pytest

from activities.run_worker_contract import NODE_LOST
from controlplane.capacity.attempts import CloseAttempt, StartOrder, StartWorkers
from controlplane.capacity.endings import WorkerEnd
from controlplane.capacity.revision import pool_revision
from controlplane.images.use import CATALOG
from controlplane.ledger.worker_accounts import FundingRules
from controlplane.secrets.environment import SecretReader
from controlplane.secrets.sealing import SecretSealer
from controlplane.store.contract import Key
from tests.fixtures.app import FUNCTION, ServedApi, client_of
from tests.fixtures.plane import PutObject, insert_attempt

GUARANTEES = {
    "level": "standard",
    "uid": "shared",
    "memory": "none",
    "pids": "hard",
    "cpu": "shared",
    "network": "none",
    "diskBytes": 1 << 30,
    "filterSha256": "ab" * 32,
    "missing": ["no limit on memory"],
}


async def attempt_of(api: ServedApi, function: dict[str, Any], *, epoch: int = 1, **columns: Any) -> str:
    """A worker of the Function that starts: its row and its object."""
    uid = f"att-{secrets.token_hex(8)}"
    name, function_uid = function["metadata"]["name"], function["metadata"]["uid"]
    await insert_attempt(
        api.core.database,
        uid,
        project=api.project_name,
        function=name,
        function_uid=function_uid,
        epoch=epoch,
        **columns,
    )
    metadata = {"name": uid, "namespace": api.project_name, "uid": uid, "generation": 1}
    document = {
        "apiVersion": "nodus.dev/v1",
        "kind": "Attempt",
        "metadata": metadata,
        "spec": {"slot": "0", "epoch": epoch},
        "status": {"phase": "Provisioning"},
    }
    await api.core.writer.write(PutObject(api.object_key("Attempt", uid), document))
    return uid


async def test_a_lease_holds_all_a_worker_needs(project: ServedApi, node: httpx.AsyncClient) -> None:
    await project.create("secrets", {"metadata": {"name": "s"}, "spec": {"stringData": {"TOKEN": "value", "A": "s"}}})
    function = await project.function(
        secrets=["s"], env=[{"name": "A", "value": "1"}], workingDir="/srv", scaling={"targetConcurrency": 3}
    )
    uid = await attempt_of(project, function, epoch=4, concurrency=3)
    response = await node.post(f"/node/v1/attempts/{uid}/lease", json={"epoch": 4})
    assert response.status_code == 200, response.text
    assert response.headers["cache-control"] == "no-store"
    lease = response.json()
    assert lease["project"] == project.project_name
    assert lease["function"] == "f"
    assert lease["functionUid"] == function["metadata"]["uid"]
    assert lease["concurrency"] == 3
    assert lease["python"] == "3.11"
    assert lease["workingDir"] == "/srv"
    assert (lease["resources"]["memory"], lease["diskLeast"]) == ("1Gi", None)
    assert dict(lease["env"]) == {"TOKEN": "value", "A": "1"}
    assert lease["egress"] == {"policy": "Open", "hosts": [], "presets": []}
    secret = (await project.client.get(f"{project.path}/secrets/s")).json()
    assert secret["status"]["lastUsedTime"]


async def test_a_lease_tells_of_a_disk_that_was_asked_for(project: ServedApi, node: httpx.AsyncClient) -> None:
    uid = await attempt_of(project, await project.function(resources={"disk": "2Gi"}))
    lease = (await node.post(f"/node/v1/attempts/{uid}/lease", json={"epoch": 1})).json()
    assert lease["diskLeast"] == "2Gi"


async def test_a_lease_tells_of_sidecars_with_variables_of_their_own(
    project: ServedApi, node: httpx.AsyncClient
) -> None:
    await project.create("secrets", {"metadata": {"name": "s"}, "spec": {"stringData": {"TOKEN": "correct-horse"}}})
    reference = {"secretKeyRef": {"name": "s", "key": "TOKEN"}}
    sidecar = {"name": "proxy", "command": ["serve"], "env": [{"name": "KEY", "valueFrom": reference}]}
    function = await project.function(env=[{"name": "A", "value": "1"}], sidecars=[sidecar])
    core = project.core
    reader = SecretReader(core.database, core.cache, SecretSealer(core.settings.secret_key))
    redact = await reader.redactor(function["metadata"]["uid"])
    assert "correct-horse" not in str(redact("it said correct-horse"))
    uid = await attempt_of(project, function)
    lease = (await node.post(f"/node/v1/attempts/{uid}/lease", json={"epoch": 1})).json()
    told = {"name": "proxy", "command": ["serve"], "python": None, "secondsMax": 60, "env": [["KEY", "correct-horse"]]}
    assert (lease["env"], lease["sidecars"]) == ([["A", "1"]], [told])
    held = await project.core.database.fetch("SELECT version FROM attempt_secrets WHERE attempt = $1", uid)
    assert [row["version"] for row in held] == [1]


async def test_a_sidecar_names_nothing_that_is_not_there_and_shows_no_secret(project: ServedApi) -> None:
    await project.create("secrets", {"metadata": {"name": "s"}, "spec": {"stringData": {"T": "correct-horse"}}})
    missing = {"name": "A", "valueFrom": {"secretKeyRef": {"name": "gone", "key": "T"}}}
    shown = {"name": "A", "value": "correct-horse"}
    for variable, field in (
        (missing, "spec.sidecars[0].env[0].valueFrom.secretKeyRef.name"),
        (shown, "spec.sidecars[0].env[0].value"),
    ):
        spec = {**FUNCTION, "sidecars": [{"name": "a", "command": ["b"], "env": [variable]}]}
        body = {"metadata": {"name": "g"}, "spec": spec}
        response = await project.client.post(f"{project.path}/functions", json=body)
        assert response.status_code == 422
        assert [cause["field"] for cause in response.json()["details"]["causes"]] == [field]


async def test_the_token_of_a_lease_is_its_worker(project: ServedApi, node: httpx.AsyncClient) -> None:
    uid = await attempt_of(project, await project.function())
    lease = (await node.post(f"/node/v1/attempts/{uid}/lease", json={"epoch": 1})).json()
    async with client_of(project.url, lease["token"]) as worker:
        told = await worker.get("/self")
        assert told.json() == {
            "kind": "Function",
            "name": "f",
            "project": project.project_name,
            "attempt": uid,
            "epoch": 1,
            "index": 0,
        }
        assert (await worker.get(f"{project.path}/functions/f")).status_code == 200
        assert (await worker.get(f"{project.path}/secrets")).status_code == 403
        assert (await worker.post(f"/node/v1/attempts/{uid}/lease", json={"epoch": 1})).status_code == 403


async def test_what_is_over_or_unknown_is_not_leased(project: ServedApi, node: httpx.AsyncClient) -> None:
    function = await project.function()
    finished = await attempt_of(project, function, state="finished", finished_at=project.core.clock.now())
    newer = await attempt_of(project, function, epoch=2)
    orphan = await attempt_of(project, {"metadata": {"name": "gone", "uid": "fn_gone"}})
    for uid, epoch, status in ((finished, 1, 409), (newer, 1, 409), (orphan, 1, 404), ("att-unknown", 1, 404)):
        refused = await node.post(f"/node/v1/attempts/{uid}/lease", json={"epoch": epoch})
        assert refused.status_code == status, uid
    assert await project.core.database.fetchval("SELECT count(*) FROM tokens WHERE attempt = $1", newer) == 0


async def test_a_worker_is_of_the_revision_that_it_is_made_of(project: ServedApi, node: httpx.AsyncClient) -> None:
    function = await project.function(workingDir="/srv")
    uid = await attempt_of(project, function, pool="decided-before")
    assert (await node.post(f"/node/v1/attempts/{uid}/lease", json={"epoch": 1})).status_code == 200
    told = await project.core.database.fetchval("SELECT pool FROM attempts WHERE uid = $1", uid)
    assert told == pool_revision(function, CATALOG)


async def test_a_missing_secret_is_named_in_the_refusal(project: ServedApi, node: httpx.AsyncClient) -> None:
    await project.create("secrets", {"metadata": {"name": "s"}, "spec": {"stringData": {"A": "1"}}})
    uid = await attempt_of(project, await project.function(secrets=["s"]))
    await project.client.delete(f"{project.path}/secrets/s")
    refused = await node.post(f"/node/v1/attempts/{uid}/lease", json={"epoch": 1})
    assert refused.status_code == 404
    assert 'secrets.nodus.dev "s" not found' in refused.json()["message"]


async def test_phases_show_in_the_attempt(project: ServedApi, node: httpx.AsyncClient) -> None:
    uid = await attempt_of(project, await project.function())
    for phase in ("Preparing", "Starting", "Ready", "Draining"):
        body = {"epoch": 1, "phase": phase, "guarantees": GUARANTEES}
        told = await node.post(f"/node/v1/attempts/{uid}/phase", json=body)
        assert told.status_code == 204, told.text
    attempt = (await project.client.get(f"{project.path}/attempts/{uid}")).json()
    assert attempt["status"]["guarantees"] == GUARANTEES
    assert attempt["status"]["timings"]["commandStartedTime"].endswith("Z")
    assert attempt["status"]["message"] == "the worker finishes its calls and leaves"
    assert "warmReuse" not in attempt["status"].get("placement", {})
    refused = await node.post(f"/node/v1/attempts/{uid}/phase", json={"epoch": 2, "phase": "Starting"})
    assert refused.status_code == 409


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("lease", {}),
        ("lease", {"epoch": "1"}),
        ("lease", {"epoch": 1, "more": 1}),
        ("phase", {"epoch": 1, "phase": "Dancing"}),
        ("phase", {"epoch": 1, "phase": "Ready", "warmReuse": "yes"}),
        ("phase", {"epoch": 1, "phase": "Starting", "guarantees": {"level": "perfect"}}),
        ("logs", {"chunks": [{"seq": -1, "lines": []}]}),
        ("logs", {"chunks": [{"seq": 1, "lines": [[1, "stdout"]]}]}),
        ("logs", {"chunks": [{"seq": 1, "lines": [[1, "other", "text"]]}]}),
        ("logs", {"chunks": [{"seq": 1, "lines": [[1, "stdout", 5]]}]}),
        ("logs", {"chunks": [{"seq": 1, "lines": [[-1, "stdout", "x"]]}]}),
    ],
)
async def test_a_body_of_the_wrong_shape_is_refused(
    project: ServedApi, node: httpx.AsyncClient, path: str, body: dict[str, Any]
) -> None:
    refused = await node.post(f"/node/v1/attempts/att-x/{path}", json=body)
    assert refused.status_code == 422, refused.text


async def test_only_a_node_may_ask(project: ServedApi) -> None:
    for path, body in (
        ("lease", {"epoch": 1}),
        ("phase", {"epoch": 1, "phase": "Starting"}),
        ("logs", {"chunks": []}),
    ):
        refused = await project.client.post(f"/node/v1/attempts/att-x/{path}", json=body)
        assert refused.status_code == 403
        assert refused.json()["details"]["missingScope"] == "nodes:connect"


async def test_a_node_may_do_nothing_else(project: ServedApi, node: httpx.AsyncClient) -> None:
    for path in ("functions", "secrets", "attempts"):
        assert (await node.get(f"{project.path}/{path}")).status_code == 403


async def test_repeated_leases_at_once_leave_one_that_works(project: ServedApi, node: httpx.AsyncClient) -> None:
    uid = await attempt_of(project, await project.function())
    leases = await asyncio.gather(*[node.post(f"/node/v1/attempts/{uid}/lease", json={"epoch": 1}) for _ in range(4)])
    assert {lease.status_code for lease in leases} == {200}
    last = await node.post(f"/node/v1/attempts/{uid}/lease", json={"epoch": 1})
    assert await project.core.database.fetchval("SELECT count(*) FROM tokens WHERE attempt = $1", uid) == 1
    headers = {"Authorization": f"Bearer {last.json()['token']}"}
    assert (await project.client.get("/self", headers=headers)).status_code == 200


async def test_a_replacement_is_named_by_the_worker_before_it_and_tells_how_long_that_was_missed(
    project: ServedApi, node: httpx.AsyncClient
) -> None:
    function = await project.function()
    lost = await attempt_of(project, function, epoch=1)
    key = project.object_key("Attempt", lost)
    end = WorkerEnd(outcome=NODE_LOST)
    await project.core.writer.write(CloseAttempt(key, end))
    await project.core.database.execute("UPDATE attempts SET state = 'finished' WHERE uid = $1", lost)
    uid = await attempt_of(project, function, epoch=2)

    async def told(phase: str) -> dict[str, Any]:
        body = {"epoch": 2, "phase": phase, "warmReuse": True if phase == "Ready" else None}
        assert (await node.post(f"/node/v1/attempts/{uid}/phase", json=body)).status_code == 204
        status: dict[str, Any] = (await project.client.get(f"{project.path}/attempts/{lost}")).json()["status"]
        return status

    assert (await told("Preparing"))["supersededBy"] == uid
    assert "recoverySeconds" not in (await told("Starting"))["interruption"]
    recovered = (await told("Ready"))["interruption"]
    assert recovered["trigger"] == "HeartbeatLoss"
    assert recovered["recoverySeconds"] >= 0
    assert (await told("Ready"))["interruption"] == recovered
    attempt = (await project.client.get(f"{project.path}/attempts/{uid}")).json()
    assert attempt["status"]["placement"]["warmReuse"] is True
    assert "supersededBy" not in attempt["status"]


async def test_a_worker_costs_something_from_the_start_of_its_process(
    project: ServedApi, node: httpx.AsyncClient
) -> None:
    function, core = await project.function(), project.core
    order = StartOrder(
        function_key=Key("Function", "default", project.project_name, "f"),
        function_uid=function["metadata"]["uid"],
        revision="r1",
        count=1,
        node="local",
        node_workers_max=32,
        seen=frozenset(),
        capacity=core.placements.of(function["spec"]),
        funding=FundingRules.from_settings(core.settings),
    )
    [row] = await core.writer.write(StartWorkers(order))
    times = []
    for phase in ("Preparing", "Starting", "Starting"):
        body = {"epoch": 1, "phase": phase, "guarantees": None}
        assert (await node.post(f"/node/v1/attempts/{row.uid}/phase", json=body)).status_code == 204
        times.append(await core.database.fetchval("SELECT started_at FROM worker_accounts WHERE uid = $1", row.uid))
    assert times[0] is None
    assert times[1] == times[2] >= row.created_at
    attempt = (await project.client.get(f"{project.path}/attempts/{row.uid}")).json()
    assert attempt["status"]["timings"]["billingStartTime"].endswith("Z")
