"""Claims that wait for calls: held by request, woken by whichever batch has calls for them.

`WaitingClaims` belongs to one process. The `Dispatcher` offers calls to its wants and tells it how the batch went;
the claims route waits here; the change feed tells it of calls that other processes queued. Nothing here is durable:
a want that is lost with its process is a connection that is lost, and its worker claims again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import structlog

from controlplane.calls.book import CallBook
from controlplane.calls.transitions import Phase
from controlplane.calls.wants import Want, WantAnswer
from controlplane.errors import ApiError
from controlplane.store.contract import Change, ChangeType, Key, Mutation, Reads, Tx

log = structlog.get_logger(__name__)

_RETRY_SECONDS = 1.0
_LAGGING_LOOK_SECONDS = 0.5
_CLAIMABLE_PHASES = frozenset({Phase.QUEUED, Phase.RECOVERING})


class WaitingClaims:
    """The held wants of this process."""

    def __init__(self) -> None:
        self._held: dict[str, dict[Want, None]] = {}
        self._by_attempt: dict[str, Want] = {}
        self._joined: list[Want] = []
        self._woken: set[str] = set()
        self._wake = asyncio.Event()
        self._closed = False

    # The claims route.

    async def wait(self, want: Want, seconds: float, gone: asyncio.Future[Any]) -> WantAnswer:
        """The answer to `want`, empty after `seconds` or as soon as `gone` is done because the client went away."""
        try:
            await asyncio.wait({want.answer, gone}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.abandon(want)
        # An offer that is being committed is answered in a moment, whatever becomes of the commit.
        return await want.answer

    def abandon(self, want: Want) -> None:
        """Nobody waits for `want` any more; what it was offered goes back with the worker's next claim."""
        want.expired = True
        if not want.offered:
            self.release([want])

    def close(self) -> None:
        """Hold no claim any more: this process stops, and the workers claim again elsewhere."""
        self._closed = True
        self.release([want for wants in self._held.values() for want in wants])

    # The dispatcher.

    def held(self, function_uid: str) -> list[Want]:
        """Held wants of a Function in the order they came."""
        return [want for want in self._held.get(function_uid, ()) if not want.expired]

    def join(self, wants: Iterable[Want]) -> None:
        """Wants of the batch that is about to commit."""
        self._joined = list(wants)

    def committed(self) -> None:
        """Answer wants that were given calls and those that do not wait; hold the others."""
        for wants in list(self._held.values()):
            for want in [want for want in wants if want.offered]:
                self._drop(want)
                want.resolve(want.offered, [])
        for want in self._joined:
            if want.offered or not want.hold or want.expired or self._closed:
                want.resolve(want.offered, [])
            else:
                self._hold(want)
        self._joined = []

    def rolled_back(self) -> None:
        """Forget what was offered; the batch may come again."""
        for wants in list(self._held.values()):
            for want in [want for want in wants if want.offered]:
                want.offered, want.full = [], False
                if want.expired:
                    self.release([want])
        for want in self._joined:
            want.offered = []
        self._joined = []

    def release(self, wants: Iterable[Want]) -> None:
        """Answer held wants with nothing."""
        for want in wants:
            self._drop(want)
            want.resolve([], [])

    # The change feed.

    def on_changes(self, changes: Sequence[Change]) -> None:
        """Wake for calls that became claimable elsewhere and Functions that started; answer workers about cancels."""
        if not self._held:
            return
        functions = {change.key for change in changes if _starts_or_stops(change)}
        if any(_frees_money(change) for change in changes):
            self.wake(self._held)
        # A call that was queued and handed out in one batch is no news: only its last change counts.
        last = {change.key: change for change in changes if change.key.kind == "FunctionCall"}
        for key, change in last.items():
            phase = change.fields.get("status.phase") if change.type is not ChangeType.DELETED else None
            if phase in _CLAIMABLE_PHASES:
                functions.add(Key("Function", key.org, key.project, change.fields.get("spec.function", "")))
            elif phase == Phase.CANCELLING:
                self._cancel(key)
            elif phase == Phase.CANCELLED:
                self._free(key)
        self.wake(uid for uid, wants in self._held.items() if next(iter(wants)).claimant.function_key in functions)

    def wake(self, function_uids: Iterable[str]) -> None:
        """Let the next batch look at the queues of these Functions."""
        self._woken.update(function_uids)
        if self._woken:
            self._wake.set()

    async def run(self, write: Callable[[Mutation[None]], Awaitable[None]], is_gated: Callable[[], bool]) -> None:
        """Turn wake-ups into batches, until cancelled.

        While the engine lags, calls become claimable without a change of their object, so held claims look again now
        and then.
        """
        while True:
            try:
                async with asyncio.timeout(_LAGGING_LOOK_SECONDS if self._held else None):
                    await self._wake.wait()
            except TimeoutError:
                if is_gated():
                    self._woken |= self._held.keys()
            self._wake.clear()
            woken, self._woken = self._woken, set()
            if not woken:
                continue
            try:
                await write(WakeMutation(woken))
            except ApiError as error:
                log.warning("held claims could not be served, trying again", error=error.message)
                await asyncio.sleep(_RETRY_SECONDS)
                self._woken |= woken
                self._wake.set()

    def _cancel(self, call: Key) -> None:
        for wants in list(self._held.values()):
            for want in [want for want in wants if call.name in want.running and not want.offered]:
                if (want.claimant.org, want.claimant.project) == (call.org, call.project):
                    self._drop(want)
                    want.resolve([], [call.name])

    def _free(self, call: Key) -> None:
        """The place of a call that has stopped is free: let its worker ask for more."""
        for wants in list(self._held.values()):
            self.release(
                want
                for want in list(wants)
                if call.name in want.stopping
                and not want.offered
                and (want.claimant.org, want.claimant.project) == (call.org, call.project)
            )

    def _hold(self, want: Want) -> None:
        older = self._by_attempt.get(want.claimant.attempt)
        if older is not None:
            # The worker's earlier request was cut off, or it would not have sent another.
            self.release([older])
        self._by_attempt[want.claimant.attempt] = want
        if not self._held:
            self._wake.set()
        self._held.setdefault(want.claimant.function_uid, {})[want] = None

    def _drop(self, want: Want) -> None:
        wants = self._held.get(want.claimant.function_uid)
        if wants is None or want not in wants:
            return
        del wants[want]
        if not wants:
            del self._held[want.claimant.function_uid]
        if self._by_attempt.get(want.claimant.attempt) is want:
            del self._by_attempt[want.claimant.attempt]


def _frees_money(change: Change) -> bool:
    """Whether a Budget may have room for more than before; what it has spent is in its status, and changes often."""
    if change.key.kind != "Budget" or change.previous_fields is None:
        return False
    names = ("spec.limitUSD", "spec.action", "spec.scope.project")
    return change.type is ChangeType.DELETED or any(
        change.fields.get(name) != change.previous_fields.get(name) for name in names
    )


def _starts_or_stops(change: Change) -> bool:
    """Whether a Function was started or stopped, or its cap changed; its status, which changes far more often, decides
    nothing here."""
    if change.key.kind != "Function" or change.previous_fields is None:
        return False
    names = ("spec.state", "spec.maxCostUSD")
    return any(change.fields.get(name) != change.previous_fields.get(name) for name in names)


class WakeMutation:
    """Changes nothing: its batch looks at the queues of these Functions for the claims that are held."""

    def __init__(self, function_uids: Iterable[str]) -> None:
        self._function_uids = frozenset(function_uids)

    def reads(self) -> Reads:
        return Reads()

    def apply(self, tx: Tx) -> None:
        CallBook.of(tx).claimable |= self._function_uids
