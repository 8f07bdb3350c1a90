"""The activities of a call's workflow: attach to the call's row, end the call.

`run_call` puts its task token into the row and gives its slot back at once; whoever sees the outcome in the row
completes it (`activities/starter.py`). When there is an outcome already, which is the rule after a burst, it is
returned directly. All state is in SQL, so an activity that is lost is simply scheduled again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from temporalio import activity

from activities.run_call_contract import (
    FINISH_CALL,
    RUN_CALL,
    CallOutcome,
    CallReference,
    FinishCallInput,
    RunCallInput,
)
from controlplane import failpoints
from controlplane.calls import engine
from controlplane.calls.decide import Finish
from controlplane.calls.rows import CallRef
from controlplane.store.writer import Writer


class CallActivities:
    """Activities of `FunctionCallWorkflow`. `attached` is told the uid of every call whose workflow has come."""

    def __init__(self, writer: Writer, attached: Callable[[str], None]) -> None:
        self._writer = writer
        self._attached = attached

    @activity.defn(name=RUN_CALL)
    async def run_call(self, wait: RunCallInput) -> CallOutcome:
        """Offer the call again if that was decided, and return or await the end of its dispatch."""
        token = activity.info().task_token
        outcome = await self._writer.write(engine.AttachWorkflow(reference(wait.call), token, wait.offer_after))
        failpoints.reach("call-attached")
        self._attached(wait.call.uid)
        if outcome is None:
            activity.raise_complete_async()
        return CallOutcome(**outcome.to_json())

    @activity.defn(name=FINISH_CALL)
    async def finish_call(self, end: FinishCallInput) -> str | None:
        """End the call as decided; the phase it ended in, or None when it went on meanwhile."""
        finish = Finish(phase=end.phase, reason=end.reason, message=end.message)
        ended = await self._writer.write(engine.FinishCall(reference(end.call), end.dispatch, finish))
        return None if ended is None else ended.phase

    @property
    def all(self) -> Sequence[Callable[..., Any]]:
        """What a worker registers."""
        return [self.run_call, self.finish_call]


def reference(call: CallReference) -> CallRef:
    """The call as the domain names it."""
    return CallRef(uid=call.uid, org=call.org, project=call.project, name=call.name)
