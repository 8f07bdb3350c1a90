"""What the audit log holds after requests of every kind: one event each, of the right principal, and no secret."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from controlplane.identity.api_keys import PREFIX_LENGTH
from tests.api.test_access import key
from tests.fixtures.app import CALL, FUNCTION, NEW_CALL, ROOT, ServedApi
from tests.fixtures.auditing import events_about
from tests.fixtures.http_worker import start_worker

Row = dict[str, Any]
MERGE = {"Content-Type": "application/merge-patch+json"}
SECRET_TEXT = "correct-horse-battery-staple"


async def rows_of(api: ServedApi, request_id: str) -> list[Row]:
    """The events of one request."""
    return await events_about(api, request_id=request_id)


def told(row: Row) -> tuple[Any, ...]:
    return (row["verb"], row["kind"], row["project"], row["name"], row["subresource"], row["code"], row["reason"])


@dataclass(frozen=True)
class Asked:
    """A request, and the event it must leave; `{p}` is the project of the test."""

    method: str
    path: str
    event: tuple[Any, ...]
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)


IN_PROJECT = f"{ROOT}/namespaces/{{p}}"
ASKED = {
    "a create": Asked(
        "POST", f"{IN_PROJECT}/secrets", ("create", "Secret", "{p}", "made", "", 201, "Created"),
        {"metadata": {"name": "made"}, "spec": {"stringData": {"K": SECRET_TEXT}}},
    ),
    "a call": Asked(
        "POST", f"{IN_PROJECT}/functioncalls", ("create", "FunctionCall", "{p}", "c", "", 201, "Created"),
        {"metadata": {"name": "c"}, "spec": CALL},
    ),
    "a batch of one call": Asked(
        "POST", f"{IN_PROJECT}/functions/f/calls", ("create", "FunctionCall", "{p}", "b", "", 201, "Created"),
        {"items": [{"metadata": {"name": "b"}, "spec": CALL}]},
    ),
    "a patch": Asked(
        "PATCH", f"{IN_PROJECT}/functions/f", ("patch", "Function", "{p}", "f", "", 200, "Changed"),
        {"metadata": {"labels": {"team": "ml"}}}, MERGE,
    ),
    "a scale": Asked(
        "PATCH", f"{IN_PROJECT}/functions/f/scale", ("patch", "Function", "{p}", "f", "scale", 200, "Changed"),
        {"spec": {"replicas": 3}}, MERGE,
    ),
    "a status": Asked(
        "PATCH", f"{IN_PROJECT}/functions/f/status", ("patch", "Function", "{p}", "f", "status", 422, "Invalid"),
        {"status": {"conditions": [{"type": "no"}]}}, MERGE,
    ),
    "a delete": Asked("DELETE", f"{IN_PROJECT}/secrets/hf", ("delete", "Secret", "{p}", "hf", "", 200, "Deleted")),
    "a delete of what stays for a while": Asked(
        "DELETE", f"{IN_PROJECT}/functions/f", ("delete", "Function", "{p}", "f", "", 200, "Changed")
    ),
    "a delete of a collection": Asked(
        "DELETE", f"{IN_PROJECT}/secrets", ("deletecollection", "Secret", "{p}", "hf", "", 200, "Deleted")
    ),
    "a token": Asked(
        "POST", f"{IN_PROJECT}/serviceaccounts/ci/tokens", ("create", "APIKey", "", "*", "", 201, "Created"), {}
    ),
    "a body that is wrong": Asked(
        "POST", f"{IN_PROJECT}/functions", ("create", "Function", "{p}", "", "", 422, "Invalid"),
        {"metadata": {"name": "g"}, "spec": {"password": SECRET_TEXT}},
    ),
    "a name that is taken": Asked(
        "POST", f"{IN_PROJECT}/functions", ("create", "Function", "{p}", "", "", 409, "AlreadyExists"),
        {"metadata": {"name": "f"}, "spec": {**FUNCTION, "timeout": "9s"}},
    ),
    "what is not there": Asked(
        "DELETE", f"{IN_PROJECT}/functions/absent", ("delete", "Function", "{p}", "absent", "", 404, "NotFound")
    ),
    "a project that is not there": Asked(
        "POST", f"{ROOT}/namespaces/absent/functions", ("create", "Function", "absent", "", "", 404, "NotFound"), {}
    ),
    "a read of secrets": Asked(
        "GET", f"{IN_PROJECT}/secrets/hf", ("get", "Secret", "{p}", "hf", "", 200, "Allowed")
    ),
    "an unknown key": Asked(
        "GET", f"{IN_PROJECT}/functions", ("list", "Function", "{p}", "", "", 401, "Unauthorized"),
        headers={"Authorization": f"Bearer nodus_{'x' * 43}"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED.keys())
async def test_a_request_leaves_one_event_of_its_principal(project: ServedApi, asked: Asked) -> None:
    await project.function()
    await project.create("secrets", {"metadata": {"name": "hf"}, "spec": {"stringData": {"K": SECRET_TEXT}}})
    await project.create("serviceaccounts", {"metadata": {"name": "ci"}, "spec": {}})
    # What an earlier test was refused for want of a key must not take this one in.
    await project.deps.audit.flush()
    answer = await project.client.request(
        asked.method, asked.path.replace("{p}", project.project_name), json=asked.body, headers=asked.headers
    )
    [row] = await rows_of(project, answer.headers["x-request-id"])
    expected = tuple(project.project_name if part == "{p}" else part for part in asked.event)
    assert told(row) == tuple(row["name"] if part == "*" else part for part in expected), answer.text
    assert answer.status_code == row["code"]
    assert (row["org"], row["source"], row["count"], row["message"]) == ("default", "127.0.0.1", 1, "")
    known = "Authorization" not in asked.headers
    assert row["principal_kind"] == ("User" if known else "Anonymous")
    assert row["principal"].startswith("usr_" if known else "")
    assert row["key_prefix"] == (project.key[:PREFIX_LENGTH] if known else "")
    if row["code"] < 300 and row["verb"] != "get":
        assert "_" in row["uid"]
    assert SECRET_TEXT not in str(row)
    assert project.key not in str(row)


async def test_reads_rehearsals_repetitions_and_what_changes_nothing_leave_no_event(project: ServedApi) -> None:
    await project.function()
    body = {"metadata": {"name": "c"}, "spec": CALL}
    first = await project.client.post(f"{project.path}/functioncalls", json=body, headers={"Idempotency-Key": "k"})
    assert len(await rows_of(project, first.headers["x-request-id"])) == 1
    quiet = [
        await project.client.post(f"{project.path}/functioncalls", json=body, headers={"Idempotency-Key": "k"}),
        await project.client.post(f"{project.path}/functioncalls?dryRun=All", json=NEW_CALL),
        await project.client.patch(f"{project.path}/functions/f", json={}, headers=MERGE),
        await project.client.get(f"{project.path}/functions"),
        await project.client.get(f"{project.path}/functions/absent"),
        await project.client.get("/auth/whoami"),
    ]
    for answer in quiet:
        assert await rows_of(project, answer.headers["x-request-id"]) == [], answer.text


async def test_what_a_delete_takes_along_is_not_told_as_asked_for(project: ServedApi) -> None:
    await project.create("apps", {"metadata": {"name": "a"}, "spec": {}})
    app = (await project.client.get(f"{project.path}/apps/a")).json()
    owner = {"apiVersion": "nodus.dev/v1", "kind": "App", "name": "a", "uid": app["metadata"]["uid"]}
    await project.create("secrets", {"metadata": {"name": "s", "ownerReferences": [owner]}, "spec": {}})
    answer = await project.client.delete(f"{project.path}/apps/a?propagationPolicy=Foreground")
    events = await rows_of(project, answer.headers["x-request-id"])
    assert [(row["kind"], row["name"]) for row in events] == [("App", "a")]


async def test_each_call_of_a_batch_and_each_object_of_a_collection_has_its_event(project: ServedApi) -> None:
    await project.function()
    items = [{"metadata": {"name": f"c{number}"}, "spec": CALL} for number in range(3)]
    made = await project.client.post(f"{project.path}/functions/f/calls", json={"items": items})
    gone = await project.client.delete(f"{project.path}/functioncalls")
    for answer, verb in ((made, "create"), (gone, "deletecollection")):
        events = await rows_of(project, answer.headers["x-request-id"])
        assert sorted((row["verb"], row["name"]) for row in events) == [(verb, "c0"), (verb, "c1"), (verb, "c2")]


async def test_a_lack_of_permission_is_told_of_reads_as_well(project: ServedApi) -> None:
    headers = await key(project, ["functions:write"], ["*"])
    answer = await project.client.get(f"{project.path}/functions", headers=headers)
    [row] = await rows_of(project, answer.headers["x-request-id"])
    assert told(row) == ("list", "Function", project.project_name, "", "", 403, "Forbidden")
    assert row["key_prefix"] == headers["Authorization"][len("Bearer ") :][:PREFIX_LENGTH]


async def test_what_workers_report_all_day_is_not_told_and_calls_that_they_make_are(project: ServedApi) -> None:
    await project.function()
    worker = await start_worker(project)
    headers = {"Authorization": f"Bearer {worker.token}"}
    made = await project.client.post(f"{project.path}/functioncalls", json=NEW_CALL, headers=headers)
    [row] = await rows_of(project, made.headers["x-request-id"])
    assert (row["principal_kind"], row["principal"], row["key_prefix"]) == ("Attempt", worker.attempt, "")
    claimed = await project.client.post(f"{project.path}/functions/f/claims", json={"max": 1}, headers=headers)
    assert claimed.status_code == 200, claimed.text
    assert len(await events_about(project, principal=worker.attempt)) == 1


async def test_refusals_that_repeat_themselves_share_one_event_with_a_count(api: ServedApi) -> None:
    headers = {"Authorization": "Bearer wrong"}
    await asyncio.gather(*(api.client.get(f"{ROOT}/projects/p{n}", headers=headers) for n in range(20)))
    await api.deps.audit.flush()
    found = await api.core.database.fetch("SELECT count, code FROM audit_events WHERE code = 401")
    assert sum(row["count"] for row in found) == 20


async def test_a_create_of_a_call_costs_no_round_trip_more_and_its_event_is_in_the_statement_that_stores_it(
    api: ServedApi,
) -> None:
    """Begin, load, write and commit."""
    await api.function()
    await api.create("functioncalls", NEW_CALL)
    statements: list[str] = []
    connection = api.core.writer._committer._connection
    assert connection is not None
    connection.add_query_logger(lambda query: statements.append(query.query))
    await api.create("functioncalls", NEW_CALL)
    assert len(statements) == 4
    assert ["INSERT INTO audit_events" in statement for statement in statements] == [False, False, True, False]
    assert "INSERT INTO objects" in statements[2]
