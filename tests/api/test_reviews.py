"""Questions about oneself over HTTP: JSON, YAML and protobuf bodies (R-NEG-4)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.test_access import key
from tests.controlplane.machinery.test_protobuf import field
from tests.fixtures.app import ServedApi, client_of

ACCESS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
RULES = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
MYSELF = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
PROTOBUF = {"Content-Type": "application/vnd.kubernetes.protobuf", "Accept": "application/vnd.kubernetes.protobuf,*/*"}


async def ask(project: ServedApi, path: str, body: Any = None, **request: Any) -> dict[str, Any]:
    answer = await project.client.post(path, **({"json": body} if body is not None else {}), **request)
    assert answer.status_code == 201, answer.text
    assert answer.headers["content-type"] == "application/json"
    told: dict[str, Any] = answer.json()
    return told


def resource(project: ServedApi, verb: str, plural: str) -> dict[str, Any]:
    attributes = {"namespace": project.project_name, "verb": verb, "group": "nodus.dev", "resource": plural}
    return {"metadata": {"creationTimestamp": None}, "spec": {"resourceAttributes": attributes}, "status": {}}


async def test_access_is_told_as_the_request_would_meet_it(project: ServedApi) -> None:
    limited = await key(project, ["functions:read"], [project.project_name])
    for verb, plural in (("get", "functions"), ("create", "functions"), ("list", "secrets")):
        question = resource(project, verb, plural)
        mine = await ask(project, ACCESS, question)
        assert (mine["kind"], mine["apiVersion"]) == ("SelfSubjectAccessReview", "authorization.k8s.io/v1")
        assert mine["spec"] == question["spec"]
        assert mine["status"]["allowed"] is True
        theirs = await ask(project, ACCESS, question, headers=limited)
        assert theirs["status"]["allowed"] is ((verb, plural) == ("get", "functions"))
        assert theirs["status"]["reason"]


async def test_paths_are_asked_about_as_well(project: ServedApi) -> None:
    for path, allowed in (("/apis", True), ("/logs", False)):
        question = {"spec": {"nonResourceAttributes": {"path": path, "verb": "get"}}}
        assert (await ask(project, ACCESS, question))["status"]["allowed"] is allowed


async def test_rules_list_everything_that_is_allowed(project: ServedApi) -> None:
    limited = await key(project, ["functions:read"], [project.project_name])
    body = {"kind": "SelfSubjectRulesReview", "spec": {"namespace": project.project_name}}
    status = (await ask(project, RULES, body, headers=limited))["status"]
    functions = [rule for rule in status["resourceRules"] if "functions" in rule["resources"]]
    assert [rule["verbs"] for rule in functions] == [["get", "list", "watch"]]
    assert status["incomplete"] is False
    assert "/apis/*" in status["nonResourceRules"][0]["nonResourceURLs"]


async def test_a_caller_learns_who_it_is(project: ServedApi) -> None:
    told = await ask(project, MYSELF, {})
    whoami = (await project.client.get("/auth/whoami")).json()
    assert told["status"]["userInfo"]["uid"] == whoami["user"]
    assert told["status"]["userInfo"]["extra"]["nodus.dev/scopes"] == whoami["scopes"]


async def test_a_token_is_reviewed_by_itself_alone(project: ServedApi) -> None:
    path = "/apis/authentication.k8s.io/v1/tokenreviews"
    told = await ask(project, path, {"spec": {"token": project.key}})
    assert told["status"]["authenticated"] is True
    assert told["status"]["user"]["username"].startswith("usr_")
    assert project.key not in str(told)
    limited = await key(project, ["functions:read"], [project.project_name])
    other = await ask(project, path, {"spec": {"token": project.key}}, headers=limited)
    assert other["status"]["authenticated"] is False
    assert "user" not in other["status"]


async def test_go_clients_ask_in_protobuf_and_read_json(project: ServedApi) -> None:
    attributes = field(1, project.project_name) + field(2, "get") + field(3, "nodus.dev") + field(5, "functions")
    questions = {
        ACCESS: ("authorization.k8s.io/v1", "SelfSubjectAccessReview", field(2, field(1, attributes))),
        RULES: ("authorization.k8s.io/v1", "SelfSubjectRulesReview", field(2, field(1, project.project_name))),
        MYSELF: ("authentication.k8s.io/v1", "SelfSubjectReview", field(1, b"")),
    }
    for path, (version, kind, message) in questions.items():
        content = b"k8s\0" + field(1, field(1, version) + field(2, kind)) + field(2, message)
        told = await ask(project, path, content=content, headers=PROTOBUF)
        assert (told["kind"], told["apiVersion"]) == (kind, version)
        if path == ACCESS:
            assert told["spec"]["resourceAttributes"]["resource"] == "functions"
            assert told["status"]["allowed"] is True


async def test_a_body_may_be_yaml_or_carry_no_type(project: ServedApi) -> None:
    yaml = f"spec:\n  namespace: {project.project_name}\n"
    assert await ask(project, RULES, content=yaml, headers={"Content-Type": "application/yaml"})
    async with client_of(project.url, project.key) as plain:
        answer = await plain.post(MYSELF, content=b"{}")
        assert "content-type" not in answer.request.headers
        assert answer.status_code == 201


@pytest.mark.parametrize(
    ("path", "request_", "status"),
    [
        (ACCESS, {"json": {"spec": {}}}, 422),
        (ACCESS, {"json": {"spec": {"resourceAttributes": {}, "nonResourceAttributes": {}}}}, 422),
        (ACCESS, {"json": {"spec": {"resourceAttributes": {"verb": 5}}}}, 422),
        (ACCESS, {"json": {"kind": "SelfSubjectRulesReview"}}, 400),
        (ACCESS, {"json": {"apiVersion": "authorization.k8s.io/v1beta1"}}, 400),
        (ACCESS, {"content": b"not json"}, 400),
        (ACCESS, {"content": b"k8s", "headers": PROTOBUF}, 400),
        (ACCESS, {"content": b"{}", "headers": {"Content-Type": "application/cbor"}}, 415),
        (ACCESS, {"json": {}, "headers": {"Accept": "application/cbor"}}, 406),
        (RULES, {"json": {"spec": {}}}, 422),
    ],
)
async def test_a_question_that_cannot_be_read_is_refused(
    project: ServedApi, path: str, request_: dict[str, Any], status: int
) -> None:
    answer = await project.client.post(path, **request_)
    assert answer.status_code == status, answer.text
    assert (await project.client.get(path)).status_code == 405
