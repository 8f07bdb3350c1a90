"""Behind a proxy that serves us below a path: whether it passes the path on or not, what we hand out has it."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from dataclasses import replace

import httpx
import pytest

from api.blobs import BlobRoutes
from tests.fixtures.app import ServedApi, client_of, listening

PREFIX = "/team/nodus"
PUBLIC_URL = f"https://proxy{PREFIX}"


@pytest.fixture
async def proxied(project: ServedApi) -> AsyncIterator[httpx.AsyncClient]:
    """A client that talks to the server as the proxy does."""
    settings = project.deps.settings.model_copy(update={"public_url": PUBLIC_URL})
    blobs = BlobRoutes(project.core.blobs, project.core.resources.admission.require_project, settings)
    async with (
        listening(replace(project.deps, settings=settings, routes=blobs.routes())) as url,
        client_of(url, project.key) as client,
    ):
        yield client


@pytest.mark.parametrize("prefix", [PREFIX, ""], ids=["passed on", "stripped"])
async def test_every_path_is_served_with_and_without_the_prefix(
    project: ServedApi, proxied: httpx.AsyncClient, prefix: str
) -> None:
    for path in ("/healthz", "/version", "/apis/", "/openapi/v3", f"{project.path}/apps", "/docs/errors/Invalid"):
        assert (await proxied.get(prefix + path)).status_code == 200, path
    absent = await proxied.get(f"{prefix}{project.path}/apps/nope")
    assert (absent.status_code, absent.json()["docs"]) == (404, f"{PUBLIC_URL}/docs/errors/NotFound")
    assert (await proxied.get(f"{prefix}/nope")).status_code == 404
    assert (await proxied.get(f"{prefix}{project.path}/apps", headers={"Authorization": ""})).status_code == 401


@pytest.mark.parametrize("path", [f"{PREFIX}{PREFIX}/version", "/team/version", "/team/nodusversion", PREFIX])
async def test_only_the_whole_prefix_is_taken_off_and_once(proxied: httpx.AsyncClient, path: str) -> None:
    assert (await proxied.get(path)).status_code == 404


async def test_a_blob_goes_the_way_that_it_was_told(project: ServedApi, proxied: httpx.AsyncClient) -> None:
    content = b"behind a proxy"
    digest = hashlib.sha256(content).hexdigest()
    asked = {"sha256": digest, "size": len(content), "contentType": "text/plain"}
    told = (await proxied.post(f"{PREFIX}/blobs/v1/namespaces/{project.project_name}/uploads", json=asked)).json()
    assert told["url"].startswith(f"{PUBLIC_URL}/blobs/v1/data/")
    at_proxy = told["url"].removeprefix("https://proxy")
    assert (await proxied.put(at_proxy, content=content, headers=told["headers"])).status_code in (200, 201, 204)
