"""Methods: what a path does not take is a 405 that says what it takes; what is no path is a 404 for all of them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from controlplane.kinds.registry import KINDS
from controlplane.machinery.kind import Kind, Scope, Verb
from tests.fixtures.app import ROOT, ServedApi

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND")
NOWHERE = (
    "/nope",
    "/api/v2",
    "/apis/nope.dev/v1/things",
    f"{ROOT}/nopes",
    f"{ROOT}/functions/f",
    f"{ROOT}/namespaces/default/projects",
    f"{ROOT}/namespaces/default/nopes/x",
    f"{ROOT}/namespaces/default/functions/f/nope",
    f"{ROOT}/namespaces/default/functions/f/status/more",
    f"{ROOT}/namespaces/default/images/i/scale",
)


def allowed(answer_headers: object) -> set[str]:
    return set(re.split(", ?", str(answer_headers)))


def paths_of(kind: Kind) -> Iterator[str]:
    root = f"{ROOT}/namespaces/default" if kind.scope is Scope.PROJECT else ROOT
    yield f"{root}/{kind.plural}"
    yield f"{root}/{kind.plural}/nope"
    for subresource in kind.served_subresources:
        yield f"{root}/{kind.plural}/nope/{subresource.name}"


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.kind)
async def test_what_a_kind_does_not_take_is_told_with_what_it_takes(shared_api: ServedApi, kind: Kind) -> None:
    for path in paths_of(kind):
        answers = {method: await shared_api.client.request(method, path) for method in METHODS}
        refused = {method for method, answer in answers.items() if answer.status_code == 405}
        offered = {method for method in METHODS if method not in refused}
        assert {"OPTIONS", "TRACE", "PROPFIND"} <= refused, path
        for method in refused:
            assert allowed(answers[method].headers["Allow"]) == offered, (method, path)
            if method != "HEAD":
                assert answers[method].json()["reason"] == "MethodNotAllowed"
        if path.endswith(f"/{kind.plural}"):
            assert {"GET", "HEAD"} <= offered
            assert ("POST" in offered) is (Verb.CREATE in kind.verbs)


async def test_every_route_says_in_405_what_it_takes(shared_api: ServedApi) -> None:
    for path, methods in (
        ("/healthz", {"GET", "HEAD"}),
        ("/version", {"GET", "HEAD"}),
        ("/apis", {"GET", "HEAD"}),
        ("/openapi/v2", {"GET", "HEAD"}),
        ("/api/v1/namespaces", {"GET", "HEAD"}),
        ("/api/v1/namespaces/default/events", {"GET", "HEAD"}),
        ("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", {"POST"}),
        ("/blobs/v1/data/o/p/d", {"GET", "HEAD", "PUT"}),
        ("/blobs/v1/namespaces/default/uploads", {"POST"}),
        ("/docs/errors/Invalid", {"GET", "HEAD"}),
        (f"{ROOT}/functions", {"GET", "HEAD"}),
    ):
        for method in {*METHODS} - methods:
            answer = await shared_api.client.request(method, path)
            assert (answer.status_code, allowed(answer.headers["Allow"])) == (405, methods), (method, path)


@pytest.mark.parametrize("path", NOWHERE)
async def test_what_is_no_path_is_not_found_whatever_the_method(shared_api: ServedApi, path: str) -> None:
    for method in METHODS:
        answer = await shared_api.client.request(method, path)
        assert answer.status_code == 404, method
        assert "Allow" not in answer.headers


async def test_head_is_a_get_without_its_body(project: ServedApi) -> None:
    await project.function("f")
    for path in ("functions", "functions/f", "functions/f/status", "functions/f/scale"):
        head, get = [await project.client.request(method, f"{project.path}/{path}") for method in ("HEAD", "GET")]
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-type"] == get.headers["content-type"]
    assert (await project.client.head(f"{project.path}/functions/nope")).status_code == 404


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("{project}/functions", {"watch": "true"}),
        ("{project}/functions/f/log", {"follow": "true"}),
        ("/api/v1/namespaces", {"watch": "1"}),
        ("/api/v1/events", {"watch": "true", "allowWatchBookmarks": "true"}),
    ],
)
async def test_the_head_of_what_never_ends_is_complete(project: ServedApi, path: str, query: dict[str, str]) -> None:
    await project.function("f")
    answer = await project.client.head(path.format(project=project.path), params=query)
    assert (answer.status_code, answer.content) == (200, b"")
