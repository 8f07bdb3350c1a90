"""Charges a second through the ledger, each in a mutation of its own, committed in groups: `python -m bench ledger`.

A writer as in production on an embedded PostgreSQL that waits for its disk; as many charges are in flight as the group
commit takes. The floor is the same writer with mutations that write nothing but another row beside, so the ratio is
what the double entry, its checks and its sums cost. The ledger is verified at the end: figures of one that does not
balance are worth nothing.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

from bench.bounds import Bound
from controlplane.ledger.invariants import verify
from controlplane.ledger.transfers import Basis, Subject, charge, record
from controlplane.settings import Settings
from controlplane.store.changes import ChangeFeed
from controlplane.store.contract import Mutation, Reads, Tx
from controlplane.store.database import Database
from controlplane.store.migrate import migrate
from controlplane.store.server_clock import DatabaseClock
from controlplane.store.writer import Writer
from workers.engines.child import free_port
from workers.engines.postgres import EmbeddedPostgres

SECONDS = 5.0
IN_FLIGHT = 128
BOUNDS = {"charges_per_second": Bound(least=1_000)}
FLOOR_TABLE = "CREATE TABLE bench_floor (id text PRIMARY KEY, amount bigint NOT NULL)"
FLOOR_PART = "INSERT INTO bench_floor SELECT * FROM json_populate_recordset(NULL::bench_floor, $rows)"


@dataclass(frozen=True)
class Charge:
    """Charges the only dispatch of a call."""

    uid: str

    def reads(self) -> Reads:
        return Reads()

    def apply(self, tx: Tx) -> None:
        subject = Subject(kind="FunctionCall", project="default", name=self.uid, uid=self.uid, function_uid="fn_bench")
        basis = Basis(
            dispatch=1, period_start=tx.now, period_end=tx.now + timedelta(seconds=3),
            rate_micro_usd_per_hour=36_000, shares=1, pricebook="bench",
        )  # fmt: skip
        record(tx, charge("default", basis.cost_micro_usd, subject, basis))


@dataclass(frozen=True)
class Floor:
    """Writes a row, and nobody looks at it."""

    uid: str

    def reads(self) -> Reads:
        return Reads()

    def apply(self, tx: Tx) -> None:
        tx.join(FLOOR_PART, {"id": self.uid, "amount": 30})


async def rate(writer: Writer, make: Callable[[str], Mutation[None]], prefix: str) -> float:
    """Mutations a second that were committed and answered."""
    written = 0
    until = time.perf_counter() + SECONDS

    async def keep_writing(number: int) -> None:
        nonlocal written
        turn = 0
        while time.perf_counter() < until:
            await writer.write(make(f"{prefix}-{number}-{turn}"))
            turn += 1
            written += 1

    begun = time.perf_counter()
    await asyncio.gather(*(keep_writing(number) for number in range(IN_FLIGHT)))
    return written / (time.perf_counter() - begun)


async def measure(rounds: int) -> dict[str, Any]:
    """Take floor and ledger in turns, print the figures and return them."""
    with tempfile.TemporaryDirectory(prefix="nodus-bench-") as folder:
        server = EmbeddedPostgres(Path(folder) / "data", port=free_port(), password="bench", log=Path(folder) / "log")
        await server.start()
        try:
            await migrate(server.url)
            return await _measure(server.url, rounds)
        finally:
            server.stop()


async def _measure(url: str, rounds: int) -> dict[str, Any]:
    settings, database = Settings(database_url=url), Database(url, pool_size=2)
    await database.open()
    await database.execute(FLOOR_TABLE)
    clock, feed = DatabaseClock(database), ChangeFeed(database, settings)
    writer = Writer(database=database, clock=clock, kinds={}, feed=feed, settings=settings)
    for part in (clock, feed, writer):
        await part.start()
    floors: list[float] = []
    charges: list[float] = []
    for turn in range(rounds):
        floors.append(await rate(writer, Floor, f"floor-{turn}"))
        charges.append(await rate(writer, Charge, f"charge-{turn}"))
    for part in (writer, feed, clock):
        await part.stop()
    breaches = await verify(database)
    posted = await database.fetchval("SELECT count(*) FROM ledger_transfers")
    await database.close()
    if breaches:
        raise AssertionError(f"the ledger does not balance: {breaches}")
    ours, floor = median(charges), median(floors)
    print(f"{'posted charges':<34} {ours:>9.0f} /s  floor {floor:>8.0f} /s  ratio {ours / floor:>6.2f}  "
          f"({BOUNDS['charges_per_second']} /s; {posted} in all)")  # fmt: skip
    return {"charges_per_second": ours, "floor_per_second": floor, "posted": posted}
