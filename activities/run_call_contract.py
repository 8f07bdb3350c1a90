"""What the workflow of a call and its activities say to each other.

`workflows/function_call.py` schedules these on the control queue; `activities/calls.py` implements them, and whoever
records an outcome completes `run_call` by the task token it left in the call's row. This module holds only words and
imports nothing of ours, so workflow code can use it inside the sandbox. Input, result and exception text of a call
never travel here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

CONTROL_TASK_QUEUE = "control"
"""Workflows, and the activities that touch SQL; every control process polls it."""

RUN_CALL = "run_call"
"""Activity: offer the call again if the workflow decided so, then wait for the end of a dispatch.

Input `RunCallInput`, result `CallOutcome`. It completes asynchronously by its task token, or at once when there is an
outcome already. Running it twice is harmless: the row holds all state, and a decision about an old dispatch is ignored.
"""

FINISH_CALL = "finish_call"
"""Activity: end the call as the workflow decided. Input `FinishCallInput`, result the phase it ended in, which is
another one when something ended it before, or None when the call went on meanwhile. Idempotent, fenced by the
dispatch."""


@dataclass(frozen=True, kw_only=True)
class CallReference:
    """A call as its workflow knows it."""

    uid: str
    org: str
    project: str
    name: str


FUNCTION_CALL_WORKFLOW = "FunctionCallWorkflow"
REISSUE_SIGNAL = "reissue"


@dataclass(frozen=True, kw_only=True)
class FunctionCallInput:
    """Input of a call's workflow: the call, and what was decided before it continued as new.

    `ended` is the end of a call that was over before its workflow started, as in `CallOutcome`. `journal` is what its
    queries had told until it continued as new.
    """

    call: CallReference
    offer_after: int | None = None
    ended: dict[str, Any] | None = None
    journal: dict[str, list[str]] | None = None


@dataclass(frozen=True, kw_only=True)
class RunCallInput:
    """Which call; `offer_after` is the dispatch after which the workflow decided that the call goes on, if it has."""

    call: CallReference
    offer_after: int | None = None


@dataclass(frozen=True, kw_only=True)
class CallOutcome:
    """The end of a dispatch. Exactly one of: `ended`, the call's end that is in SQL already; `facts`, to decide on.

    `ended` has the keys `phase` and `reason`. `facts` is `controlplane.calls.decide.Facts` as JSON.
    """

    ended: dict[str, Any] | None = None
    facts: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class FinishCallInput:
    """Which call ends, and how, in answer to the dispatch numbered `dispatch`."""

    call: CallReference
    dispatch: int
    phase: str
    reason: str
    message: str
