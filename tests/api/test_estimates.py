"""What a dry-run tells: cost, capacity and why, warnings, and what a create would be refused for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from activities.estimates_keeper import EstimatesKeeper
from controlplane.clock import parse_time
from controlplane.estimates.bands import SAMPLES_MIN
from controlplane.estimates.quoting import QUOTE_SECONDS
from controlplane.kinds.money import Estimate
from controlplane.kinds.quotes import QUOTED_RATE
from controlplane.ledger.accounts import set_floor
from tests.fixtures.app import CALL, FUNCTION, ROOT, ServedApi, api_settings, serve
from tests.fixtures.calls import succeeded
from tests.fixtures.http_worker import start_worker
from tests.fixtures.prices import RATE_USD_PER_HOUR

BOOK = Path(__file__).resolve().parents[2] / "deploy" / "pricebooks" / "example.yaml"
MERGE = {"Content-Type": "application/merge-patch+json"}


async def rehearse(api: ServedApi, plural: str, **spec: Any) -> httpx.Response:
    """A dry-run of a create."""
    common = {"functions": FUNCTION, "functioncalls": CALL}[plural]
    name = {"functions": "f", "functioncalls": "c"}[plural]
    body = {"metadata": {"name": name}, "spec": {**common, **spec}}
    answer = await api.client.post(f"{api.path}/{plural}?dryRun=All", json=body)
    assert answer.status_code == 200, answer.text
    return answer


async def estimate(api: ServedApi, plural: str, **spec: Any) -> dict[str, Any]:
    """Its estimate, which is one by its model."""
    found: dict[str, Any] = (await rehearse(api, plural, **spec)).json()["status"]["estimate"]
    Estimate.model_validate(found)
    return found


def codes(told: dict[str, Any], part: str = "warnings") -> list[str]:
    return [each["code"] for each in told.get(part, ())]


async def run_calls(api: ServedApi, count: int, seconds: float) -> None:
    """Calls that ended, each after this time."""
    worker = await start_worker(api)
    for _ in range(count):
        await api.create("functioncalls", {"metadata": {"generateName": "c-"}, "spec": CALL})
    for _ in range(count):
        [given] = (await worker.claim(take=1))["calls"]
        await worker.claim(succeeded(given["id"]), take=0)
    await worker.exits()
    await api.core.database.execute(
        "UPDATE call_dispatches SET started_at = ended_at - $1::interval WHERE project = $2 AND attempt = $3",
        timedelta(seconds=seconds), api.project_name, worker.attempt,
    )  # fmt: skip


@pytest.fixture
async def priced(database_url: str, tmp_path: Path) -> AsyncIterator[ServedApi]:
    """A server with the example's price book."""
    async with serve(api_settings(database_url, tmp_path, pricebook_file=BOOK)) as served:
        yield served


async def test_an_estimate_of_a_new_function_tells_everything_by_the_flat_rate(project: ServedApi) -> None:
    told = await estimate(project, "functions", timeout="100s", retries={"maxRetries": 1})
    assert told["rateUSDPerHour"] == RATE_USD_PER_HOUR
    assert told["pricebookVersion"] == f"flat-{RATE_USD_PER_HOUR}"
    # 10 micro-USD a second: a run to the timeout, and that with the retry.
    assert told["costUSD"] == {"p50": "0.001", "p90": "0.002"}
    assert told["minimumChargeUSD"] == "0.00001"
    # A worker for it: 2 s or 8 s to start, its window of 60 s, at most 45 s to stop; 300 s are held.
    assert told["overheadUSD"] == {"p50": "0.00062", "p90": "0.00113"}
    assert (told["holdUSD"], told["concurrentHoldUSD"]) == ("0.003", "0.003")
    assert told["startup"] == {"cold": {"p50": "2s", "p90": "8s"}}
    preview = told["placementPreview"]
    assert (preview["offering"], preview["interruptible"], preview["warmReuse"]) == ("local", False, False)
    assert (preview["explain"]["profile"], preview["explain"]["scores"]["total"]) == ("Balanced", "1")
    assert codes(told) == ["ColdStart", "NoHistory"]
    assert "blockingReasons" not in told
    lasts = parse_time(told["validUntil"]) - project.core.clock.now()
    assert timedelta(seconds=QUOTE_SECONDS - 60) < lasts <= timedelta(seconds=QUOTE_SECONDS)


async def test_holds_of_the_workers_that_a_function_keeps_and_what_is_missing_for_one(api: ServedApi) -> None:
    kept = {"minWorkers": 3, "maxWorkers": 3}
    assert (await estimate(api, "functions", scaling=kept))["concurrentHoldUSD"] == "0.009"
    await set_floor(api.core.database, "default", 0)
    told = await estimate(api, "functions", scaling=kept)
    [lacking] = [each for each in told["warnings"] if each["code"] == "InsufficientCredits"]
    assert "0.0006 USD more" in lacking["message"]


async def test_a_call_is_estimated_by_the_past_of_its_function(project: ServedApi) -> None:
    await project.function(scaling={"targetConcurrency": 2})
    assert codes(await estimate(project, "functioncalls")) == ["ColdStart", "NoHistory"]
    await run_calls(project, SAMPLES_MIN, 30)
    told = await estimate(project, "functioncalls")
    # 30 s at half of 10 micro-USD.
    assert told["costUSD"] == {"p50": "0.00015", "p90": "0.00015"}
    assert told["minimumChargeUSD"] == "0.00001"
    assert codes(told) == ["ColdStart"]
    # So is another one of its kind, and the Function itself when it is rehearsed again.
    again = await estimate(project, "functions", scaling={"targetConcurrency": 2})
    assert again["costUSD"] == told["costUSD"]
    other = {"metadata": {"name": "g"}, "spec": {**FUNCTION, "timeout": "90s"}}
    answer = await project.client.post(f"{project.path}/functions?dryRun=All", json=other)
    told = answer.json()["status"]["estimate"]
    assert (told["costUSD"]["p50"], codes(told)) == ("0.0003", ["ColdStart", "OtherFunctionsHistory"])
    larger = {"metadata": {"name": "g"}, "spec": {**FUNCTION, "resources": {"cpu": "2"}}}
    answer = await project.client.post(f"{project.path}/functions?dryRun=All", json=larger)
    assert "NoHistory" in codes(answer.json()["status"]["estimate"])


async def test_filters_that_no_host_of_this_server_passes_are_told(project: ServedApi) -> None:
    for placement in ({"regions": ["us"]}, {"offerings": ["cpu-1x2"]}, {"maxRateUSDPerHour": "0.01"}):
        told = await estimate(project, "functions", placement=placement)
        assert (codes(told), "costUSD" in told) == (["NoOffering"], False)
        assert f"spec.placement.{next(iter(placement))}" in told["warnings"][0]["message"]
    assert codes(await estimate(project, "functions", placement={"regions": ["local"]})) == ["ColdStart", "NoHistory"]


async def test_a_new_function_keeps_its_estimate_and_a_call_what_that_says_of_one(project: ServedApi) -> None:
    created = await project.function()
    assert created["status"]["estimate"]["rateUSDPerHour"] == RATE_USD_PER_HOUR
    call = await project.create("functioncalls", {"metadata": {"name": "c"}, "spec": CALL})
    parts = ("costUSD", "rateUSDPerHour", "minimumChargeUSD", "pricebookVersion")
    assert call["status"]["estimate"] == {name: created["status"]["estimate"][name] for name in parts}
    stored = (await project.client.get(f"{project.path}/functioncalls/c")).json()
    assert stored["status"]["estimate"] == call["status"]["estimate"]


async def test_a_change_of_a_function_is_estimated_anew_and_a_rehearsal_of_it_too(project: ServedApi) -> None:
    await project.function(timeout="100s")
    path = f"{project.path}/functions/f"
    patch = {"spec": {"timeout": "10s", "scaling": {"targetConcurrency": 2}}}
    for query in ("?dryRun=All", ""):
        before = (await project.client.get(path)).json()["status"]["estimate"]
        assert (before["costUSD"]["p50"], before["minimumChargeUSD"]) == ("0.001", "0.00001")
        answer = await project.client.patch(f"{path}{query}", json=patch, headers=MERGE)
        told = answer.json()["status"]["estimate"]
        assert (told["costUSD"]["p50"], told["minimumChargeUSD"]) == ("0.00005", "0.00001")
    stored = (await project.client.get(path)).json()["status"]["estimate"]
    labelled = await project.client.patch(path, json={"metadata": {"labels": {"a": "b"}}}, headers=MERGE)
    assert labelled.json()["status"]["estimate"] == stored


async def test_accelerators_are_quoted_for_planning_and_say_that_a_create_would_be_refused(priced: ServedApi) -> None:
    told = await estimate(priced, "functions", resources={"gpu": "H100"}, placement={"profile": "Cost"})
    assert told["placementPreview"]["offering"] == "h100-sxm-80g-x1-us-spot"
    assert told["placementPreview"]["interruptible"] is True
    explain = told["placementPreview"]["explain"]
    assert explain["fallbacks"] == ["h100-pcie-80g-x1-eu", "h100-sxm-80g-x1-us"]
    assert {"offeringClass": "h100-sxm-80g-x8-us", "reason": "GPUCountMismatch"} in explain["rejected"]
    assert (told["rateUSDPerHour"], told["pricebookVersion"]) == ("1.60", "example-2026-01")
    assert told["startup"]["cold"] == {"p50": "90s", "p90": "240s"}
    assert "InterruptibleSelected" in codes(told)
    [reason] = told["blockingReasons"]
    body = {"metadata": {"name": "f"}, "spec": {**FUNCTION, "resources": {"gpu": "H100"}}}
    refused = (await priced.client.post(f"{priced.path}/functions", json=body)).json()
    assert (reason["code"], reason["message"]) == (refused["reason"], refused["message"])
    assert reason["fix"] == refused["fix"]
    none = await estimate(priced, "functions", resources={"gpu": "H100:4"})
    assert (codes(none), codes(none, "blockingReasons"), "costUSD" in none) == (["NoOffering"], ["Unsupported"], False)


async def test_work_without_accelerators_runs_here_and_is_shown_beside_the_book(priced: ServedApi) -> None:
    told = await estimate(priced, "functions")
    assert (told["placementPreview"]["offering"], told["rateUSDPerHour"]) == ("local", RATE_USD_PER_HOUR)
    rejected = {each["offeringClass"]: each["reason"] for each in told["placementPreview"]["explain"]["rejected"]}
    assert (rejected["cpu-1x2"], rejected["t4-16g-x1-us"]) == ("InsufficientCapacity", "GPUCountMismatch")


async def test_what_is_not_offered_and_has_no_price_is_refused_by_a_dry_run_too(project: ServedApi) -> None:
    spec = {**FUNCTION, "resources": {"gpu": "H100"}, "cluster": {"size": 2}}
    body = {"metadata": {"name": "f"}, "spec": spec}
    answer = await project.client.post(f"{project.path}/functions?dryRun=All", json=body)
    assert (answer.status_code, answer.json()["reason"]) == (422, "Unsupported")


async def test_a_dry_run_of_other_kinds_has_an_etag_and_no_estimate(project: ServedApi) -> None:
    body = {"metadata": {"name": "a"}, "spec": {}}
    answer = await project.client.post(f"{project.path}/apps?dryRun=All", json=body)
    assert answer.headers["etag"]
    assert "estimate" not in answer.json()["status"]


async def test_a_call_that_a_budget_would_refuse_is_estimated_with_that_reason(api: ServedApi) -> None:
    await api.function()
    budget = {"metadata": {"name": "team"}, "spec": {"limitUSD": "0.001"}}
    assert (await api.client.post(f"{ROOT}/budgets", json=budget)).status_code == 201
    told = await estimate(api, "functioncalls")
    refused = await api.client.post(f"{api.path}/functioncalls", json={"metadata": {"name": "c"}, "spec": CALL})
    assert refused.status_code == 402
    [reason] = told["blockingReasons"]
    assert reason == {"code": "BudgetExceeded", "message": refused.json()["message"], "fix": refused.json()["fix"]}
    assert told["costUSD"]


DOUBLED = "0.072"


async def test_a_quote_is_honoured_until_the_price_is_another_and_caps_what_was_bound_to_it(
    database_url: str, tmp_path: Path
) -> None:
    settings = api_settings(database_url, tmp_path)
    bound = {"metadata": {"name": "f"}, "spec": FUNCTION}
    body = {"metadata": {"name": "c"}, "spec": CALL}
    async with serve(settings) as api:
        etag = (await rehearse(api, "functions")).headers["etag"]
        created = await api.create("functions", bound, headers={"If-Match": etag})
        assert created["metadata"]["annotations"] == {QUOTED_RATE: RATE_USD_PER_HOUR}
        await api.function("g")
        etags = {name: (await rehearse(api, "functioncalls", function=name)).headers["etag"] for name in "fg"}
    dearer = settings.model_copy(update={"worker_rate_usd_per_hour": DOUBLED})
    async with serve(dearer, key=api.key) as later:
        told = await estimate(later, "functioncalls", function="g")
        assert (told["rateUSDPerHour"], told["minimumChargeUSD"]) == (DOUBLED, "0.00002")
        for name in "fg":
            made = {**body, "spec": {**CALL, "function": name}}
            refused = await later.client.post(
                f"{later.path}/functioncalls", json=made, headers={"If-Match": etags[name]}
            )
            assert (refused.status_code, refused.json()["reason"]) == (412, "PreconditionFailed")
        # The Function was bound at half of this, and so is whatever calls it.
        told = await estimate(later, "functioncalls")
        assert (told["rateUSDPerHour"], told["minimumChargeUSD"]) == ("0.0396", "0.000011")
        await later.create("functioncalls", body)
        worker = await start_worker(later)
        [given] = (await worker.claim(take=1))["calls"]
        await worker.claim(succeeded(given["id"]), take=0)
        charged = "SELECT rate_micro_usd_per_hour FROM ledger_transfers WHERE subject_name = 'c'"
        assert await later.core.database.fetchval(charged) == 39_600
    async with serve(settings, key=api.key) as again:
        made = {"metadata": {"name": "d"}, "spec": CALL}
        created = await again.create("functioncalls", made, headers={"If-Match": etags["f"]})
        assert created["metadata"]["annotations"] == {QUOTED_RATE: RATE_USD_PER_HOUR}


async def test_a_quote_that_would_bind_nothing_is_refused_and_not_ignored(project: ServedApi) -> None:
    await project.function()
    etag = (await rehearse(project, "functioncalls")).headers["etag"]
    item = {"metadata": {"name": "c"}, "spec": CALL}
    batch = {"apiVersion": "nodus.dev/v1", "kind": "FunctionCallList", "items": [item]}
    apply = {"apiVersion": "nodus.dev/v1", "kind": "Function", "metadata": {"name": "g"}, "spec": FUNCTION}
    yaml = {"Content-Type": "application/apply-patch+yaml"}

    async def answers(if_match: str) -> list[httpx.Response]:
        bound = {"If-Match": if_match}
        return [
            await project.client.post(f"{project.path}/functions/f/calls", json=batch, headers=bound),
            await project.client.post(f"{project.path}/functioncalls", json=batch, headers=bound),
            await project.client.patch(
                f"{project.path}/functions/g?fieldManager=me", json=apply, headers={**bound, **yaml}
            ),
        ]

    for answer in await answers(etag):
        assert (answer.status_code, answer.json()["reason"]) == (400, "BadRequest")
        assert "one by one" in answer.json()["fix"]
    assert (await project.client.get(f"{project.path}/functions/g")).status_code == 404
    assert [answer.status_code for answer in await answers("*")] == [201, 200, 201]


async def test_nobody_writes_a_quote_and_a_change_of_what_it_is_for_ends_it(project: ServedApi) -> None:
    etag = (await rehearse(project, "functions")).headers["etag"]
    forged = {"metadata": {"name": "f", "annotations": {QUOTED_RATE: "0"}}, "spec": FUNCTION}
    made = await project.create("functions", forged)
    assert "annotations" not in made["metadata"]
    path = f"{project.path}/functions/f"
    patch = {"metadata": {"annotations": {QUOTED_RATE: "0"}}}
    assert (await project.client.patch(path, json=patch, headers=MERGE)).status_code == 422
    bound = {"metadata": {"name": "b"}, "spec": FUNCTION}
    await project.create("functions", bound, headers={"If-Match": etag})
    path = f"{project.path}/functions/b"
    kept = await project.client.patch(path, json={"spec": {"timeout": "20s"}}, headers=MERGE)
    assert kept.json()["metadata"]["annotations"] == {QUOTED_RATE: RATE_USD_PER_HOUR}
    for spec in (
        {"resources": {"cpu": "2"}},
        {"placement": {"profile": "Cost"}},
        {"scaling": {"targetConcurrency": 2}},
    ):
        answer = await project.client.patch(f"{path}?dryRun=All", json={"spec": spec}, headers=MERGE)
        assert "annotations" not in answer.json()["metadata"], spec


def estimates_keeper(api: ServedApi) -> EstimatesKeeper:
    core = api.core
    return EstimatesKeeper(
        database=core.database, writer=core.writer, cache=core.cache, estimator=core.resources.estimator,
        placements=core.placements, clock=core.clock,
    )  # fmt: skip


async def stored_estimate(api: ServedApi) -> dict[str, Any]:
    """Of the Function `f`, as everybody who reads it sees it."""
    found: dict[str, Any] = (await api.client.get(f"{api.path}/functions/f")).json()["status"]["estimate"]
    return found


async def test_the_estimate_of_a_function_follows_its_calls_and_its_price(database_url: str, tmp_path: Path) -> None:
    settings = api_settings(database_url, tmp_path)
    async with serve(settings) as api:
        keeper = estimates_keeper(api)
        await api.function(timeout="300s")
        assert (await stored_estimate(api))["costUSD"] == {"p50": "0.003", "p90": "0.003"}
        await run_calls(api, SAMPLES_MIN, 30)
        await keeper.refresh()
        told = await stored_estimate(api)
        assert told["costUSD"] == {"p50": "0.0003", "p90": "0.0003"}
        assert "NoHistory" not in codes(told)
        made = await api.create("functioncalls", {"metadata": {"name": "later"}, "spec": CALL})
        assert made["status"]["estimate"]["costUSD"] == told["costUSD"]
        # Nothing ended since, and no price changed.
        revision = (await api.client.get(f"{api.path}/functions/f")).json()["metadata"]["resourceVersion"]
        await keeper.refresh()
        assert (await api.client.get(f"{api.path}/functions/f")).json()["metadata"]["resourceVersion"] == revision
    dearer = settings.model_copy(update={"worker_rate_usd_per_hour": DOUBLED})
    async with serve(dearer, key=api.key) as later:
        await estimates_keeper(later).refresh()
        told = await stored_estimate(later)
        assert (told["rateUSDPerHour"], told["costUSD"]["p50"]) == (DOUBLED, "0.0006")


async def test_calls_that_cost_nothing_carry_no_estimate(database_url: str, tmp_path: Path) -> None:
    settings = api_settings(database_url, tmp_path).model_copy(update={"worker_rate_usd_per_hour": "0"})
    async with serve(settings) as api:
        await api.function()
        made = await api.create("functioncalls", {"metadata": {"name": "c"}, "spec": CALL})
        assert "estimate" not in made["status"]
