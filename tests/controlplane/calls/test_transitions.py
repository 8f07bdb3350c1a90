"""Phases move along the table only, and every call ends in exactly one of the last ones."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.calls import transitions
from controlplane.calls.decide import Finish
from controlplane.calls.transitions import EDGES, TERMINAL, Ending, Phase
from controlplane.calls.waits import WaitReason
from controlplane.clock import format_time

NOW = datetime(2026, 11, 29, 12, 0, 0, tzinfo=UTC)
LATER = NOW + timedelta(seconds=5)


def call(phase: Phase = Phase.QUEUED, **status: Any) -> dict[str, Any]:
    conditions = [
        {
            "type": "Scheduled",
            "status": "False",
            "reason": "Queued",
            "message": "",
            "lastTransitionTime": "2026-11-29T11:00:00Z",
        },
        {
            "type": "Funded",
            "status": "True",
            "reason": "Funded",
            "message": "",
            "lastTransitionTime": "2026-11-29T11:00:00Z",
        },
    ]
    return {
        "metadata": {"name": "c"},
        "status": {"phase": str(phase), "retries": 0, "recoveries": 0, "conditions": conditions, **status},
    }


def ending(phase: Phase) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda document: transitions.ended(document, NOW, Ending(finish=Finish(phase=phase)), 10)


MOVES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "claimed": lambda document: transitions.claimed(document, NOW, attempt="att_1", epoch=1),
    "returned": lambda document: transitions.returned_to_queue(document, NOW),
    "retry": lambda document: transitions.retry_scheduled(document, NOW, retries=1, message="m", cost_micro_usd=10),
    "recovering": lambda document: transitions.recovering(document, NOW, recoveries=1, message="m", cost_micro_usd=10),
    "offered": lambda document: transitions.offered(document, NOW, alone=False),
    "cancelling": lambda document: transitions.cancelling(document, NOW),
    **{f"end {phase}": ending(phase) for phase in TERMINAL},
}


@given(st.lists(st.sampled_from(sorted(MOVES)), max_size=40))
def test_no_path_leaves_a_last_phase_or_skips_the_table(moves: list[str]) -> None:
    document = call()
    for move in moves:
        before = transitions.phase_of(document)
        try:
            document = MOVES[move](document)
        except AssertionError:
            continue
        after = transitions.phase_of(document)
        assert after in EDGES[before]
        assert before not in TERMINAL
    ended = transitions.is_terminal(document)
    assert ended == ("completionTime" in document["status"])


def test_every_phase_can_reach_an_end_and_ends_reach_nothing() -> None:
    for phase in Phase:
        reached, frontier = {phase}, [phase]
        while frontier:
            for successor in EDGES[frontier.pop()] - reached:
                reached.add(successor)
                frontier.append(successor)
        assert reached & TERMINAL
        assert phase not in TERMINAL or EDGES[phase] == frozenset()


@pytest.mark.parametrize("phase", sorted(TERMINAL))
def test_moving_an_ended_call_is_a_bug(phase: Phase) -> None:
    with pytest.raises(AssertionError, match="is no transition"):
        transitions.claimed(call(phase), NOW, attempt="att_1", epoch=1)


def test_a_claim_binds_the_worker_and_schedules() -> None:
    running = transitions.claimed(call(), NOW, attempt="att_1", epoch=7)
    status = running["status"]
    assert status["worker"] == {"attempt": "att_1", "epoch": 7}
    assert status["startTime"] == "2026-11-29T12:00:00Z"
    scheduled = next(c for c in status["conditions"] if c["type"] == "Scheduled")
    assert (scheduled["status"], scheduled["lastTransitionTime"]) == ("True", "2026-11-29T12:00:00Z")
    assert [c["type"] for c in status["conditions"]] == ["Scheduled", "Funded"]


def test_a_condition_keeps_its_transition_time_while_its_value_stays() -> None:
    queued = transitions.retry_scheduled(
        transitions.claimed(call(), NOW, attempt="a", epoch=1), NOW, retries=1, message="m", cost_micro_usd=1
    )
    offered = transitions.offered(queued, LATER, alone=False)
    scheduled = next(c for c in offered["status"]["conditions"] if c["type"] == "Scheduled")
    assert scheduled["lastTransitionTime"] == "2026-11-29T12:00:00Z"
    assert scheduled["reason"] == "Queued"


def test_a_remote_error_puts_type_and_message_into_the_status_line() -> None:
    running = transitions.claimed(call(), NOW, attempt="a", epoch=1)
    error = {"type": "ValueError", "message": "boom", "traceback": "Traceback …"}
    ended = transitions.ended(
        running, LATER, Ending(finish=Finish(phase="Failed", reason="RemoteError"), error=error), 40
    )
    status = ended["status"]
    assert (status["phase"], status["reason"], status["message"]) == ("Failed", "RemoteError", "ValueError: boom")
    assert status["error"] == error
    assert (status["costUSD"], status["completionTime"]) == ("0.00004", "2026-11-29T12:00:05Z")
    assert status["worker"] == {"attempt": "a", "epoch": 1}


def test_a_result_is_kept_only_by_a_success() -> None:
    running = transitions.claimed(call(), NOW, attempt="a", epoch=1)
    ending = Ending(finish=Finish(phase="Cancelled", reason="Cancelled"), result={"encoding": "Pickle", "inline": ""})
    assert "result" not in transitions.ended(running, NOW, ending, 0)["status"]


def test_the_document_that_was_moved_is_not_changed() -> None:
    document = call()
    before = repr(document)
    transitions.claimed(document, NOW, attempt="a", epoch=1)
    transitions.cancelling(transitions.claimed(document, NOW, attempt="a", epoch=1), NOW)
    assert repr(document) == before


def test_a_call_that_waits_for_money_is_not_funded_until_a_dispatch_has_reserved_for_it() -> None:
    waits = transitions.waiting(call(), NOW, WaitReason.UNFUNDED, "no money")

    def funded(document: dict[str, Any]) -> tuple[str, str, str]:
        [told] = [each for each in document["status"]["conditions"] if each["type"] == "Funded"]
        return told["status"], told["reason"], told["lastTransitionTime"]

    assert funded(waits) == ("False", "Unfunded", format_time(NOW))
    assert funded(transitions.waiting(waits, LATER, WaitReason.UNFUNDED, "no money")) == funded(waits)
    # That it waits for something else does not say that it can be paid for.
    assert funded(transitions.waiting(waits, LATER, WaitReason.NO_ROOM, "no room")) == funded(waits)
    assert funded(transitions.waiting(call(), NOW, WaitReason.MAX_COST_REACHED, "cap"))[:2] == (
        "False", "MaxCostReached",
    )  # fmt: skip
    assert funded(transitions.claimed(waits, LATER, attempt="att_1", epoch=1))[:2] == ("True", "Funded")
    assert funded(transitions.claimed(call(), LATER, attempt="att_1", epoch=1))[2] == "2026-11-29T11:00:00Z"
