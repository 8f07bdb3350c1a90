"""One call: wait for the end of a dispatch, decide, offer the call again or end it.

Workers are matched to calls in SQL, so this workflow does not dispatch anything: it is the call's patience. It waits
in one activity, `run_call`, which is completed from outside when a dispatch has ended. Nearly always that end is final
and already written, and the workflow is over after one activity and 11 events. A call that was over before its
workflow started, which is the rule after a burst, brings its end along: 5 events, half of what an activity costs.
Nothing may be added to either. A retry, a lost worker or an end that nobody applied yet is decided here, by the rule
in `controlplane/calls/decide.py`. History holds ids, counts and decisions, never what a user passed or returned.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError

from activities.run_call_contract import (
    FINISH_CALL,
    RUN_CALL,
    CallOutcome,
    CallReference,
    FinishCallInput,
    FunctionCallInput,
    RunCallInput,
)
from controlplane.calls.decide import Facts, Finish, Recover, Retry, decide
from workflows.decisions import reissue_delay, told_decision
from workflows.journal import Journal

# An attempt of `run_call` holds no state, so the workflow schedules a new one instead of letting the server repeat it.
ONCE = RetryPolicy(maximum_attempts=1)
UNTIL_WRITTEN = RetryPolicy(initial_interval=timedelta(milliseconds=500), maximum_interval=timedelta(seconds=30))

# A call may wait for a worker for as long as its caller likes; after this the same wait simply begins again.
WAIT_MAX = timedelta(days=7)
WRITE_MAX = timedelta(seconds=30)


@workflow.defn
class FunctionCallWorkflow:
    """The durable life of one FunctionCall; its id is `call/<uid>`. Returns the phase in which the call ended."""

    @workflow.init
    def __init__(self, start: FunctionCallInput) -> None:
        self._journal = Journal("waiting for an outcome", start.journal)
        self._reissue = False

    @workflow.signal
    def reissue(self) -> None:
        """The activity that is waited for was lost (its task token never reached SQL): schedule it again."""
        self._reissue = True

    @workflow.run
    async def run(self, start: FunctionCallInput) -> str:
        """Wait, decide and offer again until the call has ended."""
        call, offer_after = start.call, start.offer_after
        if start.ended is not None:
            return self._ended(start.ended["phase"])
        self._journal.enter("waiting for an outcome")
        while True:
            outcome = await self._next_outcome(RunCallInput(call=call, offer_after=offer_after))
            if outcome.ended is not None:
                return self._ended(outcome.ended["phase"])
            facts = Facts.from_json(outcome.facts or {})
            decision = decide(facts)
            self._journal.decide(told_decision(facts, decision))
            match decision:
                case Finish():
                    self._journal.enter("writing the end")
                    phase = await _finish(call, facts.dispatch, decision)
                    if phase is not None:
                        return self._ended(phase)
                    offer_after = None
                case Retry(delay_seconds=delay):
                    retry = f"retry {facts.retries + 1} of {facts.retries_max}"
                    self._journal.enter(f"backing off for {delay:.1f} s before {retry}")
                    await workflow.sleep(delay, summary=f"backoff before {retry}")
                    offer_after = facts.dispatch
                case Recover():
                    offer_after = facts.dispatch
            self._journal.enter("waiting for an outcome")
            self._continue_as_new_if_long(call, offer_after)

    async def _next_outcome(self, wait: RunCallInput) -> CallOutcome:
        """The end of the next dispatch, however often the activity that waits for it has to be scheduled."""
        failures = 0
        while True:
            self._reissue = False
            waiting = workflow.start_activity(
                RUN_CALL,
                wait,
                result_type=CallOutcome,
                start_to_close_timeout=WAIT_MAX,
                schedule_to_close_timeout=WAIT_MAX,
                retry_policy=ONCE,
            )
            lost = asyncio.create_task(workflow.wait_condition(lambda: self._reissue))
            await workflow.wait([waiting, lost], return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                waiting.cancel()
                self._journal.note("the activity was lost; scheduled again")
                continue
            lost.cancel()
            try:
                outcome: CallOutcome = await waiting
                return outcome
            except ActivityError as error:
                failures += 1
                self._journal.note(f"the activity failed ({type(error.cause).__name__}); scheduled again")
                await workflow.sleep(reissue_delay(failures))
                self._continue_as_new_if_long(wait.call, wait.offer_after)

    def _ended(self, phase: str) -> str:
        self._journal.enter(f"ended: {phase}")
        return phase

    def _continue_as_new_if_long(self, call: CallReference, offer_after: int | None) -> None:
        if workflow.info().is_continue_as_new_suggested():
            told = self._journal.carry()
            workflow.continue_as_new(FunctionCallInput(call=call, offer_after=offer_after, journal=told))


async def _finish(call: CallReference, dispatch: int, finish: Finish) -> str | None:
    """Write the end that was decided; repeated until it is written, since nobody else would."""
    phase: str | None = await workflow.execute_activity(
        FINISH_CALL,
        FinishCallInput(call=call, dispatch=dispatch, phase=finish.phase, reason=finish.reason, message=finish.message),
        result_type=str,
        start_to_close_timeout=WRITE_MAX,
        schedule_to_close_timeout=WAIT_MAX,
        retry_policy=UNTIL_WRITTEN,
    )
    return phase
