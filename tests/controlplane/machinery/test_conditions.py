from __future__ import annotations

from datetime import timedelta

from controlplane.machinery.conditions import Condition, with_condition
from tests.fixtures.admission import NOW

LATER = NOW + timedelta(minutes=1)


def test_a_condition_is_added_and_keeps_its_place() -> None:
    first = with_condition([], Condition("Ready", "False", "Starting", "wait", 1), NOW)
    both = with_condition(first, Condition("Funded", "True", "Funded", "paid"), NOW)
    changed = with_condition(both, Condition("Ready", "True", "Ready", "go", 2), LATER)
    assert changed == [
        {
            "type": "Ready",
            "status": "True",
            "reason": "Ready",
            "message": "go",
            "lastTransitionTime": "2026-11-29T11:18:42Z",
            "observedGeneration": 2,
        },
        {
            "type": "Funded",
            "status": "True",
            "reason": "Funded",
            "message": "paid",
            "lastTransitionTime": "2026-11-29T11:17:42Z",
        },
    ]


def test_the_transition_time_moves_only_with_the_status() -> None:
    first = with_condition([], Condition("Ready", "False", "Starting", "wait"), NOW)
    [condition] = with_condition(first, Condition("Ready", "False", "Failed", "broken"), LATER)
    assert condition["reason"] == "Failed"
    assert condition["lastTransitionTime"] == "2026-11-29T11:17:42Z"
