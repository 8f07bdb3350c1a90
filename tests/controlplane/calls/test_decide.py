"""The decision after a dispatch, as a table."""

from __future__ import annotations

import ast
import inspect
import sys
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import controlplane.calls.decide as module
from controlplane.calls.decide import Cause, Facts, Finish, Recover, Retry, decide, retry_delay_seconds


def facts(cause: Cause, **rest: Any) -> Facts:
    return Facts(call_uid="fnc_1", cause=cause, dispatch=1, **rest)


@pytest.mark.parametrize(
    ("given_facts", "phase", "reason"),
    [
        (facts(Cause.SUCCEEDED), "Succeeded", ""),
        (facts(Cause.RAISED), "Failed", "RemoteError"),
        (facts(Cause.RAISED, retries=2, retries_max=2), "Failed", "RemoteError"),
        (facts(Cause.DEADLINE, retries_max=9), "Failed", "DeadlineExceeded"),
        (facts(Cause.CANCELLED), "Cancelled", "Cancelled"),
        (facts(Cause.LOST, recoveries=3, recoveries_max=3), "Failed", "RecoveryLimitExceeded"),
        (facts(Cause.LOST, fail_on_loss=True), "Failed", "RecoveryLimitExceeded"),
        (facts(Cause.BAD_RESULT, reason="ResultTooLarge", retries_max=9), "Failed", "ResultTooLarge"),
        (facts(Cause.FUNCTION_DELETED, retries_max=9), "Failed", "FunctionDeleted"),
        (facts(Cause.UNSERIALIZABLE, retries_max=9), "Failed", "RemoteError"),
        (facts(Cause.UNSERVED, retries_max=9, recoveries_max=9), "Failed", "CapacityUnavailable"),
        (facts(Cause.LOST, unproven=True, fail_on_loss=True), "Failed", "RecoveryLimitExceeded"),
        (facts(Cause.LOST, recoveries=4, excused=True, recoveries_max=3), "Failed", "RecoveryLimitExceeded"),
    ],
)
def test_what_cannot_go_on_ends(given_facts: Facts, phase: str, reason: str) -> None:
    decision = decide(given_facts)
    assert isinstance(decision, Finish)
    assert (decision.phase, decision.reason) == (phase, reason)


@pytest.mark.parametrize("cause", list(Cause))
def test_a_cancel_that_was_asked_for_wins_over_every_outcome(cause: Cause) -> None:
    decision = decide(facts(cause, cancel_requested=True, retries_max=9))
    assert decision == Finish(phase="Cancelled", reason="Cancelled", message="the call was cancelled")


def test_retries_and_recoveries_have_limits_of_their_own() -> None:
    assert isinstance(decide(facts(Cause.RAISED, retries=1, retries_max=2, recoveries=3, recoveries_max=3)), Retry)
    assert decide(facts(Cause.LOST, retries=2, retries_max=2, recoveries=2, recoveries_max=3)) == Recover()


def test_a_loss_that_nobody_can_be_blamed_for_does_not_count_towards_the_limit() -> None:
    assert decide(facts(Cause.LOST, unproven=True, recoveries=3, recoveries_max=3)) == Recover()
    assert decide(facts(Cause.LOST, excused=True, recoveries=3, recoveries_max=3)) == Recover()


def test_delays_grow_by_the_coefficient_up_to_the_cap() -> None:
    delays = [
        retry_delay_seconds(
            facts(Cause.RAISED, retries=used, retries_max=4, initial_delay_seconds=1.0, max_delay_seconds=3.0)
        )
        for used in range(4)
    ]
    assert delays == [1.0, 2.0, 3.0, 3.0]


@given(
    retries=st.integers(0, 10),
    initial=st.floats(0, 3_600),
    coefficient=st.floats(1, 10),
    cap=st.floats(0, 86_400),
    jitter=st.floats(0, 1),
)
def test_a_delay_is_bounded_and_the_same_each_time_it_is_asked_for(
    retries: int, initial: float, coefficient: float, cap: float, jitter: float
) -> None:
    asked = facts(
        Cause.RAISED,
        retries=retries,
        retries_max=11,
        initial_delay_seconds=initial,
        backoff_coefficient=coefficient,
        max_delay_seconds=cap,
        jitter_fraction=jitter,
    )
    delay = retry_delay_seconds(asked)
    unjittered = min(cap, initial * coefficient**retries)
    assert unjittered <= delay <= unjittered * (1 + jitter) * (1 + 1e-9)
    assert decide(asked) == decide(Facts.from_json(asked.to_json())) == Retry(delay)


def test_calls_that_failed_together_do_not_return_together() -> None:
    delays = [
        retry_delay_seconds(Facts(call_uid=f"fnc_{n}", cause=Cause.RAISED, dispatch=1, jitter_fraction=0.1))
        for n in range(1_000)
    ]
    assert len(set(delays)) == 1_000
    # They are spread over all of the tenth of a second that the jitter takes: 100 of them in each of its tenths.
    in_each_tenth = Counter(int((delay - 1.0) * 100) for delay in delays)
    assert set(in_each_tenth) == set(range(10))
    assert max(in_each_tenth.values()) < 150


def test_facts_of_a_newer_server_are_read_by_an_older_one() -> None:
    value = facts(Cause.LOST, recoveries=2).to_json() | {"weather": "rain"}
    assert Facts.from_json(value) == facts(Cause.LOST, recoveries=2)


def test_the_rule_imports_nothing_but_the_standard_library() -> None:
    source = ast.parse(inspect.getsource(module))
    imported = {node.module for node in ast.walk(source) if isinstance(node, ast.ImportFrom)}
    imported |= {alias.name for node in ast.walk(source) if isinstance(node, ast.Import) for alias in node.names}
    assert imported <= set(sys.stdlib_module_names)
