"""AuditEvents as clients read them, against a log whose events are known."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest

from controlplane.audit import reading
from controlplane.audit.entries import ActorKind, AuditEntry, RecordEntries
from controlplane.kinds.roles import Role
from tests.api.test_access import key
from tests.fixtures.app import ROOT, ServedApi

TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
PATH = f"{ROOT}/auditevents"


@pytest.fixture
async def log(project: ServedApi) -> ServedApi:
    """A create, a refused patch and a delete in the project of the test, and two events of another organisation."""
    entry = AuditEntry(
        created_at=project.core.clock.now(), org="default", project=project.project_name, kind="Function", name="f",
        uid="fn_1", verb="create", principal_kind=ActorKind.USER, principal="usr_ada", key_prefix="nodus_abcdef",
        request_id="req_1", source="192.0.2.7", code=201, reason="Created",
    )  # fmt: skip
    refused = replace(entry, verb="patch", principal="usr_bob", uid="", code=403, reason="Forbidden", count=3)
    gone = replace(entry, verb="delete", subresource="", code=200, reason="Deleted", message="it was cleaned up")
    others = [replace(each, org=f"org-{project.project_name}") for each in (entry, gone)]
    await project.core.writer.write(RecordEntries([entry, others[0], refused, gone, others[1]]))
    return project


async def listed(api: ServedApi, **query: str) -> list[dict[str, Any]]:
    selector = ",".join(filter(None, (f"project={api.project_name}", query.pop("fieldSelector", ""))))
    answer = await api.client.get(PATH, params={"fieldSelector": selector, **query})
    assert answer.status_code == 200, answer.text
    items: list[dict[str, Any]] = [item for item in answer.json()["items"] if item["object"].get("name") == "f"]
    return items


async def test_events_tell_who_did_what_the_newest_first(log: ServedApi) -> None:
    gone, refused, made = await listed(log)
    assert made["principal"] == {"kind": "User", "name": "usr_ada", "keyPrefix": "nodus_abcdef"}
    assert made["object"] == {"kind": "Function", "name": "f", "uid": "fn_1"}
    assert (made["verb"], made["outcome"]) == ("create", {"code": 201, "reason": "Created"})
    assert (made["requestId"], made["sourceAddress"], made["project"]) == ("req_1", "192.0.2.7", log.project_name)
    assert (refused["outcome"], refused["count"]) == ({"code": 403, "reason": "Forbidden"}, 3)
    assert (gone["verb"], gone["message"]) == ("delete", "it was cleaned up")
    assert made["metadata"]["name"].startswith("aud_")
    for event in (gone, refused, made):
        assert (await log.client.get(f"{PATH}/{event['metadata']['name']}")).json() == event


@pytest.mark.parametrize(
    ("selector", "verbs"),
    [
        ("verb=patch", ["patch"]),
        ("principal.name=usr_ada", ["delete", "create"]),
        ("principal.kind=User,outcome.code!=403", ["delete", "create"]),
        ("object.kind=Function,object.uid=fn_1,outcome.reason=Created", ["create"]),
        ("sourceAddress=192.0.2.8", []),
    ],
)
async def test_events_are_selected_by_their_fields(log: ServedApi, selector: str, verbs: list[str]) -> None:
    assert [event["verb"] for event in await listed(log, fieldSelector=selector)] == verbs


async def test_pages_and_times_bound_what_is_read(log: ServedApi) -> None:
    selector = {"fieldSelector": f"project={log.project_name},object.name=f", "limit": "2"}
    first = (await log.client.get(PATH, params=selector)).json()
    rest = (await log.client.get(PATH, params={**selector, "continue": first["metadata"]["continue"]})).json()
    assert [item["verb"] for page in (first, rest) for item in page["items"]] == ["delete", "patch", "create"]
    assert "continue" not in rest["metadata"]
    assert await listed(log, until="2020-01-01") == []
    assert len(await listed(log, since="1d")) == 3
    for query in ({"labelSelector": "a=b"}, {"since": "soon"}, {"fieldSelector": "message=x"}, {"continue": "x"}):
        assert (await log.client.get(PATH, params=query)).status_code == 400


async def test_a_page_that_looked_at_enough_goes_on_in_the_next(
    log: ServedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "LOOK_EVENTS_MAX", 2)
    monkeypatch.setattr(reading, "_PAGE", reading._PAGE.replace("LIMIT 20000", "LIMIT 2"))
    query: dict[str, str] = {"fieldSelector": f"project={log.project_name},verb=create,object.name=f"}
    found: list[dict[str, Any]] = []
    pages = 0
    while not found and pages < 50:
        page = (await log.client.get(PATH, params=query)).json()
        found += page["items"]
        pages += 1
        query["continue"] = page["metadata"].get("continue", "")
    assert [event["verb"] for event in found] == ["create"]
    assert pages > 1


async def test_only_admins_and_owners_read_them_and_keys_of_some_projects_those_of_theirs(log: ServedApi) -> None:
    for role, scopes, code in (
        (Role.VIEWER, ["*"], 403),
        (Role.MEMBER, ["*"], 403),
        (Role.ADMIN, ["*"], 200),
        (Role.OWNER, ["*:read"], 403),
        (Role.OWNER, ["auditevents:read"], 200),
        (Role.MEMBER, ["auditevents:read"], 403),
    ):
        headers = await key(log, scopes, ["*"], role)
        assert (await log.client.get(PATH, headers=headers)).status_code == code, (role, scopes)
    limited = await key(log, ["*"], ["elsewhere"])
    assert (await log.client.get(PATH, headers=limited)).json()["items"] == []
    [name, *_] = [event["metadata"]["name"] for event in await listed(log)]
    assert (await log.client.get(f"{PATH}/{name}", headers=limited)).status_code == 404
    assert (await log.client.get(f"{PATH}/aud_{hashlib.sha256(b'').hexdigest()[:26]}")).status_code == 404


async def test_nobody_writes_or_watches_them(log: ServedApi) -> None:
    [event, *_] = await listed(log)
    path = f"{PATH}/{event['metadata']['name']}"
    for method, where in (("POST", PATH), ("DELETE", PATH), ("DELETE", path), ("PATCH", path), ("PUT", path)):
        assert (await log.client.request(method, where, json={})).status_code == 405
    assert (await log.client.get(f"{PATH}?watch=true")).status_code == 405


async def test_a_table_has_the_columns_that_kubectl_prints(log: ServedApi) -> None:
    selector = {"fieldSelector": f"project={log.project_name},verb=patch"}
    table = (await log.client.get(PATH, params=selector, headers=TABLE)).json()
    names = [column["name"] for column in table["columnDefinitions"] if column["priority"] == 0]
    assert names == ["Name", "Principal", "Verb", "Object", "Project", "Outcome", "Source", "Age"]
    assert table["rows"][0]["cells"][1:7] == [
        "usr_bob", "patch", "function/f", log.project_name, "403 Forbidden", "192.0.2.7",
    ]  # fmt: skip
