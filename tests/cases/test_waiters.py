"""A caller that waits for one call with the public SDK, while others write, the network breaks and the API restarts."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from nodus import errors
from nodus.api._client import Client

from controlplane.settings import Settings
from controlplane.store.compaction import compact
from tests.fixtures.app import CALL, ServedApi, api_settings, serve
from tests.fixtures.calls import succeeded
from tests.fixtures.eventually import eventually
from tests.fixtures.gateway import Gateway, gateway
from tests.fixtures.http_worker import start_worker

WAITER_SECONDS_MAX = 60


@dataclass
class Waiting:
    """A call, and a client behind a gateway that waits for its end."""

    settings: Settings
    stack: AsyncExitStack
    api: ServedApi
    gateway: Gateway
    name: str
    waiter: asyncio.Task[dict[str, Any]]

    async def restart(self) -> None:
        """End the API and start another one, at another port behind the gateway."""
        await self.stack.aclose()
        self.api = await self.stack.enter_async_context(serve(self.settings, self.api.key))
        self.gateway.target = _address(self.api)

    async def noise(self, writes: int) -> None:
        """Changes of other calls."""
        for start in range(0, writes, 1_000):
            items = [{"metadata": {"generateName": "other-"}, "spec": CALL} for _ in range(min(1_000, writes - start))]
            answer = await self.api.client.post(
                f"{self.api.path}/functions/f/calls",
                json={"apiVersion": "nodus.dev/v1", "kind": "FunctionCallList", "items": items},
                headers={"Idempotency-Key": secrets.token_hex(8)},
                timeout=60,
            )
            assert answer.status_code == 201, answer.text

    async def compact(self) -> None:
        """Forget every change so far, as a day later."""
        core, more = self.api.core, True
        while more:
            later = core.clock.now() + timedelta(hours=self.settings.change_retention_hours + 1)
            more = (await compact(core.database, self.settings, later)).more


def _address(api: ServedApi) -> tuple[str, int]:
    url = httpx.URL(api.url)
    assert url.port is not None
    return url.host, url.port


def is_terminal(call: dict[str, Any]) -> bool:
    return call["status"]["phase"] in ("Succeeded", "Failed", "Cancelled")


@pytest.fixture
async def waiting(database_url: str, tmp_path: Path) -> AsyncIterator[Waiting]:
    # Nobody starts workflows here. Bookmarks come as they do, but sooner.
    settings = api_settings(
        database_url, tmp_path, engine_lag_calls_max=1_000_000, engine_lag_seconds_max=86_400, bookmark_seconds=1
    )
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(serve(settings))
        await api.function()
        created = await api.create(
            "functioncalls", {"metadata": {"name": "awaited"}, "spec": {**CALL, "session": "waiter"}}
        )
        name = created["metadata"]["name"]
        async with gateway(*_address(api)) as front:
            client = Client(api_url=front.url, api_key=api.key, project=api.project_name)
            waiter = asyncio.create_task(client.wait_for("FunctionCall", name, is_terminal))
            await eventually(lambda: front.watches)
            yield Waiting(settings, stack, api, front, name, waiter)
            waiter.cancel()
            await asyncio.gather(waiter, return_exceptions=True)
            await client.aclose()


async def ended(waiting: Waiting) -> dict[str, Any]:
    async with asyncio.timeout(WAITER_SECONDS_MAX):
        return await waiting.waiter


@pytest.mark.case("C51")
async def test_a_waiter_ends_though_the_log_was_compacted_and_the_api_restarted(waiting: Waiting, full: bool) -> None:
    worker = await start_worker(waiting.api)
    waiting.gateway.open = False
    waiting.gateway.cut()
    await waiting.noise(50_000 if full else 2_000)
    await waiting.compact()
    waiting.gateway.open = True
    await eventually(lambda: waiting.gateway.watches)
    await waiting.restart()
    await eventually(lambda: waiting.gateway.watches)
    worker.api = waiting.api
    [given] = (await worker.claim())["calls"]
    assert given["id"] == waiting.name
    await worker.claim(succeeded(waiting.name), take=0)
    assert (await ended(waiting))["status"]["phase"] == "Succeeded"


@pytest.mark.case("C51")
@pytest.mark.parametrize("cut", [False, True], ids=["connected", "cut"])
async def test_a_waiter_is_told_that_its_call_was_deleted(waiting: Waiting, cut: bool) -> None:
    waiting.gateway.open = not cut
    if cut:
        waiting.gateway.cut()
    answer = await waiting.api.client.delete(f"{waiting.api.path}/functioncalls/{waiting.name}")
    assert answer.status_code == 200, answer.text
    waiting.gateway.open = True
    # A call that waits for a worker is cancelled first; whoever waited is told its end or that it is gone.
    try:
        assert (await ended(waiting))["status"]["phase"] == "Cancelled"
    except errors.NotFound:
        pass
