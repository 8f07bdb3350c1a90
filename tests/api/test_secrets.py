"""Secrets over HTTP: versions, equality, patches of single keys, and values that are told to nobody."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest

from controlplane.secrets.environment import SecretReader
from controlplane.secrets.sealing import SecretSealer
from tests.fixtures.app import FUNCTION, ServedApi

MERGE = {"Content-Type": "application/merge-patch+json"}
COUNT_VERSIONS = "SELECT count(*) FROM secret_versions WHERE project = $1"
COUNT_SECRETS = "SELECT count(*) FROM objects WHERE kind = 'Secret' AND project = $1"
JSON_PATCH = {"Content-Type": "application/json-patch+json"}


@pytest.fixture
def api(project: ServedApi) -> ServedApi:
    """The shared server, with an empty project for the test."""
    return project


def manifest(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "s"}, "spec": spec}


async def values_of(api: ServedApi, version: int = 0) -> dict[str, str]:
    """What a worker would get."""
    reader = SecretReader(api.core.database, api.core.cache, SecretSealer(api.core.settings.secret_key))
    mount = {"name": "s"} | ({"version": version} if version else {})
    return (await reader.environment("default", api.project_name, {"secrets": [mount]})).variables


async def patch(api: ServedApi, spec: Any, **metadata: Any) -> dict[str, Any]:
    body = {"spec": spec} if not metadata else {"spec": spec, "metadata": metadata}
    response = await api.client.patch(f"{api.path}/secrets/s", json=body, headers=MERGE)
    assert response.status_code == 200, response.text
    patched: dict[str, Any] = response.json()
    return patched


async def test_values_go_to_workers_and_to_no_answer_and_no_table(api: ServedApi) -> None:
    secret = "correct-horse-battery"
    body = manifest(stringData={"A": secret}, data={"B": base64.b64encode(b"staple").decode()})
    manifests = ("nodus.dev/last-applied", "kubectl.kubernetes.io/last-applied-configuration")
    body["metadata"]["annotations"] = dict.fromkeys(manifests, f'{{"spec":{{"stringData":{{"A":"{secret}"}}}}}}')
    created = await api.create("secrets", body, headers={"Idempotency-Key": "k1"})
    assert created["spec"] == {"type": "Opaque"}
    assert created["status"]["keys"] == ["A", "B"]
    assert created["status"]["version"] == 1
    assert created["status"]["versions"][0]["createdBy"].startswith("usr_")
    assert created["metadata"]["annotations"] == dict.fromkeys(manifests, '{"spec":{"stringData":{"A":""}}}')
    assert await values_of(api) == {"A": secret, "B": "staple"}
    encoded = base64.b64encode(secret.encode()).decode()
    texts = [secret, encoded, secret.encode().hex(), encoded.encode().hex()]
    for table in ("objects", "changes", "secret_versions", "idempotency"):
        # Found where the rows are: all tests of the server have left some.
        told = await api.core.database.fetch(
            f"SELECT t::text FROM {table} t, unnest($1::text[]) AS secret(word)"
            " WHERE strpos(t::text, word) > 0 OR strpos(row_to_json(t)::text, word) > 0",
            texts,
        )
        assert told == [], table


async def test_a_dry_run_tells_no_values_and_stores_nothing(api: ServedApi) -> None:
    rehearsed = await api.create("secrets", manifest(stringData={"A": "hidden"}), params={"dryRun": "All"})
    assert rehearsed["spec"] == {"type": "Opaque"}
    assert (await api.client.get(f"{api.path}/secrets/s")).status_code == 404
    await api.create("secrets", manifest(stringData={"A": "x"}))
    response = await api.client.patch(
        f"{api.path}/secrets/s", json={"spec": {"stringData": {"A": "hidden"}}}, headers=MERGE, params={"dryRun": "All"}
    )
    assert response.json()["spec"] == {"type": "Opaque"}
    assert await values_of(api) == {"A": "x"}


async def test_an_equal_create_returns_the_object_and_a_different_one_is_refused(api: ServedApi) -> None:
    first = await api.create("secrets", manifest(stringData={"A": "x"}))
    encoded = base64.b64encode(b"x").decode()
    again = await api.client.post(f"{api.path}/secrets", json=manifest(data={"A": encoded}))
    assert again.status_code == 200
    assert again.json() == first
    different: list[dict[str, Any]] = [
        {"stringData": {"A": "y"}},
        {"stringData": {"A": "x", "B": "z"}},
        {},
        {"stringData": {}},
    ]
    for spec in different:
        refused = await api.client.post(f"{api.path}/secrets", json=manifest(**spec))
        assert refused.status_code == 409
        assert refused.json()["reason"] == "AlreadyExists"
        assert refused.json()["details"]["diff"] == ["spec.data"]
    assert await api.core.database.fetchval(COUNT_VERSIONS, api.project_name) == 1


async def test_a_patch_sets_keeps_and_removes_single_keys(api: ServedApi) -> None:
    await api.create("secrets", manifest(stringData={"A": "1", "B": "2"}))
    patched = await patch(api, {"stringData": {"B": "two", "C": "3"}})
    assert patched["status"]["version"] == 2
    assert [version["version"] for version in patched["status"]["versions"]] == [2, 1]
    assert patched["metadata"]["generation"] == 2
    assert await values_of(api) == {"A": "1", "B": "two", "C": "3"}
    await patch(api, {"stringData": {"A": None}})
    assert await values_of(api) == {"B": "two", "C": "3"}
    await patch(api, {"data": {"B": None, "C": base64.b64encode(b"iii").decode()}})
    assert await values_of(api) == {"C": "iii"}


async def test_a_json_patch_removes_a_key_and_sets_another(api: ServedApi) -> None:
    await api.create("secrets", manifest(stringData={"A": "1", "B": "2"}))
    operations = [
        {"op": "remove", "path": "/spec/stringData/A"},
        {"op": "add", "path": "/spec/stringData/C", "value": "3"},
    ]
    response = await api.client.patch(f"{api.path}/secrets/s", json=operations, headers=JSON_PATCH)
    assert response.status_code == 200, response.text
    assert await values_of(api) == {"B": "2", "C": "3"}


async def test_a_write_that_changes_no_value_makes_no_version(api: ServedApi) -> None:
    created = await api.create("secrets", manifest(stringData={"A": "1"}))
    assert await patch(api, {"stringData": {"A": "1"}}) == created
    labelled = await patch(api, {}, labels={"team": "x"})
    assert labelled["status"] == created["status"]
    assert labelled["metadata"]["generation"] == 1
    assert labelled["metadata"]["labels"]["team"] == "x"


async def test_a_replacement_names_all_values_or_none(api: ServedApi) -> None:
    created = await api.create("secrets", manifest(stringData={"A": "1", "B": "2"}))
    untouched = await api.client.put(f"{api.path}/secrets/s", json=created)
    assert untouched.status_code == 200
    assert await values_of(api) == {"A": "1", "B": "2"}
    replaced = await api.client.put(f"{api.path}/secrets/s", json=manifest(stringData={"C": "3"}))
    assert replaced.status_code == 200
    assert await values_of(api) == {"C": "3"}
    emptied = await api.client.put(f"{api.path}/secrets/s", json=manifest(data={}))
    assert emptied.json()["status"]["keys"] == []
    assert await values_of(api) == {}


async def test_older_versions_can_be_pinned_and_only_ten_are_kept(api: ServedApi) -> None:
    await api.create("secrets", manifest(stringData={"A": "1"}))
    for number in range(2, 12):
        await patch(api, {"stringData": {"A": str(number)}})
    last = await patch(api, {"stringData": {"A": "12"}})
    assert last["status"]["version"] == 12
    assert len(last["status"]["versions"]) == 10
    assert await values_of(api, 3) == {"A": "3"}
    assert (
        await api.core.database.fetchval(
            "SELECT min(version) FROM secret_versions WHERE project = $1", api.project_name
        )
        == 3
    )


async def test_a_registry_secret_keeps_the_keys_it_needs(api: ServedApi) -> None:
    full = {"username": "u", "password": "p", "server": "s"}
    await api.create("secrets", manifest(type="Registry", stringData=full))
    refused = await api.client.patch(
        f"{api.path}/secrets/s", json={"spec": {"stringData": {"server": None}}}, headers=MERGE
    )
    assert refused.status_code == 422
    assert refused.json()["details"]["causes"][0]["field"] == "spec.stringData.server"
    assert await values_of(api) == full


async def test_a_deleted_secret_leaves_no_values_behind(api: ServedApi) -> None:
    await api.create("secrets", manifest(stringData={"A": "1"}))
    assert (await api.client.delete(f"{api.path}/secrets/s")).status_code == 200
    assert await api.core.database.fetchval(COUNT_VERSIONS, api.project_name) == 0
    created = await api.create("secrets", manifest(stringData={"A": "2"}))
    assert created["status"]["version"] == 1


@pytest.mark.parametrize(
    "spec",
    [
        {"stringData": {"not a key": "x"}},
        {"stringData": {"A": 1}},
        {"data": {"A": "%%%"}},
        {"stringData": {f"K{number}": "x" for number in range(257)}},
        {"stringDate": {"A": "x"}},
        {"type": "Other"},
    ],
)
async def test_a_bad_secret_is_refused_without_telling_its_values(api: ServedApi, spec: dict[str, Any]) -> None:
    refused = await api.client.post(f"{api.path}/secrets", json=manifest(**spec))
    assert refused.status_code == 422
    assert "%%%" not in refused.text
    assert await api.core.database.fetchval(COUNT_SECRETS, api.project_name) == 0


async def test_patches_of_different_keys_at_once_lose_nothing(api: ServedApi) -> None:
    await api.create("secrets", manifest(stringData={"K0": "0"}))
    await asyncio.gather(*[patch(api, {"stringData": {f"K{number}": str(number)}}) for number in range(1, 5)])
    assert await values_of(api) == {f"K{number}": str(number) for number in range(5)}


async def test_a_value_of_a_secret_may_not_be_written_into_a_function(project: ServedApi) -> None:
    await project.create("secrets", {"metadata": {"name": "s"}, "spec": {"stringData": {"KEY": "hunter2-hunter2"}}})
    body = {"metadata": {"name": "f"}, "spec": {**FUNCTION, "env": [{"name": "A", "value": "hunter2-hunter2"}]}}
    for path in (f"{project.path}/functions", f"{project.path}/functions?dryRun=All"):
        answer = await project.client.post(path, json=body)
        assert answer.status_code == 422
        told = answer.json()
        assert told["reason"] == "SecretValueInEnv"
        assert told["details"]["causes"][0]["field"] == "spec.env[0].value"
        assert "secretKeyRef: {name: s, key: KEY}" in told["fix"]
        assert "hunter2" not in answer.text
    await project.function(env=[{"name": "A", "value": "another value"}])
    patch = {"spec": {"env": [{"name": "A", "value": "another value"}, {"name": "B", "value": "hunter2-hunter2"}]}}
    headers = {"content-type": "application/merge-patch+json"}
    answer = await project.client.patch(f"{project.path}/functions/f", json=patch, headers=headers)
    assert answer.json()["reason"] == "SecretValueInEnv"


async def test_only_what_is_new_and_long_enough_is_compared_with_secrets(project: ServedApi) -> None:
    function = await project.function(env=[{"name": "A", "value": "hunter2-hunter2"}, {"name": "B", "value": "true"}])
    values = {"KEY": "hunter2-hunter2", "SHORT": "true"}
    await project.create("secrets", {"metadata": {"name": "s"}, "spec": {"stringData": values}})
    headers = {"content-type": "application/merge-patch+json"}
    path = f"{project.path}/functions/{function['metadata']['name']}"
    # A Function that was there before the Secret can still be stopped.
    answer = await project.client.patch(path, json={"spec": {"state": "Stopped"}}, headers=headers)
    assert answer.status_code == 200, answer.text
    await project.function("g", env=[{"name": "B", "value": "true"}])
    body = {"metadata": {"name": "h"}, "spec": {**FUNCTION, "env": [{"name": "A", "value": "hunter2-hunter2"}]}}
    assert (await project.client.post(f"{project.path}/functions", json=body)).status_code == 422
    # The value that counts is the present one.
    replaced = {"spec": {"stringData": {"KEY": "something-else"}}}
    await project.client.patch(f"{project.path}/secrets/s", json=replaced, headers=headers)
    assert (await project.client.post(f"{project.path}/functions", json=body)).status_code == 201
