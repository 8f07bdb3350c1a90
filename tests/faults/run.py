"""One fault run: Functions, clients whose calls are of every kind, something that goes wrong meanwhile, the verdict."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tests.faults.checker import check
from tests.faults.clients import ROOT, Client
from tests.faults.cluster import Cluster
from tests.faults.history import STARTED, Event, read_history
from tests.faults.plans import FUNCTION
from tests.faults.rest import come_to_rest, read_remains
from tests.fixtures.wire import checked_client

MIX = ("succeed",) * 8 + ("blob", "json", "retry", "slow", "raise", "cancel", "delete")
"""The kinds of one map, before they are shuffled."""
COSTLY = ("deadline",)
"""What the map of one client may have besides: a deadline costs its worker, so there are few of them."""
_numbers = itertools.count()


@dataclass
class Run:
    """What a test holds while its faults happen. `functions` are this run's own."""

    cluster: Cluster
    rng: random.Random
    functions: list[str]
    clients: list[Client]

    async def make_maps(
        self, bound_seconds: float, kinds: Sequence[str] = MIX, besides: Sequence[str] = ()
    ) -> list[list[str]]:
        """One map of these kinds by each client, to its end, that of the first with some `besides`; the phases."""
        maps = [[*kinds, *(besides if client is self.clients[0] else ())] for client in self.clients]
        return await asyncio.gather(
            *(
                client.make_and_wait(self.rng.sample(made, len(made)), bound_seconds)
                for client, made in zip(self.clients, maps, strict=True)
            )
        )

    def open_gate(self) -> None:
        """Let the calls that are held go on."""
        self.clients[0].gate.touch()

    async def patch_function(self, name: str, patch: Mapping[str, Any]) -> None:
        """Change a Function."""
        headers = {"Content-Type": "application/merge-patch+json"}
        await self.clients[0].request("PATCH", f"{ROOT}/functions/{name}", json=patch, headers=headers)

    async def verdict(self) -> list[str]:
        """Come to rest, and say what is wrong."""
        await come_to_rest(self.cluster, self.functions)
        remains = await read_remains(self.cluster, self.functions)
        return check(self.history(), remains)

    def history(self) -> list[Event]:
        """What clients of this run and all workers saw."""
        ours = {client.name for client in self.clients}
        events = read_history(self.cluster.history)
        calls = {event["call"] for event in events if event["by"] in ours}
        return [event for event in events if event["event"] == STARTED or event.get("call") in calls]


@asynccontextmanager
async def fault_run(
    cluster: Cluster, *, seed: int, clients: int = 4, spec: Mapping[str, Any] | None = None
) -> AsyncIterator[Run]:
    """A run with a Function and clients of its own. The seed is printed, since a failed test shows its output."""
    print(f"seed {seed}")  # noqa: T201
    number = next(_numbers)
    function = f"work-{number}"
    rng = random.Random(seed)
    await create_function(cluster, function, spec or {})
    async with AsyncExitStack() as stack:
        opened = [
            await stack.enter_async_context(
                Client(f"client-{number}-{index}", function, cluster, random.Random(rng.random()))
            )
            for index in range(clients)
        ]
        yield Run(cluster, rng, [function], opened)


async def create_function(cluster: Cluster, name: str, spec: Mapping[str, Any]) -> None:
    """A Function whose calls scripted workers run."""
    body = {
        "apiVersion": "nodus.dev/v1",
        "kind": "Function",
        "metadata": {"name": name},
        "spec": {**FUNCTION, **spec},
    }
    headers = {"Authorization": f"Bearer {cluster.key}"}
    async with checked_client(base_url=cluster.urls[0], headers=headers, timeout=20) as client:
        answer = await client.post(f"{ROOT}/functions", json=body)
        assert answer.status_code == 201, answer.text
