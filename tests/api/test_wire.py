"""The checker of answers finds what is wrong; otherwise it would watch over nothing."""

from __future__ import annotations

from typing import Any

import httpx
import orjson
import pytest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tests.fixtures import wire
from tests.fixtures.app import ServedApi
from tests.fixtures.wire import CheckedApp, Exchange, check

HEADERS = {"x-request-id": f"req_{'0' * 26}", "content-type": "application/json"}
METADATA = {"name": "a", "uid": "app_1", "resourceVersion": "5", "creationTimestamp": "2026-01-01T00:00:00Z"}
APP: dict[str, Any] = {
    "apiVersion": "nodus.dev/v1",
    "kind": "App",
    "metadata": METADATA,
    "spec": {},
    "status": {"conditions": []},
}
STATUS: dict[str, Any] = {
    "kind": "Status",
    "apiVersion": "v1",
    "metadata": {},
    "status": "Failure",
    "message": "m",
    "reason": "NotFound",
    "details": {},
    "code": 404,
    "fix": "f",
    "docs": "http://here/errors/NotFound",
    "requestId": HEADERS["x-request-id"],
}
TABLE: dict[str, Any] = {
    "kind": "Table",
    "apiVersion": "meta.k8s.io/v1",
    "metadata": {"resourceVersion": "5"},
    "columnDefinitions": [{"name": "Name", "type": "string", "format": "", "description": "d", "priority": 0}],
    "rows": [{"cells": ["a"]}],
}


def exchange(body: Any, status: int = 200, query: str = "", headers: dict[str, str] | None = None) -> Exchange:
    content = body if isinstance(body, bytes) else orjson.dumps(body)
    finite = {} if isinstance(body, bytes) else {"content-length": str(len(content))}
    return Exchange(
        method="GET",
        path="/apis/x",
        query=query,
        status=status,
        headers={**HEADERS, **finite, **(headers or {})},
        body=content,
    )


def line(event: str, rv: str = "9", **metadata: Any) -> bytes:
    return (
        orjson.dumps({"type": event, "object": APP | {"metadata": METADATA | {"resourceVersion": rv} | metadata}})
        + b"\n"
    )


def listed(**changes: Any) -> dict[str, Any]:
    return {
        "kind": "AppList",
        "apiVersion": "nodus.dev/v1",
        "metadata": {"resourceVersion": "5"},
        "items": [APP],
        **changes,
    }


@pytest.mark.parametrize(
    "good",
    [
        exchange(APP),
        exchange(listed()),
        exchange(TABLE),
        exchange(STATUS, 404),
        exchange(line("ADDED", "2") + line("ADDED", "1")),
        exchange(line("MODIFIED", "6") + line("DELETED", "7"), query="watch=1&resourceVersion=5"),
    ],
)
def test_a_good_answer_passes(good: Exchange) -> None:
    check(good)


@pytest.mark.parametrize(
    "bad",
    [
        exchange(APP, headers={"x-request-id": "none"}),
        exchange(APP, headers={"content-type": ""}),
        exchange(APP | {"metadata": METADATA | {"labels": None}}),
        exchange(APP | {"metadata": METADATA | {"resourceVersion": "abc"}}),
        exchange(APP | {"metadata": METADATA | {"creationTimestamp": "2026-01-01T00:00:00.5Z"}}),
        exchange(APP | {"status": {"conditions": None}}),
        exchange(APP | {"status": {"startTime": "yesterday"}}),
        exchange(listed(items=None)),
        exchange(listed(items=[APP | {"kind": ""}])),
        exchange(listed(metadata={"resourceVersion": "x"})),
        exchange(TABLE | {"rows": [{"cells": ["a", "b"]}]}),
        exchange(TABLE | {"rows": [{"cells": [None]}]}),
        exchange({"detail": "Not Found"}, 404),
        exchange(STATUS, 400),
        exchange(STATUS | {"reason": "Missing"}, 404),
        exchange(STATUS | {"metadata": None}, 404),
        exchange(STATUS, 404, headers={"content-type": "text/html"}),
        exchange(STATUS, 404, headers={"retry-after": "1"}),
        exchange(line("ADDED") + b'{"type":'),
        exchange(line("CHANGED")),
        exchange(line("MODIFIED", "7") + line("MODIFIED", "6"), query="watch=1&resourceVersion=5"),
        exchange(line("MODIFIED", "5"), query="watch=1&resourceVersion=5"),
        exchange(line("BOOKMARK")),
        exchange(orjson.dumps({"type": "ERROR", "object": {"message": "m"}}) + b"\n"),
        exchange(orjson.dumps({"type": "ERROR", "object": STATUS}) + b"\n" + line("ADDED")),
    ],
)
def test_a_bad_answer_is_found(bad: Exchange) -> None:
    with pytest.raises((AssertionError, ValueError, KeyError, TypeError)):
        check(bad)


async def test_whoever_asks_a_wrong_answer_fails_the_test(project: ServedApi) -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        await Response(b'{"detail":"Not Found"}', 404, media_type="application/json")(scope, receive, send)

    transport = httpx.ASGITransport(CheckedApp(broken))
    async with httpx.AsyncClient(transport=transport, base_url=project.url) as client:
        await client.get("/")
    assert len(wire._violations) == 1
    wire._violations.clear()
