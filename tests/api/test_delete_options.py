"""What a delete may say, in its query and in its body, and what is refused before anything is deleted."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fixtures.app import ServedApi

OWNED = {"base": "nodus/python:3.11", "python": "3.11"}


async def family(project: ServedApi) -> str:
    """An App `a` that owns an Image `i`; returns the App's path."""
    app = await project.create("apps", {"metadata": {"name": "a"}, "spec": {}})
    owner = {"apiVersion": "nodus.dev/v1", "kind": "App", "name": "a", "uid": app["metadata"]["uid"]}
    await project.create("images", {"metadata": {"name": "i", "ownerReferences": [owner]}, "spec": OWNED})
    return f"{project.path}/apps/a"


async def statuses(project: ServedApi) -> tuple[int, int]:
    """Those of the App and of its Image."""
    paths = (f"{project.path}/apps/a", f"{project.path}/images/i")
    app, image = [(await project.client.get(path)).status_code for path in paths]
    return app, image


@pytest.mark.parametrize(
    ("query", "body", "image"),
    [
        ({}, {"orphanDependents": True}, 200),
        ({}, {"orphanDependents": False}, 404),
        ({}, {"orphanDependents": None, "propagationPolicy": "Orphan"}, 200),
        ({"orphanDependents": "true"}, {}, 200),
        ({"orphanDependents": "True"}, {}, 200),
        ({"orphanDependents": "false"}, {}, 404),
        ({"orphanDependents": "true"}, {"orphanDependents": False}, 404),
    ],
)
async def test_the_older_word_says_what_becomes_of_dependents(
    project: ServedApi, query: dict[str, str], body: dict[str, Any], image: int
) -> None:
    answer = await project.client.request("DELETE", await family(project), params=query, json=body)
    assert answer.status_code == 200
    assert await statuses(project) == (404, image)


@pytest.mark.parametrize(
    ("query", "body", "field"),
    [
        ({}, {"orphanDependents": True, "propagationPolicy": "Orphan"}, "orphanDependents"),
        ({"orphanDependents": "true"}, {"propagationPolicy": "Foreground"}, "orphanDependents"),
        ({"orphanDependents": "false", "propagationPolicy": "Background"}, {}, "orphanDependents"),
        ({"orphanDependents": "maybe"}, {}, "orphanDependents"),
        ({}, {"orphanDependents": "true"}, "orphanDependents"),
        ({}, {"propagationpolicy": "Orphan"}, "propagationpolicy"),
        ({}, {"propagationPolicy": ["Orphan"]}, "propagationPolicy"),
        ({}, {"metadata": {}}, "metadata"),
        ({}, {"preconditions": {"UID": "app_x"}}, "preconditions.UID"),
        ({}, {"preconditions": "app_x"}, "preconditions"),
    ],
)
async def test_an_option_that_could_delete_too_much_is_refused(
    project: ServedApi, query: dict[str, str], body: dict[str, Any], field: str
) -> None:
    answer = await project.client.request("DELETE", await family(project), params=query, json=body)
    assert (answer.status_code, answer.json()["reason"]) == (422, "Invalid")
    assert [cause["field"] for cause in answer.json()["details"]["causes"]] == [field]
    assert await statuses(project) == (200, 200)


async def test_everything_that_kubernetes_clients_send_is_understood(project: ServedApi) -> None:
    options = {
        "apiVersion": "meta.k8s.io/v1",
        "kind": "DeleteOptions",
        "gracePeriodSeconds": 0,
        "preconditions": {},
        "propagationPolicy": "Orphan",
        "dryRun": [],
        "ignoreStoreReadErrorWithClusterBreakingPotential": False,
    }
    answer = await project.client.request("DELETE", await family(project), json=options)
    assert answer.status_code == 200
    assert await statuses(project) == (404, 200)


@pytest.mark.parametrize(
    ("media_type", "content", "status"),
    [
        ("application/yaml", b"propagationPolicy: Orphan\n", 200),
        ("text/yaml", b"orphanDependents: true", 200),
        ("application/json", b"propagationPolicy: Orphan\n", 400),
        ("application/yaml", b"- Orphan", 400),
        ("text/plain", b'{"propagationPolicy":"Orphan"}', 415),
        ("text/plain", b"", 200),
    ],
)
async def test_the_body_of_a_delete_is_read_by_its_type(
    project: ServedApi, media_type: str, content: bytes, status: int
) -> None:
    headers = {"Content-Type": media_type}
    answer = await project.client.request("DELETE", await family(project), content=content, headers=headers)
    assert answer.status_code == status
    assert await statuses(project) == ((404, 200 if content else 404) if status == 200 else (200, 200))
