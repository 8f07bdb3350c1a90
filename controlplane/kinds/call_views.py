"""What is served below a call beside its log: why it waits, and the story of its dispatches.

Objects that nobody stores: each is made from the rows of the call when it is asked for, and carries the metadata of the
call. `controlplane/calls/inspection.py` makes them.
"""

from __future__ import annotations

from pydantic import Field

from controlplane.machinery.conditions import ObjectCondition
from controlplane.machinery.model import ApiModel
from controlplane.machinery.quantities import Duration, Money


class Dispatched(ApiModel):
    """The worker that a dispatch was given to."""

    attempt: str = Field(description="Name of the worker's Attempt.")
    epoch: int = Field(description="Epoch of the Attempt.")
    reason: str | None = Field(default=None, description="How the worker itself ended, if it has, such as NodeLost.")
    message: str | None = Field(default=None, description="How the worker itself ended, in a sentence.")


class DispatchDecision(ApiModel):
    """What was decided when a dispatch ended, and when that took effect."""

    action: str = Field(
        description="Finish, Retry (after the function raised), Recover (after its worker was lost) or Requeue (the "
        "worker never received it)."
    )
    delay: Duration | None = Field(default=None, description="How long a retry is put off at least.")
    applied_time: str | None = Field(default=None, description="When it took effect; unset while it is awaited.")


class Dispatch(ApiModel):
    """One time that the call was given to a worker."""

    number: int = Field(description="Counts the dispatches of the call, from 1.")
    worker: Dispatched = Field(description="Who had it.")
    start_time: str = Field(description="When the worker was given the call.")
    end_time: str | None = Field(default=None, description="When that ended; unset while it runs.")
    duration: Duration = Field(description="How long it took, or has taken.")
    outcome: str = Field(
        description="Running, Succeeded, Raised, Unserializable, DeadlineExceeded, Cancelled, WorkerLost, BadResult, "
        "FunctionDeleted or Undelivered."
    )
    message: str | None = Field(default=None, description="What the worker said of it; never a result.")
    cost_usd: Money | None = Field(default=None, description="What this dispatch cost; unset while it runs.")
    decision: DispatchDecision | None = Field(default=None, description="What followed; unset while it runs.")


class Interval(ApiModel):
    """A piece of the call's life."""

    type: str = Field(description="Queued, Running, Cancelling, BackingOff or Recovering.")
    start_time: str = Field(description="When it began.")
    end_time: str | None = Field(default=None, description="When it ended; unset for the present one.")
    duration: Duration = Field(description="How long it took, or has taken.")
    dispatch: int | None = Field(default=None, description="The dispatch that it is part of, or that led to it.")


class FunctionCallTimelineStatus(ApiModel):
    """The dispatches of a call and the time between them."""

    phase: str = Field(description="The call's phase.")
    reason: str | None = Field(default=None, description="Why it is in that phase.")
    cost_usd: Money = Field(description="What all its dispatches cost.")
    dispatches: list[Dispatch] = Field(description="Oldest first.")
    dispatches_omitted: int | None = Field(default=None, description="How many older ones are no longer kept.")
    intervals: list[Interval] = Field(description="Oldest first, without gaps.")


class WaitQueue(ApiModel):
    """The call's place in the queue of its Function. Counts end at 1,000; `message` says so."""

    position: int = Field(description="Its place in its session, from 1.")
    sessions_ahead: int = Field(description="Sessions with claimable calls whose turn comes before.")
    calls_ahead: int = Field(description="Calls that are taken before it if nothing else comes: workers take turns.")
    queued: int = Field(description="Claimable calls of the Function.")
    counts_are_minimums: bool | None = Field(default=None, description="Set when a count reached its limit.")


class WaitWorkers(ApiModel):
    """Who could take the call."""

    ready: int = Field(description="Workers that take calls.")
    busy: int = Field(description="Those of them that hold one.")
    starting: int = Field(description="Workers that have not claimed yet.")
    draining: int = Field(description="Workers that take no more calls.")
    max: int = Field(description="The most that the Function may have.")
    free_slots: int = Field(description="Calls that ready workers can take at once.")
    starting_since_time: str | None = Field(default=None, description="When the oldest starting worker was ordered.")
    starting_message: str | None = Field(default=None, description="What that worker is doing.")
    start_failures: int | None = Field(default=None, description="Starts that failed since the last that succeeded.")
    last_failure: str | None = Field(default=None, description="How the last one failed.")


class WaitFunction(ApiModel):
    """The Function, as far as it bears upon the wait."""

    state: str = Field(description="Running or Stopped, as declared.")
    phase: str | None = Field(default=None, description="Its phase.")
    reason: str | None = Field(default=None, description="Why it is in that phase.")
    message: str | None = Field(default=None, description="Why it is in that phase, in a sentence.")


class WaitEngine(ApiModel):
    """The workflow engine, as far as it bears upon the wait."""

    has_workflow: bool = Field(description="Whether the call has its workflow; retries and recoveries need it.")
    lag_exceeded: bool = Field(description="Whether only calls with a workflow are handed out now.")
    lag_calls: int | None = Field(
        default=None, description="Calls of all Functions that were handed out and lack a workflow, up to a limit."
    )


class FunctionCallWaitStatus(ApiModel):
    """Why a call waits now, and for how long it has."""

    phase: str = Field(description="The call's phase.")
    reason: str = Field(description="What it waits for, in one CamelCase word.")
    message: str = Field(description="What it waits for, in a sentence.")
    waiting: bool = Field(description="Whether it waits at all: False for calls that run or have ended.")
    since_time: str | None = Field(default=None, description="Since when it waits.")
    waited: Duration | None = Field(default=None, description="How long it has waited.")
    not_before_time: str | None = Field(default=None, description="The earliest time of its next dispatch.")
    backoff_left: Duration | None = Field(default=None, description="What is left until then.")
    queue_timeout_left: Duration | None = Field(
        default=None, description="What is left of the Function's `placement.queueTimeout` before the call fails."
    )
    queue: WaitQueue | None = Field(default=None, description="Its place in the queue, when it may be claimed.")
    workers: WaitWorkers | None = Field(default=None, description="Who could take it, while it waits.")
    function: WaitFunction | None = Field(default=None, description="Its Function, if that still exists.")
    engine: WaitEngine | None = Field(default=None, description="The engine, while the call waits.")
    funded: ObjectCondition | None = Field(default=None, description="Whether the call can be paid for.")
