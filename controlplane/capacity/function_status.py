"""What a Function's status says about its workers, calls and cost: pure, and the mutation that writes it.

The autoscaler observes and calls `observed_status`; nothing else writes phase, reason, conditions, workers, queue,
cost or estimate of a Function that is not being created or updated. The mapping from what is to the words of the
protocol is the table of Function phases in the API reference; where that leaves room, a Function is Running as soon as
it takes calls, with or without workers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from controlplane.clock import format_time
from controlplane.images.use import CATALOG, ImageState, ImageUse
from controlplane.ledger.function_funds import UNPRICED, FunctionFunds
from controlplane.ledger.worker_costs import Segment
from controlplane.machinery.conditions import Condition, with_condition
from controlplane.machinery.kind import Document
from controlplane.machinery.quantities import format_duration, format_money
from controlplane.store.contract import Key, Reads, Tx

NO_ROOM_MESSAGE = "waiting for room on a host"
NO_OFFERING = "NoOffering"
"""Reason of what no host of this server will do for."""
MAX_COST_REACHED = "MaxCostReached"
NO_FUNDS_MESSAGE = "waiting for credit to pay a worker"
NO_QUOTA_MESSAGE = "waiting for a place within a quota; the condition WithinQuota has the numbers"
QUOTA_CONDITION = "WithinQuota"
"""Of a Function whose pool a quota has kept from growing at some time; others have none."""

SHORTEST_SECONDS = 0.01
"""Nothing quicker is told as an estimate: a client reads it as the time a person waits."""


@dataclass(frozen=True, kw_only=True)
class Band:
    """Median and 90th percentile of a duration in seconds."""

    p50_seconds: float
    p90_seconds: float


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What the autoscaler found out about a Function."""

    busy: int = 0
    """Ready workers that hold a call."""
    idle: int = 0
    starting: int = 0
    draining: int = 0
    current_ready: int = 0
    """Ready workers of the present revision."""
    queued: int = 0
    running: int = 0
    charge_micro_usd: int = 0
    burn_micro_usd_per_hour: int = 0
    """What its live workers cost together."""
    start_failures: int = 0
    failed: bool = False
    """The present revision failed to start too often in a row; nothing is started any more."""
    failure_message: str = ""
    lost_worker: bool = False
    """The last worker that ended did not go because it was asked to."""
    no_offering: str = ""
    """Why no worker can be placed, and what to change; empty when one can."""
    lacks_room: bool = False
    lacks_funds: bool = False
    """A worker would be started, or would have to be for the next call, and cannot be paid."""
    capped: bool = False
    """Its `maxCostUSD` pays for nothing any more."""
    lacks_quota: str = ""
    """The quota that keeps the pool from growing, with its numbers and what to do."""
    funds: FunctionFunds = UNPRICED
    cold: Band | None = None
    warm: Band | None = None
    image: ImageUse = CATALOG
    handled_requests: Mapping[str, str] | None = None
    generation: int = 1
    """Of the Function that was looked at."""

    @property
    def ready(self) -> int:
        """Workers that take calls."""
        return self.busy + self.idle

    @property
    def live(self) -> int:
        """Workers that exist, whatever they do."""
        return self.ready + self.starting + self.draining


def observed_status(function: Document, seen: Observation, now: datetime) -> Document:
    """The Function's status brought up to date; parts that others own are kept as they are."""
    status = dict(function["status"])
    generation = seen.generation
    if "deletionTimestamp" not in function["metadata"]:
        phase, reason, message = _phase(function, seen)
        status |= {"phase": phase, "reason": reason, "message": message, "observedGeneration": generation}
        ready = _ready_condition(function, seen, generation)
        conditions = with_condition(status.get("conditions", []), ready, now)
        conditions = with_condition(conditions, _funded_condition(seen, generation), now)
        if seen.lacks_quota or any(each["type"] == QUOTA_CONDITION for each in conditions):
            conditions = with_condition(conditions, _quota_condition(seen, generation), now)
        status["conditions"] = conditions
    status["workers"] = {
        "ready": seen.ready,
        "busy": seen.busy,
        "idle": seen.idle,
        "starting": seen.starting,
        "draining": seen.draining,
    }
    status["queue"] = {"queued": seen.queued, "running": seen.running}
    status["cost"] = {
        **status.get("cost", {}),
        "totalUSD": format_money(seen.charge_micro_usd),
        "rateUSDPerHour": format_money(seen.burn_micro_usd_per_hour),
        **_funds(status.get("cost", {}), seen),
    }
    if seen.funds.funded_until is None:
        status["cost"].pop("fundedUntilTime", None)
    estimate = _estimate(status.get("estimate", {}), seen)
    if estimate:
        status["estimate"] = estimate
    if seen.image.reference is not None:
        told = {"reference": seen.image.reference, "digest": seen.image.digest}
        status["image"] = {name: value for name, value in told.items() if value is not None}
    if seen.handled_requests:
        status["handledRequests"] = {**status.get("handledRequests", {}), **seen.handled_requests}
    return status


def _phase(function: Document, seen: Observation) -> tuple[str, str, str]:
    """Phase, reason and message of a Function that is not being deleted."""
    if function["spec"].get("state") == "Stopped":
        if seen.live:
            return "Stopping", "Stopped", "stopped by request; its workers finish their calls"
        return "Stopped", "Stopped", "stopped by request; calls queue until it is started"
    if seen.capped:
        phase = "Stopping" if seen.live else "Stopped"
        return phase, MAX_COST_REACHED, _capped_message(seen)
    if seen.ready:
        return "Running", "WorkersReady", f"{seen.ready} ready to take calls"
    if seen.image.state is not ImageState.READY:
        return _PHASE_WITHOUT_IMAGE[seen.image.state], seen.image.reason, seen.image.message
    if seen.no_offering and not seen.starting:
        return "Pending", NO_OFFERING, seen.no_offering
    if seen.failed:
        return "Failed", "StartupFailed", _failed_message(function, seen)
    if seen.lost_worker and (seen.queued or seen.running):
        return "Recovering", "WorkersLost", "its workers were lost while calls ran; new ones are being started"
    before = function["status"].get("phase")
    warming = function["spec"]["scaling"]["minWorkers"] > 0 or seen.queued > 0
    if before in ("Pending", "Starting", "Stopping", "Stopped") and warming:
        return "Starting", "Starting", _waiting(seen, "the first worker has not started yet")
    if seen.queued or seen.starting:
        return "Running", "Starting", _waiting(seen, "the first worker is being started")
    return "Running", "Idle", "ready to take calls; workers start with the first one"


_PHASE_WITHOUT_IMAGE = {ImageState.PENDING: "Pending", ImageState.FAILED: "Failed"}


def _failed_message(function: Document, seen: Observation) -> str:
    """What the last worker told, and the ways out: nothing else starts one again."""
    told = seen.failure_message or "its workers do not start"
    name = function["metadata"]["name"]
    return (
        f"{told}\nNo worker is started any more after {seen.start_failures} failed starts: deploy a fix, or try again "
        f"with `nodus rollout restart function/{name}`."
    )


def _capped_message(seen: Observation) -> str:
    cap = seen.funds.cap
    told = "" if cap is None else f": {format_money(max(0, cap.left_micro_usd))} USD of it are left"
    limit = "" if cap is None else f" of {format_money(cap.limit_micro_usd)} USD"
    going = "its workers finish their calls; " if seen.live else ""
    return f"`spec.maxCostUSD`{limit} is reached{told}; {going}calls stay queued and go on when it is raised"


def _waiting(seen: Observation, message: str) -> str:
    if seen.start_failures:
        return f"the last start failed: {seen.failure_message}" if seen.failure_message else "the last start failed"
    if seen.lacks_quota:
        return NO_QUOTA_MESSAGE
    if seen.lacks_funds:
        return NO_FUNDS_MESSAGE
    return NO_ROOM_MESSAGE if seen.lacks_room else message


def _ready_condition(function: Document, seen: Observation, generation: int) -> Condition:
    """Ready is about the version that was declared: old workers that still serve do not hide that a new one fails."""

    def ready(value: str, reason: str, message: str) -> Condition:
        return Condition("Ready", value, reason, message, generation)

    if function["spec"].get("state") == "Stopped":
        return ready("False", "Stopped", "stopped by request; calls queue until it is started")
    if seen.capped:
        return ready("False", MAX_COST_REACHED, _capped_message(seen))
    pending = seen.image.state is ImageState.PENDING and not seen.current_ready
    if pending or seen.image.state is ImageState.FAILED:
        return ready("False", seen.image.reason, seen.image.message)
    if seen.no_offering and not seen.current_ready:
        return ready("False", NO_OFFERING, seen.no_offering)
    if seen.failed and not seen.current_ready:
        return ready("False", "StartupFailed", _failed_message(function, seen))
    if seen.start_failures and not seen.current_ready:
        return ready("False", "StartupFailed", seen.failure_message or "a worker of this version did not start")
    if seen.ready:
        return ready("True", "WorkersReady", "workers are ready to take calls")
    if function["spec"]["scaling"]["minWorkers"] > 0:
        return ready("False", "Starting", "the first worker has not started yet")
    return ready("True", "ScaledToZero", "ready to take calls; workers start with the first one")


def _quota_condition(seen: Observation, generation: int) -> Condition:
    if seen.lacks_quota:
        return Condition(QUOTA_CONDITION, "False", "QuotaExceeded", seen.lacks_quota, generation)
    return Condition(QUOTA_CONDITION, "True", QUOTA_CONDITION, "no quota keeps the pool from growing", generation)


def _funded_condition(seen: Observation, generation: int) -> Condition:
    """Whether a worker can be paid for calls that wait now, or come next."""
    if not seen.lacks_funds:
        return Condition("Funded", "True", "Funded", "calls can be paid for", generation)
    if seen.capped:
        return Condition("Funded", "False", MAX_COST_REACHED, _capped_message(seen), generation)
    needed, left = format_money(seen.funds.needed_micro_usd), format_money(seen.funds.available_micro_usd or 0)
    message = (
        f"a worker holds {needed} USD at least before it starts and {left} USD are available; calls stay queued and go "
        "on when credit is granted, a limit is raised or other workers release what they hold"
    )
    return Condition("Funded", "False", "InsufficientCredits", message, generation)


def _funds(stored: Mapping[str, Any], seen: Observation) -> dict[str, Any]:
    """What `status.cost` says of holds and segments; nothing of a Function whose workers never cost anything."""
    funds, told = seen.funds, dict[str, Any]()
    if funds.held_micro_usd or "heldUSD" in stored:
        told["heldUSD"] = format_money(funds.held_micro_usd)
    if funds.funded_until is not None:
        told["fundedUntilTime"] = format_time(funds.funded_until)
    if not funds.segments:
        return told
    segments: dict[str, Any] = {}
    beside = sum(each.amount_micro_usd for name, each in funds.segments.items() if name != Segment.RUNNING)
    for segment in Segment:
        found = funds.segments.get(segment)
        if found is None:
            continue
        # What calls were charged is Running as well, and everything that is charged is in the total.
        amount = seen.charge_micro_usd - beside if segment is Segment.RUNNING else found.amount_micro_usd
        name = segment.lower()
        segments |= {f"{name}USD": format_money(amount), f"{name}Seconds": found.seconds}
        if found.covered_seconds:
            segments[f"{name}CoveredSeconds"] = found.covered_seconds
    covered = [segment for segment in Segment if f"{segment.lower()}CoveredSeconds" in segments]
    if covered:
        segments["coveredByNodus"] = covered
    return {**told, "bySegment": segments}


def _estimate(stored: Mapping[str, Any], seen: Observation) -> dict[str, Any]:
    """The start-up bands; `warm` is there exactly while a worker is ready, since clients print a hint without it."""
    startup = {name: band for name, band in stored.get("startup", {}).items() if name != "warm"}
    if seen.cold is not None:
        startup["cold"] = _band(seen.cold)
    if seen.ready:
        startup["warm"] = _band(seen.warm or Band(p50_seconds=SHORTEST_SECONDS, p90_seconds=SHORTEST_SECONDS))
    kept = {name: part for name, part in stored.items() if name != "startup"}
    return {**kept, "startup": startup} if startup else kept


def _band(band: Band) -> dict[str, str]:
    """Two significant digits: finer ones would make a write of noise."""
    return {"p50": _rounded(band.p50_seconds), "p90": _rounded(max(band.p50_seconds, band.p90_seconds))}


def _rounded(seconds: float) -> str:
    seconds = max(SHORTEST_SECONDS, seconds)
    return format_duration(round(seconds, 2 if seconds < 1 else 1 if seconds < 10 else 0))


class WriteFunctionStatus:
    """Stores what was observed; the result tells whether the status changed. Nothing happens to another Function of
    that name."""

    def __init__(self, key: Key, uid: str, seen: Observation) -> None:
        self._key = key
        self._uid = uid
        self._seen = seen

    def reads(self) -> Reads:
        return Reads(keys=(self._key,))

    def apply(self, tx: Tx) -> bool:
        function = tx.get(self._key)
        if function is None or function["metadata"]["uid"] != self._uid:
            return False
        status = observed_status(function, self._seen, tx.now)
        if status == function["status"]:
            return False
        tx.put(self._key, {**function, "status": status})
        return True
