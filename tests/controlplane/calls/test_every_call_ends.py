"""Random lives: whatever workers, callers, nodes and workflows do, every call ends once and is charged once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from controlplane.calls.decide import Finish, decide
from controlplane.calls.engine import AttachWorkflow, CallOutcome, FinishCall, MarkReported
from controlplane.calls.recovery import EndOverdue, LoseAttempt
from controlplane.calls.transitions import TERMINAL
from controlplane.capacity.endings import WorkerEnd
from controlplane.machinery.quantities import parse_money
from controlplane.resources.mutations import RaceLostError
from tests.fixtures.calls import Calls, MarkStarted, ScriptedWorker, raised, said, succeeded

SESSIONS = ("", "one", "two", "three")


@dataclass
class Chaos:
    """Everybody around the calls, acting at random."""

    calls: Calls
    dice: random.Random
    names: list[str] = field(default_factory=list)
    workers: list[ScriptedWorker] = field(default_factory=list)

    async def act(self) -> None:
        await self.dice.choices(
            [self.create, self.report, self.lose_reply, self.cancel, self.lose_worker, self.overdue, self.engine],
            [2, 8, 1, 1, 1, 1, 4],
        )[0]()
        self.calls.clock.advance(self.dice.choice([0, 0.3, 1, 7]))

    async def create(self) -> None:
        count = self.dice.randint(1, 4)
        self.names += await self.calls.create(*[self.dice.choice(SESSIONS) for _ in range(count)], timeout="20s")

    async def worker(self) -> ScriptedWorker:
        if len(self.workers) < 3:
            self.workers.append(await self.calls.worker(concurrency=2))
        return self.dice.choice(self.workers)

    async def report(self) -> None:
        worker = await self.worker()
        ends = [self.dice.choice(ENDS)(name) for name in sorted(worker.running) if self.dice.random() < 0.6]
        room = 2 - len(worker.running) + len(ends)
        _, stop = await worker.claim(*ends, take=max(0, room))
        await self.suspects_run_alone()
        for name in stop:
            worker.running.pop(name, None)
        if (await self.calls.attempt(worker))["draining"]:
            await self.drain(worker)

    async def suspects_run_alone(self) -> None:
        shared = "SELECT attempt FROM calls WHERE state = 'running' GROUP BY attempt HAVING bool_or(suspect)"
        assert not await self.calls.database.fetch(f"{shared} AND count(*) > 1")

    async def drain(self, worker: ScriptedWorker) -> None:
        self.workers.remove(worker)
        await worker.claim(*[succeeded(name) for name in worker.running], take=0, draining=True)
        await self.lose(worker)

    async def lose_reply(self) -> None:
        worker = await self.worker()
        before = dict(worker.running)
        await worker.claim(take=2 - len(before))
        worker.running = before

    async def cancel(self) -> None:
        if not self.names:
            return
        try:
            await self.calls.cancel(self.dice.choice(self.names))
        except RaceLostError:
            return

    async def lose_worker(self) -> None:
        if self.workers and self.dice.random() < 0.4:
            await self.lose(self.workers.pop())

    async def lose(self, worker: ScriptedWorker) -> None:
        seen = self.calls.clock.now() if self.dice.random() < 0.5 else None
        end = WorkerEnd(outcome="Exited", exit_code=1) if seen is not None and self.dice.random() < 0.5 else None
        await self.calls.writer.write(LoseAttempt(worker.claimant.attempt, 1, seen, self.calls.rules, end))

    async def overdue(self) -> None:
        for attempt in await self.calls.queries.attempts_with_overdue_calls(self.calls.clock.now(), 60, 30, 10):
            await self.calls.writer.write(EndOverdue(attempt, self.calls.rules))

    async def engine(self) -> None:
        """A starter that starts, workflows that decide, and reports that are sometimes lost."""
        queries, write = self.calls.queries, self.calls.writer.write
        found = (*await queries.to_decide(5), *await queries.behind(5), *await queries.queued(2))
        started = [call.ref for call in found]
        await write(MarkStarted(started))
        for ref in started:
            outcome = await write(AttachWorkflow(ref, self.dice.randbytes(4)))
            if outcome is not None:
                await self.workflow_learns(ref.name, outcome)
        for unreported in await queries.unreported(5):
            if self.dice.random() < 0.7:
                await write(MarkReported(unreported.ref, unreported.token))
                await self.workflow_learns(unreported.ref.name, unreported.outcome)

    async def workflow_learns(self, name: str, outcome: CallOutcome) -> None:
        if outcome.facts is None:
            return
        ref = await self.calls.ref(name)
        match decide(outcome.facts):
            case Finish() as finish:
                await self.calls.writer.write(FinishCall(ref, outcome.facts.dispatch, finish))
            case _:
                token = self.dice.randbytes(4)
                again = await self.calls.writer.write(AttachWorkflow(ref, token, outcome.facts.dispatch))
                if again is not None:
                    await self.workflow_learns(name, again)

    async def settle(self) -> None:
        """Everybody behaves until nothing is open."""
        for _ in range(200):
            worker = await self.worker()
            await worker.claim(*[succeeded(name) for name in worker.running], take=2)
            if (await self.calls.attempt(worker))["draining"]:
                await self.drain(worker)
            # A call that its worker let go, and of which nothing more is told, ends by the sweeper only.
            await self.overdue()
            await self.engine()
            self.calls.clock.advance(1)
            if not await self.calls.database.fetch("SELECT 1 FROM calls"):
                return
        raise AssertionError(await self.calls.database.fetch("SELECT name, state, outcome FROM calls"))


def late(name: str) -> dict[str, Any]:
    return said(name, "DeadlineExceeded")


def cancelled(name: str) -> dict[str, Any]:
    return said(name, "Cancelled")


def huge(name: str) -> dict[str, Any]:
    return succeeded(name, bytes(70_000))


ENDS: list[Callable[[str], dict[str, Any]]] = [succeeded, succeeded, raised, late, cancelled, huge]


@pytest.mark.parametrize("seed", range(4))
async def test_every_call_ends_once_is_charged_once_and_leaves_nothing(calls: Calls, seed: int) -> None:
    function = await calls.function(retries={"maxRetries": 2}, recovery={"maxAttempts": 2})
    chaos = Chaos(calls, random.Random(seed))
    for _ in range(150):
        await chaos.act()
    await chaos.settle()
    ends = Counter(name for name, phase in calls.changes if phase in TERMINAL)
    assert ends == Counter(chaos.names)
    statuses = [await calls.status(name) for name in chaos.names]
    # One loss that others may have caused does not count towards the limit.
    assert all(status["retries"] <= 2 and status["recoveries"] <= 3 for status in statuses)
    uid = function["metadata"]["uid"]
    load = (await calls.queries.loads([uid]))[uid]
    assert load.charge_micro_usd == sum(parse_money(status["costUSD"]) for status in statuses)
    assert (load.queued, load.running, load.pending) == (0, 0, 0)
    assert await calls.queries.busy_loads() == []
