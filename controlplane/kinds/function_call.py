"""The FunctionCall kind: one invocation of a Function.

Admission of calls is the hottest validation there is (a batch brings 1,000), so the model has few Python validators and
the strategy asks little. What happens to a call afterwards is in `controlplane/calls/`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, StringConstraints

from controlplane.clock import format_time, parse_time
from controlplane.errors import ApiError, Cause, Reason, invalid
from controlplane.kinds.call_views import FunctionCallTimelineStatus, FunctionCallWaitStatus
from controlplane.kinds.charge_views import FunctionCallChargesStatus
from controlplane.kinds.money import Estimate
from controlplane.kinds.payload import Payload
from controlplane.kinds.references import ObjectName, digest_of
from controlplane.machinery.conditions import Conditions
from controlplane.machinery.documents import immutable
from controlplane.machinery.grammar import LABEL_VALUE_PATTERN
from controlplane.machinery.kind import ALL_VERBS, AdmissionContext, Column, Document, Kind, Scope, Subresource
from controlplane.machinery.model import ApiModel
from controlplane.machinery.problems import NOT_FOUND, NOT_SUPPORTED, problem
from controlplane.machinery.quantities import (
    Duration,
    Money,
    duration_between,
    parse_duration,
)
from controlplane.machinery.table import (
    AGE_COLUMN,
    NAME_COLUMN,
    NOTHING,
    PHASE_COLUMN,
    REASON_COLUMN,
    human_duration,
    text_at,
)

FUNCTION_LABEL = "nodus.dev/function"
MAP_LABEL = "nodus.dev/map"
APP_LABEL = "nodus.dev/app"
TERMINAL_PHASES = frozenset({"Succeeded", "Failed", "Cancelled"})
BEGUN_SECONDS = 2.0
"""Who reads a call later than this after its start is watching it, not waiting for a short call to return."""
_MAP_INDEX_MAX = (1 << 31) - 1


def _call_state(value: object) -> object:
    if value == "Stopped":
        raise problem(
            'must be one of "Running", "Cancelled": a call is cancelled, and only its Function is stopped',
            NOT_SUPPORTED,
        )
    return value


class FunctionCallSpec(ApiModel):
    """What is called with what. Nothing but `state` can change."""

    function: ObjectName = Field(description="Name of the Function that is called.")
    input: Payload = Field(description="The arguments.")
    session: Annotated[str, StringConstraints(min_length=1, max_length=128)] | None = Field(
        default=None, description="Who calls; workers take turns between sessions, so that no caller waits for another."
    )
    map_id: Annotated[str, StringConstraints(max_length=63, pattern=LABEL_VALUE_PATTERN)] | None = Field(
        default=None, description="Groups the calls of one `.map()`; also the label nodus.dev/map."
    )
    map_index: Annotated[int, Field(ge=0, le=_MAP_INDEX_MAX)] | None = Field(
        default=None, description="Position of the call in its `.map()`."
    )
    timeout: Annotated[Duration, *duration_between("1s", "24h")] | None = Field(
        default=None, description="Longest run of one dispatch; at most, and by default, the Function's."
    )
    state: Annotated[Literal["Running", "Cancelled"], BeforeValidator(_call_state)] = Field(
        default="Running", description="Set Cancelled to cancel the call, for good."
    )


class RemoteError(ApiModel):
    """An exception that the function raised."""

    type: str = Field(description="Qualified name of its class.")
    message: str = Field(description="Its message.")
    traceback: str | None = Field(default=None, description="Its traceback as text.")


class FunctionCallWorker(ApiModel):
    """The worker that runs, or last ran, a call."""

    attempt: str = Field(description="Name of the worker's Attempt.")
    epoch: int = Field(description="Epoch of the Attempt; results of another epoch are refused.")


class FunctionCallStatus(ApiModel):
    """What the server observed about a call."""

    phase: str | None = Field(
        default=None, description="Queued, Running, Recovering, Cancelling, Cancelled, Succeeded or Failed."
    )
    reason: str | None = Field(default=None, description="Why it is in that phase, such as RemoteError.")
    message: str | None = Field(default=None, description="Why it is in that phase, in a sentence.")
    conditions: Conditions | None = Field(default=None, description="Scheduled and Funded.")
    start_time: str | None = Field(default=None, description="When a worker last took it.")
    completion_time: str | None = Field(default=None, description="When it ended.")
    retries: int | None = Field(default=None, description="Runs again after an exception.")
    recoveries: int | None = Field(default=None, description="Dispatches again after a lost worker.")
    worker: FunctionCallWorker | None = Field(default=None, description="The worker that has or had it.")
    result: Payload | None = Field(default=None, description="What the function returned.")
    error: RemoteError | None = Field(default=None, description="What the function raised.")
    cost_usd: Money | None = Field(default=None, description="Whole worker-seconds at the rate of one call.")
    estimate: Estimate | None = Field(default=None, description="What it is expected to cost.")


class FunctionCallStrategy:
    """What calls add to the generic verbs."""

    async def prepare_create(self, document: Document, context: AdmissionContext) -> None:
        spec, metadata = document["spec"], document["metadata"]
        function = await context.lookup.get("Function", spec["function"])
        if function is None or "deletionTimestamp" in function["metadata"]:
            raise _function_not_found(spec["function"])
        causes = [*_function_failed(function), *_timeout_problems(spec, function)]
        blob = spec["input"].get("blob")
        if blob is not None and not await context.lookup.blob_exists(digest_of(blob)):
            told = f'must name a blob that was uploaded to the project; "{blob}" does not exist'
            causes.append(Cause("spec.input.blob", told, NOT_FOUND))
        if spec["state"] != "Running":
            causes.append(Cause("spec.state", 'must be "Running" when a call is created'))
        if causes:
            raise invalid(FUNCTION_CALL.plural, metadata.get("name", ""), causes)
        labels = {**metadata.get("labels", {}), FUNCTION_LABEL: spec["function"]}
        app = function["metadata"].get("labels", {}).get(APP_LABEL)
        if app is not None:
            labels[APP_LABEL] = app
        if "mapId" in spec:
            labels[MAP_LABEL] = spec["mapId"]
        metadata["labels"] = labels
        document["status"] = _initial_status(context.now)

    async def prepare_update(self, old: Document, new: Document, context: AdmissionContext) -> None:
        before, after = old["spec"]["state"], new["spec"]["state"]
        if before == after:
            return
        if before == "Cancelled":
            cause = Cause("spec.state", "may not be changed back: a cancelled call does not run again")
            raise immutable(FUNCTION_CALL, new["metadata"]["name"], [cause])
        if old["status"].get("phase") in TERMINAL_PHASES:
            # Cancelling what has ended is no error and no change.
            new["spec"] = old["spec"]
            new["metadata"]["generation"] = old["metadata"]["generation"]


def _function_not_found(name: str) -> ApiError:
    return ApiError(Reason.FUNCTION_NOT_FOUND, f'functions.nodus.dev "{name}" not found', subject=("functions", name))


def _function_failed(function: Document) -> list[Cause]:
    status = function.get("status", {})
    if status.get("phase") != "Failed":
        return []
    told = f'must name a Function that takes calls; "{function["metadata"]["name"]}" has failed'
    return [Cause("spec.function", f"{told}: {status.get('message') or status.get('reason', 'see its status')}")]


def _timeout_problems(spec: Document, function: Document) -> list[Cause]:
    """Default the call's timeout to the Function's, and refuse a longer one."""
    longest = function["spec"]["timeout"]
    timeout = spec.setdefault("timeout", longest)
    if timeout == longest or parse_duration(timeout) <= parse_duration(longest):
        return []
    return [Cause("spec.timeout", f"must be at most the timeout of the Function, which is {longest}")]


def _initial_status(now: datetime) -> Document:
    """Queued; `controlplane/calls` takes it from there."""
    since = format_time(now)
    return {
        "phase": "Queued",
        "message": "waiting for a worker",
        "retries": 0,
        "recoveries": 0,
        "costUSD": "0.00",
        "conditions": [
            {
                "type": "Scheduled",
                "status": "False",
                "reason": "Queued",
                "message": "the call waits for a worker",
                "lastTransitionTime": since,
            },
            {
                "type": "Funded",
                "status": "True",
                "reason": "Funded",
                "message": "the call can be paid for",
                "lastTransitionTime": since,
            },
        ],
    }


def _duration_cell(document: Document, now: datetime) -> str | int:
    """From the last dispatch to the end, or until now."""
    status = document.get("status", {})
    started, ended = status.get("startTime"), status.get("completionTime")
    if not started:
        return NOTHING
    end = parse_time(ended) if ended else now
    return human_duration((end - parse_time(started)).total_seconds())


def _just_begun(document: Document, now: datetime) -> bool:
    """Whether a worker took the call a moment ago. Its start is stored in whole seconds."""
    status = document["status"]
    return status["phase"] == "Running" and (now - parse_time(status["startTime"])).total_seconds() < BEGUN_SECONDS


FUNCTION_CALL = Kind(
    kind="FunctionCall",
    plural="functioncalls",
    uid_prefix="fnc",
    scope=Scope.PROJECT,
    verbs=ALL_VERBS,
    description="One invocation of a Function, kept for seven days after it ended.",
    spec=FunctionCallSpec,
    status=FunctionCallStatus,
    columns=(
        NAME_COLUMN,
        Column("Function", text_at("spec.function"), "The Function that is called."),
        PHASE_COLUMN,
        REASON_COLUMN,
        Column("Retries", text_at("status.retries", 0), "Runs again after an exception.", type="integer"),
        AGE_COLUMN,
        Column("Duration", _duration_cell, "How long the last dispatch took, or has taken."),
        Column("Session", text_at("spec.session"), "Who calls.", priority=1),
        Column("Map", text_at("spec.mapId"), "The `.map()` it belongs to.", priority=1),
        Column("Index", text_at("spec.mapIndex"), "Its position in the `.map()`.", priority=1),
        Column("Worker", text_at("status.worker.attempt"), "The Attempt that runs or ran it.", priority=1),
        Column("Cost", text_at("status.costUSD", "0.00"), "What it has cost, in USD.", priority=1),
    ),
    short_names=("fc", "call"),
    selectable_fields=(
        "spec.function",
        "spec.mapId",
        "spec.session",
        "spec.state",
        "status.phase",
        "status.reason",
    ),
    labelled_fields={"spec.function": FUNCTION_LABEL, "spec.mapId": MAP_LABEL},
    immutable_fields=(
        "spec.function",
        "spec.input",
        "spec.session",
        "spec.mapId",
        "spec.mapIndex",
        "spec.timeout",
    ),
    owners_from_first_apply=True,
    subresources=(
        Subresource(
            "charges",
            ("get",),
            "How its cost came about: intervals, rates and entries of the ledger, worked out once more.",
            kind="FunctionCallCharges",
            status=FunctionCallChargesStatus,
        ),
        Subresource("log", ("get",), "What its worker printed while it ran the call."),
        Subresource(
            "timeline",
            ("get",),
            "The story of the call: every dispatch, what was decided of it, and the time between.",
            kind="FunctionCallTimeline",
            status=FunctionCallTimelineStatus,
        ),
        Subresource(
            "wait",
            ("get",),
            "Why the call waits now, and what has to happen before it runs.",
            kind="FunctionCallWait",
            status=FunctionCallWaitStatus,
        ),
    ),
    is_settling=_just_begun,
    forgotten="Check the name and the project. A finished call is forgotten {days} days after its end, with its result "
    "and its log: keep elsewhere what is needed for longer.",
    strategy=FunctionCallStrategy(),
    deleting_phase="",
    scope_resource="functioncalls",
)
