"""Two short waits that spare a short call a request each: a read that waits for its end, a report that waits for the
next one (decision 0016). Both are far longer here than in production, so that only what ends them can end them; so is
the time for which a call has just begun."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from controlplane.kinds import function_call
from tests.fixtures.app import CALL, ServedApi, api_settings, serve
from tests.fixtures.calls import succeeded
from tests.fixtures.eventually import eventually
from tests.fixtures.http_worker import HttpWorker, start_worker

PATIENCE_SECONDS = 60.0


@pytest.fixture
async def patient(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ServedApi]:
    """A server that waits for long, with a Function."""
    monkeypatch.setattr(function_call, "BEGUN_SECONDS", PATIENCE_SECONDS)
    settings = api_settings(
        database_url, tmp_path, settling_seconds=PATIENCE_SECONDS, claim_linger_seconds=PATIENCE_SECONDS
    )
    async with serve(settings) as served:
        await served.function()
        yield served


async def create(api: ServedApi) -> str:
    body = {"metadata": {"generateName": "c-"}, "spec": CALL}
    created = await api.create("functioncalls", body, headers={"Idempotency-Key": secrets.token_hex(8)})
    name: str = created["metadata"]["name"]
    return name


def read(api: ServedApi, name: str) -> asyncio.Task[httpx.Response]:
    return asyncio.create_task(api.client.get(f"{api.path}/functioncalls/{name}", timeout=PATIENCE_SECONDS))


async def reading(api: ServedApi, worker: HttpWorker) -> tuple[str, asyncio.Task[httpx.Response]]:
    """A call that runs, and a read of it that waits."""
    name = await create(api)
    assert [call["id"] for call in (await worker.claim())["calls"]] == [name]
    task = read(api, name)
    await eventually(lambda: len(api.deps.feed.subscriptions) == 1)
    return name, task


async def test_a_read_of_a_call_that_has_just_begun_answers_with_its_end(patient: ServedApi) -> None:
    worker = await start_worker(patient)
    name, task = await reading(patient, worker)
    await worker.claim(succeeded(name), take=0)
    answer = await task
    assert answer.json()["status"]["phase"] == "Succeeded"
    assert answer.headers["etag"] == f'"{answer.json()["metadata"]["resourceVersion"]}"'
    await eventually(lambda: len(patient.deps.feed.subscriptions) == 0)


async def test_a_read_ends_with_the_call_that_is_deleted_meanwhile(patient: ServedApi) -> None:
    worker = await start_worker(patient)
    name, task = await reading(patient, worker)
    deleted = await patient.client.delete(f"{patient.path}/functioncalls/{name}")
    assert deleted.status_code == 200
    # The call is being cancelled, which is no longer "has just begun"; or it is gone.
    answer = await task
    assert answer.status_code == 404 or answer.json()["status"]["phase"] != "Running"


async def test_a_read_of_a_call_that_waits_for_a_worker_does_not_wait(patient: ServedApi) -> None:
    name = await create(patient)
    async with asyncio.timeout(PATIENCE_SECONDS / 2):
        assert (await read(patient, name)).json()["status"]["phase"] == "Queued"


async def test_a_read_waits_no_longer_than_it_is_set_to(database_url: str, tmp_path: Path) -> None:
    async with serve(api_settings(database_url, tmp_path, settling_seconds=0.01)) as api:
        await api.function()
        worker = await start_worker(api)
        name = await create(api)
        await worker.claim()
        assert (await read(api, name)).json()["status"]["phase"] == "Running"


async def test_the_report_of_the_last_call_carries_the_next_one(patient: ServedApi) -> None:
    worker = await start_worker(patient)
    first = await create(patient)
    await worker.claim()
    report = asyncio.create_task(worker.claim(succeeded(first), wait="0s"))
    await eventually(lambda: any(wants for wants in patient.core.waiting._held.values()))
    second = await create(patient)
    assert [call["id"] for call in (await report)["calls"]] == [second]


async def test_a_worker_that_still_runs_something_is_answered_at_once(patient: ServedApi) -> None:
    worker = await start_worker(patient, concurrency=4)
    names = [await create(patient), await create(patient)]
    assert len((await worker.claim(take=4))["calls"]) == len(names)
    async with asyncio.timeout(PATIENCE_SECONDS / 2):
        # It waits for its other call, not for this answer: it could not say that the other one has ended.
        assert (await worker.claim(succeeded(names[0]), take=2))["calls"] == []
