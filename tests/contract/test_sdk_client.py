"""The public SDK's own client against the API over real HTTP: no request of ours, no assumption of ours."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nodus
import pytest
from nodus import errors
from nodus.api._client import Client, set_default_client
from nodus.api.models._nodus_dev_v1 import Estimate

from controlplane.kinds.quotes import QUOTED_RATE
from controlplane.store.compaction import compact
from tests.fixtures.app import CALL, FUNCTION, ServedApi, api_settings, serve
from tests.fixtures.eventually import WITHIN_SECONDS
from tests.fixtures.prices import RATE_USD_PER_HOUR


@contextlib.asynccontextmanager
async def client_of(api: ServedApi, api_key: str = "") -> AsyncIterator[Client]:
    client = Client(api_url=api.url, api_key=api_key or api.key, project=api.project_name)
    try:
        yield client
    finally:
        await client.aclose()


@pytest.fixture
async def sdk(project: ServedApi) -> AsyncIterator[Client]:
    async with client_of(project) as client:
        yield client


def function(name: str = "f", **spec: Any) -> dict[str, Any]:
    return {"kind": "Function", "metadata": {"name": name}, "spec": {**FUNCTION, **spec}}


def call(**metadata: str) -> dict[str, Any]:
    return {"kind": "FunctionCall", "metadata": metadata or {"generateName": "f-"}, "spec": CALL}


async def test_objects_are_created_read_patched_replaced_and_deleted(sdk: Client) -> None:
    created = await sdk.create(function())
    assert created == await sdk.get("Function", "f")
    patched = await sdk.patch("Function", "f", {"spec": {"timeout": "20s"}})
    assert patched["spec"]["timeout"] == "20s"
    patched = await sdk.patch(
        "Function", "f", [{"op": "replace", "path": "/spec/timeout", "value": "30s"}], type="json"
    )
    assert patched["spec"]["timeout"] == "30s"
    replaced = await sdk.replace({**patched, "spec": {**patched["spec"], "timeout": "40s"}})
    assert replaced["spec"]["timeout"] == "40s"
    with pytest.raises(errors.Conflict):
        await sdk.replace(patched)
    await sdk.delete("Function", "f")
    await sdk.delete("Function", "never-was")
    with pytest.raises(errors.NotFound):
        await sdk.delete("Function", "never-was", missing_ok=False)


async def test_apply_creates_once_and_patches_afterwards(sdk: Client) -> None:
    [first] = await sdk.apply(function())
    [same] = await sdk.apply(function())
    assert same["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    [changed] = await sdk.apply(function(timeout="25s"))
    assert changed["spec"]["timeout"] == "25s"
    [rehearsed] = await sdk.apply(function(timeout="35s"), dry_run=True)
    assert rehearsed["spec"]["timeout"] == "35s"
    assert (await sdk.get("Function", "f"))["spec"]["timeout"] == "25s"


async def test_lists_follow_pages_and_selectors(sdk: Client) -> None:
    await sdk.create(function())
    await sdk.create_many("FunctionCall", [call() for _ in range(600)])
    assert len(await sdk.list("FunctionCall")) == 600
    assert len(await sdk.list("FunctionCall", limit=7)) == 7
    assert len(await sdk.list("FunctionCall", label_selector={"nodus.dev/function": "f"})) == 600
    assert await sdk.list("FunctionCall", field_selector={"status.phase": "Running"}) == []
    assert await sdk.list("Function", all_projects=True)


async def test_a_batch_is_created_with_one_request(sdk: Client) -> None:
    await sdk.create(function())
    created = await sdk.create_many("FunctionCall", [call() for _ in range(3)])
    assert [item["spec"]["function"] for item in created] == ["f", "f", "f"]


async def test_an_estimate_binds_the_create_that_follows(sdk: Client) -> None:
    await sdk.create(function())
    body = call(name="c")
    told, etag = await sdk.estimate(body)
    assert etag is not None
    Estimate.model_validate(told)
    with pytest.raises(errors.PreconditionFailed):
        await sdk.create({**body, "spec": {**CALL, "timeout": "3s"}}, if_match=etag)
    created = await sdk.create(body, if_match=etag)
    assert created["metadata"]["name"] == "c"
    assert created["metadata"]["annotations"] == {QUOTED_RATE: told["rateUSDPerHour"]}
    assert created["status"]["estimate"]["costUSD"] == told["costUSD"]


async def test_the_sdk_estimates_a_call_of_a_deployed_function_without_making_it(
    sdk: Client, project: ServedApi
) -> None:
    await sdk.create(function("app-f"))

    def asked() -> Any:
        set_default_client(Client(api_url=project.url, api_key=project.key, project=project.project_name))
        try:
            return nodus.Function.from_name("app", "f").estimate(1, b=2)
        finally:
            set_default_client(None)

    told = await asyncio.to_thread(asked)
    assert (told.rateUSDPerHour, told.placementPreview.offering) == (RATE_USD_PER_HOUR, "local")
    assert told.etag
    assert await sdk.list("FunctionCall") == []


async def test_waiting_for_an_object_sees_its_change(sdk: Client) -> None:
    await sdk.create(function())
    await sdk.create(call(name="c"))
    waiting = asyncio.create_task(
        sdk.wait_for("FunctionCall", "c", lambda object_: object_["status"]["phase"] == "Cancelled")
    )
    await sdk.patch("FunctionCall", "c", {"spec": {"state": "Cancelled"}})
    assert (await asyncio.wait_for(waiting, WITHIN_SECONDS))["status"]["reason"] == "Cancelled"


async def test_waiting_for_an_object_that_is_deleted_is_not_found(sdk: Client) -> None:
    await sdk.create({"kind": "App", "metadata": {"name": "a"}, "spec": {}})
    waiting = asyncio.create_task(sdk.wait_for("App", "a", lambda _: False))
    await asyncio.sleep(0)
    await sdk.delete("App", "a")
    with pytest.raises(errors.NotFound):
        await asyncio.wait_for(waiting, WITHIN_SECONDS)


async def test_a_watch_lists_first_and_then_follows(sdk: Client) -> None:
    await sdk.create({"kind": "App", "metadata": {"name": "a"}, "spec": {}})
    async with contextlib.aclosing(sdk.watch("App")) as events:  # type: ignore[type-var]  # it is a generator
        first = await asyncio.wait_for(anext(events), WITHIN_SECONDS)
        await sdk.patch("App", "a", {"metadata": {"labels": {"x": "1"}}})
        second = await asyncio.wait_for(anext(events), WITHIN_SECONDS)
    assert [first["type"], second["type"]] == ["ADDED", "MODIFIED"]


async def test_a_watch_that_is_too_old_lists_again(database_url: str, tmp_path: Path) -> None:
    async with serve(api_settings(database_url, tmp_path, ring_events_max=1)) as api, client_of(api) as sdk:
        app = await sdk.create({"kind": "App", "metadata": {"name": "a"}, "spec": {}})
        for number in range(3):
            await sdk.patch("App", "a", {"metadata": {"labels": {"n": str(number)}}})
        await api.core.database.execute("UPDATE changes SET time = time - interval '2 days'")
        await compact(api.core.database, api.core.settings, api.core.clock.now())
        old = app["metadata"]["resourceVersion"]
        async with contextlib.aclosing(sdk.watch("App", resource_version=old)) as events:  # type: ignore[type-var]
            event = await asyncio.wait_for(anext(events), WITHIN_SECONDS)
    assert (event["type"], event["object"]["metadata"]["labels"]["n"]) == ("ADDED", "2")


async def test_refusals_arrive_as_the_exceptions_of_their_code(sdk: Client, project: ServedApi) -> None:
    with pytest.raises(errors.NotFound) as missing:
        await sdk.get("Function", "nope")
    assert missing.value.fix
    assert missing.value.docs is not None
    assert missing.value.request_id is not None
    with pytest.raises(errors.Invalid) as invalid:
        await sdk.create(function(timeout="never", scaling={"maxWorkers": 0}))
    assert {cause["field"] for cause in invalid.value.causes} == {"spec.timeout", "spec.scaling.maxWorkers"}
    with pytest.raises(errors.Unsupported):
        await sdk.create(function(resources={"gpu": "H100"}))
    await sdk.create(function())
    with pytest.raises(errors.AlreadyExists):
        await sdk.create(function(timeout="7s"))
    async with client_of(project, api_key="nodus_" + "x" * 43) as stranger:
        with pytest.raises(errors.Unauthorized):
            await stranger.get("Function", "f")


async def test_a_secret_that_exists_is_given_a_new_version(sdk: Client) -> None:
    secret = {"kind": "Secret", "metadata": {"name": "s"}, "spec": {"stringData": {"K": "1"}}}
    await sdk.create(secret)
    await sdk.create(secret)
    with pytest.raises(errors.AlreadyExists):
        await sdk.create({**secret, "spec": {"stringData": {"K": "2"}}})
    patched = await sdk.patch("Secret", "s", {"spec": {"stringData": {"K": "2"}}})
    assert patched["status"]["version"] == 2


async def test_the_probes_are_understood(sdk: Client) -> None:
    assert await sdk.healthz()
    assert await sdk.readyz() == {"ready": True, "release": "test", "degraded": ["engine"], "failing": None}


async def test_blobs_go_up_once_and_come_back(sdk: Client) -> None:
    reference = await sdk.upload_blob(b"bytes of a payload")
    assert await sdk.upload_blob(b"bytes of a payload") == reference
    assert await sdk.download_blob(reference) == b"bytes of a payload"
