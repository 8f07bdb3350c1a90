"""What all actors of one run share, and how a run is told and repeated."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import httpx

from tests.fixtures.replicas import Replica
from tests.fixtures.wire import checked_client
from tests.oracle.auditor import Auditor

logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for each request would hide the result of the run

ROOT = "/apis/nodus.dev/v1"
PROJECTS = ("default", "other")
FAILURES_MAX = 10
SILENCE_SECONDS_MAX = 30.0
"""A watch with bookmarks that says nothing for this long has been forgotten."""
_SMALL_BUFFER_BYTES = 4_096


@dataclass
class Storm:
    """One run: its chance, its servers, and what came of it."""

    seed: int
    key: str
    replicas: Sequence[Replica]
    auditor: Auditor
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when writers and faults are to end."""
    calm: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when they have, and watchers are to catch up."""
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def chance(self, actor: str) -> random.Random:
        """The actor's own: what the others draw does not matter to it."""
        return random.Random(f"{self.seed}/{actor}")

    def fail(self, actor: str, problems: Sequence[str]) -> None:
        """Take note of what must not be; a few are enough to end the run."""
        self.failures += [f"{actor}: {problem}" for problem in problems]
        if self.failures:
            self.over.set()
            self.calm.set()
        if len(self.failures) > FAILURES_MAX:
            del self.failures[FAILURES_MAX:]

    def client(self, *, slow: bool = False) -> httpx.AsyncClient:
        """A client of the admin; a slow one has a small buffer, so that the server notices when it does not read."""
        options = [(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL_BUFFER_BYTES)] if slow else None
        return checked_client(
            headers={"Authorization": f"Bearer {self.key}"},
            timeout=httpx.Timeout(SILENCE_SECONDS_MAX, connect=5.0),
            transport=httpx.AsyncHTTPTransport(socket_options=options),
        )

    def url(self, chance: random.Random, plural: str, project: str | None) -> str:
        """A collection at any of the servers."""
        below = f"/namespaces/{project}" if project is not None else ""
        return f"{chance.choice(self.replicas).url}{ROOT}{below}/{plural}"

    async def pause(self, seconds: float) -> None:
        """Wait, but not beyond the storm."""
        try:
            async with asyncio.timeout(seconds):
                await self.over.wait()
        except TimeoutError:
            pass

    def told(self) -> str:
        """The run in a few lines."""
        counts = ", ".join(f"{count} {name}" for name, count in sorted(self.counts.items()))
        return f"seed {self.seed}: {self.auditor.log.last_rv} changes, {counts}"
