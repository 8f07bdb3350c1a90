"""What clients ask before they ask for objects: discovery, schemas, health, identity, and the facades."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from controlplane.errors import Reason
from controlplane.identity.principal import user_label
from controlplane.machinery.discovery import GROUPS
from controlplane.store.events import NORMAL, Happening, RecordEvent
from tests.fixtures.app import ROOT, EventStream, ServedApi, api_settings, client_of, serve
from tests.fixtures.eventually import eventually

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v={};as=APIGroupDiscoveryList"


async def get(project: ServedApi, path: str, **headers: str) -> httpx.Response:
    answer = await project.client.get(path, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer


def happening(api: ServedApi) -> Happening:
    """Something that happened to an App of the project."""
    return Happening(key=api.object_key("App", "a"), uid="app_1", type=NORMAL, reason="Tested", message="it was seen")


async def test_groups_and_kinds_are_listed_in_the_legacy_form(project: ServedApi) -> None:
    assert (await get(project, "/api")).json()["versions"] == ["v1"]
    assert [entry["name"] for entry in (await get(project, "/api/v1")).json()["resources"]] == ["namespaces"]
    groups = (await get(project, "/apis")).json()["groups"]
    assert groups[0]["preferredVersion"]["groupVersion"] == "nodus.dev/v1"
    for group in groups:
        # A group whose details fail breaks the discovery of all for some clients.
        assert (await get(project, f"/apis/{group['name']}")).json()["kind"] == "APIGroup"
        for version in group["versions"]:
            assert (await get(project, f"/apis/{version['groupVersion']}")).json()["resources"]
    assert (await get(project, "/apis/nodus.dev")).json()["kind"] == "APIGroup"
    resources = {entry["name"]: entry for entry in (await get(project, ROOT)).json()["resources"]}
    assert resources["functions"]["shortNames"] == ["fn"]
    assert {"list", "get", "watch", "create", "patch", "update", "delete", "deletecollection"} <= set(
        resources["functioncalls"]["verbs"]
    )
    assert resources["attempts"]["verbs"] == ["get", "list", "watch"]
    assert "functions/log" in resources


@pytest.mark.parametrize("path", ["/apis/", "/api/", "/version/", f"{ROOT}/", f"{ROOT}/namespaces/default/apps/"])
async def test_a_trailing_slash_changes_nothing(project: ServedApi, path: str) -> None:
    assert (await get(project, path)).json() == (await get(project, path.rstrip("/"))).json()


@pytest.mark.parametrize("version", ["v2", "v2beta1"])
async def test_one_request_tells_everything_to_those_who_ask(project: ServedApi, version: str) -> None:
    accept = f"{AGGREGATED.format(version)},application/json"
    answer = await get(project, "/apis", accept=accept)
    assert answer.headers["content-type"] == AGGREGATED.format(version)
    assert answer.headers["vary"] == "Accept"
    group, *reviews = answer.json()["items"]
    assert group["metadata"]["name"] == "nodus.dev"
    assert [item["metadata"]["name"] for item in reviews] == ["authentication.k8s.io", "authorization.k8s.io"]
    assert {entry["resource"] for entry in group["versions"][0]["resources"]} == set(project.deps.kinds)
    core = await get(project, "/api", accept=accept)
    [item] = core.json()["items"]
    assert [entry["resource"] for entry in item["versions"][0]["resources"]] == ["namespaces"]
    legacy = await get(project, "/apis", accept=f"application/json,{AGGREGATED.format(version)}")
    assert legacy.json()["kind"] == "APIGroupList"


async def test_schemas_are_found_through_the_index(project: ServedApi) -> None:
    index = (await get(project, "/openapi/v3")).json()
    url = index["paths"]["apis/nodus.dev/v1"]["serverRelativeURL"]
    answer = await get(project, url)
    document = answer.json()
    assert document["openapi"].startswith("3.0")
    listing = document["paths"]["/apis/nodus.dev/v1/namespaces/{namespace}/functions"]["get"]
    assert listing["x-kubernetes-action"] == "list"
    kinds = {
        entry["kind"]
        for schema in document["components"]["schemas"].values()
        for entry in schema.get("x-kubernetes-group-version-kind", [])
    }
    assert {kind.kind for kind in project.deps.kinds.values()} <= kinds


async def test_every_document_has_a_hash_that_saves_asking_again(project: ServedApi) -> None:
    index = (await get(project, "/openapi/v3")).json()["paths"]
    assert set(index) == {"api/v1", *(f"apis/{group}/v1" for group in GROUPS)}
    for entry in index.values():
        url = entry["serverRelativeURL"]
        answer = await get(project, url)
        assert "immutable" in answer.headers["cache-control"]
        assert answer.headers["etag"].strip('"') == url.partition("?hash=")[2]
        outdated = await get(project, f"{url.partition('?')[0]}?hash=0")
        assert (outdated.content, "cache-control" in outdated.headers) == (answer.content, False)


@pytest.mark.parametrize("path", ["/openapi/v3", "/openapi/v3/api/v1", "/api", "/apis", "/apis/nodus.dev/v1"])
@pytest.mark.parametrize("accept", ["application/json", AGGREGATED.format("v2")])
async def test_what_the_client_has_is_not_sent_again(project: ServedApi, path: str, accept: str) -> None:
    answer = await get(project, path, accept=accept)
    etag = answer.headers["etag"]
    for known in (etag, f"W/{etag}", f'"other", {etag}'):
        again = await project.client.get(path, headers={"Accept": accept, "If-None-Match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
    changed = await project.client.get(path, headers={"Accept": accept, "If-None-Match": '"other"'})
    assert (changed.status_code, changed.content) == (200, answer.content)


async def test_the_documents_of_other_groups_describe_what_is_answered(project: ServedApi) -> None:
    """Every field of a namespace, an event and a review has its place in the schema, to the leaves."""
    await project.core.writer.write(RecordEvent(happening(project)))
    schemas: dict[str, Any] = {}
    for path in ("api/v1", "apis/authorization.k8s.io/v1", "apis/authentication.k8s.io/v1"):
        document = (await get(project, f"/openapi/v3/{path}")).json()
        schemas |= {name.rpartition(".")[2]: schema for name, schema in document["components"]["schemas"].items()}
    answers = [
        (await get(project, f"/api/v1/namespaces/{project.project_name}")).json(),
        (await get(project, "/api/v1/namespaces")).json(),
        (await get(project, f"/api/v1/namespaces/{project.project_name}/events")).json()["items"][0],
        await review(project, "authorization", "SelfSubjectAccessReview", resourceAttributes={"verb": "get"}),
        await review(project, "authorization", "SelfSubjectRulesReview", namespace=project.project_name),
        await review(project, "authentication", "SelfSubjectReview"),
        await review(project, "authentication", "TokenReview", token=project.key),
    ]
    for answer in answers:
        assert undescribed(answer, schemas[answer["kind"]], schemas) == []


async def review(api: ServedApi, group: str, kind: str, **spec: Any) -> Any:
    path = f"/apis/{group}.k8s.io/v1/{kind.lower()}s"
    answer = await api.client.post(path, json={"kind": kind, "apiVersion": f"{group}.k8s.io/v1", "spec": spec})
    assert answer.status_code == 201, answer.text
    return answer.json()


def undescribed(value: Any, schema: dict[str, Any], schemas: dict[str, Any], path: str = "") -> list[str]:
    """The paths in `value` that the schema does not have."""
    for step in schema.get("allOf", [schema]):
        if "$ref" in step:
            schema = schemas[step["$ref"].rpartition(".")[2]]
    if isinstance(value, list):
        return [found for item in value for found in undescribed(item, schema["items"], schemas, f"{path}[]")]
    if not isinstance(value, dict):
        return [] if schema.get("type") != "object" else [path]
    fields, others = schema.get("properties", {}), schema.get("additionalProperties")
    found = []
    for name, item in value.items():
        if name in fields or others:
            found += undescribed(item, fields.get(name, others), schemas, f"{path}.{name}")
        elif schema.get("properties") is not None:
            found.append(f"{path}.{name}")
    return found


async def test_the_second_schema_version_is_empty_in_the_form_asked_for(project: ServedApi) -> None:
    protobuf = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
    answer = await get(project, "/openapi/v2", accept=protobuf)
    assert answer.content == b""
    assert answer.headers["content-type"] == "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
    assert (await get(project, "/openapi/v2", accept="application/json")).json()["swagger"] == "2.0"


async def is_told(client: httpx.AsyncClient, status: int, text: str) -> bool:
    """Whether that is what /readyz answers; a server that has just begun, or stood still, has to look for changes."""
    answer = await client.get("/readyz")
    return (answer.status_code, answer.text, answer.headers["x-nodus-release"]) == (status, text, "test")


async def test_probes_and_the_version_need_no_credential(project: ServedApi) -> None:
    async with client_of(project.url) as stranger:
        assert (await stranger.get("/healthz")).text == "ok\n"
        await eventually(partial(is_told, stranger, 200, "ok\ndegraded engine\n"))
        assert (await stranger.get("/version")).json()["major"] == "1"
        assert (await stranger.get("/.well-known/nodus-configuration")).json() == {"consoleURL": project.url}
        assert (await stranger.get("/apis")).status_code == 401


async def test_a_server_without_its_database_is_not_ready(database_url: str, tmp_path: Path) -> None:
    async def broken() -> bool:
        raise OSError("no route")

    async with serve(api_settings(database_url, tmp_path)) as api:
        checks: Any = api.deps.required
        checks["database"] = broken
        await eventually(partial(is_told, api.client, 503, "database\n"))
        assert (await api.client.get("/healthz")).status_code == 200


async def test_whoami_tells_what_the_public_command_line_needs(project: ServedApi) -> None:
    told = (await get(project, "/auth/whoami")).json()
    assert told["kind"] == "User"
    assert len(told["user"]) == 36
    assert told["org"] == "default"
    assert told["scopes"] == ["*"]
    assert {"default", project.project_name} <= set(told["projects"])
    created = await project.create("apps", {"metadata": {"name": "a"}, "spec": {}})
    assert created["metadata"]["labels"]["nodus.dev/created-by"] == user_label(told["user"])


async def test_self_is_for_workers_only(project: ServedApi) -> None:
    assert (await project.client.get("/self")).status_code == 403


async def test_projects_are_namespaces_to_core_clients(project: ServedApi) -> None:
    listed = (await get(project, "/api/v1/namespaces")).json()
    assert listed["kind"] == "NamespaceList"
    assert project.project_name in [item["metadata"]["name"] for item in listed["items"]]
    one = (await get(project, f"/api/v1/namespaces/{project.project_name}")).json()
    assert (one["kind"], one["apiVersion"], one["status"]["phase"]) == ("Namespace", "v1", "Active")
    missing = await project.client.get("/api/v1/namespaces/nope")
    assert (missing.status_code, missing.json()["message"]) == (404, 'namespaces "nope" not found')


async def test_describe_finds_the_events_of_its_object(project: ServedApi) -> None:
    query = "fieldSelector=involvedObject.name=f,involvedObject.uid=fn_x&limit=500"
    for path in ("/api/v1/events", f"/api/v1/namespaces/{project.project_name}/events"):
        answer = await get(project, f"{path}?{query}", accept="application/vnd.kubernetes.protobuf,application/json")
        assert (answer.json()["kind"], answer.json()["items"]) == ("EventList", [])


async def test_namespaces_are_watched_and_shown_as_tables(project: ServedApi) -> None:
    name = project.project_name
    selector = f"fieldSelector=metadata.name={name}"
    table = "application/json;as=Table;v=v1;g=meta.k8s.io"
    shown = (await get(project, f"/api/v1/namespaces?{selector}", accept=table)).json()
    assert [row["cells"][:2] for row in shown["rows"]] == [[name, "Active"]]
    path = f"/api/v1/namespaces?watch=true&{selector}"
    async with project.client.stream("GET", path) as response:
        events = EventStream(response)
        first = await events.next()
        assert (first["type"], first["object"]["kind"], first["object"]["apiVersion"]) == ("ADDED", "Namespace", "v1")
        await project.client.delete(f"{ROOT}/projects/{name}")
        changed = await events.next()
        assert changed["object"]["status"]["phase"] == "Terminating"
    query = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    async with project.client.stream("GET", f"/api/v1/namespaces/{name}/events?{query}") as response:
        bookmark = (await EventStream(response).next())["object"]
        assert (bookmark["kind"], bookmark["apiVersion"]) == ("Event", "v1")


async def test_events_are_watched_in_the_words_of_core_clients(api: ServedApi) -> None:
    path = f"/api/v1/namespaces/{api.project_name}/events"
    async with api.client.stream("GET", f"{path}?watch=true") as response:
        await api.core.writer.write(RecordEvent(happening(api)))
        event = (await EventStream(response).next())["object"]
    assert (event["involvedObject"]["name"], event["metadata"]["namespace"]) == ("a", api.project_name)
    [item] = (await get(api, path)).json()["items"]
    assert item == event
    for selector, count in (
        ("involvedObject.kind=App,involvedObject.apiVersion=nodus.dev/v1,involvedObject.name=a", 1),
        ("involvedObject.apiVersion=apps/v1", 0),
        ("involvedObject.apiVersion!=apps/v1,source=nodus-server", 1),
        (f"metadata.namespace={api.project_name}", 1),
        ("metadata.namespace=other", 0),
    ):
        assert len((await get(api, f"{path}?fieldSelector={selector}")).json()["items"]) == count, selector
    table = {"accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    [row] = (await get(api, path, **table)).json()["rows"]
    assert row["cells"][1:5] == ["Normal", "Tested", "app/a", "it was seen"]


async def test_metrics_queries_answer_an_empty_vector(project: ServedApi) -> None:
    answer = await project.client.post(
        f"/metrics/v1/namespaces/{project.project_name}/api/v1/query", data={"query": "sum(x)"}
    )
    assert answer.json() == {"status": "success", "data": {"resultType": "vector", "result": []}}


async def test_each_error_code_has_a_page_that_its_errors_lead_to(project: ServedApi) -> None:
    docs = (await project.client.get(f"{project.path}/apps/nope")).json()["docs"]
    assert docs.startswith(project.url)
    async with client_of(project.url) as stranger:
        for reason in Reason:
            page = await stranger.get(docs.replace("NotFound", reason.row.wire))
            assert page.status_code == 200
            assert page.headers["content-type"].startswith("text/markdown")
            assert reason.row.fix in page.text
