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
from tests.faults.rest import come_to_rest

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
        answer = await self.clients[0].request("PATCH", f"{ROOT}/functions/{name}", json=patch, headers=headers)
        assert answer.status_code == 200, answer.text

    async def verdict(self) -> list[str]:
        """Stop the Functions, come to rest, and say what is wrong."""
        for proxy in self.cluster.proxies:
            proxy.heal()
        for name in self.functions:
            await self.patch_function(name, {"spec": {"state": "Stopped"}})
        remains = await come_to_rest(self.cluster, self.functions)
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
    async with AsyncExitStack() as stack:
        opened = [
            await stack.enter_async_context(
                Client(f"client-{number}-{index}", function, cluster, random.Random(rng.random()))
            )
            for index in range(clients)
        ]
        await create_function(opened[0], function, spec or {})
        yield Run(cluster, rng, [function], opened)


async def create_function(client: Client, name: str, spec: Mapping[str, Any]) -> None:
    """A Function whose calls scripted workers run."""
    body = {
        "apiVersion": "nodus.dev/v1",
        "kind": "Function",
        "metadata": {"name": name},
        "spec": {**FUNCTION, **spec},
    }
    await client.create(f"{ROOT}/functions", body)
