"""How long a caller of single calls waits behind others' maps, counted in hand-outs: no clock decides it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from controlplane.settings import Settings
from tests.fixtures.app import CALL, ServedApi, api_settings, serve
from tests.fixtures.calls import succeeded
from tests.fixtures.http_worker import HttpWorker, start_worker


@dataclass
class Line:
    """A Function's queue and its workers, who work in turn; the API may be restarted."""

    settings: Settings
    stack: AsyncExitStack
    api: ServedApi
    workers: list[HttpWorker] = field(default_factory=list)
    handed_out: list[str] = field(default_factory=list)
    """Names of calls in the order they were given."""

    async def restart(self) -> None:
        """End the API and start another one on the same database."""
        await self.stack.aclose()
        self.api = await self.stack.enter_async_context(serve(self.settings, self.api.key))
        for worker in self.workers:
            worker.api = self.api

    async def map(self, sessions: Sequence[str]) -> None:
        """One call for each session named."""
        for start in range(0, len(sessions), 1_000):
            items = [_call(session) for session in sessions[start : start + 1_000]]
            answer = await self.api.client.post(
                f"{self.api.path}/functions/f/calls",
                json={"apiVersion": "nodus.dev/v1", "kind": "FunctionCallList", "items": items},
                headers={"Idempotency-Key": secrets.token_hex(8)},
                timeout=60,
            )
            assert answer.status_code == 201, answer.text

    async def waited(self, session: str) -> int:
        """How many other calls are given to workers between a new call of the session and this one."""
        created = await self.api.create(
            "functioncalls", _call(session), headers={"Idempotency-Key": secrets.token_hex(8)}
        )
        name, before = created["metadata"]["name"], len(self.handed_out)
        while name not in self.handed_out[before:]:
            await self.turn()
        return self.handed_out[before:].index(name)

    async def turn(self) -> None:
        """Each worker reports what it ran and takes one call, one worker after the other."""
        for worker in self.workers:
            given = await worker.claim(*[succeeded(call) for call in sorted(worker.running)])
            self.handed_out += [call["id"] for call in given["calls"]]


def _call(session: str) -> dict[str, Any]:
    return {"metadata": {"generateName": "c-"}, "spec": {**CALL, "session": session}}


@pytest.fixture
async def line(database_url: str, tmp_path: Path) -> AsyncIterator[Line]:
    # Nobody starts workflows here.
    settings = api_settings(database_url, tmp_path, engine_lag_calls_max=1_000_000, engine_lag_seconds_max=86_400)
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(serve(settings))
        await api.function()
        yield Line(settings, stack, api)


@pytest.mark.case("C42")
@pytest.mark.parametrize("workers", [1, 3])
async def test_single_calls_wait_one_turn_behind_a_large_map_and_a_restart_changes_nothing(
    line: Line, full: bool, workers: int
) -> None:
    line.workers = [await start_worker(line.api) for _ in range(workers)]
    await line.map(["map"] * (10_000 if full else 1_000))
    await line.turn()
    for number in range(20):
        if number == 10:
            await line.restart()
        assert await line.waited("single") <= 1
    assert len(line.handed_out) >= 40


@pytest.mark.case("C42")
async def test_a_tenant_of_a_hundred_sessions_makes_others_wait_one_turn_of_each_and_no_more(line: Line) -> None:
    line.workers = [await start_worker(line.api)]
    sessions = [f"shard-{number}" for number in range(100)]
    await line.map(sessions * 2)
    for _ in range(2):
        assert await line.waited("single") <= len(sessions)


@pytest.mark.case("C42")
async def test_callers_at_the_same_time_each_wait_one_turn_of_the_others(line: Line) -> None:
    line.workers = [await start_worker(line.api)]
    await line.map(["map"] * 100)
    callers = [f"caller-{number}" for number in range(8)]
    await line.turn()
    await asyncio.gather(*(line.map([caller]) for caller in callers))
    before = len(line.handed_out)
    for _ in range(len(callers) + 1):
        await line.turn()
    calls = (await line.api.client.get(f"{line.api.path}/functioncalls", params={"limit": 500})).json()["items"]
    session_of = {call["metadata"]["name"]: call["spec"]["session"] for call in calls}
    turns = [session_of[name] for name in line.handed_out[before:]]
    assert sorted(turns) == sorted([*callers, "map"])
