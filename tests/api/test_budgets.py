"""Budgets over HTTP: what is stored, refused, and refused because of them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.test_access import key
from tests.fixtures.app import CALL, ROOT, ServedApi
from tests.fixtures.auditing import events_about

BUDGETS = f"{ROOT}/budgets"


async def post(api: ServedApi, spec: dict[str, Any], name: str = "team", **request: Any) -> tuple[int, dict[str, Any]]:
    answer = await api.client.post(BUDGETS, json={"metadata": {"name": name}, "spec": spec}, **request)
    told: dict[str, Any] = answer.json()
    return answer.status_code, told


async def test_a_budget_is_stored_with_its_defaults(api: ServedApi) -> None:
    status, stored = await post(api, {"limitUSD": "50"})
    assert status == 201
    assert stored["metadata"]["uid"].startswith("bud_")
    assert stored["spec"] == {
        "limitUSD": "50.00", "period": "Monthly", "action": "Block", "thresholds": [50, 80, 100],
    }  # fmt: skip
    assert (stored["status"]["remainingUSD"], stored["status"]["percentUsed"]) == ("50.00", 0)


@pytest.mark.parametrize("amount", [50, 50.5, 0, -1, "50.0000001", "-5", "0.00", "1e3", "5 USD", None, True])
async def test_money_is_a_decimal_string_and_nothing_else(project: ServedApi, amount: Any) -> None:
    status, refused = await post(project, {"limitUSD": amount})
    assert (status, refused["reason"]) == (422, "Invalid")
    assert "spec.limitUSD" in {cause["field"] for cause in refused["details"]["causes"]}
    capped = {"metadata": {"name": "capped"}, "spec": {"maxCostUSD": amount, "code": {"module": "a", "qualname": "f"}}}
    if not isinstance(amount, str) and amount is not None:
        answer = await project.client.post(f"{project.path}/functions", json=capped)
        assert answer.status_code == 422
        assert "spec.maxCostUSD" in {cause["field"] for cause in answer.json()["details"]["causes"]}


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"limitUSD": "5", "thresholds": [0]}, "spec.thresholds[0]"),
        ({"limitUSD": "5", "thresholds": [1, 2, 3, 4, 5, 6]}, "spec.thresholds"),
        ({"limitUSD": "5", "period": "Weekly"}, "spec.period"),
        ({"limitUSD": "5", "action": "Warn"}, "spec.action"),
        ({"period": "Total"}, "spec.limitUSD"),
        ({"limitUSD": "5", "notify": {"emails": ["a@b.c"] * 11}}, "spec.notify.emails"),
        (
            {"limitUSD": "5", "scope": {"selector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}},
            "spec.scope.selector.matchExpressions[0].values",
        ),
    ],
)
async def test_what_no_budget_can_be_is_refused_by_field(project: ServedApi, spec: dict[str, Any], field: str) -> None:
    status, refused = await post(project, spec)
    assert status == 422, refused
    assert field in {cause["field"] for cause in refused["details"]["causes"]}


async def test_the_period_stays_and_the_limit_may_change(api: ServedApi) -> None:
    await post(api, {"limitUSD": "5"})
    patch = {"Content-Type": "application/merge-patch+json"}
    path = f"{BUDGETS}/team"
    refused = await api.client.patch(path, json={"spec": {"period": "Total"}}, headers=patch)
    assert (refused.status_code, refused.json()["reason"]) == (409, "FieldImmutable")
    changed = await api.client.patch(path, json={"spec": {"limitUSD": "7.5"}}, headers=patch)
    assert changed.json()["spec"]["limitUSD"] == "7.50"
    stranger = await key(api, ["functions:write"], ["*"])
    refused = await api.client.patch(path, json={"spec": {"limitUSD": "9"}}, headers={**patch, **stranger})
    assert refused.json()["details"]["missingScope"] == "billing:write"


async def test_a_call_that_no_budget_can_pay_is_refused_with_the_amounts_and_what_to_do(api: ServedApi) -> None:
    await api.function()
    await post(api, {"limitUSD": "0.001", "scope": {"project": "default"}})
    body = {"metadata": {"generateName": "f-"}, "spec": CALL}
    answer = await api.client.post(f"{api.path}/functioncalls", json=body)
    refused = answer.json()
    assert (answer.status_code, refused["reason"]) == (402, "BudgetExceeded")
    assert refused["details"]["budget"] == "team"
    assert refused["details"]["remainingUSD"] == "0.001"
    assert float(refused["details"]["neededUSD"]) > 0.001
    assert "spec.limitUSD" in refused["fix"]
    [event] = await events_about(api, request_id=answer.headers["x-request-id"])
    assert (event["kind"], event["verb"], event["code"], event["reason"]) == (
        "FunctionCall", "create", 402, "BudgetExceeded",
    )  # fmt: skip
    patch = {"Content-Type": "application/merge-patch+json"}
    await api.client.patch(f"{BUDGETS}/team", json={"spec": {"limitUSD": "1"}}, headers=patch)
    assert (await api.client.post(f"{api.path}/functioncalls", json=body)).status_code == 201
    await api.client.patch(f"{api.path}/functions/f", json={"spec": {"maxCostUSD": "0.0005"}}, headers=patch)
    answer = await api.client.post(f"{api.path}/functioncalls", json=body)
    assert (answer.status_code, answer.json()["details"]["budget"]) == (402, "function/f")
    lowered = await api.client.patch(f"{api.path}/functions/f", json={"spec": {"maxCostUSD": "0.0004"}}, headers=patch)
    assert lowered.json()["reason"] == "FieldImmutable"
    await api.client.patch(f"{api.path}/functions/f", json={"spec": {"maxCostUSD": "5"}}, headers=patch)
    assert (await api.client.post(f"{api.path}/functioncalls", json=body)).status_code == 201
    # A Budget that is deleted limits nothing any more.
    await api.client.patch(f"{BUDGETS}/team", json={"spec": {"limitUSD": "0.001"}}, headers=patch)
    assert (await api.client.post(f"{api.path}/functioncalls", json=body)).status_code == 402
    assert (await api.client.delete(f"{BUDGETS}/team")).status_code == 200
    assert (await api.client.post(f"{api.path}/functioncalls", json=body)).status_code == 201
