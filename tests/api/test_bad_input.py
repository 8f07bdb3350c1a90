"""Input that is refused: the exact code, every problem told, and nothing stored."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import pytest

from tests.fixtures.app import CALL, FUNCTION, ROOT, ServedApi

TOO_LONG = base64.b64encode(b"x" * 65_537).decode()
JUST_RIGHT = base64.b64encode(b"x" * 65_536).decode()
ABSENT_BLOB = f"sha256:{hashlib.sha256(b'absent').hexdigest()}"


def call(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "c"}, "spec": {**CALL, **spec}}


MALFORMED = [
    b"",
    b"{",
    b"[]",
    b'"text"',
    b'{"metadata": {"name": "c"}, "spec": NaN}',
    b'{"a":' * 2_000 + b"1" + b"}" * 2_000,
    b"\xff\xfe{}",
    b'{"metadata": {"name": "\\ud800"}}',
]


@pytest.mark.parametrize("content", MALFORMED)
async def test_what_is_not_json_is_a_bad_request(project: ServedApi, content: bytes) -> None:
    before = await project.row_count()
    for path in ("functioncalls", "functions/f/calls", "apps"):
        answer = await project.client.post(
            f"{project.path}/{path}", content=content, headers={"Content-Type": "application/json"}
        )
        assert (answer.status_code, answer.json()["reason"]) == (400, "BadRequest"), path
    assert await project.row_count() == before


REFUSED: list[tuple[str, dict[str, Any], int, str, list[str]]] = [
    ("functioncalls", call(bogus=1), 422, "Invalid", ["spec.bogus"]),
    ("functioncalls", {**call(), "extra": {}}, 422, "Invalid", ["extra"]),
    ("functioncalls", call(timeout=5), 422, "Invalid", ["spec.timeout"]),
    ("functioncalls", call(mapIndex="3"), 422, "Invalid", ["spec.mapIndex"]),
    ("functioncalls", call(mapIndex=True), 422, "Invalid", ["spec.mapIndex"]),
    ("functioncalls", call(timeout="301s"), 422, "Invalid", ["spec.timeout"]),
    ("functioncalls", call(input={"inline": TOO_LONG}), 422, "Invalid", ["spec.input.inline"]),
    ("functioncalls", call(input={"inline": "not base64!"}), 422, "Invalid", ["spec.input.inline"]),
    ("functioncalls", call(input={}), 422, "Invalid", ["spec.input.blob"]),
    ("functioncalls", call(input={"blob": ABSENT_BLOB}), 422, "Invalid", ["spec.input.blob"]),
    ("functioncalls", call(input={"blob": ABSENT_BLOB, "inline": "QQ=="}), 422, "Invalid", ["spec.input.blob"]),
    ("functioncalls", call(input={"inline": ""}), 422, "Invalid", ["spec.input.inline"]),
    ("functioncalls", call(function="nope"), 404, "FunctionNotFound", []),
    ("functioncalls", {"metadata": {"name": "c"}}, 422, "Invalid", ["spec.function", "spec.input"]),
    ("functioncalls", {"spec": CALL}, 422, "Invalid", ["metadata.name"]),
    ("functioncalls", {"metadata": {"name": "Not_A_Name"}, "spec": CALL}, 422, "Invalid", ["metadata.name"]),
    ("functioncalls", {"metadata": [], "spec": CALL}, 422, "Invalid", ["metadata", "metadata.name"]),
    ("functioncalls", {"metadata": {"name": "c"}, "spec": []}, 422, "Invalid", ["spec"]),
    ("functions", {"metadata": {"name": "g"}, "spec": {**FUNCTION, "python": "3.9"}}, 422, "Invalid", ["spec.python"]),
    (
        "functions",
        {
            "metadata": {"name": "g"},
            "spec": {**FUNCTION, "code": {"module": "a", "qualname": "b", "blob": ABSENT_BLOB}},
        },
        422,
        "Invalid",
        ["spec.code.blob"],
    ),
    (
        "functions",
        {"metadata": {"name": "g"}, "spec": {**FUNCTION, "resources": {"gpu": "H100"}}},
        422,
        "Unsupported",
        ["spec.resources.gpu"],
    ),
]


@pytest.mark.parametrize(("plural", "body", "status", "reason", "fields"), REFUSED)
async def test_a_body_that_breaks_a_rule_is_refused_with_every_problem(
    project: ServedApi, plural: str, body: dict[str, Any], status: int, reason: str, fields: list[str]
) -> None:
    await project.function()
    before = await project.row_count()
    for query in ("", "?dryRun=All"):
        answer = await project.client.post(f"{project.path}/{plural}{query}", json=body)
        assert (answer.status_code, answer.json()["reason"]) == (status, reason), answer.text
        assert [cause["field"] for cause in answer.json()["details"].get("causes", [])] == fields, answer.text
    assert await project.row_count() == before


async def test_the_longest_inline_payload_is_accepted(project: ServedApi) -> None:
    await project.function()
    await project.create("functioncalls", call(input={"inline": JUST_RIGHT}))


async def test_a_blob_that_exists_is_accepted(project: ServedApi) -> None:
    await project.function()
    await project.create("functioncalls", call(input={"blob": await project.upload(b"a large payload")}))


async def test_a_batch_of_more_than_a_thousand_is_too_large(project: ServedApi) -> None:
    await project.function()
    before = await project.row_count()
    item = {"metadata": {"generateName": "f-"}, "spec": CALL}
    for path in ("functions/f/calls", "functioncalls"):
        body = {"kind": "FunctionCallList", "items": [item] * 1_001}
        answer = await project.client.post(f"{project.path}/{path}", json=body)
        assert (answer.status_code, answer.json()["reason"]) == (413, "FunctionCallBatchTooLarge")
    body = {"kind": "FunctionCallList", "items": [item] * 1_000}
    assert (await project.client.post(f"{project.path}/functions/f/calls", json=body)).status_code == 201
    assert await project.row_count() == before + 3_000


@pytest.mark.parametrize("path", ["functions/f/calls", "functioncalls"])
async def test_a_list_of_calls_has_the_room_of_a_batch_wherever_it_is_posted(project: ServedApi, path: str) -> None:
    await project.function()
    payload = base64.b64encode(bytes(60_000)).decode()
    item = {"metadata": {"generateName": "f-"}, "spec": {**CALL, "input": {"encoding": "Pickle", "inline": payload}}}
    answers = [
        await project.client.post(f"{project.path}/{path}", json={"kind": "FunctionCallList", "items": [item] * count})
        for count in (40, 120)
    ]
    assert [answer.status_code for answer in answers] == [201, 413]
    assert answers[1].json()["reason"] == "FunctionCallBatchTooLarge"


async def test_one_call_and_lists_of_calls_in_yaml_have_the_room_of_other_bodies(project: ServedApi) -> None:
    await project.function()
    large = {**call(), "metadata": {"generateName": "f-", "annotations": {"a": "x" * (1 << 20)}}}
    answer = await project.client.post(f"{project.path}/functioncalls", json=large)
    assert (answer.status_code, answer.json()["reason"]) == (413, "RequestEntityTooLarge")
    content = b"kind: FunctionCallList\nitems: []\n".ljust((1 << 20) + 1)
    headers = {"Content-Type": "application/yaml"}
    for path in ("functions/f/calls", "functioncalls"):
        answer = await project.client.post(f"{project.path}/{path}", content=content, headers=headers)
        assert (answer.status_code, answer.json()["reason"]) == (413, "FunctionCallBatchTooLarge")


async def test_one_bad_item_refuses_a_whole_batch_and_names_all_bad_ones(project: ServedApi) -> None:
    await project.function()
    before = await project.row_count()
    items = [
        {"metadata": {"generateName": "f-"}, "spec": CALL},
        {"metadata": {"generateName": "f-"}, "spec": {**CALL, "mapIndex": -1}},
        {"metadata": {"generateName": "f-"}, "spec": {**CALL, "bogus": 1}},
    ]
    answer = await project.client.post(f"{project.path}/functions/f/calls", json={"items": items})
    assert (answer.status_code, answer.json()["reason"]) == (422, "Invalid")
    fields = [cause["field"] for cause in answer.json()["details"]["causes"]]
    assert fields == ["items[1].spec.mapIndex", "items[2].spec.bogus"]
    assert await project.row_count() == before


@pytest.mark.parametrize(
    ("path", "body", "status", "reason"),
    [
        ("functions/nope/calls", {"items": [{"spec": CALL}]}, 404, "FunctionNotFound"),
        ("functions/f/calls", {"items": [{"spec": {**CALL, "function": "g"}}]}, 422, "Invalid"),
        ("functions/f/calls", {"items": []}, 422, "Invalid"),
        ("functions/f/calls", {"items": [1]}, 422, "Invalid"),
        ("functions/f/calls", {"items": {}}, 422, "Invalid"),
        ("functions/f/calls", {"kind": "AppList", "items": []}, 400, "BadRequest"),
        ("functions/f/calls", {"items": [{"metadata": {"name": "c"}, "spec": CALL}] * 2}, 422, "Invalid"),
        ("apps", {"kind": "AppList", "items": []}, 400, "BadRequest"),
    ],
)
async def test_a_batch_that_makes_no_sense_is_refused(
    project: ServedApi, path: str, body: dict[str, Any], status: int, reason: str
) -> None:
    await project.function()
    answer = await project.client.post(f"{project.path}/{path}", json=body)
    assert (answer.status_code, answer.json()["reason"]) == (status, reason), answer.text


@pytest.mark.case("C33")
async def test_a_body_above_its_limit_is_refused_before_it_is_read(project: ServedApi) -> None:
    await project.function()
    headers = {"Content-Type": "application/json"}
    answer = await project.client.post(f"{project.path}/apps", content=b" " * ((1 << 20) + 1), headers=headers)
    assert (answer.status_code, answer.json()["reason"]) == (413, "RequestEntityTooLarge")
    answer = await project.client.post(
        f"{project.path}/functions/f/calls", content=b" " * ((8 << 20) + 1), headers=headers
    )
    assert (answer.status_code, answer.json()["reason"]) == (413, "FunctionCallBatchTooLarge")

    async def chunks() -> Any:
        for _ in range(20):
            yield b" " * 100_000

    answer = await project.client.post(f"{project.path}/apps", content=chunks(), headers=headers)
    assert (answer.status_code, answer.json()["reason"]) == (413, "RequestEntityTooLarge")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Type": "application/vnd.kubernetes.protobuf"}, 415),
        ({"Content-Type": "application/json; charset=utf-8"}, 201),
        ({"Content-Encoding": "gzip"}, 415),
    ],
)
async def test_bodies_are_read_by_their_type(project: ServedApi, headers: dict[str, str], status: int) -> None:
    body = b'{"metadata":{"name":"a"}}'
    answer = await project.client.post(f"{project.path}/apps", content=body, headers=headers)
    assert answer.status_code == status


@pytest.mark.parametrize(
    "path",
    [
        "/nowhere",
        "/apis/other.dev/v1/things",
        f"{ROOT}/things",
        f"{ROOT}/namespaces/default/things/x",
        f"{ROOT}/namespaces/default/projects",
        f"{ROOT}/namespaces/default/functions/f/nope",
        f"{ROOT}/namespaces",
        "/docs/errors/Nope",
        f"{ROOT}/functions/%2e%2e/x",
    ],
)
async def test_a_path_that_leads_nowhere_is_a_status(project: ServedApi, path: str) -> None:
    answer = await project.client.get(path)
    assert (answer.status_code, answer.json()["reason"]) == (404, "NotFound")


async def test_a_method_that_is_not_offered_is_a_status(project: ServedApi) -> None:
    for method, path in (
        ("POST", "/healthz"),
        ("OPTIONS", f"{project.path}/apps"),
        ("PUT", f"{project.path}/apps"),
        ("POST", f"{project.path}/apps/a"),
        ("GET", f"{project.path}/functions/f/calls"),
        ("DELETE", "/apis"),
    ):
        answer = await project.client.request(method, path)
        assert (answer.status_code, answer.json()["reason"]) == (405, "MethodNotAllowed"), (method, path)


async def test_a_nul_in_a_url_is_a_bad_request(project: ServedApi) -> None:
    for path in (f"{project.path}/apps/a%00b", f"{project.path}/apps?fieldSelector=metadata.name%3Da%00"):
        assert (await project.client.get(path)).status_code == 400


async def test_a_nul_in_a_selectable_field_is_stored_or_refused_but_never_a_fault(project: ServedApi) -> None:
    await project.function()
    for body in (call(session="a\0b"), call(input={"inline": "\0"})):
        answer = await project.client.post(f"{project.path}/functioncalls", json=body)
        assert answer.status_code in (201, 422), answer.text


@pytest.mark.parametrize(
    ("authorization", "status"),
    [(None, 401), ("Bearer nope", 401), ("Bearer nodus_" + "a" * 43, 401), ("Basic %%%", 401), ("Digest x", 401)],
)
async def test_a_request_without_a_good_credential_is_unauthorized(
    project: ServedApi, authorization: str | None, status: int
) -> None:
    request = project.client.build_request("GET", f"{project.path}/apps")
    del request.headers["authorization"]
    if authorization is not None:
        request.headers["authorization"] = authorization
    answer = await project.client.send(request)
    assert answer.status_code == status
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.json()["reason"] == "Unauthorized"


async def test_a_server_that_was_not_told_to_take_passwords_says_so(api: ServedApi) -> None:
    basic = base64.b64encode(f"anyone:{api.key}".encode()).decode()
    answer = await api.client.get(f"{api.path}/apps", headers={"Authorization": f"Basic {basic}"})
    assert (answer.status_code, answer.json()["message"]) == (401, "this server does not take HTTP Basic credentials")


async def test_the_key_may_be_the_password_of_basic_credentials(project: ServedApi) -> None:
    basic = base64.b64encode(f"anyone:{project.key}".encode()).decode()
    answer = await project.client.get(f"{project.path}/apps", headers={"Authorization": f"Basic {basic}"})
    assert answer.status_code == 200
