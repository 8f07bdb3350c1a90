"""Legal phase changes of a FunctionCall, and the status each of them writes.

A transition takes a document and returns a changed copy: phase, reason, message, times and conditions move
together, so no caller sets one and forgets another. `EDGES` is the whole table; an edge that is not in it is a bug
and fails an assertion. Rows of the `calls` table move beside the document in `calls/outcomes.py`,
`calls/dispatcher.py` and `calls/hooks.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from controlplane.calls.decide import Finish
from controlplane.clock import format_time
from controlplane.machinery.conditions import Condition, with_condition
from controlplane.machinery.quantities import format_money
from controlplane.store.contract import Document


class Phase(StrEnum):
    """The phases of a FunctionCall; the protocol's words."""

    QUEUED = "Queued"
    RUNNING = "Running"
    RECOVERING = "Recovering"
    CANCELLING = "Cancelling"
    CANCELLED = "Cancelled"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


WAITS_FOR_MONEY = frozenset({"Unfunded", "MaxCostReached"})
"""The reasons of `calls/waits.py` that are about money."""
FUNDED = ("True", "Funded", "the call can be paid for")

TERMINAL = frozenset({Phase.CANCELLED, Phase.SUCCEEDED, Phase.FAILED})

EDGES: Mapping[Phase, frozenset[Phase]] = {
    Phase.QUEUED: frozenset({Phase.QUEUED, Phase.RUNNING, Phase.CANCELLED, Phase.FAILED}),
    Phase.RUNNING: frozenset({Phase.QUEUED, Phase.RECOVERING, Phase.CANCELLING, *TERMINAL}),
    Phase.RECOVERING: frozenset({Phase.RECOVERING, Phase.RUNNING, Phase.CANCELLED, Phase.FAILED}),
    Phase.CANCELLING: frozenset({Phase.CANCELLING, Phase.CANCELLED}),
    Phase.CANCELLED: frozenset(),
    Phase.SUCCEEDED: frozenset(),
    Phase.FAILED: frozenset(),
}
"""From each phase to its successors. A message may change within Queued (a retry is scheduled, then offered), within
Recovering and within Cancelling (the worker let go of it). Nothing runs in Queued and Recovering, so a cancel ends them
without Cancelling."""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a call ends: what was decided and what the worker delivered for it."""

    finish: Finish
    result: Mapping[str, Any] | None = None
    error: Mapping[str, str] | None = None


def phase_of(document: Document) -> Phase:
    """The phase a stored call is in."""
    return Phase(document["status"]["phase"])


def scheduled_reason(document: Document) -> str:
    """The reason of its condition Scheduled, "" without one."""
    found = (each["reason"] for each in document["status"].get("conditions", ()) if each["type"] == "Scheduled")
    return next(found, "")


def is_terminal(document: Document) -> bool:
    """Whether the call has ended; nothing changes its status any more."""
    return phase_of(document) in TERMINAL


def claimed(document: Document, now: datetime, *, attempt: str, epoch: int) -> Document:
    """Running on the worker of `attempt`."""
    changes = {"startTime": format_time(now), "worker": {"attempt": attempt, "epoch": epoch}}
    moved = _moved(document, Phase.RUNNING, now, "", "running on a worker", ("True", "Claimed"), changes)
    moved["status"]["conditions"] = _with_funded(moved["status"]["conditions"], now, FUNDED)
    return moved


def returned_to_queue(document: Document, now: datetime) -> Document:
    """Back where it was before a dispatch that never reached its worker: counts nothing, costs nothing."""
    kept = {name: value for name, value in document["status"].items() if name not in ("worker", "startTime")}
    message = "the worker did not receive the call; waiting for a worker"
    return _moved({**document, "status": kept}, Phase.QUEUED, now, "", message, ("False", "Queued"), {})


def retry_scheduled(document: Document, now: datetime, *, retries: int, message: str, cost_micro_usd: int) -> Document:
    """Queued until its workflow offers it again, after the function raised."""
    changes = {"retries": retries, "costUSD": format_money(cost_micro_usd)}
    return _moved(document, Phase.QUEUED, now, "", message, ("False", "RetryScheduled"), changes)


def recovering(document: Document, now: datetime, *, recoveries: int, message: str, cost_micro_usd: int) -> Document:
    """Recovering until its workflow offers it again, after its worker was lost."""
    changes = {"recoveries": recoveries, "costUSD": format_money(cost_micro_usd)}
    return _moved(document, Phase.RECOVERING, now, "", message, ("False", "Recovering"), changes)


def offered(document: Document, now: datetime, *, alone: bool) -> Document:
    """Claimable again: still Queued or Recovering, and the message says what it waits for."""
    status = document["status"]
    worker = "a worker of its own" if alone else "a worker"
    if phase_of(document) is Phase.RECOVERING:
        message, reason = f"waiting for {worker} (recovery {status['recoveries']})", "Recovering"
    else:
        message, reason = f"waiting for {worker} (retry {status['retries']})", "Queued"
    return _moved(document, phase_of(document), now, "", message, ("False", reason), {})


def waiting(document: Document, now: datetime, reason: str, message: str) -> Document:
    """As it was, but it says why it waits now; `reason` is one of `calls/waits.py`.

    That a call is funded is told by what knows it: its create, and the dispatch that reserved for it."""
    status = document["status"]
    conditions = _with_scheduled(status.get("conditions", ()), now, "False", reason, message)
    if reason in WAITS_FOR_MONEY:
        conditions = _with_funded(conditions, now, ("False", reason, message))
    return {**document, "status": {**status, "message": message, "conditions": conditions}}


def unfunded(document: Document, now: datetime, message: str) -> Document:
    """As it was, but no limit of spending has room for it now."""
    if any(each["type"] == "Funded" and each["message"] == message for each in document["status"]["conditions"]):
        return document
    status = document["status"]
    told = Condition("Funded", "False", "BudgetExceeded", message)
    return {
        **document,
        "status": {**status, "message": message, "conditions": with_condition(status["conditions"], told, now)},
    }


def is_funded(document: Document) -> bool:
    """Whether nothing was found that keeps it from being paid for."""
    conditions = document["status"].get("conditions", ())
    return not any(each["type"] == "Funded" and each["status"] == "False" for each in conditions)


def cancelling(document: Document, now: datetime) -> Document:
    """Running, and its worker will be told to stop it."""
    return _moved(document, Phase.CANCELLING, now, "", "waiting for the worker to stop the call", None, {})


def let_go(document: Document, now: datetime) -> Document:
    """Cancelling still: the worker reported it stopped, which is certain once the worker is gone."""
    message = "its worker let go of the call and is being ended, because the body of a call may run on in a thread"
    return _moved(document, Phase.CANCELLING, now, "", message, None, {})


def ended(document: Document, now: datetime, ending: Ending, cost_micro_usd: int) -> Document:
    """In the last phase, with what it delivered and what it cost in all."""
    # A clock that was set back ends no call before it began; the texts sort as the times do.
    completed = max(format_time(now), document["status"].get("startTime", ""))
    changes: dict[str, Any] = {"completionTime": completed, "costUSD": format_money(cost_micro_usd)}
    finish = ending.finish
    message = finish.message
    if finish.phase == Phase.SUCCEEDED and ending.result is not None:
        changes["result"] = dict(ending.result)
    if finish.reason == "RemoteError" and ending.error is not None:
        changes["error"] = dict(ending.error)
        message = described(ending.error)
    scheduled = ("False", finish.reason) if phase_of(document) in (Phase.QUEUED, Phase.RECOVERING) else None
    return _moved(document, Phase(finish.phase), now, finish.reason, message, scheduled, changes)


def described(error: Mapping[str, str]) -> str:
    """`TypeName: message`, the line `describe` shows for an exception."""
    name, message = error["type"], error["message"]
    return f"{name}: {message}" if message else name


def _moved(
    document: Document,
    phase: Phase,
    now: datetime,
    reason: str,
    message: str,
    scheduled: tuple[str, str] | None,
    changes: Mapping[str, Any],
) -> Document:
    """A copy in `phase`; `reason` and `message` are absent when empty, since unset fields are absent on the wire."""
    before = phase_of(document)
    assert phase in EDGES[before], f"{document['metadata'].get('name')}: {before} to {phase} is no transition"
    status = {name: value for name, value in document["status"].items() if name not in ("reason", "message")}
    status.update(changes)
    status["phase"] = str(phase)
    if reason:
        status["reason"] = reason
    if message:
        status["message"] = message
    if scheduled is not None:
        told = _SCHEDULED_MESSAGES.get(scheduled[1], "the call ended before a worker took it")
        status["conditions"] = _with_scheduled(status.get("conditions", ()), now, *scheduled, told)
    return {**document, "status": status}


def _with_scheduled(
    conditions: Sequence[dict[str, Any]], now: datetime, value: str, reason: str, message: str
) -> list[dict[str, Any]]:
    """The conditions with Scheduled set; its transition time moves only with its value."""
    kept = [condition for condition in conditions if condition["type"] != "Scheduled"]
    old = next((condition for condition in conditions if condition["type"] == "Scheduled"), None)
    unchanged = old is not None and old["status"] == value
    moved = old["lastTransitionTime"] if old is not None and unchanged else format_time(now)
    scheduled = {
        "type": "Scheduled",
        "status": value,
        "reason": reason,
        "message": message,
        "lastTransitionTime": moved,
    }
    return [scheduled, *kept]


def _with_funded(conditions: list[dict[str, Any]], now: datetime, told: tuple[str, str, str]) -> list[dict[str, Any]]:
    """The conditions with Funded set, if the call has it and it says something else."""
    value, reason, message = told
    return [
        {**each, "status": value, "reason": reason, "message": message, "lastTransitionTime": format_time(now)}
        if each["type"] == "Funded" and each["status"] != value
        else each
        for each in conditions
    ]


_SCHEDULED_MESSAGES = {
    "Claimed": "a worker runs the call",
    "Queued": "the call waits for a worker",
    "RetryScheduled": "the call waits for its next retry",
    "Recovering": "the call waits for a worker after the last one was lost",
}
