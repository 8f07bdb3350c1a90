"""What `fieldValidation` does to unknown and repeated fields of every write."""

from __future__ import annotations

from typing import Any

import httpx
import orjson
import pytest

from tests.fixtures.app import CALL, FUNCTION, ServedApi

MERGE = {"Content-Type": "application/merge-patch+json"}
JSON_PATCH = {"Content-Type": "application/json-patch+json"}
APPLY = {"Content-Type": "application/apply-patch+yaml"}
YAML = {"Content-Type": "application/yaml"}
JSON = {"Content-Type": "application/json"}

UNKNOWN = {
    "metadata": {"name": "f", "bogus": 1},
    "spec": {**FUNCTION, "scaling": {"maxWorkers": 2, "bogus": {}}, "env": [{"name": "A", "bogus": 1}]},
    "bogus": 1,
}
UNKNOWN_PATHS = ["metadata.bogus", "spec.scaling.bogus", "spec.env[0].bogus", "bogus"]
TWICE = (
    b'{"metadata": {"name": "f", "name": "f"}, "spec": {"timeout": "5s", "timeout": "6s", '
    b'"code": {"module": "app", "qualname": "f"}, "python": "3.11"}}'
)
TWICE_YAML = b"""
metadata: {name: f, name: f}
spec:
  timeout: 5s
  timeout: 6s
  python: "3.11"
  code: {module: app, qualname: f}
"""
TWICE_PATHS = ["metadata.name", "spec.timeout"]


def told(answer: httpx.Response) -> list[str]:
    """The fields that the answer's warnings or causes name."""
    if answer.status_code >= 400:
        return [cause["field"] for cause in answer.json()["details"]["causes"]]
    found = []
    for warning in answer.headers.get_list("warning"):
        assert warning.startswith('299 - "')
        found.append(warning.split('\\"')[1])
    return found


@pytest.mark.parametrize("dry_run", ["", "&dryRun=All"])
@pytest.mark.parametrize(
    ("content", "headers", "paths", "kind"),
    [
        (orjson.dumps(UNKNOWN), JSON, UNKNOWN_PATHS, "unknown"),
        (orjson.dumps(UNKNOWN), YAML, UNKNOWN_PATHS, "unknown"),
        (TWICE, JSON, TWICE_PATHS, "duplicate"),
        (TWICE_YAML, YAML, TWICE_PATHS, "duplicate"),
    ],
    ids=["unknown in JSON", "unknown in YAML", "twice in JSON", "twice in YAML"],
)
async def test_a_create_is_refused_warned_about_or_taken_as_it_is(
    project: ServedApi, content: bytes, headers: dict[str, str], paths: list[str], kind: str, dry_run: str
) -> None:
    async def post(validation: str) -> httpx.Response:
        return await project.client.post(
            f"{project.path}/functions?fieldValidation={validation}{dry_run}", content=content, headers=headers
        )

    before = await project.row_count()
    strict = await post("Strict")
    assert strict.status_code == 400, strict.text
    assert strict.json()["reason"] == "BadRequest"
    if headers is JSON or kind == "unknown":
        assert strict.json()["message"].startswith(f'strict decoding error: {kind} field "{paths[0]}"')
        assert told(strict) == paths
    assert await project.row_count() == before
    warned = await post("Warn")
    assert warned.status_code in (200, 201), warned.text
    assert told(warned) == paths
    assert "bogus" not in warned.text
    await project.client.delete(f"{project.path}/functions/f")
    if not dry_run:
        await project.deps.resources.deleter.release(project.object_key("Function", "f"), "nodus.dev/workers")
    ignored = await post("Ignore")
    assert ignored.status_code == warned.status_code
    assert told(ignored) == []
    assert ignored.json()["spec"] == warned.json()["spec"]


async def test_without_the_parameter_unknown_fields_are_invalid_with_everything_else(project: ServedApi) -> None:
    body = {"metadata": {"name": "f"}, "spec": {**FUNCTION, "tmieout": "5s", "python": "2.7"}}
    answer = await project.client.post(f"{project.path}/functions", json=body)
    assert (answer.status_code, answer.json()["reason"]) == (422, "Invalid")
    assert set(told(answer)) >= {"spec.tmieout", "spec.python"}
    assert "did you mean `timeout`?" in answer.text


@pytest.mark.parametrize(
    ("method", "headers", "body"),
    [
        ("PUT", JSON, UNKNOWN),
        ("PATCH", MERGE, UNKNOWN),
        ("PATCH", APPLY, UNKNOWN),
        (
            "PATCH",
            JSON_PATCH,
            [
                {"op": "add", "path": "/metadata/bogus", "value": 1},
                {"op": "add", "path": "/spec/scaling/bogus", "value": 1},
                {"op": "add", "path": "/spec/env", "value": [{"name": "A", "bogus": 1}]},
                {"op": "add", "path": "/bogus", "value": 1},
            ],
        ),
    ],
    ids=["replace", "merge patch", "apply", "JSON patch"],
)
async def test_every_change_knows_the_three_ways(
    project: ServedApi, method: str, headers: dict[str, str], body: Any
) -> None:
    created = await project.function()
    url = (
        f"{project.path}/functions/f?fieldManager=ci&force=true" if headers is APPLY else f"{project.path}/functions/f?"
    )

    async def send(validation: str) -> httpx.Response:
        return await project.client.request(method, f"{url}&fieldValidation={validation}", json=body, headers=headers)

    strict = await send("Strict")
    assert (strict.status_code, strict.json()["reason"]) == (400, "BadRequest")
    assert sorted(told(strict)) == sorted(UNKNOWN_PATHS)
    assert (await project.client.get(f"{project.path}/functions/f")).json() == created
    warned = await send("Warn")
    assert warned.status_code == 200, warned.text
    assert sorted(told(warned)) == sorted(UNKNOWN_PATHS)
    assert warned.json()["spec"]["env"] == [{"name": "A"}]
    assert (await send("Ignore")).json() == warned.json()


async def test_items_of_a_list_are_told_with_their_place(project: ServedApi) -> None:
    await project.function()
    items = [{"metadata": {"generateName": "c-"}, "spec": {**CALL, "bogus": n}} for n in range(2)]
    for path in ("functioncalls", "functions/f/calls"):
        body = {"apiVersion": "nodus.dev/v1", "kind": "FunctionCallList", "items": items}
        warned = await project.client.post(f"{project.path}/{path}?fieldValidation=Warn", json=body)
        assert warned.status_code == 201, warned.text
        assert told(warned) == ["items[0].spec.bogus", "items[1].spec.bogus"]
        strict = await project.client.post(f"{project.path}/{path}?fieldValidation=Strict", json=body)
        assert strict.status_code == 400


async def test_what_is_well_formed_passes_strictly(project: ServedApi) -> None:
    stored = await project.client.post(
        f"{project.path}/functions?fieldValidation=Strict", json={"metadata": {"name": "f"}, "spec": FUNCTION}
    )
    assert stored.status_code == 201
    again = await project.client.put(f"{project.path}/functions/f?fieldValidation=Strict", json=stored.json())
    assert (again.status_code, again.json()) == (200, stored.json())


async def test_a_number_of_any_length_is_no_fault_of_the_check(project: ServedApi) -> None:
    content = b'{"metadata": {"name": "f"}, "spec": {"timeout": %s}}' % (b"1" * 5_000)
    answer = await project.client.post(f"{project.path}/functions?fieldValidation=Strict", content=content)
    assert answer.status_code in (400, 422), answer.text


async def test_another_word_is_invalid(project: ServedApi) -> None:
    for request in (
        project.client.post(f"{project.path}/functions?fieldValidation=Maybe", json={}),
        project.client.patch(f"{project.path}/functions/f?fieldValidation=Maybe", json={}, headers=MERGE),
    ):
        answer = await request
        assert (answer.status_code, told(answer)) == (422, ["fieldValidation"])


async def test_warnings_are_few_short_and_printable(project: ServedApi) -> None:
    names = [f'line\n"{number}"\\' + "é" * 300 for number in range(200)]
    body = {"metadata": {"name": "f"}, "spec": {**FUNCTION, **dict.fromkeys(names, 1)}}
    answer = await project.client.post(f"{project.path}/functions?fieldValidation=Warn", json=body)
    assert answer.status_code == 201
    warnings = answer.headers.get_list("warning")
    assert len(warnings) == 32
    assert all(len(warning) < 400 and warning.isascii() and warning.isprintable() for warning in warnings)
