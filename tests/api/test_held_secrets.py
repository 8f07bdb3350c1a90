"""A worker's error texts are free of the values it was started with, whatever became of Function and Secrets since."""

from __future__ import annotations

import secrets
from datetime import timedelta
from typing import Any

import pytest

from controlplane.kinds.secret import VERSIONS_SHOWN_MAX
from controlplane.secrets.held import HoldVersions, release_versions
from tests.fixtures.app import CALL, ServedApi, client_of
from tests.fixtures.http_worker import HttpWorker
from tests.fixtures.plane import insert_attempt

MERGE = {"Content-Type": "application/merge-patch+json"}
VALUE = "correct-horse"


@pytest.fixture
async def api(project: ServedApi) -> ServedApi:
    """A Function with a Secret."""
    await project.create("secrets", {"metadata": {"name": "s"}, "spec": {"stringData": {"T": VALUE}}})
    await project.function(secrets=["s"])
    return project


@pytest.fixture
async def worker(api: ServedApi) -> HttpWorker:
    """A worker that a node has started with the Secret."""
    function = (await api.client.get(f"{api.path}/functions/f")).json()
    uid = f"att-{secrets.token_hex(8)}"
    await insert_attempt(
        api.core.database, uid, project=api.project_name, function="f", function_uid=function["metadata"]["uid"]
    )
    async with client_of(api.url, api.core.settings.node_token.get_secret_value()) as client:
        # A node that did not get the answer asks again.
        await client.post(f"/node/v1/attempts/{uid}/lease", json={"epoch": 1})
        leased = await client.post(f"/node/v1/attempts/{uid}/lease", json={"epoch": 1})
    assert dict(leased.json()["env"])["T"] == VALUE
    return HttpWorker(api, uid, leased.json()["token"], "f")


async def failure_of(api: ServedApi, worker: HttpWorker) -> dict[str, Any]:
    """What is stored of a call that raised an exception with the value in its text."""
    body = {"metadata": {"generateName": "c-"}, "spec": CALL}
    created = await api.create("functioncalls", body, headers={"Idempotency-Key": secrets.token_hex(8)})
    name = created["metadata"]["name"]
    assert [call["id"] for call in (await worker.claim())["calls"]] == [name]
    error = {"type": "ValueError", "message": f"no: {VALUE}", "traceback": f"t = {VALUE!r}"}
    await worker.claim({"call": name, "outcome": "RemoteError", "error": error}, take=0)
    status: dict[str, Any] = (await api.client.get(f"{api.path}/functioncalls/{name}")).json()["status"]
    assert status["phase"] == "Failed"
    return status


async def drop_from_function(api: ServedApi) -> None:
    patched = await api.client.patch(f"{api.path}/functions/f", json={"spec": {"secrets": None}}, headers=MERGE)
    assert patched.status_code == 200, patched.text


async def delete_secret(api: ServedApi) -> None:
    await drop_from_function(api)
    assert (await api.client.delete(f"{api.path}/secrets/s")).status_code == 200


async def replace_values_often(api: ServedApi) -> None:
    for number in range(VERSIONS_SHOWN_MAX + 1):
        body = {"spec": {"stringData": {"T": f"another-value-{number}"}}}
        assert (await api.client.patch(f"{api.path}/secrets/s", json=body, headers=MERGE)).status_code == 200


@pytest.mark.parametrize("change", [drop_from_function, delete_secret, replace_values_often])
async def test_what_a_live_worker_was_started_with_stays_out_of_its_errors(
    api: ServedApi, worker: HttpWorker, change: Any
) -> None:
    await change(api)
    await release_versions(api.core.database, api.core.clock.now())
    status = await failure_of(api, worker)
    assert VALUE not in str(status)
    assert "[redacted]" in status["error"]["message"]


@pytest.mark.parametrize("change", [delete_secret, replace_values_often])
async def test_values_that_only_an_ended_worker_had_are_dropped(
    api: ServedApi, worker: HttpWorker, change: Any
) -> None:
    database, now = api.core.database, api.core.clock.now()
    versions = "SELECT count(*) FROM secret_versions WHERE project = $1 AND version = 1"
    await change(api)
    await database.execute("UPDATE attempts SET finished_at = $2 WHERE uid = $1", worker.attempt, now)
    await release_versions(database, now - timedelta(hours=1))
    assert await database.fetchval(versions, api.project_name) == 1
    await release_versions(database, now + timedelta(hours=1))
    assert await database.fetchval(versions, api.project_name) == 0


async def test_a_deleted_secret_that_no_worker_has_is_gone_at_once(api: ServedApi) -> None:
    await delete_secret(api)
    versions = "SELECT count(*) FROM secret_versions WHERE project = $1"
    assert await api.core.database.fetchval(versions, api.project_name) == 0


async def test_a_version_that_went_while_it_was_read_is_not_given_out(api: ServedApi) -> None:
    stored = (await api.client.get(f"{api.path}/secrets/s")).json()
    hold = HoldVersions("att-1", [api.object_key("Secret", "s")], [(stored["metadata"]["uid"], 7)])
    with pytest.raises(Exception, match="changed while it was read"):
        await api.core.writer.write(hold)
