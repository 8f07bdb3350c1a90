"""A project that has the name of one that was deleted begins with nothing of it (decision 0051)."""

from __future__ import annotations

import secrets
from dataclasses import replace

import pytest

from controlplane.limits.quotas import Counter, Quota, set_quota
from controlplane.store import garbage
from tests.fixtures.app import ROOT, ServedApi

PROJECTS = f"{ROOT}/projects"


async def made(api: ServedApi, name: str) -> ServedApi:
    """The same server as seen from a new project."""
    answer = await api.client.post(PROJECTS, json={"metadata": {"name": name}})
    assert answer.status_code == 201, answer.text
    return replace(api, project_name=name)


async def left_of(api: ServedApi, project: str) -> list[tuple[str, int]]:
    found = []
    for table in ("blobs", "blob_usage", "quotas"):
        counted = f"SELECT count(*) FROM {table} WHERE org = 'default' AND project = $1"
        found.append((table, await api.core.database.fetchval(counted, project)))
    return found


async def test_quotas_and_blobs_go_with_their_project(api: ServedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "FORGOTTEN_BLOBS_MAX", 2)
    name = f"again-{secrets.token_hex(4)}"
    project = await made(api, name)
    quota = Quota(org="default", project=name, counter=Counter.FUNCTIONS, amount_max=0)
    await set_quota(api.core.database, quota)
    digests = [(await project.upload(content)).removeprefix("sha256:") for content in (b"one", b"two", b"three")]
    await project.create("apps", {"metadata": {"name": "a"}, "spec": {}})
    path = f"/blobs/v1/namespaces/{name}/blobs/{digests[0]}"
    assert (await api.client.get(path)).status_code == 302
    before = await api.core.database.fetchval("SELECT bytes FROM blob_usage WHERE org = 'default' AND project = ''")
    assert (await api.client.delete(f"{PROJECTS}/{name}")).status_code == 200
    assert (await api.client.get(f"{PROJECTS}/{name}")).status_code == 404
    assert await left_of(api, name) == [("blobs", 0), ("blob_usage", 0), ("quotas", 0)]
    after = await api.core.database.fetchval("SELECT bytes FROM blob_usage WHERE org = 'default' AND project = ''")
    assert before - after == len(b"one" + b"two" + b"three")
    again = await made(api, name)
    assert (await api.client.get(path)).status_code == 404
    await again.function()


async def test_what_ends_after_its_project_is_not_the_next_ones(api: ServedApi) -> None:
    name = f"late-{secrets.token_hex(4)}"
    await api.core.database.execute(
        "INSERT INTO blobs VALUES ('default', $1, repeat('0', 64), 5, 'a/b', 'nowhere', now(), now())", name
    )
    await made(api, name)
    assert await left_of(api, name) == [("blobs", 0), ("blob_usage", 0), ("quotas", 0)]
