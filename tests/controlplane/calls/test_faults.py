"""Batches that fail: what was offered in them is taken back, and claims that wait are served by the next."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from controlplane.calls.waiting import WaitingClaims, WakeMutation
from controlplane.calls.wants import Claimant, Want
from controlplane.errors import ApiError, Reason
from controlplane.store.contract import Mutation, Tx
from tests.fixtures.calls import Calls
from tests.fixtures.eventually import eventually


class FailOnce:
    """A hook behind the dispatcher that fails the first batch after it was armed."""

    def __init__(self) -> None:
        self.armed = False
        self.meanwhile: Callable[[], Awaitable[None]] | None = None

    async def before_commit(self, tx: Tx, connection: object) -> None:
        if self.armed:
            self.armed = False
            if self.meanwhile is not None:
                await self.meanwhile()
            raise ConnectionResetError("the database went away")

    def committed(self) -> None:
        return None

    def rolled_back(self) -> None:
        return None


@pytest.fixture
async def fault(calls: Calls) -> FailOnce:
    await calls.function()
    hook = FailOnce()
    calls.writer.add_hook(hook)
    return hook


async def test_a_call_offered_in_a_batch_that_failed_is_offered_again(calls: Calls, fault: FailOnce) -> None:
    worker = await calls.worker()
    waiting = asyncio.create_task(worker.claim(wait=30))
    await eventually(lambda: calls.waiting.held(worker.claimant.function_uid))
    fault.armed = True
    [name] = await calls.create()
    given, _ = await waiting
    assert [call["id"] for call in given] == [name]
    assert (await calls.row(name) or {})["dispatches"] == 1


async def test_a_claim_in_a_batch_that_failed_is_applied_once(calls: Calls, fault: FailOnce) -> None:
    [name] = await calls.create()
    worker = await calls.worker()
    fault.armed = True
    assert await worker.take() == [name]
    assert (await calls.attempt(worker))["claim_seq"] == 1


async def test_a_client_that_leaves_while_its_offer_is_being_committed_leaves_nothing_behind(
    calls: Calls, fault: FailOnce
) -> None:
    worker = await calls.worker()
    waiting = asyncio.create_task(worker.claim(wait=30))
    await eventually(lambda: calls.waiting.held(worker.claimant.function_uid))
    [want] = calls.waiting.held(worker.claimant.function_uid)

    async def leave() -> None:
        assert want.offered
        calls.waiting.abandon(want)

    fault.armed, fault.meanwhile = True, leave
    [name] = await calls.create()
    assert await waiting == ([], [])
    assert await calls.phase(name) == "Queued"
    assert calls.waiting.held(worker.claimant.function_uid) == []


async def test_waking_held_claims_is_repeated_until_it_works() -> None:
    waiting, written = WaitingClaims(), asyncio.Event()
    attempts: list[Mutation[None]] = []

    async def write(mutation: Mutation[None]) -> None:
        attempts.append(mutation)
        if len(attempts) == 1:
            raise ApiError(Reason.UNAVAILABLE, "the database cannot be reached")
        written.set()

    waking = asyncio.create_task(waiting.run(write, lambda: False))
    waiting.wake(["fn_1"])
    await asyncio.wait_for(written.wait(), 60)
    assert all(isinstance(mutation, WakeMutation) for mutation in attempts)
    waking.cancel()
    await asyncio.gather(waking, return_exceptions=True)


async def test_a_want_is_answered_once() -> None:
    claimant = Claimant(org="o", project="p", function="f", function_uid="u", attempt="a", epoch=1)
    want = Want(claimant, 1, frozenset())
    want.resolve([{"id": "c"}], [])
    want.resolve([], ["x"])
    answer = await want.answer
    assert (answer.calls, answer.cancel) == ([{"id": "c"}], [])
