"""Whatever happens to workers and calls, in whatever order: calls, free places, starts and stops are the total, and
that is the ledger."""

from __future__ import annotations

import random
from typing import Any

import pytest

from activities.ledger_keeper import LedgerKeeper
from controlplane.calls.engine import AttachWorkflow
from controlplane.calls.function_charges import FunctionAuditor
from controlplane.calls.rows import CallState
from controlplane.capacity.endings import WorkerEnd
from controlplane.ledger.accounts import set_floor
from controlplane.ledger.credits import GrantCredit
from controlplane.machinery.quantities import parse_money
from controlplane.store.contract import Key
from tests.fixtures.calls import ORG, PROJECT, Calls, ScriptedWorker, raised, succeeded
from tests.fixtures.paid_workers import PaidWorkers

STEPS = 60
ENDS = (
    WorkerEnd(outcome="NodeLost"),
    WorkerEnd(outcome="Drained", exit_code=0),
    WorkerEnd(outcome="Exited", signal=11),
    WorkerEnd(outcome="Killed", signal=9),
)


class Lives:
    """A few workers that are started, used and ended at random."""

    def __init__(self, calls: Calls, paid: PaidWorkers, chance: random.Random) -> None:
        self.calls, self.paid, self.chance = calls, paid, chance
        self.workers: list[ScriptedWorker] = []
        self.ended: list[ScriptedWorker] = []
        self.granted = 0

    async def start(self) -> None:
        if len(self.workers) == 3 or not await self.affordable():
            return
        self.workers.append(await self.paid.ready(boot_seconds=self.chance.choice([0, 0.3, 7.9])))

    async def affordable(self) -> bool:
        holdable = (await self.paid.balance()).holdable_micro_usd
        least = self.calls.funding.least_micro_usd(self.calls.price.rate_micro_usd_per_hour, self.paid.billing)
        return holdable is None or holdable >= least

    async def call(self) -> None:
        await self.calls.create(*self.chance.sample("abcde", 2), timeout="3600s")

    async def work(self) -> None:
        for worker in self.workers:
            done = [self.report(name) for name in worker.running if self.chance.random() < 0.5]
            await worker.claim(*done, take=self.chance.randint(0, 2 - len(worker.running) + len(done)))

    def report(self, name: str) -> dict[str, Any]:
        return succeeded(name) if self.chance.random() < 0.7 else raised(name)

    async def drain(self) -> None:
        if self.workers:
            await self.paid.drain(self.chance.choice(self.workers))

    async def end(self) -> None:
        if not self.workers:
            return
        worker = self.workers.pop(self.chance.randrange(len(self.workers)))
        for _ in range(2):
            await self.paid.end(worker, self.chance.choice(ENDS))
        self.ended.append(worker)
        await self.offer_again()

    async def offer_again(self) -> None:
        """What the workflows of calls do that lost their workers."""
        rows = await self.calls.database.fetch(
            "SELECT name, dispatches FROM calls WHERE state = $1", CallState.DECIDING
        )
        for row in rows:
            ref = await self.calls.ref(row["name"])
            await self.calls.writer.write(AttachWorkflow(ref, b"t"))
            await self.calls.writer.write(AttachWorkflow(ref, b"t", offer_after=row["dispatches"]))

    async def renew(self) -> None:
        await self.paid.keeper.renew()

    async def expire(self) -> None:
        await LedgerKeeper(self.calls.database, self.calls.writer, self.calls.clock).expire_holds()

    async def grant(self) -> None:
        self.granted += 1
        await self.calls.writer.write(GrantCredit(ORG, str(self.granted), self.chance.randint(1, 5_000), ""))

    async def step(self) -> None:
        doings = (self.start, self.call, self.work, self.work, self.work, self.drain, self.end, self.renew, self.expire)
        await self.chance.choice([*doings, self.grant])()
        self.calls.clock.advance(self.chance.choice([0, 0.2, 1, 3.7, 60, 290]))


@pytest.mark.parametrize("seed", range(8))
async def test_the_parts_of_random_lives_are_their_total_and_the_ledger(
    calls: Calls, paid: PaidWorkers, seed: int
) -> None:
    lives = Lives(calls, paid, random.Random(seed))
    if seed % 2:
        await set_floor(calls.database, ORG, 0)
    for _ in range(STEPS):
        await lives.step()
        assert (await FunctionAuditor(calls.database).charges(Key("Function", ORG, PROJECT, "f")))["status"]["equal"]
    while lives.workers:
        await lives.end()
    told = (await FunctionAuditor(calls.database).charges(Key("Function", ORG, PROJECT, "f")))["status"]
    assert told["equal"], told["differences"]
    assert told["heldUSD"] == "0.00"
    attempts = [parse_money((await paid.actual(worker))["costUSD"]) for worker in lives.ended]
    rows = await calls.database.fetch(
        "SELECT doc -> 'status' ->> 'costUSD' AS told FROM objects WHERE kind = $1", "FunctionCall"
    )
    parts = {part["part"]: parse_money(part["amountUSD"]) for part in told["parts"]}
    assert sum(attempts) == sum(parts.values()) == await paid.total() == parse_money(told["ledgerUSD"])
    assert sum(parse_money(row["told"] or "0") for row in rows) == parts.get("Calls", 0)
    assert (await paid.balance()).held_micro_usd == 0
