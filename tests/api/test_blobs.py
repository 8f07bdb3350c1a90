"""Blobs over HTTP, for people and for workers, on the disk and in S3."""

from __future__ import annotations

import hashlib
import os
import resource
import secrets
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from controlplane.identity.tokens import TokenHasher, mint_attempt_token
from tests.fixtures.app import ServedApi, api_settings, client_of, serve
from tests.fixtures.eventually import WITHIN_SECONDS
from tests.fixtures.plane import insert_attempt
from tests.fixtures.s3 import S3Server

SANDBOX = "http://127.0.0.1:3128"


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
async def s3_api(database_url: str, tmp_path: Path, s3_server: S3Server) -> AsyncIterator[ServedApi]:
    """A server whose blobs are in S3."""
    settings = api_settings(
        database_url,
        tmp_path,
        s3_endpoint=s3_server.endpoint,
        s3_access_key=s3_server.access_key,
        s3_secret_key=s3_server.secret_key,
        s3_secure=False,
        s3_bucket=f"api-{secrets.token_hex(4)}",
    )
    async with serve(settings) as served:
        yield served


@pytest.fixture(params=["disk", "s3"])
def api(request: pytest.FixtureRequest) -> ServedApi:
    """A server over each backend."""
    served: ServedApi = request.getfixturevalue("project" if request.param == "disk" else "s3_api")
    return served


@pytest.fixture
async def bare() -> AsyncIterator[httpx.AsyncClient]:
    """What the public SDK fetches presigned URLs with: no credential, no redirects."""
    async with httpx.AsyncClient(trust_env=False, timeout=WITHIN_SECONDS) as client:
        yield client


async def ask(
    api: ServedApi, content: bytes, client: httpx.AsyncClient | None = None, **changes: Any
) -> httpx.Response:
    body = {"sha256": digest_of(content), "size": len(content), "contentType": "application/gzip"} | changes
    return await (client or api.client).post(f"/blobs/v1/namespaces/{api.project_name}/uploads", json=body)


async def upload(api: ServedApi, bare: httpx.AsyncClient, content: bytes) -> None:
    grant = (await ask(api, content)).json()
    assert grant["exists"] is False
    put = await bare.put(grant["url"], content=content, headers=grant["headers"])
    assert put.status_code == 200, put.text


def download_path(api: ServedApi, content: bytes) -> str:
    return f"/blobs/v1/namespaces/{api.project_name}/blobs/{digest_of(content)}"


@pytest.fixture
async def worker(api: ServedApi) -> AsyncIterator[httpx.AsyncClient]:
    """A worker in the project, as the node's proxy sends its requests."""
    core = api.core
    uid = f"att-{secrets.token_hex(6)}"
    await insert_attempt(core.database, uid, project=api.project_name, function="f", function_uid="fn_1")
    hasher = TokenHasher(core.settings.secret_key)
    minted = await mint_attempt_token(core.database, hasher, attempt=uid, epoch=1, now=core.clock.now())
    assert minted is not None
    async with client_of(api.url, minted[0]) as client:
        yield client


@pytest.mark.parametrize("size", [0, 65_536, 65_537, 3_000_000])
async def test_a_blob_goes_up_and_comes_back(api: ServedApi, bare: httpx.AsyncClient, size: int) -> None:
    content = os.urandom(size)
    await upload(api, bare, content)
    assert (await ask(api, content)).json() == {"exists": True}
    redirect = await api.client.get(download_path(api, content))
    assert redirect.status_code == 302
    assert redirect.headers["x-nodus-sha256"] == digest_of(content)
    got = await bare.get(redirect.headers["location"])
    assert got.status_code == 200
    assert got.content == content


async def test_a_worker_uploads_and_downloads_through_its_socket_only(
    api: ServedApi, worker: httpx.AsyncClient, bare: httpx.AsyncClient
) -> None:
    content = os.urandom(100_000)
    grant = (await ask(api, content, worker)).json()
    assert grant["url"].startswith(f"{SANDBOX}/blobs/v1/data/")
    put = await worker.put(grant["url"].removeprefix(SANDBOX), content=content, headers=grant["headers"])
    assert put.status_code == 200, put.text
    got = await worker.get(download_path(api, content))
    assert got.status_code == 200
    assert got.content == content
    assert got.headers["x-nodus-sha256"] == digest_of(content)
    redirect = await api.client.get(download_path(api, content))
    assert (await bare.get(redirect.headers["location"])).content == content


async def test_a_worker_without_a_sandbox_uploads_where_its_node_reaches_the_api(
    api: ServedApi, worker: httpx.AsyncClient
) -> None:
    path = f"/blobs/v1/namespaces/{api.project_name}/uploads"
    asked = {"sha256": digest_of(b"x"), "size": 1}
    direct = await worker.post(path, json=asked, headers={"nodus-data-origin": "http://10.0.0.7:8080"})
    assert direct.json()["url"].startswith("http://10.0.0.7:8080/blobs/v1/data/")
    theirs = await api.client.post(path, json=asked, headers={"nodus-data-origin": "http://10.0.0.7:8080"})
    assert "10.0.0.7" not in theirs.json()["url"]


async def test_a_worker_gets_what_a_client_uploaded(
    api: ServedApi, worker: httpx.AsyncClient, bare: httpx.AsyncClient
) -> None:
    content = b"an archive of code"
    await upload(api, bare, content)
    assert (await worker.get(download_path(api, content))).content == content
    assert (await worker.get("/blobs/v1/namespaces/other/blobs/" + digest_of(content))).status_code == 403


async def test_bytes_are_sent_so_that_no_browser_runs_them(project: ServedApi, bare: httpx.AsyncClient) -> None:
    content = b"<script>alert(1)</script>"
    grant = (await ask(project, content, contentType="text/html")).json()
    await bare.put(grant["url"], content=content, headers=grant["headers"])
    location = (await project.client.get(download_path(project, content))).headers["location"]
    got = await bare.get(location)
    assert got.headers["content-disposition"] == "attachment"
    assert got.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("sent", [b"", b"short", b"wrong!!", b"much too long"])
async def test_other_bytes_than_announced_are_refused(project: ServedApi, bare: httpx.AsyncClient, sent: bytes) -> None:
    content = b"right!!"
    url = (await ask(project, content)).json()["url"]
    put = await bare.put(url, content=sent)
    assert put.status_code == 422
    assert put.json()["reason"] == "Invalid"
    assert (await ask(project, content)).json()["exists"] is False


async def test_bytes_without_a_length_are_counted_while_they_arrive(
    project: ServedApi, bare: httpx.AsyncClient
) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(10_000):
            yield b"x" * 65_536

    url = (await ask(project, b"right!!")).json()["url"]
    try:
        put = await bare.put(url, content=endless())
    except httpx.WriteError:
        pass  # refused before all of it was sent, and the connection with it
    else:
        assert put.status_code == 422
    assert (await ask(project, b"right!!")).json()["exists"] is False


async def test_a_changed_or_expired_url_is_forbidden(project: ServedApi, bare: httpx.AsyncClient) -> None:
    content = b"right!!"
    url = (await ask(project, content)).json()["url"]
    for changed in (
        url.replace("size=7", "size=8"),
        url.replace(project.project_name, "default"),
        url.replace(digest_of(content), digest_of(b"other")),
        url.split("?")[0],
        url.replace("signature=", "signature=00"),
    ):
        put = await bare.put(changed, content=content)
        assert put.status_code == 403, changed
        assert put.json()["reason"] == "Forbidden"
    assert (await bare.get(url)).status_code == 403


async def test_another_project_sees_nothing_of_it(project: ServedApi, bare: httpx.AsyncClient) -> None:
    content = secrets.token_bytes(20)
    await upload(project, bare, content)
    other = await project.client.get(f"/blobs/v1/namespaces/default/blobs/{digest_of(content)}")
    assert other.status_code == 404
    assert other.json()["reason"] == "NotFound"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"sha256": "ab"}, "sha256"),
        ({"sha256": "AB" * 32}, "sha256"),
        ({"size": -1}, "size"),
        ({"size": "7"}, "size"),
        ({"size": 6 << 30}, "size"),
        ({"contentType": "text"}, "contentType"),
        ({"contentType": "text/html\r\nX: y"}, "contentType"),
        ({"more": 1}, "more"),
    ],
)
async def test_a_bad_upload_request_names_its_field(project: ServedApi, changes: dict[str, Any], field: str) -> None:
    refused = await ask(project, b"x", **changes)
    assert refused.status_code == 422
    assert [cause["field"] for cause in refused.json()["details"]["causes"]] == [field]


@pytest.mark.parametrize("digest", ["ab" * 32, "AB" * 32, "x", "..%2f..%2fetc"])
async def test_a_blob_that_is_not_there_is_not_found(project: ServedApi, digest: str) -> None:
    missing = await project.client.get(f"/blobs/v1/namespaces/{project.project_name}/blobs/{digest}")
    assert missing.status_code == 404


async def test_nothing_is_uploaded_to_a_project_that_does_not_exist(project: ServedApi) -> None:
    missing = await ask(replace(project, project_name="no-such-project"), b"x")
    assert missing.status_code == 404
    assert missing.json()["details"]["kind"] == "projects"


async def test_without_a_credential_nothing_but_signed_urls_works(project: ServedApi, bare: httpx.AsyncClient) -> None:
    path = f"{project.url}/blobs/v1/namespaces/default"
    assert (await bare.post(f"{path}/uploads", json={})).status_code == 401
    assert (await bare.get(f"{path}/blobs/{'ab' * 32}")).status_code == 401


async def test_a_hundred_megabytes_pass_with_flat_memory(project: ServedApi, bare: httpx.AsyncClient) -> None:
    megabyte = os.urandom(1 << 20)
    digest = hashlib.sha256()
    for _ in range(100):
        digest.update(megabyte)

    async def content() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield megabyte

    size = 100 << 20
    grant = (await ask(project, b"", sha256=digest.hexdigest(), size=size)).json()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    put = await bare.put(grant["url"], content=content(), headers={**grant["headers"], "Content-Length": str(size)})
    assert put.status_code == 200, put.text
    path = f"/blobs/v1/namespaces/{project.project_name}/blobs/{digest.hexdigest()}"
    location = (await project.client.get(path)).headers["location"]
    received = hashlib.sha256()
    async with bare.stream("GET", location) as got:
        async for chunk in got.aiter_bytes():
            received.update(chunk)
    assert received.hexdigest() == digest.hexdigest()
    grown_kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kilobytes < 40 << 10
