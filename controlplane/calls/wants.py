"""A claim's wish for calls, from the request that brings it to the reply that answers it.

A `Want` is made by the claims route, checked by `ClaimMutation` and served by the `Dispatcher`: in the claim's own
batch, or while the request is held, in whichever later batch makes a call claimable. It lives in the process that
holds the request; what it was given is also in the `calls` rows, so a lost reply is found and undone by the next
claim.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from controlplane.ledger.pricing import FREE
from controlplane.store.contract import Key


@dataclass(frozen=True, kw_only=True)
class Claimant:
    """The worker that claims, as its token says."""

    org: str
    project: str
    function: str
    function_uid: str
    attempt: str
    epoch: int

    @property
    def function_key(self) -> Key:
        """The address of the Function it serves."""
        return Key("Function", self.org, self.project, self.function)


class Want:
    """Up to `calls_max` calls for one worker, wanted by one request."""

    def __init__(self, claimant: Claimant, calls_max: int, running: frozenset[str]) -> None:
        self.claimant = claimant
        self.calls_max = calls_max
        self.running = running
        self.claim_seq = 0
        """The claim's number, set in its transaction; a later claim of the worker makes this wish void."""
        self.concurrency = 1
        """How many calls share the worker, set in the claim's transaction; the price of a call depends on it."""
        self.price = FREE
        """What the worker costs, set there too."""
        self.hold = False
        """Whether the request waits for calls when there are none now."""
        self.stopping: frozenset[str] = frozenset()
        """Calls that its worker says it has stopped and whose threads may run on: their places are not free."""
        self.full = False
        """It takes no more, whatever its worker asked for: a call runs alone there, or waits for it to be idle."""
        self.offered: list[dict[str, Any]] = []
        """Calls given in a batch that is not committed yet."""
        self.expired = False
        """The request no longer waits; it only sees an offer through that is being committed."""
        self.answer: asyncio.Future[WantAnswer] = asyncio.get_running_loop().create_future()

    @property
    def room(self) -> int:
        """How many more calls it takes."""
        return 0 if self.full else max(0, self.calls_max - len(self.stopping) - len(self.offered))

    @property
    def load(self) -> int:
        """How many calls its worker has; the least loaded is served first."""
        return len(self.running) + len(self.stopping) + len(self.offered)

    def withdraw(self) -> None:
        """Take no calls and wait for none."""
        self.calls_max, self.hold = 0, False

    def resolve(self, calls: list[dict[str, Any]], cancel: list[str]) -> None:
        """Answer the request; a wish is answered once."""
        if not self.answer.done():
            self.answer.set_result(WantAnswer(calls=calls, cancel=cancel))


@dataclass(frozen=True, kw_only=True)
class WantAnswer:
    """What a wish was answered with: calls to run, ids to stop."""

    calls: list[dict[str, Any]]
    cancel: list[str]
