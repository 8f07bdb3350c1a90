"""`/wait`, `/timeline` and `/charges` as clients reach them: paths, refusals, discovery, the OpenAPI document."""

from __future__ import annotations

import hashlib
import math

import pytest

from controlplane.clock import parse_time
from controlplane.machinery.quantities import format_money
from tests.api.test_access import key
from tests.fixtures.app import CALL, ROOT, ServedApi
from tests.fixtures.http_worker import start_worker

VIEWS = {"wait": "FunctionCallWait", "timeline": "FunctionCallTimeline", "charges": "FunctionCallCharges"}


@pytest.fixture
async def call(project: ServedApi) -> str:
    """The path of a call that waits for a worker which nobody starts."""
    await project.function()
    created = await project.create("functioncalls", {"metadata": {"generateName": "f-"}, "spec": CALL})
    return f"{project.path}/functioncalls/{created['metadata']['name']}"


@pytest.mark.parametrize(("view", "kind"), VIEWS.items())
async def test_a_view_is_an_object_with_the_metadata_of_its_call(
    project: ServedApi, call: str, view: str, kind: str
) -> None:
    stored = (await project.client.get(call)).json()
    answer = await project.client.get(f"{call}/{view}")
    assert answer.status_code == 200, answer.text
    shown = answer.json()
    assert (shown["kind"], shown["apiVersion"]) == (kind, "nodus.dev/v1")
    for name in ("name", "namespace", "uid", "resourceVersion"):
        assert shown["metadata"][name] == stored["metadata"][name]
    assert shown["status"]["phase"] == "Queued"
    pretty = await project.client.get(f"{call}/{view}?pretty=true")
    assert "\n  " in pretty.text


async def test_the_wait_says_what_is_missing(project: ServedApi, call: str) -> None:
    status = (await project.client.get(f"{call}/wait")).json()["status"]
    assert status["reason"] == "NoWorker"
    assert status["message"] == "1st in its session, no sessions before it; no worker yet: one is about to be started"
    assert status["queue"] == {"position": 1, "sessionsAhead": 0, "callsAhead": 0, "queued": 1}


async def test_the_charges_of_a_call_and_its_function_agree_with_the_ledger(project: ServedApi, call: str) -> None:
    worker = await start_worker(project)
    [given] = (await worker.claim())["calls"]
    result = {"encoding": "JSON", "inline": "MQ==", "sha256": hashlib.sha256(b"1").hexdigest()}
    await worker.claim({"call": given["id"], "outcome": "Succeeded", "result": result}, take=0)
    of_call = (await project.client.get(f"{call}/charges")).json()["status"]
    of_function = (await project.client.get(f"{project.path}/functions/f/charges")).json()["status"]
    [charge] = of_call["charges"]
    ran = parse_time(charge["chargedUntil"]) - parse_time(charge["chargedFrom"])
    # One second on a quiet machine, at 10 micro-USD.
    assert charge["seconds"] == math.ceil(ran.total_seconds()) > 0
    amount = format_money(10 * charge["seconds"])
    assert (charge["amountUSD"], of_call["equal"]) == (amount, True)
    assert (of_function["totalUSD"], of_function["ledgerUSD"], of_function["equal"]) == (amount, amount, True)


@pytest.mark.parametrize("view", VIEWS)
async def test_what_cannot_be_read_is_refused_as_the_call_itself(project: ServedApi, call: str, view: str) -> None:
    absent = await project.client.get(f"{project.path}/functioncalls/absent/{view}")
    assert (absent.status_code, absent.json()["reason"]) == (404, "NotFound")
    assert (await project.client.get(f"{call}/{view}/more")).status_code == 404
    assert (await project.client.post(f"{call}/{view}", json={})).status_code == 405
    protobuf = {"Accept": "application/vnd.kubernetes.protobuf"}
    assert (await project.client.get(f"{call}/{view}", headers=protobuf)).status_code == 406
    elsewhere = call.replace(project.project_name, "absent-project")
    assert (await project.client.get(f"{elsewhere}/{view}")).status_code == 404
    of_function = await project.client.get(f"{project.path}/functions/f/{view}")
    assert of_function.status_code == (200 if view == "charges" else 404)
    reader = await key(project, ["functioncalls:read"], ["*"])
    assert (await project.client.get(f"{call}/{view}", headers=reader)).status_code == 200
    stranger = await key(project, ["functions:read"], ["*"])
    refused = await project.client.get(f"{call}/{view}", headers=stranger)
    assert (refused.status_code, refused.json()["details"]["missingScope"]) == (403, "functioncalls:read")
    limited = await key(project, ["*"], ["default"])
    assert (await project.client.get(f"{call}/{view}", headers=limited)).status_code == 403


@pytest.mark.parametrize(("view", "kind"), VIEWS.items())
async def test_discovery_and_the_openapi_document_know_the_view(project: ServedApi, view: str, kind: str) -> None:
    resources = (await project.client.get(ROOT)).json()["resources"]
    [listed] = [each for each in resources if each["name"] == f"functioncalls/{view}"]
    assert (listed["kind"], listed["namespaced"], listed["verbs"]) == (kind, True, ["get"])
    document = (await project.client.get("/openapi/v3/apis/nodus.dev/v1")).json()
    operation = document["paths"][f"{ROOT}/namespaces/{{namespace}}/functioncalls/{{name}}/{view}"]["get"]
    assert operation["x-kubernetes-group-version-kind"]["kind"] == kind
    schema = document["components"]["schemas"][f"dev.nodus.v1.{kind}"]
    assert set(schema["properties"]) == {"apiVersion", "kind", "metadata", "status"}


async def test_an_access_review_knows_the_view(project: ServedApi, call: str) -> None:
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {
            "resourceAttributes": {
                "group": "nodus.dev",
                "resource": "functioncalls",
                "subresource": "wait",
                "verb": "get",
                "namespace": project.project_name,
            }
        },
    }
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    assert (await project.client.post(path, json=review)).json()["status"]["allowed"] is True
