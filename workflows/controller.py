"""The election of a controller: one workflow with a fixed id, one heartbeating activity.

Whichever control process takes the activity runs the loop. If that process dies or stalls, the heartbeat is missed and
another one takes over within seconds. All state of the loops is in SQL, so a change of hands loses nothing, and two
that overlap for a moment only do some work twice.
"""

from __future__ import annotations

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, CancelledError

from activities.controller_contract import RUN_CONTROLLER, ControllerInput
from workflows.journal import Journal

FOREVER = RetryPolicy(
    initial_interval=timedelta(milliseconds=200), backoff_coefficient=1.5, maximum_interval=timedelta(seconds=1)
)

SILENT_MAX = timedelta(seconds=5)
TAKEN_MAX = timedelta(seconds=60)
"""A task that matching lost would otherwise never be noticed; an activity that waits longer is scheduled again."""
RUN_MAX = timedelta(hours=1)
"""Twice as long as the loop runs before it returns on its own."""
ROUND_MAX = timedelta(hours=2)


@workflow.defn
class ControllerWorkflow:
    """Keeps one controller running for ever; its id is `controller/<name>`. Continues as new with every round."""

    @workflow.init
    def __init__(self, controller: ControllerInput) -> None:
        self._journal = Journal("waiting for a control process", controller.journal)

    @workflow.run
    async def run(self, controller: ControllerInput) -> None:
        """Run the loop once more, then begin again with an empty history."""
        self._journal.enter(f"a control process runs the {controller.name}, or is about to")
        try:
            await workflow.execute_activity(
                RUN_CONTROLLER,
                ControllerInput(name=controller.name),
                schedule_to_start_timeout=TAKEN_MAX,
                start_to_close_timeout=RUN_MAX,
                schedule_to_close_timeout=ROUND_MAX,
                heartbeat_timeout=SILENT_MAX,
                retry_policy=FOREVER,
            )
        except ActivityError as error:
            if isinstance(error.cause, CancelledError):
                raise
            cause = type(error.cause).__name__
            workflow.logger.warning("the controller's round failed: %s", cause)
            self._journal.decide(f"the round failed ({cause}): begin another")
        else:
            self._journal.decide("the round is over: begin another")
        workflow.continue_as_new(ControllerInput(name=controller.name, journal=self._journal.carry()))
