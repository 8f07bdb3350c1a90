"""Claims whose answers are lost, and words about calls that are over: nothing is run, counted or charged twice."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest

from controlplane.calls.engine import AttachWorkflow
from controlplane.calls.recovery import LoseAttempt
from controlplane.errors import ApiError, Reason
from tests.fixtures.app import CALL, ServedApi
from tests.fixtures.calls import Calls, ScriptedWorker, raised, said, succeeded
from tests.fixtures.cutting_proxy import Cut, cutting_proxy
from tests.fixtures.http_worker import start_worker


@pytest.mark.case("C5")
async def test_calls_whose_hand_out_was_lost_on_the_wire_are_handed_out_again_at_once(project: ServedApi) -> None:
    await project.function()
    created = await project.create(
        "functioncalls", {"metadata": {"generateName": "c-"}, "spec": CALL}, headers={"Idempotency-Key": _key()}
    )
    path = f"{project.path}/functioncalls/{created['metadata']['name']}"
    url = httpx.URL(project.url)
    worker = await start_worker(project)
    async with (
        cutting_proxy(url.host, url.port or 80) as proxy,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{proxy.port}", trust_env=False) as client,
    ):
        worker.api = replace(project, client=client)
        proxy.words, proxy.cut = b'"draining"', Cut.AFTER
        with pytest.raises(httpx.TransportError):
            await worker.claim()
        assert (await project.client.get(path)).json()["status"]["phase"] == "Running"
        assert worker.running == set()
        [given] = (await worker.claim())["calls"]
        assert given["id"] == created["metadata"]["name"]
        await worker.claim(succeeded(given["id"]), take=0)
    status = (await project.client.get(path)).json()["status"]
    assert (status["phase"], status["retries"], status["recoveries"]) == ("Succeeded", 0, 0)
    assert status["costUSD"] == "0.00001"


def _key() -> str:
    return secrets.token_hex(8)


LAST_WORDS: dict[str, Callable[[str], dict[str, Any]]] = {
    "Succeeded": succeeded,
    "Failed": raised,
    # Whatever is reported after a cancel.
    "Cancelled": succeeded,
}
WORDS: list[Callable[[str], dict[str, Any]]] = [
    *LAST_WORDS.values(),
    lambda name: succeeded(name, b"other"),
    lambda name: succeeded(name, bytes(70_000)),
    lambda name: said(name, "Cancelled"),
    lambda name: said(name, "DeadlineExceeded"),
]


@pytest.mark.case("C15")
@pytest.mark.parametrize("phase", LAST_WORDS)
async def test_nothing_that_is_said_of_a_call_after_its_end_changes_it(calls: Calls, phase: str) -> None:
    await calls.function()
    [name] = await calls.create()
    lost, holder = await calls.worker(epoch=1), await calls.worker(epoch=2)
    await lost.take()
    calls.clock.advance(3)
    await calls.writer.write(LoseAttempt(lost.claimant.attempt, 1, calls.clock.now(), calls.rules))
    ref = await calls.ref(name)
    await calls.writer.write(AttachWorkflow(ref, b"t"))
    await calls.writer.write(AttachWorkflow(ref, b"t", offer_after=1))
    assert await holder.take() == [name]
    if phase == "Cancelled":
        await calls.cancel(name)
    calls.clock.advance(2)
    await holder.claim(LAST_WORDS[phase](name), take=0)

    before, owner = await calls.get("FunctionCall", name), holder.claimant.function_uid
    assert before["status"]["phase"] == phase
    assert before["status"]["costUSD"] == "0.00002"  # the first worker was lost by no fault of the call
    calls.clock.advance(60)
    for word in WORDS:
        await holder.claim(word(name), take=0)
        assert await refused(lost, word(name)) is Reason.NOT_FOUND
    await calls.writer.write(LoseAttempt(holder.claimant.attempt, 2, None, calls.rules))
    assert await calls.get("FunctionCall", name) == before
    assert (await calls.queries.loads([owner]))[owner].charge_micro_usd == 20


async def refused(worker: ScriptedWorker, record: dict[str, Any]) -> Reason:
    """Why the worker's claim was refused."""
    with pytest.raises(ApiError) as refusal:
        await worker.claim(record, take=0)
    return refusal.value.reason
