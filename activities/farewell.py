"""Functions that go, or never begin: their calls end, then their workers, then the object itself.

A deleted Function fails its calls at once, so that nobody waits for them, and keeps its object until the last worker is
gone (finalizer `nodus.dev/workers`). A Function whose workers do not start fails the calls that wait for one, because
their callers would otherwise wait for ever.
"""

from __future__ import annotations

from controlplane import failpoints
from controlplane.calls.decide import Cause
from controlplane.calls.outcomes import CallRules, Outcome
from controlplane.calls.recovery import FailCallsOfFunction, ForgetFunction
from controlplane.resources.deletion import Deleter
from controlplane.store.contract import Key
from controlplane.store.finalizers import WORKERS
from controlplane.store.writer import Writer

CALLS_PER_COMMIT = 200
COMMITS_MAX = 50
"""Steps in one visit; the next visit goes on."""


class Farewell:
    """Ends what belongs to a Function."""

    def __init__(self, writer: Writer, deleter: Deleter, rules: CallRules) -> None:
        self._writer = writer
        self._deleter = deleter
        self._rules = rules

    async def advance(self, key: Key, uid: str, *, alive: bool) -> None:
        """The next step of a Function that is being deleted; the last one when it has no workers and no calls left."""
        if not await self._fail_all(uid, None) or alive:
            return
        # The object goes last: it is what the next visit finds when this one does not come to its end.
        await self._writer.write(ForgetFunction(uid))
        failpoints.reach("function-forgotten")
        await self._deleter.release(key, WORKERS)

    async def fail_calls(self, uid: str, message: str) -> None:
        """Fail the calls of a Function whose workers do not start."""
        detail = f"the Function's workers do not start: {message}" if message else "the Function's workers do not start"
        await self._fail_all(
            uid, Outcome(cause=Cause.BAD_RESULT, ran_until=None, reason="StartupFailed", detail=detail)
        )

    async def _fail_all(self, uid: str, outcome: Outcome | None) -> bool:
        """Whether no call is left."""
        for _ in range(COMMITS_MAX):
            if not await self._writer.write(FailCallsOfFunction(uid, CALLS_PER_COMMIT, self._rules, outcome)):
                return True
        return False
