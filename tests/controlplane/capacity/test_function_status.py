from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from controlplane.capacity.function_status import Band, Observation, WriteFunctionStatus, observed_status
from controlplane.clock import format_time
from controlplane.images.use import CATALOG, ImageState, ImageUse
from controlplane.ledger.function_funds import FunctionFunds, SegmentSum
from controlplane.store.contract import Document, Key
from tests.fixtures.calls import ORG, PROJECT, Calls

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


def function(phase: str = "Running", *, state: str = "Running", min_workers: int = 0) -> Document:
    return {
        "metadata": {"name": "f", "generation": 3},
        "spec": {"state": state, "scaling": {"minWorkers": min_workers}},
        "status": {"phase": phase, "conditions": [], "image": {"reference": "kept"}},
    }


def ready_of(status: Document) -> tuple[str, str]:
    [condition] = [condition for condition in status["conditions"] if condition["type"] == "Ready"]
    return condition["status"], condition["reason"]


@pytest.mark.parametrize(
    ("document", "seen", "phase", "reason", "ready"),
    [
        (function(), {}, "Running", "Idle", ("True", "ScaledToZero")),
        (function(), {"queued": 2, "starting": 1}, "Running", "Starting", ("True", "ScaledToZero")),
        (function(), {"busy": 1, "current_ready": 1}, "Running", "WorkersReady", ("True", "WorkersReady")),
        (function("Starting", min_workers=1), {"starting": 1}, "Starting", "Starting", ("False", "Starting")),
        (function("Stopped"), {"queued": 1}, "Starting", "Starting", ("True", "ScaledToZero")),
        (function(state="Stopped"), {"draining": 1}, "Stopping", "Stopped", ("False", "Stopped")),
        (function("Stopping", state="Stopped"), {}, "Stopped", "Stopped", ("False", "Stopped")),
        (function(), {"capped": True, "draining": 1}, "Stopping", "MaxCostReached", ("False", "MaxCostReached")),
        (function(), {"capped": True, "queued": 3}, "Stopped", "MaxCostReached", ("False", "MaxCostReached")),
        (function(), {"queued": 1, "lost_worker": True}, "Recovering", "WorkersLost", ("True", "ScaledToZero")),
        (function(), {"lost_worker": True}, "Running", "Idle", ("True", "ScaledToZero")),
        (
            function(),
            {"queued": 1, "start_failures": 5, "failed": True, "failure_message": "ImportError"},
            "Failed",
            "StartupFailed",
            ("False", "StartupFailed"),
        ),
        (
            function(),
            {"idle": 1, "start_failures": 2, "failure_message": "ImportError"},
            "Running",
            "WorkersReady",
            ("False", "StartupFailed"),
        ),
        (
            function(),
            {"idle": 1, "current_ready": 1, "image": ImageUse(state=ImageState.PENDING, reason="ImagePending")},
            "Running",
            "WorkersReady",
            ("True", "WorkersReady"),
        ),
        (
            function(),
            {"idle": 1, "current_ready": 1, "image": ImageUse(state=ImageState.FAILED, reason="ImageBuildFailed")},
            "Running",
            "WorkersReady",
            ("False", "ImageBuildFailed"),
        ),
    ],
)
def test_what_is_seen_becomes_the_words_of_the_protocol(
    document: Document, seen: dict[str, Any], phase: str, reason: str, ready: tuple[str, str]
) -> None:
    status = observed_status(document, Observation(**seen, generation=3), NOW)
    assert (status["phase"], status["reason"], ready_of(status)) == (phase, reason, ready)
    assert status["message"]
    assert status["observedGeneration"] == 3
    assert status["image"] == {"reference": "kept"}


def test_a_function_that_gave_up_says_what_its_worker_told_and_both_ways_out() -> None:
    seen = Observation(queued=1, start_failures=5, failed=True, failure_message="exited with code 1\nImportError: x")
    status = observed_status(function(), seen, NOW)
    [ready] = [condition for condition in status["conditions"] if condition["type"] == "Ready"]
    for message in (status["message"], ready["message"]):
        assert message.startswith("exited with code 1\nImportError: x\n")
        assert "after 5 failed starts: deploy a fix" in message
        assert "`nodus rollout restart function/f`" in message
    trying = observed_status(function(), replace(seen, failed=False, start_failures=2), NOW)
    assert "rollout" not in trying["message"]


@pytest.mark.parametrize(
    ("state", "seen", "phase", "ready"),
    [
        (ImageState.PENDING, {"queued": 1}, "Pending", "False"),
        (ImageState.FAILED, {"queued": 1}, "Failed", "False"),
        # Workers of the version before serve on, and Ready is about the version that was declared.
        (ImageState.PENDING, {"idle": 1}, "Running", "False"),
    ],
)
def test_an_image_that_is_not_there_is_the_reason(
    state: ImageState, seen: dict[str, Any], phase: str, ready: str
) -> None:
    use = ImageUse(state=state, reason="ImageWord", message="why")
    status = observed_status(function(), Observation(image=use, **seen), NOW)
    assert status["phase"] == phase
    assert ready_of(status) == (ready, "ImageWord")


def test_the_image_that_workers_run_is_pinned() -> None:
    use = ImageUse(reference="img@sha256:0", digest="sha256:0")
    status = observed_status(function("Pending"), Observation(image=use), NOW)
    assert (status["phase"], status["image"]) == ("Running", {"reference": "img@sha256:0", "digest": "sha256:0"})


def test_workers_calls_and_cost_are_counted() -> None:
    seen = Observation(
        busy=2, idle=1, starting=1, draining=1, queued=4, running=2, charge_micro_usd=1_230_000,
        burn_micro_usd_per_hour=180_000,
    )  # fmt: skip
    status = observed_status(function(), seen, NOW)
    assert status["workers"] == {"ready": 3, "busy": 2, "idle": 1, "starting": 1, "draining": 1}
    assert status["queue"] == {"queued": 4, "running": 2}
    assert status["cost"] == {"totalUSD": "1.23", "rateUSDPerHour": "0.18"}


def test_what_workers_hold_and_came_to_stands_beside_the_total() -> None:
    sums = {
        "Boot": SegmentSum(amount_micro_usd=100, seconds=10, covered_seconds=5),
        "Running": SegmentSum(amount_micro_usd=300, seconds=60, covered_seconds=0),
    }
    funds = FunctionFunds(held_micro_usd=3_000, funded_until=NOW, segments=sums)
    document = function()
    document["status"] = observed_status(document, Observation(charge_micro_usd=1_000, funds=funds), NOW)
    assert document["status"]["cost"] == {
        "totalUSD": "0.001",
        "rateUSDPerHour": "0.00",
        "heldUSD": "0.003",
        "fundedUntilTime": format_time(NOW),
        # Calls were charged 600 of what is Running.
        "bySegment": {
            "bootUSD": "0.0001", "bootSeconds": 10, "bootCoveredSeconds": 5, "runningUSD": "0.0009",
            "runningSeconds": 60, "coveredByNodus": ["Boot"],
        },
    }  # fmt: skip
    without = observed_status(document, Observation(charge_micro_usd=1_000, funds=FunctionFunds(segments=sums)), NOW)
    assert (without["cost"]["heldUSD"], "fundedUntilTime" in without["cost"]) == ("0.00", False)


def test_a_function_whose_workers_cannot_be_paid_says_what_is_missing() -> None:
    funds = FunctionFunds(needed_micro_usd=600, available_micro_usd=70)
    status = observed_status(function(), Observation(queued=2, lacks_funds=True, funds=funds), NOW)
    [told] = [each for each in status["conditions"] if each["type"] == "Funded"]
    assert (told["status"], told["reason"]) == ("False", "InsufficientCredits")
    assert told["message"].startswith(
        "a worker holds 0.0006 USD at least before it starts and 0.00007 USD are available;"
    )
    assert status["message"] == "waiting for credit to pay a worker"
    status = observed_status({**function(), "status": status}, Observation(), NOW)
    [told] = [each for each in status["conditions"] if each["type"] == "Funded"]
    assert (told["status"], told["reason"]) == ("True", "Funded")


def test_the_warm_estimate_is_there_exactly_while_a_worker_is_ready() -> None:
    cold = Band(p50_seconds=2.345, p90_seconds=12.4)
    document = function()
    document["status"] = observed_status(document, Observation(cold=cold, idle=1), NOW)
    assert document["status"]["estimate"]["startup"] == {
        "cold": {"p50": "2.3s", "p90": "12s"},
        "warm": {"p50": "0.01s", "p90": "0.01s"},
    }
    document["status"] = observed_status(document, Observation(), NOW)
    assert document["status"]["estimate"]["startup"] == {"cold": {"p50": "2.3s", "p90": "12s"}}


def test_a_condition_keeps_its_time_while_its_value_stays() -> None:
    document = function()
    document["status"] = observed_status(document, Observation(idle=1), NOW)
    later = observed_status(document, Observation(), NOW + timedelta(hours=1))
    assert later["conditions"][0]["lastTransitionTime"] == "2026-11-29T12:00:00Z"
    assert later["conditions"][0]["reason"] == "ScaledToZero"


def test_a_function_that_is_being_deleted_keeps_its_last_phase() -> None:
    document = function("Terminating")
    document["metadata"]["deletionTimestamp"] = "2026-11-29T12:00:00Z"
    assert observed_status(document, Observation(draining=1), NOW)["phase"] == "Terminating"


async def test_an_equal_status_writes_nothing(calls: Calls) -> None:
    stored = await calls.function(scaling={"minWorkers": 0})
    key = Key("Function", ORG, PROJECT, "f")
    write = WriteFunctionStatus(key, stored["metadata"]["uid"], Observation(idle=1))
    assert await calls.writer.write(write)
    revision = calls.feed.last_rv
    assert not await calls.writer.write(write)
    assert not await calls.writer.write(WriteFunctionStatus(key, "another", Observation()))
    assert calls.feed.last_rv == revision


def test_a_function_tells_what_its_image_is_pinned_to() -> None:
    def told(image: ImageUse) -> Document:
        status: Document = observed_status(function(), Observation(image=image, generation=3), NOW)
        return dict(status["image"])

    assert told(CATALOG) == {"reference": "kept"}
    pinned = ImageUse(reference="i@sha256:1", digest="sha256:1")
    assert told(pinned) == {"reference": "i@sha256:1", "digest": "sha256:1"}
    assert told(ImageUse(reference="nodus/python:3.11")) == {"reference": "nodus/python:3.11"}
    assert told(ImageUse(state=ImageState.PENDING)) == {"reference": "kept"}
